"""Figures of the synthetic tasks: induction, three moons and RegBench."""

from typing import TYPE_CHECKING, Any

from memory_mosaics.experiments.figures import (
    BLUE,
    DASHED,
    GREEN,
    GREY,
    INK,
    LABELS,
    ORANGE,
    canvas,
    colours_of,
    set_log_ticks,
    set_panel_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INDUCTION_COLOURS = {"memory": ORANGE, "transformer-1-shifted": GREEN, "transformer-2": BLUE, "transformer-1": GREY}


def induction(results: dict[str, Any]) -> "Figure":
    """Accuracy where the trigger has been seen: against training steps on the left, at the end on the right."""
    from matplotlib.figure import Figure

    models = {name: results["models"][name] for name in INDUCTION_COLOURS if name in results["models"]}
    figure = Figure(figsize=(9, 3.9), dpi=200)
    kind = "fixed" if results["settings"]["fixed_triggers"] else "random"
    title = f"Induction, {kind} triggers: accuracy where the trigger has been seen before"
    figure.text(0.012, 0.93, title, fontsize=13, fontweight="bold")
    edges = {"left": 0.065, "right": 0.985, "bottom": 0.125, "top": 0.81, "wspace": 0.1}
    left, right = figure.subplots(1, 2, width_ratios=(1.45, 1), gridspec_kw=edges)
    set_panel_title(left, f"seed {results['settings']['seed']}; the transformers have learned positions")
    _induction_curves(left, models, results["rules"])
    for row, (name, record) in enumerate((name, one) for name, one in models.items() if "final" in one):
        accuracy, colour = record["final"]["accuracy"], INDUCTION_COLOURS[name]
        right.barh(row, accuracy, height=0.3, color=colour)
        right.text(0, row - 0.24, record["label"], color=colour, fontweight="bold", fontsize=9.5)
        right.text(accuracy + 0.02, row, f"{accuracy:.3f}", va="center", fontweight="bold", fontsize=10.5)
        right.text(0.015, row + 0.01, f"{record['parameters']:,} parameters", va="center", color="white", fontsize=8)
    right.set(xlim=(0, 1.17), ylim=(len(INDUCTION_COLOURS) - 0.6, -0.55), xticks=[], yticks=[])
    right.spines[["left", "bottom"]].set_visible(False)
    set_panel_title(right, "at the end of training")
    return figure


def _induction_curves(axes: "Axes", models: dict[str, Any], rules: dict[str, Any]) -> None:
    for name, record in reversed(models.items()):
        points = [(step, accuracy) for step, _, accuracy in record["curve"] if step > 0]  # the axis is logarithmic
        width = 2.6 if name == "memory" else 2.0
        axes.plot(*zip(*points, strict=True), color=INDUCTION_COLOURS[name], linewidth=width)
    last = max((record["curve"][-1][0] for record in models.values() if record["curve"]), default=1)
    for name, x, side, note in (
        ("token-memory", 0.01, "left", "what followed earlier"),
        ("bigram", 0.99, "right", "bigrams alone"),
    ):
        level = rules[name]["final"]["accuracy"]
        axes.axhline(level, color="#888888", linewidth=0.8, linestyle=DASHED, zorder=0)
        style: Any = {"ha": side, "fontsize": 8.5, "color": "#666666", "transform": axes.get_yaxis_transform()}
        axes.text(x, level + 0.015, f"rule: {note}", **style)
    first = min(4, last / 2)
    axes.set(xscale="log", xlim=(first, last * 1.03), ylim=(0, 1.08), xlabel="training steps")
    set_log_ticks(axes, [t for t in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000) if first <= t <= last])


def moons_error(results: dict[str, Any]) -> "Figure":
    """Error against context length, one panel per network, with the periods and their common multiple."""
    networks, system = results["networks"], results["systems"]["validation"]
    title = f"Error of the next 25 positions, seed {results['settings']['seed']}"
    figure, [panels] = canvas(1, len(networks), 4.6 * len(networks), 3.4, title)
    for axes, record in zip(panels, networks.values(), strict=True):
        for split, colour in (("training", GREY), ("validation", ORANGE)):
            curve = record["error"][split]
            axes.plot(range(1, len(curve) + 1), curve, color=colour, linewidth=1.8, label=f"{split} periods")
        for period in system["periods"]:
            axes.axvline(period, color=INK, linewidth=0.8, linestyle=DASHED)
        axes.axvline(system["lcm"], color="#CC0000", linewidth=1.2)
        axes.text(system["lcm"], 1.28, " lcm", color="#CC0000", fontsize=9)
        axes.set(xlabel="observations seen", ylim=(0, 1.35), title=record["label"])
    panels[0].set_ylabel("mean absolute deviation")
    panels[-1].legend(loc="center left", bbox_to_anchor=(0.3, 0.6), fontsize=9)
    return figure


def moons_weights(results: dict[str, Any]) -> "Figure":
    """Moduli of the three matrices of every network."""
    networks = results["networks"]
    figure, rows = canvas(len(networks), 3, 7.5, 2.6 * len(networks), "Moduli of the weights")
    for row, record in zip(rows, networks.values(), strict=True):
        for axes, (name, matrix) in zip(row, record["weights"].items(), strict=True):
            figure.colorbar(axes.imshow(matrix, cmap="Blues", vmin=0), ax=axes, shrink=0.8)
            axes.set(xticks=[], yticks=[], title=rf"$|W_\{name}|$" if name != "z" else "$|W_z|$")
        row[0].set_ylabel(record["label"])
    return figure


def moons_attention(results: dict[str, Any]) -> "Figure":
    """Which earlier time each memory answers from."""
    maps = [
        (f"{record['label']}: memory {number}", weights)
        for record in results["networks"].values()
        for number, weights in enumerate(record["attention"]["weights"], start=1)
    ]
    figure, [panels] = canvas(1, len(maps), 3.0 * len(maps), 3.4, "Where the answers come from")
    highest = max(max(map(max, weights)) for _, weights in maps)
    for axes, (title, weights) in zip(panels, maps, strict=True):
        last = len(weights) * results["settings"]["attention_stride"]
        extent = (0, last, last, 0)
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=highest, extent=extent, interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("stored at observation")
    panels[0].set_ylabel("asked at observation")
    figure.colorbar(panels[-1].images[0], ax=panels, shrink=0.7, label="weight")
    return figure


def moons_training(results: dict[str, Any]) -> "Figure":
    """The loss of every seed, and how many converged."""
    networks = results["networks"]
    figure, [panels] = canvas(1, len(networks), 4.6 * len(networks), 3.2, "Training, one line per seed")
    for axes, record in zip(panels, networks.values(), strict=True):
        for losses in list(zip(*record["curve"], strict=True))[1:]:
            axes.plot([point[0] for point in record["curve"]], losses, color=BLUE, alpha=0.35, linewidth=1)
        found = sum(seed["converged"] for seed in record["seeds"])
        title = f"{record['label']}: {found} of {len(record['seeds'])} right after the slowest moon's return"
        axes.set(yscale="log", xlabel="step", ylim=(1e-4, 1.5))
        axes.set_title(title, fontsize=9)
    panels[0].set_ylabel("clipped loss")
    return figure


def moons_astronomers(results: dict[str, Any]) -> "Figure":
    """What both astronomers predict for the next days, at several times: a strip for a talk."""
    import numpy as np

    networks, contexts = results["networks"], results["sky"]["contexts"]
    title = "What each astronomer predicts for the next 25 days (dots), and what happens (lines)"
    figure, rows = canvas(len(networks), len(contexts), 2.6 * len(contexts), 2.8 * len(networks), title)
    turn = np.linspace(0, 2 * np.pi, 200)
    for row, record in zip(rows, networks.values(), strict=True):
        for axes, context, truth, guess in zip(row, contexts, results["sky"]["truth"], record["sky"], strict=True):
            for moon, colour in enumerate((ORANGE, BLUE, GREEN, GREY, INK, "#CC79A7")[: len(truth[0]) // 2]):
                radius = 1 + moon
                lines, dots = (radius * np.array(path)[:, 2 * moon : 2 * moon + 2].T for path in (truth, guess))
                axes.plot(radius * np.cos(turn), radius * np.sin(turn), color="#DDDDDD", linewidth=0.8)
                axes.plot(*lines, color=colour, linewidth=4, alpha=0.35)
                axes.plot(*dots, ".", color=colour, markersize=3)
            axes.set(aspect="equal", xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_title(f"after {context} days", fontsize=9)
        row[0].set_ylabel(record["label"])
    return figure


# RegBench: memories in bold, other architectures each with a marker of its own.
MARKERS = "osD^vP<>Xph"
PUBLISHED = {"marker": "_", "markersize": 13, "markeredgewidth": 1.8, "linestyle": "none", "zorder": 6}
MEASURES = {
    "accuracy": "accuracy: the most likely token is a legal one",
    "tvd": "TVD: distance to the true distribution",
}


def regbench(results: dict[str, Any]) -> "Figure | None":
    """New languages: one panel per measure, one line per architecture, the n-grams behind them."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for best in results["best"]:
        if not best["in_distribution"]:
            lines.setdefault(best["architecture"], []).append(best)
    if not lines:
        return None
    figure, [panels] = canvas(1, 2, 12.5, 5.4, "RegBench: learning a new language in context, one data seed")
    numbers = sorted({best["environments"] for row in lines.values() for best in row})
    published = [
        (name, number, scores[str(number)])
        for name in lines
        for number in numbers
        if str(number) in (scores := results["published"].get(name, {}))
    ]
    styles = _line_styles(list(lines))
    for column, (axes, measure) in enumerate(zip(panels, MEASURES, strict=True)):
        label_at = -1.0
        anchors = {name: scores[measure] for name, scores in results["anchors"].items() if name != "uniform"}
        for name, level in sorted(anchors.items(), key=lambda item: item[1]):  # labels that would touch move apart
            axes.axhline(level, color="#AAAAAA", linewidth=0.9, linestyle=DASHED, zorder=0)
            label_at = max(level, label_at + 0.025)
            where: Any = {"transform": axes.get_yaxis_transform(), "va": "center"}
            axes.text(1.01, label_at, name, color="#777777", fontsize=8, **where)
        for name, row in lines.items():
            points = [(best["environments"], best[measure]) for best in row]
            axes.plot(*zip(*points, strict=True), **styles[name], label=_architecture_label(results, name))
            for number, scores in ((number, scores) for of, number, scores in published if of == name):
                axes.plot(number, scores[column], **PUBLISHED, color=styles[name]["color"])
        axes.set(xscale="log", xlabel="training languages", xlim=(numbers[0] / 1.3, numbers[-1] * 1.3))
        set_log_ticks(axes, numbers)
        _measure_panel(axes, measure, grid="y")
    if published:
        panels[0].plot([], [], **PUBLISHED, color=GREY, label="the paper's figure 9")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=9.5)
    return figure


def _line_styles(architectures: list[str]) -> dict[str, dict[str, Any]]:
    """Return how lines are drawn: what is as published dashed, in the colour and with the marker of what is not."""
    bases = {name: name.removesuffix("-as-published") for name in architectures}
    colours, styles = colours_of(dict.fromkeys(bases.values())), {}
    for name, base in bases.items():
        marker = MARKERS[list(colours).index(base) % len(MARKERS)]
        styles[name] = {"color": colours[base], "marker": marker, "markersize": 5.5, "linewidth": 1.6}
        if name == "memory-mosaic":
            styles[name] |= {"markersize": 7, "linewidth": 2.8, "zorder": 5}
        elif name != base:
            styles[name] |= {"linestyle": (0, (2, 1.5)), "markerfacecolor": "white"}
    return styles


def in_distribution(results: dict[str, Any]) -> "Figure | None":
    """New sequences of the training languages: one row per architecture, ours as a dot, the paper's as a ring."""
    bests = sorted((one for one in results["best"] if one["in_distribution"]), key=lambda best: best["accuracy"])
    if not bests:
        return None
    numbers = sorted({best["environments"] for best in bests})
    languages = f"{', '.join(f'{number:,}' for number in numbers)} languages"
    figure, [panels] = canvas(1, 2, 11.0, 1.4 + 0.36 * len(bests), f"RegBench in distribution, {languages}")
    published = [published_in_distribution(results, best) for best in bests]
    labels = [
        _architecture_label(results, best["architecture"]) + (f", {best['environments']:,}" if len(numbers) > 1 else "")
        for best in bests
    ]
    for column, (axes, measure) in enumerate(zip(panels, MEASURES, strict=True)):
        for row, (best, scores) in enumerate(zip(bests, published, strict=True)):
            colour = ORANGE if best["architecture"] == "memory-mosaic" else BLUE
            if scores:
                axes.plot(scores[column], row, "o", markersize=8, markerfacecolor="none", color=GREY)
            axes.plot(best[measure], row, "o", markersize=7, color=colour)
        axes.set_yticks(range(len(bests)), labels=labels)
        axes.set_ylim(-0.6, len(bests) - 0.4)
        axes.margins(x=0.08)
        axes.tick_params(axis="y", length=0)
        _measure_panel(axes, measure, grid="x")
    panels[1].set_yticklabels([])
    panels[1].plot([], [], "o", color=INK, label="chosen on validation loss")
    if any(published):
        panels[1].plot([], [], "o", markerfacecolor="none", color=GREY, label="the paper's table 2")
    figure.legend(loc="outside lower right", fontsize=9, ncols=2)
    return figure


def _measure_panel(axes: "Axes", measure: str, *, grid: Any) -> None:
    set_panel_title(axes, MEASURES[measure])
    axes.grid(axis=grid, color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)


def _architecture_label(results: dict[str, Any], architecture: str) -> str:
    return str(LABELS.get(architecture, results["labels"][architecture]))


def published_in_distribution(results: dict[str, Any], best: dict[str, Any]) -> list[float] | None:
    """Return accuracy and TVD of the paper's table, which is of 100 languages."""
    return results["published_in_distribution"].get(best["architecture"]) if best["environments"] == 100 else None


FIGURES = {
    "induction": {"induction.png": induction},
    "moons": {
        "error.png": moons_error,
        "weights.png": moons_weights,
        "attention.png": moons_attention,
        "training.png": moons_training,
        "astronomers.png": moons_astronomers,
    },
    "regbench": {"regbench.png": regbench, "in_distribution.png": in_distribution},
}
