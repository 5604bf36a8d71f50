"""Figures of RegBench: accuracy and distance against the number of training languages, and in distribution."""

from typing import TYPE_CHECKING, Any

from memory_mosaics.experiments.figures.language import LABELS
from memory_mosaics.experiments.figures.style import GREY, INK, ORANGE, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Memories in the one warm colour; architectures after it in hues that stay apart, each with a mark of its own.
HUES = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#8C6D1F", "#6A51A3", "#E69F00", "#A6BE00", "#A50F15", "#4D4D4D")
MARKS = "osD^vP<>Xph"
DASH = {"marker": "_", "markersize": 13, "markeredgewidth": 1.8, "linestyle": "none", "zorder": 6}  # of the paper
MEASURES = {
    "accuracy": "accuracy: the most likely token is a legal one",
    "tvd": "TVD: distance to the true distribution",
}


def regbench(results: dict[str, Any]) -> "Figure | None":
    """New languages: one panel a measure, a line an architecture, the n-grams behind them."""
    lines = _lines(results)
    if not lines:
        return None
    title = "RegBench: learning a new language in context, one data seed"
    figure, [panels] = canvas(1, 2, 12.5, 5.4, title)
    numbers = sorted({best["environments"] for row in lines.values() for best in row})
    published = {name: _points(results["published"].get(name, {}), numbers) for name in lines}
    for place, (axes, (measure, name)) in enumerate(zip(panels, MEASURES.items(), strict=True)):
        _anchors(axes, {name: scores[measure] for name, scores in results["anchors"].items() if name != "uniform"})
        for architecture, row in lines.items():
            look = _look(architecture, [*results["published"], *lines])
            points = [(best["environments"], best[measure]) for best in row]
            axes.plot(*zip(*points, strict=True), **look, label=_label(results, architecture))
            for number, theirs in published[architecture]:
                axes.plot(number, theirs[place], **DASH, color=look["color"])
        axes.set_title(name, loc="left", fontsize=10.5)
        axes.set(xscale="log", xlabel="training languages", xlim=(numbers[0] / 1.3, numbers[-1] * 1.3))
        axes.set_xticks(numbers, labels=[f"{number:,}" for number in numbers])
        axes.set_xticks([], minor=True)
        axes.grid(axis="y", color="#EEEEEE", linewidth=0.8)
        axes.set_axisbelow(True)
    if any(published.values()):
        panels[0].plot([], [], **DASH, color=GREY, label="the paper's figure 9")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9.5)
    return figure


def in_distribution(results: dict[str, Any]) -> "Figure | None":
    """New sequences of the training languages: a row an architecture, ours as a dot, the paper's as a ring."""
    bests = [one for one in results["best"] if one["in_distribution"]]
    if not bests:
        return None
    bests.sort(key=lambda best: best["accuracy"])
    numbers = sorted({best["environments"] for best in bests})
    languages = f"{', '.join(f'{number:,}' for number in numbers)} languages"
    figure, [panels] = canvas(1, 2, 11.0, 1.4 + 0.36 * len(bests), f"RegBench in distribution, {languages}")
    published = [published_in_distribution(results, best) for best in bests]
    names = [_name(results, best, alone=len(numbers) == 1) for best in bests]
    for axes, (place, measure) in zip(panels, enumerate(MEASURES), strict=True):
        for row, (best, theirs) in enumerate(zip(bests, published, strict=True)):
            colour = ORANGE if best["architecture"].startswith("memory-mosaic") else HUES[0]
            if theirs:
                axes.plot(theirs[place], row, "o", markersize=8, markerfacecolor="none", color=GREY)
            axes.plot(best[measure], row, "o", markersize=7, color=colour)
        axes.set_yticks(range(len(bests)), labels=names)
        axes.set_ylim(-0.6, len(bests) - 0.4)
        axes.margins(x=0.08)
        axes.set_title(MEASURES[measure], loc="left", fontsize=10.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color="#EEEEEE", linewidth=0.8)
        axes.set_axisbelow(True)
    panels[1].set_yticklabels([])
    panels[1].plot([], [], "o", color=INK, label="chosen on validation loss")
    if any(published):
        panels[1].plot([], [], "o", markerfacecolor="none", color=GREY, label="the paper's table 2")
    figure.legend(loc="outside lower right", frameon=False, fontsize=9, ncols=2)
    return figure


def _label(results: dict[str, Any], architecture: str) -> str:
    return str(LABELS.get(architecture, results["labels"][architecture]))


def _points(published: dict[str, list[float]], numbers: list[int]) -> list[tuple[int, list[float]]]:
    """Accuracy and TVD of the paper's figure, where there is any of these numbers."""
    return [(number, published[str(number)]) for number in numbers if str(number) in published]


def published_in_distribution(results: dict[str, Any], best: dict[str, Any]) -> list[float] | None:
    """Accuracy and TVD of the paper's table, which is of 100 languages."""
    return results["published_in_distribution"].get(best["architecture"]) if best["environments"] == 100 else None


def _name(results: dict[str, Any], best: dict[str, Any], *, alone: bool) -> str:
    """Of a row; with its number of languages, if there are several."""
    return _label(results, best["architecture"]) + ("" if alone else f", {best['environments']:,}")


def _anchors(axes: "Axes", levels: dict[str, float]) -> None:
    """What needs no training, named at the right end; names that would touch are moved apart."""
    place = -1.0
    for name, level in sorted(levels.items(), key=lambda item: item[1]):
        axes.axhline(level, color="#AAAAAA", linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
        place = max(level, place + 0.025)
        axes.text(1.01, place, name, transform=axes.get_yaxis_transform(), color="#777777", fontsize=8, va="center")


def _lines(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What was chosen out of distribution, by architecture."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for best in results["best"]:
        if not best["in_distribution"]:
            lines.setdefault(best["architecture"], []).append(best)
    return lines


def _look(architecture: str, all_: list[str]) -> dict[str, Any]:
    if architecture == "memory-mosaic":
        return {"color": ORANGE, "marker": "o", "markersize": 7, "linewidth": 2.8, "zorder": 5}
    base = architecture.removesuffix("-as-published")
    others = list(dict.fromkeys(name.removesuffix("-as-published") for name in all_ if name != "memory-mosaic"))
    number = others.index(base)
    look = {
        "color": HUES[number % len(HUES)],
        "marker": MARKS[number % len(MARKS)],
        "markersize": 5.5,
        "linewidth": 1.6,
    }
    if base != architecture:
        look |= {"linestyle": (0, (2, 1.5)), "markerfacecolor": "white"}
    return look
