"""How all figures look, and how they are written."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory_mosaics.errors import UserError
from memory_mosaics.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From Okabe and Ito's palette, which colour-blind readers can tell apart.
ORANGE, GREEN, BLUE, GREY, INK = "#D55E00", "#009E73", "#0072B2", "#7F7F7F", "#222222"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#BBBBBB",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}


def available() -> bool:
    """Whether figures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def check() -> None:
    """Say what to install if figures cannot be drawn: before a study begins, not after."""
    if not available():
        raise UserError("figures need matplotlib, which is not installed: pip install 'memory-mosaics[plot]'")


def canvas(rows: int, columns: int, width: float, height: float, title: str) -> tuple["Figure", list[list["Axes"]]]:
    """A figure with a title and rows of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    figure.suptitle(title, fontweight="bold", x=0.01, ha="left")
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def save(figure: "Figure", file: Path) -> None:
    """Write a PNG whole or not at all."""
    with atomic_write(file) as tmp:
        figure.savefig(tmp, format="png")
