"""Figures, drawn from results.json alone. The only module that imports matplotlib; it never trains or loads a model."""

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memory_mosaics.errors import UserError, one_line

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


def check() -> None:
    """Say what to install if figures cannot be drawn: before a study begins, not after."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib, which is not installed: pip install 'memory-mosaics[plot]'")


def induction(results: dict[str, Any], file: Path) -> None:
    """Accuracy where the trigger has been seen: against training steps on the left, at the end on the right."""
    check()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    colours = {"memory": ORANGE, "transformer-1-shifted": GREEN, "transformer-2": BLUE, "transformer-1": GREY}
    models = {name: results["models"][name] for name in colours if name in results["models"]}
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 3.9), dpi=200)
        figure.text(0.012, 0.93, _induction_title(models), fontsize=14, fontweight="bold")
        edges = {"left": 0.065, "right": 0.985, "bottom": 0.125, "top": 0.81, "wspace": 0.1}
        left, right = figure.subplots(1, 2, width_ratios=(1.45, 1), gridspec_kw=edges)
        _learning(left, models, colours, results["rules"])
        _final(right, models, colours)
        save(figure, file)


def _induction_title(models: dict[str, Any]) -> str:
    """The finding, if these results show it."""
    final = {name: record["final"]["accuracy"] for name, record in models.items() if "final" in record}
    if final.get("memory", 0) > 0.95 and final.get("transformer-1", 1) < 0.8 and final.get("transformer-2", 0) > 0.9:
        return "One block of memory solves induction; attention needs two, or shifted keys"
    return "Induction: accuracy where the trigger has been seen before"


def _learning(axes: "Axes", models: dict[str, Any], colours: dict[str, str], rules: dict[str, Any]) -> None:
    for name, record in reversed(models.items()):
        points = [(step, accuracy) for step, _, accuracy in record["curve"] if step > 0]  # the axis is logarithmic
        axes.plot(*zip(*points, strict=True), color=colours[name], linewidth=2.6 if name == "memory" else 2.0)
    last = max((record["curve"][-1][0] for record in models.values() if record["curve"]), default=1)
    for name, x, note in (
        ("token-memory", 0.01, "what followed earlier"),
        ("bigram", 0.99, "bigrams alone"),
    ):
        level = rules[name]["final"]["accuracy"]
        axes.axhline(level, color="#888888", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        style = {"ha": "left" if x < 0.5 else "right", "fontsize": 8.5, "color": "#666666"}
        axes.text(x, level + 0.015, f"rule: {note}", transform=axes.get_yaxis_transform(), **style)
    first = min(4, last / 2)
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000) if first <= tick <= last]
    axes.set(xscale="log", xlim=(first, last * 1.03), ylim=(0, 1.08), xlabel="training steps")
    axes.set_xticks(ticks, labels=[f"{tick:,}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_title("accuracy where the trigger has been seen before", loc="left", fontsize=10.5)


def _final(axes: "Axes", models: dict[str, Any], colours: dict[str, str]) -> None:
    done = {name: record for name, record in models.items() if "final" in record}
    for row, (name, record) in enumerate(done.items()):
        accuracy = record["final"]["accuracy"]
        axes.barh(row, accuracy, height=0.3, color=colours[name])
        axes.text(0, row - 0.24, record["label"], color=colours[name], fontweight="bold", fontsize=9.5)
        axes.text(accuracy + 0.02, row, f"{accuracy:.3f}", va="center", fontweight="bold", fontsize=10.5)
        axes.text(0.015, row + 0.01, f"{record['parameters']:,} parameters", va="center", color="white", fontsize=8)
    axes.set(xlim=(0, 1.17), ylim=(len(colours) - 0.6, -0.55), xticks=[], yticks=[])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title("at the end of training", loc="left", fontsize=10.5)


def save(figure: "Figure", file: Path) -> None:
    """Write a PNG whole or not at all."""
    aside = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        figure.savefig(aside, format="png")
        aside.replace(file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {one_line(error)}") from error
    finally:
        aside.unlink(missing_ok=True)
