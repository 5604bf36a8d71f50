"""Figures of language models: training curves, sweeps, loss by position (figures 2 and 8), attention (appendix D.4)."""

import math
from collections.abc import Iterable, Sequence
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from memory_mosaics.errors import UserError
from memory_mosaics.experiments.figures import (
    BLUE,
    COLOURS,
    DASHED,
    GREEN,
    GREY,
    INK,
    LABELS,
    ORANGE,
    canvas,
    legend_below,
    set_log_ticks,
    set_panel_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", ":", "-.")  # distinguish models of one architecture, which share a colour
HEAD_COLOURS = (ORANGE, BLUE, GREEN, "#CC79A7", "#E69F00", "#56B4E9")
UNSMOOTHED = 8  # positions at the start, hardly smoothed, that do not determine the limits of the axis


def training_curves(results: dict[str, Any]) -> "Figure":
    """Figure 7: loss against steps, one panel per depth, each architecture at its best learning rate."""
    best = best_runs(results["runs"])
    means = {(row["architecture"], row["blocks"]): row for row in results.get("summary", ())}
    depths = sorted({depth for _, depth in best})
    figure, panels = _depth_panels(depths, 4.8, 4.4, "Training (lines) and validation (dots) loss")
    for axes, depth in zip(panels, depths, strict=True):
        for architecture, colour in COLOURS.items():
            if record := best.get((architecture, depth)):
                loss, mean = f"{record['valid_loss']:.3f}", means.get((architecture, depth))
                if mean is not None and mean["seeds"] > 1:  # the curve is of the first seed
                    loss = f"{mean['valid_loss']:.3f} ± {mean['valid_loss_within']:.3f}, {mean['seeds']} seeds"
                _plot_losses(axes, record, colour, f"{loss}, learning rate {record['learning_rate']:g}")
        axes.set_xlabel("steps")
        axes.legend(loc="upper right", fontsize=9)
    _name_colours(figure, [architecture for architecture, _ in best])
    ends = [loss for record in best.values() for loss in (record["train_loss"], record["valid_loss"])]
    _limit_losses(panels, best.values(), ends)
    return figure


def runs(results: dict[str, Any]) -> "Figure":
    """Loss against steps of any runs together: lines are the batches trained on, dots the validation text."""
    figure, [[axes]] = canvas(1, 1, 7.2, 4.2, "Training (lines) and validation (dots) loss")
    architectures = [run["architecture"] for run in results["runs"]]
    for number, record in enumerate(results["runs"]):
        unique = architectures.count(record["architecture"]) == 1
        colour = COLOURS.get(record["architecture"]) if unique else f"C{number}"
        _plot_losses(axes, record, colour, f"{record['name']}: {record['measured'][-1][1]:.3f}")
    _limit_losses(
        [axes], results["runs"], [run[name][-1][1] for run in results["runs"] for name in ("measured", "curve")]
    )
    axes.set(xlabel="steps", ylabel="nats per token")
    legend_below(figure)
    return figure


def _plot_losses(axes: "Axes", record: dict[str, Any], colour: str | None, label: str) -> None:
    axes.plot(*zip(*record["curve"], strict=True), color=colour, linewidth=1.2, alpha=0.6)
    points = [(point[0], point[-1]) for point in record["measured"]]
    axes.plot(*zip(*points, strict=True), "o-", color=colour, markersize=4, linewidth=1.5, label=label)


def _limit_losses(panels: Sequence["Axes"], records: Iterable[dict[str, Any]], ends: list[float]) -> None:
    """Show losses from just below the lowest final one to halfway up the curves."""
    losses = [loss for record in records for _, loss in record["curve"]]
    if losses:
        top = min(ends) + 0.45 * (max(losses) - min(ends))
        for axes in panels:
            axes.set_ylim(min(ends) - 0.08 * (top - min(ends)), top)


def _depth_panels(depths: list[int], width: float, height: float, title: str) -> tuple["Figure", list["Axes"]]:
    figure, [panels] = canvas(1, len(depths), width * len(depths), height, title)
    for axes, depth in zip(panels, depths, strict=True):
        set_panel_title(axes, f"{depth} block{'s' if depth > 1 else ''}")
    panels[0].set_ylabel("nats per token")
    return figure, panels


def _name_colours(figure: "Figure", architectures: list[str]) -> None:
    """Add one legend below all panels: the colour of each architecture."""
    from matplotlib.lines import Line2D

    shown = [name for name in COLOURS if name in architectures]
    lines = [Line2D([], [], color=COLOURS[name], marker="o", label=LABELS[name]) for name in shown]
    legend_below(figure, lines, [LABELS[name] for name in shown])


def step_sizes(results: dict[str, Any]) -> "Figure":
    """Validation loss at the end against the largest learning rate."""
    runs = [record for record in results["runs"] if record["valid_loss"] is not None]
    depths = sorted({record["blocks"] for record in runs})
    figure, panels = _depth_panels(depths, 4.2, 3.4, "Validation loss at the end of training")
    for axes, depth in zip(panels, depths, strict=True):
        for architecture, colour in COLOURS.items():
            own = [one for one in runs if (one["architecture"], one["blocks"]) == (architecture, depth)]
            for form, size, first in (("o-", 6, True), ("_", 9, False)):  # other seeds, at the best learning rate
                chosen = [one for one in own if (one.get("seed") == results["runs"][0].get("seed")) == first]
                points = sorted((one["learning_rate"], one["valid_loss"]) for one in chosen)
                if points:
                    axes.plot(*zip(*points, strict=True), form, color=colour, markersize=size)
        axes.set(xscale="log", xlabel="largest learning rate")
        set_log_ticks(axes, sorted({record["learning_rate"] for record in runs}), "g")
    _name_colours(figure, [one["architecture"] for one in runs])
    return figure


def best_runs(runs: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the run with the lowest validation loss at the first seed, for each architecture and depth."""
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for record in runs:
        key = (record["architecture"], record["blocks"])
        if record["valid_loss"] is not None and record.get("seed") == runs[0].get("seed"):
            best[key] = min(best.get(key, record), record, key=lambda one: one["valid_loss"])
    return best


def sweep(results: dict[str, Any]) -> "Figure":
    """Validation loss: of each row of the table, or against each value that was searched."""
    return _sweep_table(results) if results["method"] == "table" else _sweep_search(results)


def _sweep_search(results: dict[str, Any]) -> "Figure":
    title = "Validation loss of each trial (orange: best, crosses: failed)"
    figure, [panels] = canvas(1, len(results["space"]), 3.4 * len(results["space"]) + 0.6, 3.4, title)
    for axes, name in zip(panels, results["space"], strict=True):
        for row in results["rows"]:
            if row["status"] == "finished":
                axes.plot(row[name], row["valid_loss"], "o", color=ORANGE if row["name"] == results["best"] else BLUE)
            elif row["status"] == "fail":
                axes.plot(row[name], 0.98, "x", color=INK, transform=axes.get_xaxis_transform())
        logarithmic = name != "dropout" and min(row[name] for row in results["rows"]) > 0
        axes.set(xlabel=name.replace("_", " "), xscale="log" if logarithmic else "linear")
    panels[0].set_ylabel("nats per token")
    return figure


def _sweep_table(results: dict[str, Any]) -> "Figure":
    rows = results["rows"]
    figure, [[axes]] = canvas(1, 1, 7.2, 0.42 * len(rows) + 1.3, "One change at a time: loss at the end of training")
    for height, row in enumerate(rows):
        if row["status"] == "finished":
            colour = ORANGE if row["name"] == results["best"] else BLUE
            axes.plot(row["train_loss"], height, "o", color=GREY, fillstyle="none")
            axes.plot(row["valid_loss"], height, "o", color=colour, markersize=8)
            axes.annotate(f"{row['valid_loss']:.3f}", (row["valid_loss"], height), (7, 5), textcoords="offset points")
        else:
            where: Any = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
            axes.text(0.99, height, row["status"], color=INK, fontweight="bold", **where)
    if rows[0]["status"] == "finished":
        axes.axvline(rows[0]["valid_loss"], color="#888888", linewidth=0.8, linestyle=DASHED, zorder=0)
    labels = ["; ".join(f"{name.replace('_', ' ')} {row[name]:g}" for name in row["changed"]) or "base" for row in rows]
    axes.set_yticks(range(len(rows)), labels=labels)
    axes.set(ylim=(len(rows) - 0.4, -0.7), xlabel="nats per token: validation (full), training (hollow)")
    return figure


def loss_by_position(results: dict[str, Any]) -> "Figure":
    """One line per model, smoothed for the eye, with the 95 % confidence band of that line."""
    models, length = [model for model in results["models"] if "by_position" in model], results["length"]
    if not models:
        raise UserError("there is nothing to draw: no loss by position was kept; measure with --by-position")
    title = f"Loss by position: {results['corpus']}, {results['windows']:,} windows"
    figure, [[axes]] = canvas(1, 1, 8.4, 4.8, title)
    bounds: list[float] = []
    for model, (colour, dash) in zip(models, _styles(models), strict=True):
        read = len(model["smoothed"])
        mean = np.array(model["smoothed"])[: read - length // 100]  # the last are smoothed over fewer positions
        within = np.array(model["smoothed_within"] or [0.0] * read)[: len(mean)]
        label = f"{_label(model)}: {model['loss']:.3f}" + (f" up to {read}" if read < length else "")
        axes.plot(mean, dash, color=colour, linewidth=1.6, label=label)
        axes.fill_between(range(len(mean)), mean - within, mean + within, color=colour, alpha=0.18, linewidth=0)
        smoothed = slice(UNSMOOTHED if len(mean) > UNSMOOTHED else 0, None)
        bounds += [(mean - within)[smoothed].min(), (mean + within)[smoothed].max()]
    bottom, top = _plot_anchors(axes, results.get("anchors", ()), min(bounds), max(bounds))
    margin = 0.04 * (top - bottom) or 0.1
    bands = (
        "mean and 95 % interval over seeds" if "seeds" in models[0] else "one training each, 95 % bands over windows"
    )
    axes.set(xlabel=f"position in the window ({bands})", ylabel="nats per token")
    axes.set(xlim=(0, length), ylim=(bottom - margin, top + margin))
    for context in {model["context"] for model in models if model["context"] < length}:
        axes.axvline(context, color=GREY, linewidth=0.9, linestyle=DASHED, zorder=0)
        where: Any = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
        axes.annotate("trained up to here", (context, 0.02), (4, 0), color=GREY, fontsize=9, **where)
    legend_below(figure)
    return figure


def _plot_anchors(axes: "Axes", anchors: Iterable[dict[str, Any]], low: float, high: float) -> tuple[float, float]:
    """Plot grey lines at the mean of each span; return limits that include those near the models."""
    bottom, top = low, high
    for anchor, dash in zip(anchors, cycle((*DASHES[1:], (0, (8, 2)))), strict=False):
        edges = [anchor["spans"][0][0], *(end for _, end, *_ in anchor["spans"])]
        means = [span[2] for span in anchor["spans"]]
        near = max(low - min(means), max(means) - high) <= high - low
        label = f"{anchor['label']}: {anchor['loss']:.3f}{'' if near else ', outside'}"
        axes.stairs(means, edges, baseline=None, color=GREY, linestyle=dash, linewidth=1.2, label=label)
        if near:
            bottom, top = min(bottom, *means), max(top, *means)
    return bottom, top


def _styles(models: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return a colour per architecture, and a dash for each model of an architecture."""
    dashes: dict[str, Any] = {}
    return [
        (COLOURS.get(name, GREY), next(dashes.setdefault(name, cycle(DASHES))))
        for name in (model["architecture"] for model in models)
    ]


def _label(model: dict[str, Any]) -> str:
    if "seeds" in model:
        name = LABELS.get(model["architecture"], model["name"])
        return f"{name}, {model['seeds']} seed{'s' if model['seeds'] > 1 else ''}"
    return f"{model['name']} ({LABELS.get(model['architecture'], model['architecture'])})"


def attention(results: dict[str, Any]) -> "Figure":
    """Mean weight over all blocks and heads against the distance, one panel per length: flat memories stay flat."""
    lengths = sorted({model["length"] for model in results["models"]})
    title = f"What the last position attends to, averaged over heads: {results['corpus']}"
    figure, [panels] = canvas(1, len(lengths), 5.6 * len(lengths), 4.4, title)
    for axes, length in zip(panels, lengths, strict=True):
        models = [model for model in results["models"] if model["length"] == length]
        for model, (colour, dash) in zip(models, _styles(models), strict=True):
            axes.plot(*_by_distance(model), dash, color=colour, linewidth=1.4, label=_label(model))
        axes.axhline(1 / length, color=GREY, linewidth=0.9, linestyle=DASHED, zorder=0)
        axes.set(xscale="log", yscale="log", xlabel="distance in tokens")
        set_panel_title(axes, f"{length} tokens")
    panels[0].set_ylabel("weight (dashed: all the same)")
    named = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    legend_below(figure, [*named.values()], [*named], columns=3)
    return figure


def _by_distance(model: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Return distances and mean weights, in bins of a fortieth of a decade, without distance and weight zero.

    A value that includes the next token is stored one step later: the first distance is that of the last pair.
    """
    weights = np.array(model["weights"])[::-1]
    distances = np.arange(model["length"] - len(weights), model["length"])
    weights, distances = weights[distances > 0], distances[distances > 0]
    _, bins, counts = np.unique(np.rint(40 * np.log10(distances)), return_inverse=True, return_counts=True)
    distances, weights = (np.bincount(bins, values) / counts for values in (distances, weights))
    return distances[weights > 0].tolist(), weights[weights > 0].tolist()


def heads(results: dict[str, Any]) -> "Figure":
    """One row per model and length, one panel per block, a thin line per head; dotted their mean (appendix D.4)."""
    models = results["models"]
    columns = max(len(model["blocks"]) for model in models)
    title = "Weights of the last position, a line per head, dotted their mean"
    figure, rows = canvas(len(models), columns, max(6.5, 2.3 * columns + 0.8), 1.9 * len(models) + 0.8, title)
    for row, model, (colour, _) in zip(rows, models, _styles(models), strict=True):
        blocks = [np.array([head["weights"] for head in block["heads"]]) for block in model["blocks"]]  # (H, bins)
        weights = np.concatenate([every.ravel() for every in blocks])
        floor = max(weights[weights > 0].min(), 1e-3 / model["length"])
        top = math.ceil(math.log10(weights.max()))
        decades = 10 ** min(math.floor(math.log10(floor)), top - 1), 10**top
        centres = [(start + end - 1) / 2 for start, end in pairwise([*model["bin_starts"], len(model["weights"])])]
        for axes, block, every in zip(row, model["blocks"], blocks, strict=False):
            axes.plot(centres, every.T, color=colour, linewidth=0.5, alpha=0.6)
            axes.plot(centres, every.mean(axis=0), ":", color=INK, linewidth=0.8)
            axes.set(yscale="log", ylim=decades, xlim=(0, model["length"]))
            axes.tick_params(labelsize=8)
            axes.set_title(f"block {block['block']}", loc="left", fontsize=8.5)
        row[0].set_ylabel(f"{model['name']}\n{model['length']} tokens", fontsize=9)
        for axes in row:
            axes.tick_params(which="minor", labelleft=False)
            axes.tick_params(labelleft=axes is row[0])
        for axes in row[len(blocks) :]:
            axes.set_visible(False)
    for axes in rows[-1]:
        axes.set_xlabel("position", fontsize=9)
    return figure


WIDTHS = {
    "peak": "width of the peak at the end, tokens",
    "pairs": "pairs retrieved in effect, $1 / \\sum p^2$",
    "distance": "mean distance, tokens",
}


def widths(results: dict[str, Any]) -> "Figure | None":
    """One dot per head: the width of its attention against its lambda; hollow for lengths beyond the shortest."""
    models = [model for model in results["models"] if "lambda" in model["blocks"][0]["heads"][0]]
    if not models:
        return None
    shortest = min(model["length"] for model in models)
    title = "Attention and the leaky average's λ, head by head"
    figure, [panels] = canvas(1, len(WIDTHS), 4.2 * len(WIDTHS), 3.8, title)
    for axes, (name, label) in zip(panels, WIDTHS.items(), strict=True):
        for model, marker in zip(models, cycle("osD^"), strict=False):
            every = [head for block in model["blocks"] for head in block["heads"] if head[name] > 0]
            colour = COLOURS.get(model["architecture"], GREY)
            style: Any = {"facecolors": colour if model["length"] == shortest else "none", "edgecolors": colour}
            style |= {"label": f"{model['name']}, {model['length']} tokens", "marker": marker}
            points = [head["lambda"] for head in every], [head[name] for head in every]
            axes.scatter(*points, s=22, alpha=0.75, linewidths=1.0, **style)
        axes.set(xlabel="λ", ylabel=label, ylim=(0, None))
    legend_below(figure, *panels[0].get_legend_handles_labels(), columns=4)
    return figure


def memories(results: dict[str, Any]) -> "Figure":
    """A tile per contextual memory: for each word that is read, the words whose pairs it answers from."""
    from matplotlib.colors import LinearSegmentedColormap

    tokens, weights = results["picture"]["tokens"], np.array(results["picture"]["weights"])
    blocks, heads, length = weights.shape[:3]
    width = 3.2 * heads + 1.4
    figure, panels = canvas(blocks, heads, width, 3.4 * blocks + 1.1, "")
    title = f"A Memory Mosaic reads a story: its {blocks * heads} memories at work"
    figure.suptitle(title, fontweight="bold", fontsize=17, x=0.01, ha="left")
    colours = [HEAD_COLOURS[head % len(HEAD_COLOURS)] for head in range(heads)]
    for block, row in enumerate(panels):
        for head, axes in enumerate(row):
            shades = LinearSegmentedColormap.from_list("memory", ["#FFFFFF", colours[head]])
            seen = np.where(np.tri(length, k=-1, dtype=bool), weights[block, head] ** 0.5, np.nan)  # small ones too
            axes.imshow(seen, cmap=shades, vmin=0, vmax=1)
            axes.set(xticks=[], yticks=range(length) if head == 0 else [])
            if head == 0:
                axes.set_yticklabels([token.strip() for token in tokens], fontsize=6)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            corner: Any = {"transform": axes.transAxes, "ha": "right", "va": "top", "color": colours[head]}
            axes.text(0.97, 0.95, f"block {block + 1}\nmemory {head + 1}", fontsize=10, **corner)
    note = "Row: the word that is read. Column: an earlier word; the darker, the more its pair counts in the answer."
    figure.supxlabel(note, fontsize=10, x=0.01, ha="left")
    return figure


FIGURES = {
    "demo": {"memories.png": memories},
    "curves": {"curves.png": training_curves, "step_sizes.png": step_sizes},
    "sweep": {"sweep.png": sweep},
    "runs": {"runs.png": runs},
    "evaluate": {"loss_by_position.png": loss_by_position},
    "attention": {"attention.png": attention, "heads.png": heads, "width.png": widths},
}
