"""Figures of the arena: an overview of all contestants on all tasks, and one figure per task."""

from collections.abc import Callable
from functools import partial
from itertools import cycle
from math import hypot, sqrt
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from memory_mosaics.experiments.figures import DASHED, GREY, INK, canvas, colours_of, set_panel_title
from memory_mosaics.results import NORMAL_95, mean_and_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRANSFORMERS = ("transformer", "transformer-rotary", "transformer-alibi", "llama")
BETTER, WORSE = "\N{BLACK UP-POINTING TRIANGLE}", "\N{WHITE DOWN-POINTING TRIANGLE}"
MANY = 12  # contestants, which are then lines of the overview
MARKS = {1: BETTER, 0: "", -1: WORSE}


def tested(task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the contestants of a task that have test scores."""
    return {name: one for name, one in task["contestants"].items() if "score" in one}


def is_complete(task: dict[str, Any], name: str) -> bool:
    """Return whether all seeds of a contestant were tested, and none failed."""
    record = task["contestants"].get(name, {})
    return "score" in record and record["seeds"] == task["seeds"] and not record["failed"]


def best_transformer(task: dict[str, Any]) -> str | None:
    """Return the transformer with the best validation score, of those whose seeds were all tested."""
    sign = 1 if task["higher_is_better"] else -1
    known = {name: sign * task["contestants"][name]["valid_score"] for name in TRANSFORMERS if is_complete(task, name)}
    return max(known, key=known.__getitem__) if known else None


def best_anchor(task: dict[str, Any]) -> str | None:
    """Return the name of the best predictor that needs no training, beside the guess. A ceiling is none."""
    sign = 1 if task["higher_is_better"] else -1
    others = {name: sign * score for name, score in task["anchors"].items() if name != "guess"}
    others = {name: score for name, score in others.items() if not name.startswith("ceiling")}
    return max(others, key=others.__getitem__) if others else None


def verdict(task: dict[str, Any], name: str) -> int:
    """1 if a contestant is better than every transformer that can read the test, -1 if it is worse than the reference.

    Otherwise 0. A verdict needs all seeds of all four transformers that can read the test. The reference is the
    transformer with the best validation score, which may not be the best of the test: to be better than that one alone
    proves little.
    """
    known, reference = task["contestants"], best_transformer(task)
    others = [one for one in TRANSFORMERS if "unreadable" not in known.get(one, {})]
    if reference is None or name == reference or not all(is_complete(task, one) for one in (name, *others)):
        return 0
    signs = {other: compare(task, name, other) for other in others if other != name}
    return -1 if signs[reference] < 0 else int(min(signs.values()) > 0)


def compare(task: dict[str, Any], name: str, other: str) -> int:
    """1 if the first of two contestants is better and -1 if it is worse; 0 if that cannot be said.

    That needs a difference beyond the 95 % interval over seeds and the error of an accuracy on that number of examples.
    There is none between two that were stopped because they were good enough.
    """
    one, two = task["contestants"][name], task["contestants"][other]
    if None in (one["within"], two["within"]) or one["reached"] == two["reached"] == task["seeds"]:
        return 0
    errors = [one["within"], two["within"]]
    if task["metric"] == "accuracy":
        errors += [
            NORMAL_95 * sqrt(max(0, score * (1 - score)) / task["examples"]) for score in (one["score"], two["score"])
        ]
    difference = one["score"] - two["score"]
    if abs(difference) <= hypot(*errors):
        return 0
    return (1 if difference > 0 else -1) * (1 if task["higher_is_better"] else -1)


def shade(task: dict[str, Any], score: float) -> float:
    """Scale a score to 0 for a guess and 1 for a perfect answer, which a guess is where there is no choice."""
    guess, perfect = task["anchors"]["guess"], task["perfect"]
    return 1.0 if guess == perfect else min(max((score - guess) / (perfect - guess), 0.0), 1.0)


def overview(results: dict[str, Any]) -> "Figure | None":
    """A cell per contestant and task."""
    tasks = {name: task for name, task in results["tasks"].items() if tested(task)}
    names = list(dict.fromkeys(name for task in tasks.values() for name in task["contestants"]))
    if not names:
        return None
    labels = {name: one["label"] for task in tasks.values() for name, one in task["contestants"].items()}
    title = "Arena: mean test scores"
    rows = [name + ("" if task["higher_is_better"] else " \N{DOWNWARDS ARROW}") for name, task in tasks.items()]
    columns, many = [labels[name] for name in names], len(names) > MANY
    if many:  # a line for each contestant is readable, a column for each is not
        rows, columns = columns, rows
    figure, [[axes]] = canvas(1, 1, max(9.0, 0.6 + _inches(rows) + 1.2 * len(columns)), 1.5 + 0.3 * len(rows), title)
    shades = np.full((len(tasks), len(names)), np.nan)
    for at, task in enumerate(tasks.values()):
        for number, name in enumerate(names):
            if name in tested(task):
                shades[at, number] = shade(task, task["contestants"][name]["score"])
            style: Any = {"ha": "center", "va": "center", "color": "white" if shades[at, number] > 0.75 else INK}
            style["fontweight"] = "bold" if name == task["reference"] else "normal"
            axes.text(*((at, number) if many else (number, at)), cell_text(task, name), fontsize=9, **style)
    axes.imshow(shades.T if many else shades, cmap="YlGnBu", vmin=0, vmax=1.25, aspect="auto")
    axes.set_xticks(range(len(columns)), labels=[fill(text, 13) for text in columns], fontsize=9)
    axes.set_yticks(range(len(rows)), labels=rows, fontsize=9)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    note = [
        "colour: from a guess to a perfect answer, or the best of a text; \N{DOWNWARDS ARROW}: lower is better",
        "bold: the transformer that is best on validation examples; n/a: longer than its positions",
        f"{BETTER} better than all four transformers, or all that can read the test; {WORSE} worse than the bold one:",
        "beyond the 95 % interval over seeds and the error of the test",
        f"seeds per cell: {results['seeds']}",
    ]
    axes.set_xlabel("\n".join(note), loc="left", fontsize=8.5)
    return figure


def why_untested(record: dict[str, Any], seeds: int) -> str:
    """Return n/a for a test longer than the positions of a model, failed, or - for one that is not yet trained."""
    if "unreadable" in record:
        return "n/a"
    return "failed" if "chosen" not in record or record["failed"] == seeds else "-"


def cell_text(task: dict[str, Any], name: str) -> str:
    """Return the score of a contestant with its mark, how many seeds it is of where some are missing, or why none."""
    record = task["contestants"].get(name)
    if record is None:
        return ""
    if "score" not in record:
        return why_untested(record, task["seeds"])
    missing = f" ({record['seeds']}/{task['seeds']})" if record["seeds"] < task["seeds"] else ""
    return f"{record['score']:.3f}{missing} {MARKS[record['verdict']]}".rstrip()


def _inches(labels: list[str]) -> float:
    """About the width of the longest label beside a panel."""
    return max(2.0, 0.075 * max(map(len, labels)))


def task_figure(results: dict[str, Any], name: str) -> "Figure | None":
    """Validation during training on the left, the test scores on the right: by test, if there are several."""
    task = results["tasks"][name]
    if not tested(task):
        return None
    colours = colours_of(tested(task))
    labels = [one["label"] for one in tested(task).values()]
    lines = max(8, len(labels) + len(task["anchors"]))
    figure, [[left, right]] = canvas(1, 2, max(10.5, 8.25 + _inches(labels)), 1.6 + 0.32 * lines, name)
    set_panel_title(left, f"validation {task['metric']}, a line per seed")
    for contestant, record in tested(task).items():
        for curve in record["curves"]:
            style: Any = {"color": colours[contestant], "linewidth": 1.1, "alpha": 0.8}
            left.plot(*zip(*curve, strict=True), **style, marker=".", markevery=[-1])  # the end, which may be all
    left.set(xlabel="training steps", xlim=(0, None))
    if task["higher_is_better"]:
        left.set_ylim(0, 1.04)
    draw = _by_position if "anchor_measures" in task else _by_test if len(task["tests"]) > 1 else _bars
    draw(right, task, colours)
    return figure


def _bars(axes: "Axes", task: dict[str, Any], colours: dict[str, str]) -> None:
    set_panel_title(axes, f"test {task['metric']}, mean and 95 % interval")
    rows = {one["label"]: (one["score"], one["within"], colours[name]) for name, one in tested(task).items()}
    rows |= {f"({name})": (score, None, GREY) for name, score in task["anchors"].items()}
    for row, (score, within, colour) in enumerate(rows.values()):
        axes.barh(row, score, color=colour, height=0.6, alpha=0.9)
        axes.errorbar(score, row, xerr=within or 0, color=INK, capsize=2, linewidth=1)
        axes.text(score + (within or 0), row, f"  {score:.3f}", va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), labels=list(rows), fontsize=9)
    axes.set_xlim(0, 1.18 * max(score + (within or 0) for score, within, _ in rows.values()))
    axes.invert_yaxis()


def _by_test(axes: "Axes", task: dict[str, Any], colours: dict[str, str]) -> None:
    set_panel_title(axes, f"{task['metric']} by test, mean and 95 % interval")
    positions = range(len(task["tests"]))
    for name, record in tested(task).items():
        means, within = zip(*record["by_test"], strict=True)
        errors = [each or 0 for each in within]
        axes.errorbar(positions, means, yerr=errors, color=colours[name], capsize=2, label=record["label"])
    for name, score in task["anchors"].items():
        axes.axhline(score, color=GREY, linestyle=DASHED, linewidth=0.9, label=f"({name}, mean)")
    axes.set_xticks(positions, labels=task["tests"], rotation=30, ha="right", fontsize=8)
    axes.legend(fontsize=8)


def _by_position(axes: "Axes", task: dict[str, Any], colours: dict[str, str]) -> None:
    set_panel_title(axes, "test loss by position, mean and 95 % interval")
    curves = [(one["measures"], colours[name], one["label"], "-") for name, one in tested(task).items()]
    anchors = {name: one for name, one in task["anchor_measures"].items() if name != "guess"}
    styles = cycle([DASHED, ":", "-."])
    curves += [(one, GREY, f"({name})", next(styles)) for name, one in anchors.items()]
    for measures, colour, label, style in curves:
        positions = [(first + end + 1) / 2 for first, end, *_ in measures["by_position"]]
        losses, within = (np.array([span[at] or 0.0 for span in measures["by_position"]]) for at in (2, 3))
        axes.plot(positions, losses, color=colour, label=label, linestyle=style, linewidth=1.4)
        axes.fill_between(positions, losses - within, losses + within, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="position in the window, from 1", ylabel="nats per token")
    axes.legend(fontsize=8 if len(curves) <= MANY else 5.5)


def difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, float | None]:
    """The mean difference of the scores of two contestants and its 95 % interval.

    It is over seeds, with which both read the same batches, where both have all of them.
    """
    if one["failed"] or other["failed"] or one["seeds"] != other["seeds"]:
        return one["score"] - other["score"], hypot(one["within"] or 0.0, other["within"] or 0.0)
    return mean_and_interval([a - b for a, b in zip(one["scores"], other["scores"], strict=True)])


def ingredients(results: dict[str, Any]) -> "Figure | None":
    """What each set of ingredients changes: a panel per task, a line per contestant with ingredients."""
    tasks = {name: task for name, task in results["tasks"].items() if any("+" in one for one in tested(task))}
    names = list(dict.fromkeys(name for task in tasks.values() for name in tested(task) if "+" in name))
    if not names:
        return None
    title = "Test score less that of the architecture without the ingredients, seed by seed"
    figure, [panels] = canvas(1, len(tasks), _inches(names) + 2.6 * len(tasks), 1.6 + 0.3 * len(names), title)
    for axes, (task_name, task) in zip(panels, tasks.items(), strict=True):
        set_panel_title(axes, task_name + ("" if task["higher_is_better"] else " \N{DOWNWARDS ARROW}"))
        axes.axvline(0, color=GREY, linewidth=0.9)
        known = tested(task)
        for row, name in enumerate(names):
            base = name.split("+")[0]
            if name in known and base in known:
                mean, within = difference(known[name], known[base])
                style: Any = {"color": colours_of([base])[base], "capsize": 2, "fmt": "o", "markersize": 4}
                axes.errorbar(mean, row, xerr=within or 0.0, **style)
        axes.set(ylim=(len(names) - 0.5, -0.5), xlabel=f"{task['metric']}, mean and 95 % interval")
        axes.set_yticks(range(len(names)), labels=names if axes is panels[0] else [], fontsize=8)
    return figure


def files(results: dict[str, Any]) -> dict[str, Callable[[dict[str, Any]], "Figure | None"]]:
    """Return the figures of these results by file name."""
    found = {"overview.png": overview, "ingredients.png": ingredients}
    return found | {f"{name}.png": partial(task_figure, name=name) for name in results["tasks"]}


FIGURES = {"arena": files}
