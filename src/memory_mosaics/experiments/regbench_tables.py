"""RegBench in words: tables in Markdown, beside what was published."""

from math import inf
from typing import Any

from memory_mosaics.experiments.figures.regbench import published_in_distribution
from memory_mosaics.experiments.regbench_models import ARCHITECTURES

# Accuracy, then TVD, read off figure 9 of the Memory Mosaics paper: good to 0.002, or 0.005 where curves meet.
_FIGURE: dict[str, tuple[list[float], list[float]]] = {
    "memory-mosaic": ([0.925, 0.929, 0.934, 0.941, 0.959], [0.570, 0.254, 0.216, 0.186, 0.122]),
    "transformer": ([0.523, 0.543, 0.533, 0.926, 0.951], [0.683, 0.643, 0.630, 0.232, 0.144]),
    "mamba-as-published": ([0.377, 0.577, 0.716, 0.866, 0.914], [0.753, 0.605, 0.484, 0.342, 0.271]),
    "linear-transformer": ([0.464, 0.487, 0.510, 0.798, 0.928], [0.741, 0.641, 0.631, 0.340, 0.192]),
    "hyena": ([0.499, 0.579, 0.656, 0.768, 0.906], [0.701, 0.599, 0.539, 0.458, 0.221]),
    "h3": ([0.439, 0.505, 0.553, 0.673, 0.893], [0.737, 0.670, 0.617, 0.514, 0.237]),
    "lstm-as-published": ([0.424, 0.474, 0.509, 0.629, 0.808], [0.731, 0.665, 0.643, 0.533, 0.362]),
    "rwkv-as-published": ([0.401, 0.478, 0.477, 0.560, 0.860], [0.765, 0.694, 0.663, 0.601, 0.281]),
    "s4d": ([0.498, 0.531, 0.515, 0.543, 0.823], [0.680, 0.630, 0.630, 0.602, 0.337]),
    "retnet": ([0.375, 0.481, 0.525, 0.522, 0.928], [0.772, 0.692, 0.645, 0.615, 0.178]),
    "gla": ([0.354, 0.465, 0.518, 0.520, 0.927], [0.776, 0.697, 0.651, 0.620, 0.187]),
}
_NUMBERS = ("100", "500", "1000", "2500", "40000")  # of environments
PUBLISHED = {
    name: {number: [a, d] for number, a, d in zip(_NUMBERS, *scores, strict=True)} for name, scores in _FIGURE.items()
}

# Its table 2, with 100 environments.
PUBLISHED_IN_DISTRIBUTION: dict[str, list[float]] = {
    "memory-mosaic": [0.959, 0.417],
    "transformer": [0.856, 0.308],
    "mamba-as-published": [0.929, 0.268],
    "s4d": [0.846, 0.350],
    "rwkv-as-published": [0.967, 0.183],
    "linear-transformer": [0.816, 0.348],
    "h3": [0.794, 0.425],
    "gla": [0.870, 0.284],
    "hyena": [0.953, 0.244],
    "lstm-as-published": [0.849, 0.343],
    "retnet": [0.876, 0.296],
}
KEPT = ("name", "architecture", "environments", "in_distribution", "blocks", "heads", "width", "weight_decay")
KEPT += ("learning_rate", "seed", "parameters", "valid_loss", "accuracy", "tvd", "tested", "seconds")


def place(outcome: dict[str, Any]) -> tuple[Any, ...]:
    """Where a case stands: out of distribution first, architectures in the paper's order, then by environments."""
    names = list(ARCHITECTURES)
    name = outcome["architecture"]
    known = names.index(name) if name in names else len(names)
    return outcome["in_distribution"], known, name, outcome["environments"]


def row(best: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What is said of the chosen run of a case, and among how many it was chosen."""
    same = [one for one in runs if place(one) == place(best) and one["status"] == "finished"]
    return {name: best[name] for name in KEPT} | {"configurations": len(same)}


def line(name: str, outcome: dict[str, Any], best: dict[tuple[Any, ...], float]) -> str:
    """A run that ended, in one line."""
    if outcome["status"] != "finished":
        return f"{name}: fail, {outcome['reason']}"
    case = outcome["architecture"], outcome["environments"], outcome["in_distribution"]
    mark = ", the best so far" if outcome["valid_loss"] <= best.get(case, inf) else ""
    scores = f"accuracy {outcome['accuracy']:.3f}, TVD {outcome['tvd']:.3f}, {outcome['seconds']:.0f} s"
    return f"{name}: valid loss {outcome['valid_loss']:.4f}, {scores}{mark}"


def markdown(results: dict[str, Any]) -> str:
    """All tables that there are numbers for."""
    parts = [_out_of_distribution(results), _in_distribution(results), _chosen(results), _failed(results)]
    return "\n\n".join(part for part in parts if part) or "No run is finished."


def _out_of_distribution(results: dict[str, Any]) -> str:
    """Architectures by environments, each with what was published of it below."""
    cells: dict[str, dict[int, str]] = {}
    for best in results["best"]:
        if not best["in_distribution"]:
            cells.setdefault(best["architecture"], {})[best["environments"]] = _pair(best["accuracy"], best["tvd"])
    if not cells:
        return ""
    columns = sorted({number for row in cells.values() for number in row})
    lines = _head("accuracy / TVD, new languages", [f"{number:,}" for number in columns])
    for name, row in cells.items():
        lines.append(_line(results["labels"][name], [row.get(number, "") for number in columns]))
        published = results["published"].get(name, {})
        if any(str(number) in published for number in columns):
            found = [_pair(*published[str(number)]) if str(number) in published else "" for number in columns]
            lines.append(_line("*published*", found))
    for name, scores in results["anchors"].items():
        lines.append(_line(name, [_pair(scores["accuracy"], scores["tvd"])] * len(columns)))
    return "\n".join(lines)


def _in_distribution(results: dict[str, Any]) -> str:
    bests = [best for best in results["best"] if best["in_distribution"]]
    if not bests:
        return ""
    lines = _head("new sequences of known languages", ["environments", "accuracy / TVD", "published"])
    for best in bests:
        known = published_in_distribution(results, best)
        cells = [_pair(best["accuracy"], best["tvd"]), _pair(*known) if known else ""]
        lines.append(_line(results["labels"][best["architecture"]], [f"{best['environments']:,}", *cells]))
    return "\n".join(lines)


def _chosen(results: dict[str, Any]) -> str:
    """Which configuration, and by what."""
    if not results["best"]:
        return ""
    heads = ["environments", "chosen", "of", "epoch", "valid loss", "parameters", "minutes"]
    lines = _head("chosen on validation loss", heads)
    for best in results["best"]:
        epoch, where = best["tested"]["loss"]["epoch"], ", in distribution" * best["in_distribution"]
        case = f"{best['architecture']}-{best['environments']}{'-in' * best['in_distribution']}-"
        size = best["name"].removeprefix(case)
        cells = [f"{best['environments']:,}{where}", size, f"{best['configurations']}", f"{epoch}"]
        cells += [f"{best['valid_loss']:.4f}", f"{best['parameters']:,}", f"{best['seconds'] / 60:.1f}"]
        lines.append(_line(results["labels"][best["architecture"]], cells))
    return "\n".join(lines)


def _failed(results: dict[str, Any]) -> str:
    failed = [one for one in results.get("runs", ()) if one["status"] != "finished"]
    lines = [_line(one["name"], [one["reason"]]) for one in failed]
    return "\n".join([*_head("failed", ["why"]), *lines]) if lines else ""


def _pair(accuracy: float, tvd: float) -> str:
    return f"{accuracy:.3f} / {tvd:.3f}"


def _head(first: str, others: list[str]) -> list[str]:
    return [_line(first, others), f"|---|{'---:|' * len(others)}"]


def _line(first: str, others: list[str]) -> str:
    return f"| {' | '.join([first, *others])} |"
