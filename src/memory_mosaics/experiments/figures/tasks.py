"""Figures of the small tasks: induction and three moons."""

from typing import TYPE_CHECKING, Any

from memory_mosaics.experiments.figures.style import BLUE, GREEN, GREY, INK, ORANGE, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def induction(results: dict[str, Any]) -> "Figure":
    """Accuracy where the trigger has been seen: against training steps on the left, at the end on the right."""
    from matplotlib.figure import Figure

    colours = {"memory": ORANGE, "transformer-1-shifted": GREEN, "transformer-2": BLUE, "transformer-1": GREY}
    models = {name: results["models"][name] for name in colours if name in results["models"]}
    figure = Figure(figsize=(9, 3.9), dpi=200)
    kind = "fixed" if results["settings"]["fixed_triggers"] else "random"
    title = f"Induction, {kind} triggers: accuracy where the trigger has been seen before"
    figure.text(0.012, 0.93, title, fontsize=13, fontweight="bold")
    edges = {"left": 0.065, "right": 0.985, "bottom": 0.125, "top": 0.81, "wspace": 0.1}
    left, right = figure.subplots(1, 2, width_ratios=(1.45, 1), gridspec_kw=edges)
    about = f"seed {results['settings']['seed']}; the transformers have learned positions"
    left.set_title(about, loc="left", fontsize=10.5)
    _learning(left, models, colours, results["rules"])
    _final(right, models, colours)
    return figure


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


def moons_error(results: dict[str, Any]) -> "Figure":
    """Error against context length, one panel a network, with the periods and their common multiple."""
    networks = results["networks"]
    figure, [panels] = canvas(
        1,
        len(networks),
        4.6 * len(networks),
        3.4,
        f"Error of the next 25 positions, seed {results['settings']['seed']}",
    )
    for axes, record in zip(panels, networks.values(), strict=True):
        for split, colour in (("training", GREY), ("validation", ORANGE)):
            curve = record["error"][split]
            axes.plot(range(1, len(curve) + 1), curve, color=colour, linewidth=1.8, label=f"{split} periods")
        system = results["systems"]["validation"]
        for period in system["periods"]:
            axes.axvline(period, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.axvline(system["lcm"], color="#CC0000", linewidth=1.2)
        axes.text(system["lcm"], 1.28, " lcm", color="#CC0000", fontsize=9)
        axes.set(xlabel="observations seen", ylim=(0, 1.35), title=record["label"])
    panels[0].set_ylabel("mean absolute deviation")
    panels[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(0.3, 0.6), fontsize=9)
    return figure


def moons_weights(results: dict[str, Any]) -> "Figure":
    """Moduli of the three matrices of every network."""
    networks = results["networks"]
    figure, rows = canvas(len(networks), 3, 7.5, 2.6 * len(networks), "Moduli of the weights")
    for row, record in zip(rows, networks.values(), strict=True):
        for axes, (name, matrix) in zip(row, record["weights"].items(), strict=True):
            axes.imshow(matrix, cmap="Blues", vmin=0)
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
    figure, [panels] = canvas(1, len(maps), 3.0 * len(maps), 3.3, "Where the answers come from")
    for axes, (title, weights) in zip(panels, maps, strict=True):
        last = len(weights) * results["settings"]["attention_stride"]
        axes.imshow(weights, cmap="Blues", vmin=0, extent=(0, last, last, 0), interpolation="nearest")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("stored at")
    panels[0].set_ylabel("asked at")
    return figure


def moons_training(results: dict[str, Any]) -> "Figure":
    """The loss of every seed, and how many converged."""
    networks = results["networks"]
    figure, [panels] = canvas(1, len(networks), 4.6 * len(networks), 3.2, "Training, one line a seed")
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
    """What both astronomers expect of the coming days, at several times: a strip for a talk."""
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
