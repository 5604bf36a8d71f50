"""Figures of the benchmarks: speed, time and memory against the length of sequences, and the profile of a step."""

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from memory_mosaics.experiments.figures import COLOURS, GREY, INK, LABELS, STYLE, canvas, legend_below, set_panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS: dict[str, str] = STYLE["kinds"]  # colours


def speed(results: dict[str, Any]) -> "Figure | None":
    """Tokens per second as bars: training on the left, decoding on the right, whichever was measured."""
    panels = {
        title: rows
        for name, title in (("train", "training"), ("decode", "decoding"))
        if (rows := [row for row in results.get(name, {}).get("rows", ()) if row["tokens_per_second"]])
    }
    if not panels:
        return None
    longest = max(map(len, panels.values()))
    figure, [axes] = canvas(1, len(panels), 6.4 * len(panels), 0.4 * longest + 1.4, "Speed, tokens/s")
    for panel, (title, rows) in zip(axes, panels.items(), strict=True):
        _plot_speeds(panel, rows)
        set_panel_title(panel, title)
    return figure


def _plot_speeds(axes: "Axes", rows: list[dict[str, Any]]) -> None:
    """Plot bars. Speeds differ by orders of magnitude between sizes, so each size has a scale of its own."""
    sizes = [(row.get("size"), row["batch"], row.get("context")) for row in rows]
    fastest: dict[Any, float] = {}
    for size, row in zip(sizes, rows, strict=True):
        fastest[size] = max(fastest.get(size, 0), row["tokens_per_second"])
    heights = [number + 0.5 * list(fastest).index(size) for number, size in enumerate(sizes)]
    lengths = [row["tokens_per_second"] / fastest[size] for size, row in zip(sizes, rows, strict=True)]
    bars = axes.barh(heights, lengths, color=[COLOURS.get(row["model"], GREY) for row in rows], height=0.7)
    axes.bar_label(bars, [f"{row['tokens_per_second']:,.0f}" for row in rows], padding=4, fontsize=9)
    shapes = [f"{size}, {batch} x {time}" if size else f"batch {batch}" for size, batch, time in sizes]
    axes.set_yticks(heights, labels=[f"{_label(row)}, {shape}" for row, shape in zip(rows, shapes, strict=True)])
    axes.set(ylim=(heights[-1] + 0.6, -0.6), xlim=(0, 1.25), xticks=[])
    axes.spines[["bottom"]].set_visible(False)


def _label(row: dict[str, Any]) -> str:
    return str(LABELS.get(row["model"], row["label"]))


def memory(results: dict[str, Any]) -> "Figure | None":
    """Time per token, and peak memory where it was measured, against T at the same number of tokens per step."""
    rows = [row for row in results.get("memory", {}).get("rows", ()) if row["tokens_per_second"]]
    if not rows:
        return None
    counted = any(row.get("peak_gib") is not None for row in rows)
    title = f"{rows[0]['batch'] * rows[0]['context']:,} tokens per step in sequences of T"
    figure, [axes] = canvas(1, 2 if counted else 1, 11.0 if counted else 6.2, 3.8, title)
    _plot_against_time(axes[0], rows, "microseconds", "o-", "")
    _plot_against_time(axes[0], rows, "rest_microseconds", "o:", " without recall")
    axes[0].set_ylabel("microseconds per token")
    if counted:
        _plot_against_time(axes[1], rows, "peak_gib", "o-", "")
        axes[1].set_ylabel("peak memory, GiB")
    for panel in axes:
        panel.set_xscale("log", base=2)
        lengths = sorted({row["context"] for row in rows})
        panel.set_xticks(lengths, labels=[str(length) for length in lengths])
        panel.set(xlabel="T", ylim=(0, 1.08 * panel.dataLim.y1))
        panel.legend(fontsize=9)
    return figure


def _plot_against_time(axes: "Axes", rows: list[dict[str, Any]], field: str, style: str, suffix: str) -> None:
    for name, label in {row["model"]: _label(row) for row in rows}.items():
        points = [(row["context"], row[field]) for row in rows if row["model"] == name and row.get(field) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, color=COLOURS.get(name, GREY), label=label + suffix)


def profile(results: dict[str, Any]) -> "Figure | None":
    """One panel per step, whose times differ by orders of magnitude; one bar per model, split by kind of operation."""
    from matplotlib.patches import Patch

    rows = results.get("profile", {}).get("rows", ())
    steps = list(dict.fromkeys(row["step"] for row in rows))
    if not steps:
        return None
    counts = [len({row["model"] for row in rows if row["step"] == step}) for step in steps]
    height = sum(0.5 * count + 0.75 for count in counts) + 1.4
    figure, panels = canvas(len(steps), 1, 10.5, height, "Where the time of one step goes, milliseconds")
    for [axes], step in zip(panels, steps, strict=True):
        _plot_profile(axes, [row for row in rows if row["step"] == step])
    shown = {kind: colour for kind, colour in KINDS.items() if any(row["kind"] == kind for row in rows)}
    edges = {"idle": "#BBBBBB"}
    patches = [Patch(facecolor=colour, edgecolor=edges.get(kind, colour)) for kind, colour in shown.items()]
    legend_below(figure, patches, list(shown), columns=4)
    return figure


def _plot_profile(axes: "Axes", rows: list[dict[str, Any]]) -> None:
    """Plot stacked bars, with a number in each segment that is wide enough for it, and the sum at the end."""
    labels = {row["model"]: _label(row) for row in rows}
    totals = [sum(row["ms"] for row in rows if row["model"] == name) for name in labels]
    limit = 1.12 * max(totals)
    digits = max(0, 2 - math.floor(math.log10(max(totals))))
    for height, name in enumerate(labels):
        times = {row["kind"]: row["ms"] for row in rows if row["model"] == name}
        shown = {kind: times[kind] for kind in KINDS if times.get(kind)}
        for left, (kind, time) in zip(accumulate(shown.values(), initial=0.0), shown.items(), strict=False):
            bar = axes.barh(height, time, left=left, color=KINDS[kind], edgecolor="white", linewidth=0.6, height=0.66)
            if time / limit > 0.009 * len(text := f"{time:.{digits}f}") + 0.006:
                ink = INK if kind in STYLE["pale"] else "white"
                axes.bar_label(bar, [text], label_type="center", color=ink, fontsize=8.5)
        where: Any = {"textcoords": "offset points", "va": "center", "fontweight": "bold"}
        axes.annotate(f"{totals[height]:.{digits}f}", (totals[height], height), (5, 0), **where)
    first = rows[0]
    shape = f"{first['batch']} x {first['context']} tokens"
    if first["step"] == "decoding":
        shape = f"batch {first['batch']}, capacity {first['context']} tokens"
    set_panel_title(axes, f"{first['step']}: {first['size']}, {shape}")
    axes.set_yticks(range(len(labels)), labels=list(labels.values()))
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlim=(0, limit), xticks=[])
    axes.tick_params(left=False)
    axes.spines[["bottom", "left"]].set_visible(False)


FIGURES = {"bench": {"speed.png": speed, "memory.png": memory, "profile.png": profile}}
