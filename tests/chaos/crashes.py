"""A crash at every file-system event of a writer, sometimes another in the run after it; then a run to the end."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from .children import run
from .crash_points import CODE, CrashPoints
from .workloads import WORKLOADS, Given, difference


def cases(given: Given, random: Random) -> Iterator[str]:
    """Each event of each workload once, and each write once more, torn in the middle; in an order of its own."""
    found = []
    for name, events in given.events.items():
        found += [f"{name}/{at}" for at in range(1, len(events) + 1)]
        found += [f"{name}/{at}/torn" for at, event in enumerate(events, start=1) if event.startswith("write")]
    random.shuffle(found)
    yield from found


def run_case(given: Given, case: str, random: Random, folder: Path) -> tuple[str | None, str]:
    """The problem, if there is one, and what was done."""
    name, at, *torn = case.split("/")
    events = given.events[name]
    points = [CrashPoints(folder, at=int(at), torn=bool(torn))]
    note = f"crash at {at} ({events[int(at) - 1]}{', torn' if torn else ''})"
    if random.random() < 0.3:
        points.append(CrashPoints(folder, at=random.randint(1, len(events)), torn=random.random() < 0.5))
        note += f", then at {points[1].at}"
    commands = given.commands(name, folder / "out")
    for point in points:
        if problem := run(commands, folder, point.install).problem(allowed=(0, CODE)):
            return problem, note
    return finish(given, name, folder), note


def finish(given: Given, name: str, folder: Path) -> str | None:
    """Run to the end: it must come to the same as one that was never disturbed."""
    if problem := run(given.commands(name, folder / "out"), folder).problem(allowed=(0,)):
        return f"the next run: {problem}"
    outcome = WORKLOADS[name].outcome(folder / "out")
    return None if outcome == given.outcomes[name] else difference(given.outcomes[name], outcome)
