"""Signals at random moments, some at the process alone and some at all that it started; then a run to the end."""

import os
import signal
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from random import Random

from .children import LONGEST, Child
from .crashes import finish
from .workloads import IN_PROCESSES, WORKLOADS, Given

ALLOWED = {signal.SIGKILL: (-9, 0), signal.SIGTERM: (-15, 130, 0), signal.SIGINT: (130, 0)}
ROUNDS = (*WORKLOADS, *WORKLOADS, "workers")  # the processes of prepare take seconds to start


def cases(given: Given, random: Random) -> Iterator[str]:
    yield from (f"{name}/{number}" for number, name in enumerate(cycle(ROUNDS)))


def run_case(given: Given, case: str, random: Random, folder: Path) -> tuple[str | None, str]:
    """The problem, if there is one, and what was done."""
    kind, _, _ = case.partition("/")
    name, workload = ("prepare", IN_PROCESSES) if kind == "workers" else (kind, WORKLOADS[kind])
    longest = given.seconds[name] * 1.2 + (6.0 if kind == "workers" else 0.0)
    note = ""
    for _ in range(random.randint(1, 4)):
        number = random.choice([signal.SIGKILL] * 3 + [signal.SIGTERM, signal.SIGINT])
        group, delay, twice = random.random() < 0.5, random.uniform(0, longest), random.random() < 0.3
        child = Child(workload.commands(given, folder / "out"), folder)
        if child.wait(delay):
            note += f"{number.name}{' to all' if group else ''} after {delay:.2f} s; "
            child.signal(number, group=group)
            if twice and number != signal.SIGKILL and child.wait(random.uniform(0, 0.3)):
                child.signal(number, group=group)
            child.wait()
            if not _all_gone(child.pid):
                child.end()
                return "processes stay behind", note
        if problem := child.end().problem(ALLOWED[number]):
            return f"after {number.name}: {problem}", note
    return finish(given, name, folder), note


def _all_gone(group: int) -> bool:
    """Whether all processes that a child has started end by themselves."""
    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False
