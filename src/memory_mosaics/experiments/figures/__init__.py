"""Figures, drawn from results.json alone. Only this package imports matplotlib; it never trains or loads a model."""

from memory_mosaics.experiments.figures.draw import draw, draw_if_possible, names
from memory_mosaics.experiments.figures.style import GREY, available, check

__all__ = ["GREY", "available", "check", "draw", "draw_if_possible", "names"]
