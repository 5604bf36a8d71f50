"""Figures of stores: recall from an index, its bounds against its errors; and bounded stores at equal budget."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from memory_mosaics.experiments.figures import (
    BLUE,
    DASHED,
    GREEN,
    GREY,
    INK,
    ORANGE,
    canvas,
    legend_below,
    set_panel_title,
)
from memory_mosaics.results import NORMAL_95

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STORES = {"exact": INK, "window": BLUE, "sinks": "#56B4E9", "lru": ORANGE, "merge": GREEN, "reservoir": "#CC79A7"}
STORES |= {"kmeans": "#E69F00"}
Curve = tuple[str, list[tuple[float, float]]]  # of a store
BLOCK = 1024  # tokens of one mean loss in results.json, which are read at a time
SMALLEST, LARGEST = 1e-7, 1e4  # beyond these a point is drawn at the edge


def indexed(results: dict[str, Any]) -> "Figure | None":
    kinds = results["kinds"]
    if not kinds:
        return None
    title = f"Recall from an index, {results['pairs']:,} pairs"
    figure, [panels] = canvas(1, len(kinds), 3.2 * len(kinds), 3.9, title)
    for axes, (kind, found) in zip(panels, kinds.items(), strict=True):
        measured = [(beta, found[beta]) for beta in found if isinstance(found[beta], dict)]
        for (beta, one), colour in zip(measured, (BLUE, ORANGE), strict=False):
            points = [[min(max(x, SMALLEST), LARGEST) for x in point] for point in one["points"]]
            axes.plot(*zip(*points, strict=True), ".", markersize=3, color=colour, label=f"$\\beta$ = {beta}")
        axes.plot([SMALLEST, 1], [SMALLEST, 1], color=GREY, label="bound = error")
        axes.axhline(1, color=GREY, linestyle=DASHED, label="above: no guarantee")
        set_panel_title(axes, kind if kind.isalpha() else f"memory {kind} of a trained model")
        axes.set(xscale="log", yscale="log", xlim=(SMALLEST, 3), ylim=(SMALLEST, 2 * LARGEST), xlabel="error")
    panels[0].set_ylabel("bound")
    legend_below(figure, *panels[0].get_legend_handles_labels(), columns=4)
    return figure


def _colour(store: str) -> str:
    return STORES.get(store.partition(":")[0], GREY)


def _panels(
    results: dict[str, Any], part: str, title: str, xlabel: str, curves: Callable[[dict[str, Any]], Iterable[Curve]]
) -> "Figure | None":
    """The curves of all stores, one panel for each model of which this part was measured."""
    measured = {name: model[part] for name, model in results["models"].items() if model.get(part)}
    if not measured:
        return None
    figure, [panels] = canvas(1, len(measured), max(6.4, 5 * len(measured)), 4.2, title)
    for axes, (name, found) in zip(panels, measured.items(), strict=True):
        axes.axhline(0, color=GREY, linewidth=0.8)
        for store, points in curves(found):
            axes.plot(*zip(*points, strict=True), "o-", markersize=3, color=_colour(store), label=store)
        axes.set(xscale="log", xlabel=xlabel)
        set_panel_title(axes, name)
    panels[0].set_ylabel("nats per token")
    legend_below(figure, *panels[0].get_legend_handles_labels(), columns=4)
    return figure


def span_edges(length: int) -> list[int]:
    """Blocks 0, 1, 2, 4, 8 ... to the end."""
    return [0, *(2**power for power in range(40) if 2**power < length), length]


def differences(losses: dict[str, Any], store: str) -> list[tuple[int, int, float, float | None]]:
    """Between two edges, in tokens, the mean loss minus that of the first bounded store on the same tokens, and half
    the width of its 95 % interval over blocks; as far as both were read.
    """
    base = next((one["losses"] for name, one in losses.items() if name != "exact"), [])
    own = losses[store]["losses"]
    length = min(len(base), len(own))
    less = np.subtract(own[:length], base[:length])
    found = []
    for first, end in pairwise(span_edges(length)) if length else ():
        some, count = less[first:end], end - first
        within = NORMAL_95 * some.std(ddof=1) / count**0.5 if count > 1 else None
        found.append((first * BLOCK, end * BLOCK, float(some.mean()), within))
    return found


def losses(results: dict[str, Any]) -> "Figure | None":
    def curves(found: dict[str, Any]) -> Iterable[Curve]:
        for store in found:
            if points := [((first + end) / 2, mean) for first, end, mean, _ in differences(found, store)]:
                yield store, points

    title = f"Loss minus that of {results['stores'][0]}" if results.get("stores") else ""
    return _panels(results, "losses", title, "position", curves)


def needles(results: dict[str, Any]) -> "Figure | None":
    def curves(found: dict[str, Any]) -> Iterable[Curve]:
        for store, points in found.items():
            yield store, [(distance, saved) for distance, _, _, saved, _ in points]

    title = "By how much the loss of tokens is lower that were read once"
    return _panels(results, "needles", title, "distance in tokens", curves)


def sparsity(results: dict[str, Any]) -> "Figure | None":
    measured = {name: model["sparsity"] for name, model in results["models"].items() if model.get("sparsity")}
    if not measured:
        return None
    figure, [panels] = canvas(1, 2, 9, 4.0, "Pairs with a weight above 1 %")
    for (name, by_count), colour in zip(measured.items(), (BLUE, ORANGE, GREEN, INK) * len(measured), strict=False):
        for axes, field in zip(panels, ("above", "weight"), strict=True):
            heads = [[head[field] for head in heads if head["window"] is None] for heads in by_count.values()]
            for points in zip(*heads, strict=True):
                axes.plot([int(n) for n in by_count], points, color=colour, linewidth=0.7, alpha=0.5)
            axes.plot([int(n) for n in by_count], np.mean(heads, axis=1), "o-", color=colour, label=name)
    for axes, label in zip(panels, ("pairs", "their share of the weight"), strict=True):
        axes.set(xscale="log", xlabel="pairs stored", ylabel=label, ylim=(0, None))
    legend_below(figure, *panels[0].get_legend_handles_labels(), columns=4)
    return figure


def slots(results: dict[str, Any]) -> "Figure | None":
    def curves(found: dict[str, Any]) -> Iterable[Curve]:
        for store, one in found.items():
            if store == "exact" or store.endswith(f":{results['capacity']}"):
                spans = zip(one["spans"], found["none"]["spans"], strict=True)
                yield store, [((first + end) / 2, loss - base) for (first, end, loss), (*_, base) in spans]

    title = "Loss after pairs of training text minus that without"
    return _panels(results, "slots", title, "position in the window", curves)


FIGURES = {
    "indexed": {"indexed.png": indexed},
    "stores": {"losses.png": losses, "needles.png": needles, "sparsity.png": sparsity, "slots.png": slots},
}
