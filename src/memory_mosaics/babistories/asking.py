"""Asking for many answers and keeping each: the loop around a server or a model, its bar, and its end by Ctrl-C.

Every answer is on the disk before the next request takes its place. The first Ctrl-C, and any error, asks for nothing
more and takes in the answers that are under way, which may be paid for; the second Ctrl-C drops them.
"""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from memory_mosaics.babistories.journal import Journal
from memory_mosaics.babistories.prompts import Request
from memory_mosaics.babistories.server import Failed, Refused, Server
from memory_mosaics.babistories.writer import Answer, Stopped, Writer
from memory_mosaics.errors import one_line

REFUSALS = 10  # in a row, and it is not the requests that are wrong
FEW = 3  # the same before the first answer, and for requests whose tries all failed
Next = Callable[[int], Request | None]  # what to ask next, given how many are under way; None for nothing now
Taken = Callable[[list[dict[str, Any]]], None]


@dataclass
class Outcome:
    """What came of it."""

    interrupted: bool = False
    problem: str | None = None
    refused: int = 0
    refused_in_row: int = 0
    refusal: str = ""
    retried: int = 0

    def stop(self, error: Exception) -> None:
        """The first problem is the one that is told."""
        foreseen = isinstance(error, Stopped | Refused)
        self.problem = self.problem or one_line(error if foreseen else ValueError(f"{type(error).__name__}: {error}"))

    def put_aside(self, error: Refused, *, answered: bool) -> bool:
        """Count a request without an answer; whether it is the server, and not the request, that is to blame."""
        self.refused += 1
        self.refused_in_row += 1
        self.refusal = one_line(error)
        return self.refused_in_row >= (REFUSALS if answered and not isinstance(error, Failed) else FEW)


class Bar:
    """The progress of a step: rate, time left, and what it costs in tokens."""

    def __init__(self, journal: Journal, *, total: int, done: int, step: str, unit: str):
        self.journal, self.start, self.before = journal, time.monotonic(), len(journal.done)
        self.bar = tqdm(total=total, initial=done, unit=unit, desc=step, disable=None, file=sys.stderr)

    def show(self, progress: int, retried: int = 0) -> None:
        self.bar.set_postfix_str(f"{tokens(self.journal)}{f', {retried} retries' if retried else ''}", refresh=False)
        self.bar.update(progress)

    def close(self) -> str:
        """Ends it; says what was done in this run."""
        self.bar.close()
        new, seconds = len(self.journal.done) - self.before, time.monotonic() - self.start
        return f"{new:,} new answers in {seconds:,.1f} s ({new / max(seconds, 1e-3) * 60:,.0f} a minute)"


def tokens(journal: Journal) -> str:
    read, written = journal.tokens
    return f"{_short(read)} tokens read, {_short(written)} written"


def _short(count: int) -> str:
    return f"{count:,}" if count < 10_000 else f"{count / 1e3:,.1f}k" if count < 1e6 else f"{count / 1e6:,.2f}M"


def ask_all(writer: Writer, next_request: Next, journal: Journal, *, taken: Taken) -> Outcome:
    """Ask until there is nothing more to ask for. `taken` sees the entries that are on the disk."""
    if writer.server is not None:
        return asyncio.run(_ask_server(writer, next_request, journal, taken))
    return _ask_local(writer, next_request, journal, taken)


def _ask_local(writer: Writer, next_request: Next, journal: Journal, taken: Taken) -> Outcome:
    from memory_mosaics.babistories.local import Local

    outcome, local = Outcome(), Local(writer)
    batch: list[Request] = []

    def drop() -> None:
        raise KeyboardInterrupt

    try:
        with _interrupts(outcome, lambda: len(batch), drop):
            while not outcome.interrupted:
                while len(batch) < writer.concurrency and (request := next_request(len(batch))):
                    batch.append(request)
                if not batch:
                    break
                answers = zip(batch, local.ask(batch), strict=True)
                entries = [_entry(request, answer, writer) for request, answer in answers]
                journal.append(entries)
                batch.clear()
                taken(entries)
    except KeyboardInterrupt:
        outcome.interrupted = True
    return outcome


def find_model(writer: Writer) -> Writer:
    """The writer with the name of its model. Says early that no server is there."""

    async def found() -> str:
        server = Server(writer, asyncio.Event())
        try:
            return await server.find_model()
        finally:
            await server.close()

    return writer if writer.server is None else replace(writer, model=asyncio.run(found()))


async def _ask_server(writer: Writer, next_request: Next, journal: Journal, taken: Taken) -> Outcome:
    outcome, stop = Outcome(), asyncio.Event()
    server = Server(writer, stop)
    pending: dict[asyncio.Task[Answer], Request] = {}

    def stopped() -> int:
        stop.set()
        return len(pending)

    def drop() -> None:
        for task in pending:
            task.cancel()

    try:
        with _interrupts(outcome, stopped, drop, asyncio.get_running_loop().call_soon_threadsafe):
            while True:
                while (
                    len(pending) < writer.concurrency and not stop.is_set() and (request := next_request(len(pending)))
                ):
                    pending[asyncio.create_task(server.ask(request))] = request
                if not pending:
                    break
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                entries: list[dict[str, Any]] = []
                try:
                    for task in done:
                        _sort(task, pending.pop(task), entries, writer, outcome, bool(journal.done or server.answered))
                finally:
                    if entries:
                        journal.append(entries)
                outcome.retried = server.retried
                if outcome.problem:
                    stop.set()
                taken(entries)
    finally:
        for task in pending:
            task.cancel()
        await server.close()
    return outcome


def _sort(
    task: asyncio.Task[Answer],
    request: Request,
    entries: list[dict[str, Any]],
    writer: Writer,
    outcome: Outcome,
    answered: bool,
) -> None:
    """What came of one request: an entry, a request put aside, or the end of the run, which loses no other answer."""
    try:
        entries.append(_entry(request, task.result(), writer))
        outcome.refused_in_row = 0
    except asyncio.CancelledError:
        pass
    except Refused as error:
        if outcome.put_aside(error, answered=answered):
            outcome.stop(error)
    except Exception as error:  # `Stopped`, or what nobody foresaw: the answers under way are still taken in
        outcome.stop(error)


def _entry(request: Request, answer: Answer, writer: Writer) -> dict[str, Any]:
    """What the journal keeps. A completion goes on from the opening words, which belong to the text."""
    text = answer.text if writer.ask == "chat" else request.begin + answer.text
    entry = {"index": request.index, **request.asked, "text": text, "finish": answer.finish}
    return entry | {"tokens": list(answer.tokens)}


@contextmanager
def _interrupts(
    outcome: Outcome, stopped: Callable[[], int], drop: Callable[[], None], soon: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Ctrl-C once: stop, and say how many answers are under way. Twice: drop them. `soon` is the loop's way to call."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt() -> None:
        if outcome.interrupted:
            drop()
            return
        outcome.interrupted = True
        if number := stopped():
            tqdm.write(f"stopping after the {number} answers under way; Ctrl-C again drops them", file=sys.stderr)

    before = signal.signal(signal.SIGINT, lambda *_: soon(interrupt) if soon else interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
