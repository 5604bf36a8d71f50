"""Trials: which a study has, and who trains them: this process, several, or a cluster (sweep_ray.py).

A plan names its trials and trains one by `attempt`. Which one is next says its queue:

    Listed     trials that are all known: next is one that has no outcome and that nobody trains
    Journal    trials that Optuna keeps in a journal, listed or drawn (journal.py)

Whoever claims a trial holds a lock of the operating system, which goes when its process goes, however it ends. What was
left behind, the next to ask goes on with. OUT/trials/NAME/outcome.json is written once, whole, at the end of a trial.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from math import isfinite
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import torch
from filelock import FileLock, Timeout  # torch brings it
from tqdm import tqdm

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import check_regular, read_json
from memory_mosaics.isolation import interrupts_wait
from memory_mosaics.results import write

Settings = dict[str, Any]  # of a trial: numbers and words
Outcome = dict[str, Any]  # its "status" is finished or fail; one that finished has a "valid_loss"


class Claim(NamedTuple):
    """A trial that is this process's to train, the lock that says so, and Optuna's own record of it."""

    settings: Settings
    held: Any
    trial: Any = None


@runtime_checkable
class Queue(Protocol):
    """Who trains what."""

    def claim(self) -> Claim | None:
        """A trial that nobody trains: one that was left behind, or else a new one."""
        ...

    def record(self, claimed: Claim, outcome: Outcome) -> None:
        """Remember what it came to."""
        ...

    def busy(self) -> bool:
        """Whether others train some."""
        ...


@runtime_checkable
class Plan(Protocol):
    """Which trials, and how one is trained."""

    @property
    def out(self) -> Path: ...

    def name_of(self, settings: Settings) -> str: ...

    def attempt(self, settings: Settings) -> Outcome | None:
        """Train a trial, or go on with it, or read what it came to; nothing if it was told to stop."""
        ...

    def queue(self) -> Queue: ...


def outcome_of(folder: Path, fields: Sequence[str] = (), *, finished: Sequence[str] = ()) -> Outcome | None:
    """What a trial came to; `fields` are those that an outcome of its study has, and `finished` those that it has too
    unless it failed.
    """
    file = folder / "outcome.json"
    try:
        outcome = read_json(file)
        needed = {"fail": ("reason",), "finished": ("train_loss", "valid_loss", *finished)}[outcome["status"]]
        for name in (*needed, *fields):
            if outcome[name] is not None and name.endswith("loss") and not isfinite(outcome[name]):
                raise ValueError(f"its {name} is {outcome[name]}")
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{file} is damaged: {one_line(error)}; remove it to train that anew") from error
    return outcome


def attempted(folder: Path, train: Callable[[], Outcome | None]) -> Outcome | None:
    """The outcome in a trial's folder; or else that of `train`, whose words go into output.txt.

    Two studies may have claimed the same trial: the second waits for what the first makes of it.
    """
    with lock(folder.parents[1], f"train-{folder.name}"):
        if (outcome := outcome_of(folder)) is not None:
            return outcome
        folder.mkdir(parents=True, exist_ok=True)
        words = folder / "output.txt"
        if words.exists():
            check_regular(words)  # a FIFO would wait for a reader
        with words.open("a", encoding="utf-8") as text, redirect_stdout(text), redirect_stderr(text):
            outcome = train()
        if outcome is not None:
            write(folder / "outcome.json", outcome)
        return outcome


def lock(out: Path, name: str) -> Any:
    """A lock that the operating system opens when its holder ends."""
    (out / ".locks").mkdir(parents=True, exist_ok=True)
    return FileLock(out / ".locks" / name, thread_local=False)


def held_at_once(lock: Any) -> bool:
    """Take a lock, if nobody has it."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    return True


class Listed:
    """Trials that are all known, in the order in which to train them."""

    def __init__(self, plan: Plan, listed: Sequence[Settings]):
        self.plan, self.listed = plan, listed

    def _open(self) -> Iterator[tuple[Settings, Any]]:
        for settings in self.listed:
            name = self.plan.name_of(settings)
            if outcome_of(self.plan.out / "trials" / name) is None:
                yield settings, lock(self.plan.out, name)

    def claim(self) -> Claim | None:
        for settings, mine in self._open():
            if held_at_once(mine):
                if outcome_of(self.plan.out / "trials" / self.plan.name_of(settings)) is None:
                    return Claim(settings, mine)
                mine.release()  # it ended while we looked
        return None

    def record(self, claimed: Claim, outcome: Outcome) -> None:
        """The outcome is in the trial's folder."""

    def busy(self) -> bool:
        return next(self._open(), None) is not None


def carry_out(plans: Sequence[Plan], processes: int = 1) -> bool:
    """Train all trials, `processes` at once, waiting for those that others train; false if told to stop."""
    if processes > 1 and not in_processes(plans, processes):
        return False
    return all(work(plan, plan.queue()) for plan in plans)


def work(plan: Plan, queue: Queue, *, wait: bool = True) -> bool:
    """Train trials until none is left; false if told to stop."""
    while True:
        if claimed := queue.claim():
            try:
                outcome = plan.attempt(claimed.settings)
                if outcome is None:
                    return False
                queue.record(claimed, outcome)
            finally:
                claimed.held.release()
        elif wait and queue.busy():
            time.sleep(1)
        else:
            return True


def in_processes(plans: Sequence[Plan], count: int) -> bool:
    """Train in so many processes; false if one was told to stop. What a broken one leaves, the others take."""
    context = get_context("spawn")
    children: list[Any] = []
    try:
        for number in range(count):
            with interrupts_wait():  # a child that is started is one that is told to stop
                child = context.Process(target=job, args=(plans, number, count))
                child.start()
                children.append(child)
        for child in children:
            child.join()
    finally:
        for child in children:
            child.terminate()  # gently: it saves first
        for child in children:
            child.join()
    return all(child.exitcode not in (130, -signal.SIGTERM) for child in children)


def job(plans: Sequence[Plan], number: int, count: int) -> NoReturn:
    """Such a process: on its share of the cores, on one of the GPUs. It stops gently when the first process is gone."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the first process, which tells the others
    if (gpus := torch.cuda.device_count()) > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number % gpus]
    torch.set_num_threads(max(1, torch.get_num_threads() // count))

    def stop_when_orphaned() -> None:
        parent_process().join()  # type: ignore[union-attr]
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_orphaned, daemon=True).start()
    try:
        raise SystemExit(0 if all(work(plan, plan.queue(), wait=False) for plan in plans) else 130)
    except (UserError, OSError) as error:
        print(f"process {number}: {one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None


class News(NamedTuple):
    """How many trials are done, parts included; a line of each that ended, by name; and what stands behind the bar."""

    done: float
    ended: dict[str, str]
    beside: str


@contextmanager
def watched(name: str, total: int, look: Callable[[], News]) -> Iterator[None]:
    """Within, a line on the screen says how far the trials are, and each that ends has its own."""
    over, screen = threading.Event(), sys.stderr
    form = "{desc}: {n:.1f} of {total} trials |{bar}| {elapsed}<{remaining}{postfix}"
    bar = tqdm(total=total, desc=name, bar_format=form, disable=None)
    said = set(look().ended)

    def show() -> None:
        bar.n, ended, beside = look()
        for name in ended.keys() - said:
            tqdm.write(ended[name], file=screen)
        said.update(ended)
        bar.set_postfix_str(beside)

    def watch() -> None:
        while not over.wait(1.0):
            show()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        show()
        bar.close()
