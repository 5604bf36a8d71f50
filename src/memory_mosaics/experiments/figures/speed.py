"""Figures of the benchmarks: speed of training and decoding, time and memory against the length of sequences, and
where the time of a step goes.
"""

import math
from typing import TYPE_CHECKING, Any

from memory_mosaics.experiments.figures.language import COLOURS, LABELS
from memory_mosaics.experiments.figures.style import GREY, INK, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What is recalled is orange, what is remembered green; the others are as far apart as eleven colours can be.
KINDS = {
    "matrix products": "#0072B2",
    "recall from the context": "#D55E00",
    "persistent recall": "#E69F00",
    "keys (leaky average)": "#009E73",
    "values (taps)": "#8CCFB4",
    "norms, residuals and the like": "#56B4E9",
    "loss over the vocabulary": "#CC79A7",
    "optimiser": "#6A4C93",
    "copies and casts": "#B8A13A",
    "the rest": "#9A9A9A",
    "idle": "#ECECEC",
}
PALE = ("persistent recall", "values (taps)", "norms, residuals and the like", "idle")  # dark words stand out on them


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
        _bars(panel, rows)
        panel.set_title(title, loc="left", fontsize=10.5)
    return figure


def _bars(axes: "Axes", rows: list[dict[str, Any]]) -> None:
    """Speeds differ by orders of magnitude between sizes: the bars of each size have a scale of their own."""
    group_of = [(row.get("size"), row["batch"], row.get("time")) for row in rows]
    groups = list(dict.fromkeys(group_of))
    places = [place + 0.5 * groups.index(group) for place, group in enumerate(group_of)]
    for place, row, group in zip(places, rows, group_of, strict=True):
        fastest = max(each["tokens_per_second"] for each, of in zip(rows, group_of, strict=True) if of == group)
        length = row["tokens_per_second"] / fastest
        axes.barh(place, length, color=COLOURS.get(row["model"], GREY), height=0.7)
        words = f"{row['tokens_per_second']:,.0f}"
        axes.annotate(words, (length, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    words = [
        f"{_label(row)}, {row['size']}, {row['batch']} x {row['time']}"
        if "size" in row
        else f"{_label(row)}, batch {row['batch']}"
        for row in rows
    ]
    axes.set_yticks(places, labels=words)
    axes.set(ylim=(places[-1] + 0.6, -0.6), xlim=(0, 1.25), xticks=[])
    axes.spines[["bottom"]].set_visible(False)


def _label(row: dict[str, Any]) -> str:
    return str(LABELS.get(row["model"], row["label"]))


def memory(results: dict[str, Any]) -> "Figure | None":
    """Against T, at one number of tokens per step: time per token, and peak memory where it was counted."""
    rows = [row for row in results.get("memory", {}).get("rows", ()) if row["tokens_per_second"]]
    if not rows:
        return None
    counted = any(row.get("peak_gib") is not None for row in rows)
    tokens = rows[0]["batch"] * rows[0]["time"]
    title = f"{tokens:,} tokens per step in sequences of T"
    figure, [axes] = canvas(1, 2 if counted else 1, 11.0 if counted else 6.2, 3.8, title)
    _lines(axes[0], rows, "microseconds", "o-", "")
    _lines(axes[0], rows, "rest_microseconds", "o:", " without recall")
    axes[0].set_ylabel("microseconds per token")
    if counted:
        _lines(axes[1], rows, "peak_gib", "o-", "")
        axes[1].set_ylabel("peak memory, GiB")
    for panel in axes:
        panel.set_xscale("log", base=2)
        times = sorted({row["time"] for row in rows})
        panel.set_xticks(times, labels=[str(time) for time in times])
        panel.set(xlabel="T", ylim=(0, 1.08 * panel.dataLim.y1))
        panel.legend(frameon=False, fontsize=9)
    return figure


def _lines(axes: "Axes", rows: list[dict[str, Any]], what: str, style: str, words: str) -> None:
    for name, label in {row["model"]: _label(row) for row in rows}.items():
        points = [(row["time"], row[what]) for row in rows if row["model"] == name and row.get(what) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, color=COLOURS.get(name, GREY), label=label + words)


def profile(results: dict[str, Any]) -> "Figure | None":
    """One bar a step and model, cut into what its time goes to. Steps differ by orders of magnitude: a panel each."""
    rows = results.get("profile", {}).get("rows", ())
    steps = list(dict.fromkeys(row["step"] for row in rows))
    if not steps:
        return None
    counts = [len({row["model"] for row in rows if row["step"] == step}) for step in steps]
    height = sum(0.5 * count + 0.75 for count in counts) + 1.4
    figure, panels = canvas(len(steps), 1, 10.5, height, "Where the time of one step goes, milliseconds")
    for [axes], step in zip(panels, steps, strict=True):
        _stacks(axes, [row for row in rows if row["step"] == step])
    there = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    figure.legend(
        handles=[_patch(kind) for kind in there], loc="outside lower left", ncols=4, frameon=False, fontsize=9
    )
    return figure


def _patch(kind: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=KINDS[kind], edgecolor="#BBBBBB" if kind == "idle" else KINDS[kind], label=kind)


def _stacks(axes: "Axes", rows: list[dict[str, Any]]) -> None:
    """A number stands inside a segment that is wide enough for it, and the sum at the end."""
    labels = {row["model"]: _label(row) for row in rows}
    totals = {name: sum(row["ms"] for row in rows if row["model"] == name) for name in labels}
    room = 1.12 * max(totals.values())
    digits = max(0, 2 - math.floor(math.log10(max(totals.values()))))
    for height, name in enumerate(labels):
        left = 0.0
        times = {row["kind"]: row["ms"] for row in rows if row["model"] == name}
        for kind, colour in KINDS.items():
            if not times.get(kind):
                continue
            axes.barh(height, times[kind], left=left, color=colour, edgecolor="white", linewidth=0.6, height=0.66)
            words = f"{times[kind]:.{digits}f}"
            if times[kind] / room > 0.009 * len(words) + 0.006:
                ink = INK if kind in PALE else "white"
                axes.text(left + times[kind] / 2, height, words, ha="center", va="center", color=ink, fontsize=8.5)
            left += times[kind]
        axes.annotate(
            f"{left:.{digits}f}", (left, height), (5, 0), textcoords="offset points", va="center", fontweight="bold"
        )
    first = rows[0]
    about = f"{first['batch']} x {first['time']} tokens"
    if first["step"] == "decoding":
        about = f"batch {first['batch']}, room for {first['time']} tokens"
    axes.set_title(f"{first['step']}: {first['size']}, {about}", loc="left", fontsize=10.5)
    axes.set_yticks(range(len(labels)), labels=list(labels.values()))
    axes.set(ylim=(len(labels) - 0.5, -0.5), xlim=(0, room), xticks=[])
    axes.tick_params(left=False)
    axes.spines[["bottom", "left"]].set_visible(False)
