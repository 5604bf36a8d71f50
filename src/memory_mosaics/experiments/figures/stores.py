"""The figure of recall from an index: the bound of each answer against its error, with the speed, per kind of keys."""

from typing import TYPE_CHECKING, Any

from memory_mosaics.experiments.figures import BLUE, DASHED, GREY, ORANGE, canvas, legend_below, set_panel_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


FIGURES = {"indexed": {"indexed.png": indexed}}
