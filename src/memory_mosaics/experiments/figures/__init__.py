"""Figures, drawn from results.json alone. Only this package imports matplotlib; it never trains or loads a model.

Each module has a table FIGURES: experiment -> file name -> function that draws it from the results.
"""

import importlib.util
from collections.abc import Iterable, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from memory_mosaics.errors import UserError
from memory_mosaics.files import atomic_write
from memory_mosaics.models import ARCHITECTURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("style.yaml").read_text(encoding="utf-8"))
ORANGE, GREEN, BLUE, GREY, INK = "#D55E00", "#009E73", "#0072B2", "#7F7F7F", "#222222"
DASHED = (0, (4, 3))
FORMATS: dict[str, Any] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}  # and metadata
COLOURS: dict[str, str] = STYLE["architectures"]
LABELS = {name: architecture.label for name, architecture in ARCHITECTURES.items()}


def colours_of(architectures: Iterable[str]) -> dict[str, str]:
    """Return a colour for each: those that are not in the table of models take others in turn."""
    others = cycle(STYLE["others"])
    return {name: COLOURS[name] if name in COLOURS else next(others) for name in architectures}


def available() -> bool:
    """Return whether figures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def check() -> None:
    """Raise an error that names what to install if figures cannot be drawn: before an experiment starts, not after."""
    if not available():
        raise UserError("figures need matplotlib, which is not installed: pip install 'memory-mosaics[plot]'")


def tables() -> dict[str, Any]:
    """Return the figures of all experiments: by file name, or a function that returns them for given results."""
    # these import the helpers below
    from memory_mosaics.experiments.figures import arena, language, speed, stores, tasks

    return language.FIGURES | tasks.FIGURES | speed.FIGURES | stores.FIGURES | arena.FIGURES


def names(experiment: str) -> list[str]:
    """Return the file names of an experiment's figures that do not depend on its results; none without figures."""
    table = tables().get(experiment, {})
    figures = table if isinstance(table, dict) else table({"tasks": {}})
    return [str(Path(name).with_suffix(suffix)) for name in figures for suffix in FORMATS]


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw all figures of an experiment from the content of its results.json, and return the PNG files.

    A PDF and an SVG of the same name are beside each. The figure of something that was not run is not drawn, and
    removed if an earlier run left it.
    """
    check()
    from matplotlib import rc_context

    experiment = results.get("study")
    if experiment not in tables():
        raise UserError(f"no figures are known of an experiment {experiment!r}; there are {', '.join(tables())}")
    if experiment in ("curves", "sweep") and not any(
        row["valid_loss"] for row in results.get("runs", results.get("rows", ()))
    ):
        raise UserError("there is nothing to draw: no run came to an end")
    if experiment in ("evaluate", "attention") and not results["models"]:
        raise UserError("there is nothing to draw: it was stopped before its first model was measured")
    with rc_context(STYLE["settings"]):
        table: Any = tables()[experiment]
        functions = table if isinstance(table, dict) else table(results)
        figures = {folder / name: function(results) for name, function in functions.items()}
        for (file, figure), (suffix, metadata) in product(figures.items(), FORMATS.items()):
            if figure is None:
                file.with_suffix(suffix).unlink(missing_ok=True)
            else:
                with atomic_write(file.with_suffix(suffix)) as tmp:
                    figure.savefig(tmp, format=suffix[1:], metadata=metadata)
    return [file for file, figure in figures.items() if figure is not None]


def draw_if_possible(results: dict[str, Any], folder: Path) -> str:
    """Draw all figures of an experiment, and return a sentence that names them or says why there are none."""
    if not available():
        return "No figures: matplotlib is not installed here; mosaics draw makes them from results.json."
    names = ", ".join(file.name for file in draw(results, folder))
    return f"Figures: {names}, and as .pdf and .svg." if names else "Figures: none."


def canvas(rows: int, columns: int, width: float, height: float, title: str) -> tuple["Figure", list[list["Axes"]]]:
    """Create a figure with a title and rows of axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    figure.suptitle(title, fontweight="bold", x=0.01, ha="left")
    return figure, figure.subplots(rows, columns, squeeze=False).tolist()


def set_panel_title(axes: "Axes", title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10.5)


def set_log_ticks(axes: "Axes", ticks: Sequence[float], form: str = ",") -> None:
    """Label these ticks of a logarithmic x axis, and no others."""
    axes.set_xticks(ticks, labels=[f"{tick:{form}}" for tick in ticks])
    axes.set_xticks([], minor=True)


def legend_below(figure: "Figure", *handles: Any, columns: int = 2) -> None:
    """Add one legend for all panels."""
    figure.legend(*handles, loc="outside lower left", ncols=columns, fontsize=9)
