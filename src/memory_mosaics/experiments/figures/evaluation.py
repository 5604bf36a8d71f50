"""Figures of trained models: loss by position (figures 2 and 8), and attention (appendix D.4)."""

import math
from collections.abc import Iterable
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any

from memory_mosaics.errors import UserError
from memory_mosaics.experiments.figures.language import COLOURS, LABELS
from memory_mosaics.experiments.figures.style import GREY, INK, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", ":", "-.")  # tell models of one kind, which share a colour, apart
SETTLED = 8  # positions at the beginning, hardly smoothed, that do not choose how much of the axis is shown


def loss_by_position(results: dict[str, Any]) -> "Figure":
    """One line a model, smoothed for the eye, and the 95 % confidence band of that line."""
    models = [model for model in results["models"] if "by_position" in model]
    if not models:
        raise UserError("there is nothing to draw: no loss by position was kept; measure with --by-position")
    title = f"Loss by position: {results['corpus']}, {results['windows']:,} windows"
    bands = (
        "mean and 95 % interval over seeds" if "seeds" in models[0] else "one training each, 95 % bands over windows"
    )
    figure, [[axes]] = canvas(1, 1, 8.4, 4.8, title)
    lows, highs = [], []
    for model, (colour, dash) in zip(models, _styles(models), strict=True):
        read = len(model["smoothed"])
        mean = model["smoothed"][
            : read - results["length"] // 100
        ]  # the very last are smoothed over fewer positions, and jump
        within = (model["smoothed_within"] or [0.0] * read)[: len(mean)]
        low, high = ([m + sign * w for m, w in zip(mean, within, strict=True)] for sign in (-1, 1))
        short = f" up to {read}" if read < results["length"] else ""
        label = f"{_label(model)}: {model['loss']:.3f}{short}"
        axes.plot(range(len(mean)), mean, dash, color=colour, linewidth=1.6, label=label)
        axes.fill_between(range(len(mean)), low, high, color=colour, alpha=0.18, linewidth=0)
        lows += low[SETTLED:] or low
        highs += high[SETTLED:] or high
    bottom, top = min(lows), max(highs)
    bottom, top = _anchors(axes, results.get("anchors", ()), bottom, top)
    axes.set(xlabel=f"position in the window ({bands})", ylabel="nats per token", xlim=(0, results["length"]))
    room = 0.04 * (top - bottom) or 0.1
    axes.set_ylim(bottom - room, top + room)
    for context in {model["context"] for model in models if model["context"] < results["length"]}:
        axes.axvline(context, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
        where: Any = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
        axes.annotate("trained up to here", (context, 0.02), (4, 0), color=GREY, fontsize=9, **where)
    figure.legend(frameon=False, loc="outside lower left", ncols=2, fontsize=9)
    return figure


def _anchors(axes: "Axes", anchors: Iterable[dict[str, Any]], bottom: float, top: float) -> tuple[float, float]:
    """Grey lines at the mean of each span; returns limits that include those near the models."""
    ends = bottom, top
    for anchor, dash in zip(anchors, cycle((*DASHES[1:], (0, (8, 2)))), strict=False):
        edges = [anchor["spans"][0][0], *(end for _, end, *_ in anchor["spans"])]
        means = [span[2] for span in anchor["spans"]]
        near = max(ends[0] - min(means), max(means) - ends[1]) <= ends[1] - ends[0]
        label = f"{anchor['label']}: {anchor['loss']:.3f}{'' if near else ', outside'}"
        axes.stairs(means, edges, baseline=None, color=GREY, linestyle=dash, linewidth=1.2, label=label)
        if near:
            bottom, top = min(bottom, *means), max(top, *means)
    return bottom, top


def _styles(models: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """A colour for the kind, a dash for each of a kind."""
    dashes: dict[str, Any] = {}
    return [
        (COLOURS.get(kind, GREY), next(dashes.setdefault(kind, cycle(DASHES))))
        for kind in (model["architecture"] for model in models)
    ]


def _label(model: dict[str, Any]) -> str:
    if "seeds" in model:
        kind = LABELS.get(model["architecture"], model["name"])
        return f"{kind}, {model['seeds']} seed{'s' if model['seeds'] > 1 else ''}"
    return f"{model['name']} ({LABELS.get(model['architecture'], model['architecture'])})"


def attention(results: dict[str, Any]) -> "Figure":
    """The mean over all blocks and heads against the distance, a panel a length: flat memories stay flat."""
    lengths = sorted({model["length"] for model in results["models"]})
    title = f"What the last position attends to, averaged over heads: {results['corpus']}"
    figure, [panels] = canvas(1, len(lengths), 5.6 * len(lengths), 4.4, title)
    for axes, length in zip(panels, lengths, strict=True):
        models = [model for model in results["models"] if model["length"] == length]
        for model, (colour, dash) in zip(models, _styles(models), strict=True):
            axes.plot(*_by_distance(model), dash, color=colour, linewidth=1.4, label=_label(model))
        axes.axhline(1 / length, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
        axes.set(xscale="log", yscale="log", xlabel="distance in tokens")
        axes.set_title(f"{length} tokens", loc="left", fontsize=10.5)
        axes.legend(frameon=False, loc="lower left", fontsize=9)
    panels[0].set_ylabel("weight (dashed: all the same)")
    return figure


def _by_distance(model: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Distances and their mean weights: near ones by themselves, far ones together, a fortieth of a decade at a time.

    A value that peeks is stored so much later: the first distance is that of the last pair. Zero has no logarithm.
    """
    parts: dict[int, list[tuple[int, float]]] = {}
    first = model["length"] - len(model["weights"])
    for distance, weight in enumerate(reversed(model["weights"]), first):
        if distance > 0:
            parts.setdefault(round(40 * math.log10(distance)), []).append((distance, weight))
    columns = (tuple(sum(column) / len(part) for column in zip(*part, strict=True)) for part in parts.values())
    distances, weights = zip(*(column for column in columns if column[1] > 0), strict=True)
    return list(distances), list(weights)


def heads(results: dict[str, Any]) -> "Figure":
    """A row a model and length, a panel a block, a thin line a head; dotted their mean, as in appendix D.4."""
    models = results["models"]
    columns = max(len(model["blocks"]) for model in models)
    title = "What the last position attends to, head by head"
    figure, rows = canvas(len(models), columns, max(6.5, 2.3 * columns + 0.8), 1.9 * len(models) + 0.8, title)
    for row, model, (colour, _) in zip(rows, models, _styles(models), strict=True):
        most = [weight for block in model["blocks"] for head in block["heads"] for weight in head["weights"]]
        floor = max(min(weight for weight in most if weight > 0), 1e-3 / model["length"])
        top = math.ceil(math.log10(max(most)))
        decades = 10 ** min(math.floor(math.log10(floor)), top - 1), 10**top
        for axes, block in zip(row, model["blocks"], strict=False):
            _block(axes, block, _centres(model), colour)
            axes.set(yscale="log", ylim=decades, xlim=(0, model["length"]))
            axes.tick_params(labelsize=8)
            axes.set_title(f"block {block['block']}", loc="left", fontsize=8.5)
        row[0].set_ylabel(f"{model['name']}\n{model['length']} tokens", fontsize=9)
        for axes in row:
            axes.tick_params(which="minor", labelleft=False)
            axes.tick_params(labelleft=axes is row[0])
        for axes in row[len(model["blocks"]) :]:
            axes.set_visible(False)
    for axes in rows[-1]:
        axes.set_xlabel("position", fontsize=9)
    return figure


def _centres(model: dict[str, Any]) -> list[float]:
    """Of the parts of a sequence whose mean weight is known of each head."""
    starts = model["places"]
    return [(start + end - 1) / 2 for start, end in pairwise([*starts, len(model["weights"])])]


def _block(axes: "Axes", block: dict[str, Any], at: list[float], colour: str) -> None:
    every = [head["weights"] for head in block["heads"]]
    for weights in every:
        axes.plot(at, weights, color=colour, linewidth=0.5, alpha=0.6)
    mean = [sum(column) / len(every) for column in zip(*every, strict=True)]
    axes.plot(at, mean, ":", color=INK, linewidth=0.8)


WIDTHS = {
    "peak": "width of the peak at the end, tokens",
    "pairs": "pairs retrieved in effect, $1 / \\sum p^2$",
    "distance": "mean distance, tokens",
}


def widths(results: dict[str, Any]) -> "Figure | None":
    """A dot a head: how wide it looks against its lambda; hollow for lengths beyond the shortest."""
    models = [model for model in results["models"] if "lambda" in model["blocks"][0]["heads"][0]]
    if not models:
        return None
    shortest = min(model["length"] for model in models)
    figure, [panels] = canvas(
        1, len(WIDTHS), 4.2 * len(WIDTHS), 3.8, "Attention and the leaky average's λ, head by head"
    )
    for axes, (name, words) in zip(panels, WIDTHS.items(), strict=True):
        for model, marker in zip(models, cycle("osD^"), strict=False):
            every = [head for block in model["blocks"] for head in block["heads"] if head[name] > 0]
            colour = COLOURS.get(model["architecture"], GREY)
            fill: Any = {"facecolors": colour if model["length"] == shortest else "none", "edgecolors": colour}
            label = f"{model['name']}, {model['length']} tokens"
            points = [head["lambda"] for head in every], [head[name] for head in every]
            axes.scatter(*points, s=22, marker=marker, alpha=0.75, linewidths=1.0, label=label, **fill)
        axes.set(xlabel="λ", ylabel=words, ylim=(0, None))
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside lower left", ncols=4, fontsize=9)
    return figure
