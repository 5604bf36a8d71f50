"""Asking for many answers and keeping each: the loop around a server or a model, its bar, and its end by Ctrl-C.

Every answer is on the disk before the next request takes its place. The first Ctrl-C asks for nothing more and takes in
the answers that are under way, which may be paid for; the second one drops them.
"""

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from tqdm import tqdm

from memory_mosaics.babistories.journal import Journal
from memory_mosaics.babistories.prompts import Request
from memory_mosaics.babistories.server import Refused, Server
from memory_mosaics.babistories.writer import Answer, Stopped, Writer
from memory_mosaics.errors import one_line

REFUSALS = 10  # in a row, and it is not the requests that are wrong
Next = Callable[[], Request | None]
Taken = Callable[[list[dict[str, Any]]], None]


@dataclass
class Outcome:
    """What came of it."""

    interrupted: bool = False
    problem: str | None = None
    refused: int = 0
    refusal: str = ""
    retried: int = 0


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
    from memory_mosaics.babistories.local import Local

    outcome, local = Outcome(), Local(writer)
    try:
        while batch := list(islice(iter(next_request, None), writer.concurrency)):
            answers = zip(batch, local.ask(batch), strict=True)
            entries = [_entry(request, answer, writer) for request, answer in answers]
            journal.append(entries)
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
    refused_in_row = 0
    try:
        with _interrupts(outcome, stop, pending):
            while True:
                while len(pending) < writer.concurrency and not stop.is_set() and (request := next_request()):
                    pending[asyncio.create_task(server.ask(request))] = request
                if not pending:
                    break
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                entries = []
                for task in done:
                    request = pending.pop(task)
                    try:
                        entries.append(_entry(request, task.result(), writer))
                        refused_in_row = 0
                    except asyncio.CancelledError:
                        pass
                    except Refused as error:
                        refused_in_row += 1
                        outcome.refused += 1
                        outcome.refusal = one_line(error)
                        if not server.answered or refused_in_row >= REFUSALS:
                            outcome.problem = outcome.problem or outcome.refusal
                            stop.set()
                    except Stopped as error:
                        outcome.problem = outcome.problem or one_line(error)
                        stop.set()
                outcome.retried = server.retried
                if entries:
                    journal.append(entries)
                    taken(entries)
    finally:
        for task in pending:
            task.cancel()
        await server.close()
    return outcome


def _entry(request: Request, answer: Answer, writer: Writer) -> dict[str, Any]:
    """What the journal keeps. A completion goes on from the opening words, which belong to the text."""
    text = answer.text if writer.ask == "chat" else request.begin + answer.text
    entry = {"index": request.index, **request.asked, "text": text, "finish": answer.finish}
    return entry | {"tokens": list(answer.tokens)}


@contextmanager
def _interrupts(outcome: Outcome, stop: asyncio.Event, pending: dict[asyncio.Task[Answer], Request]) -> Iterator[None]:
    """Ctrl-C once: stop asking. Twice: drop what is under way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def once() -> None:
        if outcome.interrupted:
            for task in pending:
                task.cancel()
            return
        outcome.interrupted = True
        stop.set()
        if pending:
            tqdm.write(f"stopping after the {len(pending)} answers under way; Ctrl-C again drops them", file=sys.stderr)

    before = signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(once))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
