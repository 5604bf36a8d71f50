"""Figures of language models: training curves, learning rates, sweeps."""

from typing import TYPE_CHECKING, Any

from memory_mosaics.experiments.figures.style import BLUE, GREEN, GREY, INK, ORANGE, canvas
from memory_mosaics.models import ARCHITECTURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "memory-mosaic": ORANGE,
    "transformer": BLUE,
    "transformer-rotary": "#CC79A7",
    "transformer-alibi": GREEN,
    "transformer-none": "#56B4E9",
}
LABELS = {name: kind.label for name, kind in ARCHITECTURES.items()}


def training_curves(results: dict[str, Any]) -> "Figure":
    """Figure 7: loss against steps, one panel a depth, each architecture at its best learning rate."""
    best = best_runs(results["runs"])
    means = {(row["architecture"], row["blocks"]): row for row in results.get("summary", ())}
    depths = sorted({depth for _, depth in best})
    figure, [panels] = canvas(1, len(depths), 4.8 * len(depths), 4.4, "Training (lines) and validation (dots) loss")
    for axes, depth in zip(panels, depths, strict=True):
        for architecture, colour in COLOURS.items():
            if record := best.get((architecture, depth)):
                _curve(axes, record, colour, means.get((architecture, depth)))
        axes.set_title(f"{depth} block{'s' if depth > 1 else ''}", loc="left", fontsize=10.5)
        axes.set_xlabel("steps")
        axes.legend(loc="upper right", frameon=False, fontsize=9)
    _name_colours(figure, [architecture for architecture, _ in best])
    losses = [loss for record in best.values() for _, loss in record["curve"]]
    ends = [loss for record in best.values() for loss in (record["train_loss"], record["valid_loss"])]
    if losses:
        top = min(ends) + 0.45 * (max(losses) - min(ends))
        for axes in panels:
            axes.set_ylim(min(ends) - 0.08 * (top - min(ends)), top)
    panels[0].set_ylabel("nats per token")
    return figure


def _curve(axes: "Axes", record: dict[str, Any], colour: str, mean: dict[str, Any] | None) -> None:
    """The curve of the first seed; the label has the mean over the seeds and its 95 % interval."""
    loss = f"{record['valid_loss']:.3f}"
    if mean is not None and mean["seeds"] > 1:
        loss = f"{mean['valid_loss']:.3f} ± {mean['valid_loss_within']:.3f}, {mean['seeds']} seeds"
    label = f"{loss}, learning rate {record['learning_rate']:g}"
    axes.plot(*zip(*record["curve"], strict=True), color=colour, linewidth=1.2, alpha=0.6)
    steps, _, valid = zip(*record["measured"], strict=True)
    axes.plot(steps, valid, "o-", color=colour, markersize=4, linewidth=1.5, label=label)


def _name_colours(figure: "Figure", architectures: list[str]) -> None:
    """One legend below all panels: which colour is which architecture."""
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=COLOURS[name], marker="o", label=LABELS[name]) for name in COLOURS if name in architectures
    ]
    figure.legend(handles=lines, frameon=False, loc="outside lower left", ncols=2, fontsize=9)


def runs(results: dict[str, Any]) -> "Figure":
    """Loss against steps of any runs together: lines are the batches trained on, dots the validation text."""
    figure, [[axes]] = canvas(1, 1, 7.2, 4.2, "Training (lines) and validation (dots) loss")
    ends = []
    for number, record in enumerate(results["runs"]):
        alone = [run["architecture"] for run in results["runs"]].count(record["architecture"]) == 1
        colour = COLOURS.get(record["architecture"]) if alone else f"C{number}"
        axes.plot(*zip(*record["curve"], strict=True), color=colour, linewidth=1.2, alpha=0.6)
        label = f"{record['name']}: {record['measured'][-1][1]:.3f}"
        axes.plot(*zip(*record["measured"], strict=True), "o-", color=colour, markersize=4, linewidth=1.5, label=label)
        ends += [record["measured"][-1][1], record["curve"][-1][1]]
    top = min(ends) + 0.45 * (max(loss for run in results["runs"] for _, loss in run["curve"]) - min(ends))
    axes.set(xlabel="steps", ylabel="nats per token", ylim=(min(ends) - 0.08 * (top - min(ends)), top))
    figure.legend(frameon=False, loc="outside lower left", ncols=2, fontsize=9)
    return figure


def step_sizes(results: dict[str, Any]) -> "Figure":
    """Validation loss at the end against the largest learning rate."""
    runs = [record for record in results["runs"] if record["valid_loss"] is not None]
    depths = sorted({record["blocks"] for record in runs})
    figure, [panels] = canvas(1, len(depths), 4.2 * len(depths), 3.4, "Validation loss at the end of training")
    for axes, depth in zip(panels, depths, strict=True):
        for architecture, colour in COLOURS.items():
            points = [one for one in runs if (one["architecture"], one["blocks"]) == (architecture, depth)]
            for form, size, first in (("o-", 6, True), ("_", 9, False)):  # the other seeds, at the best learning rate
                chosen = [one for one in points if (one.get("seed") == results["runs"][0].get("seed")) == first]
                places = sorted((one["learning_rate"], one["valid_loss"]) for one in chosen)
                if places:
                    axes.plot(*zip(*places, strict=True), form, color=colour, markersize=size)
        axes.set(xscale="log", xlabel="largest learning rate")
        axes.set_title(f"{depth} block{'s' if depth > 1 else ''}", loc="left", fontsize=10.5)
        ticks = sorted({record["learning_rate"] for record in runs})
        axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
    panels[0].set_ylabel("nats per token")
    _name_colours(figure, [one["architecture"] for one in runs])
    return figure


def best_runs(runs: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    """Of each architecture and depth the run of the search, at the first seed, with the lowest validation loss."""
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for record in runs:
        key = (record["architecture"], record["blocks"])
        if record["valid_loss"] is not None and record.get("seed") == runs[0].get("seed"):
            best[key] = min(best.get(key, record), record, key=lambda one: one["valid_loss"])
    return best


def sweep(results: dict[str, Any]) -> "Figure":
    """Validation loss: a row of dots for each row of the table, or against each value that was searched."""
    rows = results["rows"]
    if results["method"] != "table":
        names = list(results["space"])
        figure, [panels] = canvas(
            1, len(names), 3.4 * len(names) + 0.6, 3.4, "Validation loss of each trial (orange: best, crosses: failed)"
        )
        for axes, name in zip(panels, names, strict=True):
            _against(axes, rows, name, results["best"])
        panels[0].set_ylabel("nats per token")
        return figure
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
        axes.axvline(rows[0]["valid_loss"], color="#888888", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    words = ["; ".join(f"{name.replace('_', ' ')} {row[name]:g}" for name in row["changed"]) or "base" for row in rows]
    axes.set_yticks(range(len(rows)), labels=words)
    axes.set(ylim=(len(rows) - 0.4, -0.7), xlabel="nats per token: validation (full), training (hollow)")
    return figure


def _against(axes: "Axes", rows: list[dict[str, Any]], name: str, best: str | None) -> None:
    for row in rows:
        if row["status"] == "finished":
            colour = ORANGE if row["name"] == best else BLUE
            axes.plot(row[name], row["valid_loss"], "o", color=colour)
        elif row["status"] == "fail":
            axes.plot(row[name], 0.98, "x", color=INK, transform=axes.get_xaxis_transform())
    logarithmic = name != "dropout" and min(row[name] for row in rows) > 0
    axes.set(xlabel=name.replace("_", " "), xscale="log" if logarithmic else "linear")
