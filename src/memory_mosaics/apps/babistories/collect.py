"""`mosaics babistories names | openings | stories`: ask a language model, and keep every answer in a journal.

A journal holds the answers of one step as JSON lines. Every answer is on the disk before the next request is sent, and
none is requested twice. Its first line identifies the run, so that only the same run is resumed; a line with
"list_digest" is the digest of the list that was written from the answers so far. An incomplete last line, left by a
kill or a power cut, is dropped. After the first Ctrl-C, or an error, no request is sent, and the answers in flight,
which may be paid for, are still received; the second Ctrl-C drops them.

Everything is in one folder:
- names.journal, openings.journal, stories.journal: every answer as received, JSON lines
- names.txt, openings.txt: what the stories draw from, where they exist
- train.jsonl, valid.jsonl, dropped.log, clean.json, statistics.json: what cleaning.py makes of the stories
"""

import asyncio
import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch brings it
from tqdm import tqdm

from memory_mosaics.apps.babistories import writers
from memory_mosaics.apps.babistories.prompts import (
    Request,
    names_request,
    openings_request,
    read_lists,
    read_template,
    story_request,
)
from memory_mosaics.apps.babistories.writers import Answer, RequestRejected, RetriesExhausted, RunStopped, Writer
from memory_mosaics.config import MAX_SEED, MAX_STORIES
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.files import check_regular, flush, parse_json, read_text, write_text

OUT = Path("runs/babistories")
MAX_FRUITLESS = 24  # answers in a row that bring nothing new: the model knows no more
BULLET = re.compile(r"^\s*(?:[-*•\u2013]|\(?\d+[.):]?)?\s*[\"“'*_]*|[\s\"”'*_.,;:…]+$")
MAX_LINE = 64 << 20  # bytes
REMEDY = "name another --out"
MAX_REJECTED = 10  # in a row: then the server is at fault, not the requests
MAX_FAILED = 3  # the same before the first answer, and for requests whose retries are exhausted
Entry = dict[str, Any]
NextRequest = Callable[[int], Request | None]  # what to ask next, given the number in flight; None for nothing now


class Journal:
    """A file of answers: which are there, their tokens, and the digest of the list written from them."""

    def __init__(self, file: Path, identity: Entry):
        self.file, self.list_digest = file, ""
        self.done, self.tokens = set[int](), [0, 0]
        if file.exists():
            self._resume(identity)
        self.stream = file.open("ab", buffering=0)
        if not self.done:
            self.append([identity])
            flush(file.parent)

    @classmethod
    @contextmanager
    def open(cls, file: Path, identity: Entry) -> Iterator["Journal"]:
        """The journal, new or resumed. Its identity must be the same, and no other process may have it open."""
        with ExitStack() as stack:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(file.with_name(f".{file.name}.lock"), timeout=0))
            except Timeout:
                raise UserError(f"{file} is being written by another process; wait for it, or {REMEDY}") from None
            except OSError as error:
                raise UserError(f"cannot write {file}: {error.strerror or one_line(error)}; {REMEDY}") from error
            journal = cls(file, identity)
            stack.callback(journal._close)
            yield journal

    def append(self, entries: list[Entry]) -> None:
        """Write entries, and return when they are on the disk. A full disk leaves no incomplete line."""
        data = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries).encode("utf-8", "replace")
        before = os.fstat(self.stream.fileno()).st_size
        try:
            if self.stream.write(data) != len(data):
                raise OSError("the disk is full")
            os.fsync(self.stream.fileno())
        except OSError as error:
            self.stream.truncate(before)
            raise UserError(f"cannot write {self.file}: {error.strerror or one_line(error)}") from error
        self._count(entries)

    def token_counts(self) -> str:
        read, written = map(_abbreviate, self.tokens)
        return f"{read} tokens read, {written} written"

    def _close(self) -> None:
        self.stream.close()
        if not self.done:
            self.file.unlink(missing_ok=True)  # nothing to resume; a wrong address may be corrected

    def _count(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.list_digest = entry.get("list_digest", self.list_digest)
            if "index" in entry:
                self.done.add(entry["index"])
                self.tokens = [total + new for total, new in zip(self.tokens, entry["tokens"], strict=True)]

    def _resume(self, identity: Entry) -> None:
        """Drop an incomplete last line, compare the first one, count the rest. Without an answer the file is reset."""
        file = self.file
        try:
            check_regular(file)
            with file.open("rb+") as stream:
                start = stream.seek(max(0, stream.seek(0, os.SEEK_END) - MAX_LINE))
                end = start + stream.read(MAX_LINE).rfind(b"\n") + 1
                if end > start or start == 0:  # a longer line is refused below
                    stream.truncate(end)
            lines = read_journal(file)
            first, second = next(lines, None), next(lines, None)
            if first is None or second is None:
                os.truncate(file, 0)
                return
        except OSError as error:
            raise UserError(f"cannot resume {file}: {error.strerror or one_line(error)}; {REMEDY}") from error
        if first.get("format") != identity.get("format"):
            raise UserError(f"{file} was started by another version; {REMEDY}, and give both to clean --journals")
        for name, mine in identity.items():
            if difference := _difference(name, first.get(name), mine):
                raise UserError(f"{file} was started with {difference}, or {REMEDY}")
        self._count(tqdm(chain([second], lines), f"reading {file.name}", delay=2, disable=None, leave=False))


def _abbreviate(count: int) -> str:
    return f"{count:,}" if count < 10_000 else f"{count / 1e3:,.1f}k" if count < 1e6 else f"{count / 1e6:,.2f}M"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _difference(name: str, theirs: Any, mine: Any) -> str:
    """What differs from the journal's identity, and what to give to resume it; empty where it is the same."""
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return "" if theirs == mine else f"{name} {theirs}, not {mine}: give --{name} {theirs}"
    if theirs.get("digest") == mine["digest"]:
        return ""
    of = theirs.get("of")
    differs = f"{theirs.get('count')} {name} of {of}, now {mine['count']} of {mine['of']}"
    if of == mine["of"]:
        return f"{differs}: restore the file"
    return f"{differs}: resume without that file" if of == "the package" else f"{differs}: give --{name} {of}"


def read_journal(file: Path, progress: Callable[[int], Any] = lambda _: None) -> Iterator[Entry]:
    """The entries of a journal, the identity first; `progress` gets the bytes. An incomplete last line is left out."""
    try:
        check_regular(file)
        with file.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE), b""), 1):
                progress(len(line))
                if len(line) == MAX_LINE:
                    raise UserError(f"{file}, line {number} is longer than {MAX_LINE:,} bytes: it is not of a journal")
                if line.endswith(b"\n"):
                    yield _parse(line, number, file)
    except FileNotFoundError:
        raise UserError(f"there is no {file}; mosaics babistories stories makes one") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or one_line(error)}") from error


def _parse(line: bytes, number: int, file: Path) -> Entry:
    wanted = {"step": str} if number == 1 else {"index": int, "tokens": list, "text": str}
    try:
        entry = parse_json(line.decode())
    except (ValueError, RecursionError):
        entry = None
    if number > 1 and isinstance(entry, dict) and isinstance(entry.get("list_digest"), str):
        return entry
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), kind) for name, kind in wanted.items()):
        raise UserError(f"{file}, line {number} is not of a journal: it should be an object with {', '.join(wanted)}")
    if number == 1:
        return entry
    words = entry.get("words", [])
    words = list(words.values()) if isinstance(words, dict) else words if isinstance(words, list) else [0]
    name = entry.get("name")
    texts = ["" if name is None else name, entry.get("opening", ""), *words]
    if [*map(type, entry["tokens"])] != [int, int] or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{file}, line {number} is damaged: tokens should be two numbers, and words texts")
    return entry


@dataclass
class Outcome:
    """How a run ended."""

    interrupted: bool = False
    problem: str | None = None
    rejected: int = 0
    rejected_in_row: int = 0
    rejection: str = ""
    retried: int = 0

    def stop(self, error: Exception) -> None:
        """Remember why the run ends; the first problem is the one that is reported."""
        expected = isinstance(error, RunStopped | RequestRejected)
        self.problem = self.problem or one_line(error if expected else ValueError(f"{type(error).__name__}: {error}"))

    def reject(self, error: RequestRejected, *, answered: bool) -> None:
        """Count a request without an answer; too many in a row are the fault of the server, and end the run."""
        self.rejected += 1
        self.rejected_in_row += 1
        self.rejection = one_line(error)
        limit = MAX_REJECTED if answered and not isinstance(error, RetriesExhausted) else MAX_FAILED
        if self.rejected_in_row >= limit:
            self.stop(error)


def resolve_model(out: Path, writer: Writer) -> Writer:
    """The writer with the name of its model. Reports early that there is no server, or no folder to write to."""

    async def find_model() -> str:
        async with aclosing(writers.Server(writer, asyncio.Event())) as server:
            return await server.find_model()

    if out.exists() and not out.is_dir():
        raise UserError(f"{out} exists and is not a folder; name another --out")
    return writer if writer.server is None else replace(writer, model=asyncio.run(find_model()))


def collect(
    writer: Writer,
    next_request: NextRequest,
    journal: Journal,
    received: Callable[[list[Entry]], int],
    **bar: Any,
) -> tuple[Outcome, str]:
    """Ask until there is nothing left to ask, with a progress bar; returns how it ended, and a summary in words.

    `received` gets the entries that are on the disk, and returns the progress that they make.
    """
    start, before, outcome = time.monotonic(), len(journal.done), Outcome()
    with tqdm(**bar, disable=None, file=sys.stderr) as progress:

        def show(entries: list[Entry]) -> None:
            retries = f", {outcome.retried} retries" if outcome.retried else ""
            progress.set_postfix_str(f"{journal.token_counts()}{retries}", refresh=False)
            progress.update(received(entries))

        show([])
        try:
            asyncio.run(_ask_all(writer, next_request, journal, outcome, show))
        except KeyboardInterrupt:
            outcome.interrupted = True
    new, seconds = len(journal.done) - before, time.monotonic() - start
    summary = f"{new:,} new answers in {seconds:,.1f} s ({new / max(seconds, 1e-3) * 60:,.0f} per minute)"
    return outcome, f"{summary}, {outcome.retried} retries" if outcome.retried else summary


async def _ask_all(
    writer: Writer, next_request: NextRequest, journal: Journal, outcome: Outcome, show: Callable[..., None]
) -> None:
    stop = asyncio.Event()
    pending: dict[asyncio.Task[Answer], Request] = {}
    local = writer.server is None
    async with aclosing(writers.Local(writer) if local else writers.Server(writer, stop)) as model:
        with _handle_interrupts(outcome, stop, pending, local):
            while True:
                while len(pending) < writer.concurrency and not stop.is_set():
                    if (request := next_request(len(pending))) is None:
                        break
                    pending[asyncio.create_task(model.ask(request))] = request
                if not pending:
                    break
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                entries: list[Entry] = []
                for task in [task for task in pending if task.done()]:
                    request = pending.pop(task)
                    try:
                        entries.append(_entry(request, task.result(), writer))
                        outcome.rejected_in_row = 0
                    except asyncio.CancelledError:
                        pass
                    except RequestRejected as error:
                        outcome.reject(error, answered=bool(journal.done or model.answered))
                    except Exception as error:  # also what is not expected: the answers in flight are still received
                        if local:
                            raise
                        outcome.stop(error)
                if entries:
                    journal.append(entries)
                outcome.retried = model.retried
                if outcome.problem:
                    stop.set()
                show(entries)


def _entry(request: Request, answer: Answer, writer: Writer) -> Entry:
    """What the journal keeps. A completion continues the opening words, which belong to the text."""
    text = answer.text if writer.ask == "chat" else request.begin + answer.text
    entry = {"index": request.index, **request.asked, "text": text, "finish": answer.finish}
    return entry | {"tokens": list(answer.usage or (0, 0))}


@contextmanager
def _handle_interrupts(
    outcome: Outcome, stop: asyncio.Event, pending: dict[asyncio.Task[Answer], Request], local: bool
) -> Iterator[None]:
    """The first Ctrl-C stops the run, and prints how many answers are in flight; the second drops them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def interrupt(*_: Any) -> None:
        if not outcome.interrupted:
            outcome.interrupted = True
            loop.call_soon_threadsafe(stop.set)
            if pending:
                message = f"stopping after the {len(pending)} answers in flight; Ctrl-C again drops them"
                tqdm.write(message, file=sys.stderr)
        elif local:
            raise KeyboardInterrupt  # within the computation of a batch
        else:
            for task in pending:
                loop.call_soon_threadsafe(task.cancel)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def names(out: Path = OUT, *, count: int = 500, seed: int = 0, **writer: Any) -> dict[str, Any]:
    """Ask a language model for first names, and write the different ones to OUT/names.txt.

    Args:
        out: the folder of the corpus; the same command resumes
        count: number of different names
        seed: random seed of the requests
        **writer: the language model
    """
    return _gather("names", out, count, seed, Writer(**writer), names_request, read_names)


def openings(out: Path = OUT, *, count: int = 500, seed: int = 0, **writer: Any) -> dict[str, Any]:
    """Ask a language model for the first words of stories, and write the different ones to OUT/openings.txt.

    Args:
        out: the folder of the corpus; the same command resumes
        count: number of different openings
        seed: random seed of the requests
        **writer: the language model
    """
    return _gather("openings", out, count, seed, Writer(**writer), openings_request, read_openings)


def stories(
    out: Path = OUT,
    *,
    count: int = 1000,
    first: int = 0,
    seed: int = 0,
    words: Path | None = None,
    names: Path | None = None,
    openings: Path | None = None,
    template: Path | None = None,
    **writer: Any,
) -> dict[str, Any]:
    """Ask a language model for stories, each with words, features, a name and opening words of its own.

    The prompt of a story follows from the seed and its number alone. What is in OUT/stories.journal is not asked again.

    Args:
        out: the folder of the corpus; the same command resumes
        count: number of stories
        first: the number of the first one; other machines can make other numbers
        seed: random seed of the prompts
        words: a JSON file with "nouns", "verbs" and "adjectives" in place of the default lists
        names: a file with one first name per line; by default OUT/names.txt, where it exists
        openings: a file with one opening per line; by default OUT/openings.txt, where it exists
        template: a file with the text of the prompt and slots such as {noun}, in place of the default
        **writer: the language model
    """
    asked = Writer(**writer)
    check_range(1, MAX_STORIES, count=count)
    check_range(0, MAX_SEED, first=first)
    names, openings = _default_list(out, "names", names), _default_list(out, "openings", openings)
    lists, text = read_lists(words, names, openings), read_template(template)
    asked = resolve_model(out, asked)
    kinds = [lists.nouns, lists.verbs, lists.adjectives, lists.features]
    sources = {
        "words": (sum(map(len, kinds[:3])), words, kinds),
        "names": (len(lists.names), names, lists.names),
        "openings": (len(lists.openings), openings, lists.openings),
        "template": (1, template, text),
    }
    identity = _identity("stories", seed, asked) | {
        name: {"count": size, "of": str(file or "the package"), "digest": digest(json.dumps(content))}
        for name, (size, file, content) in sources.items()
    }
    drawn = (f"{identity[name]['count']} {name} of {identity[name]['of']}" for name in ("names", "openings"))
    print(f"prompts of seed {seed} from {', '.join(drawn)}")
    with Journal.open(out / "stories.journal", identity) as journal:
        wanted = range(first, first + count)
        # Indices below the last answered one were rejected, or lost by a kill: others do not wait for them.
        last = max(journal.done, default=-1)
        missing = (index for index in wanted if index not in journal.done)
        ahead = iter(sorted(missing, key=lambda index: (index < last, index)))

        def complete() -> int:
            return sum(index in wanted for index in journal.done)

        def next_request(_: int) -> Request | None:
            index = next(ahead, None)
            how: dict[str, Any] = {"seed": seed, "lists": lists, "template": text}
            return None if index is None else story_request(index, **how, opening_only=asked.ask == "opening")

        bar = {"total": count, "initial": complete(), "unit": "story", "desc": "stories"}
        outcome, summary = collect(asked, next_request, journal, len, **bar)
        have = f"{complete():,} of {count:,} stories"
        return _end(outcome, summary, journal, have, whole=complete() == count)


def _end(outcome: Outcome, summary: str, journal: Journal, have: str, *, whole: bool) -> dict[str, Any]:
    """Print where everything is; a server that gave up or left requests unanswered is an error of one line."""
    again = "the same command resumes"
    if outcome.problem and not outcome.interrupted:
        kept = f"{have} are in {journal.file}: {again}" if journal.done else "nothing was answered"
        raise UserError(f"the server gave up: {outcome.problem}; {kept}")
    print(f"{'stopped: ' if outcome.interrupted else ''}{have} are in {journal.file}; {journal.token_counts()}")
    print(f"this run: {summary}")
    if outcome.rejected and not whole and not outcome.interrupted:
        rejected = f"{outcome.rejected} {'request was' if outcome.rejected == 1 else 'requests were'} not answered"
        where = f"are in {journal.file}" if journal.done else "were answered"
        raise UserError(f"{have} {where}: {rejected}, the last with {outcome.rejection}; the same command asks again")
    if outcome.interrupted:
        print(again)
    return {"interrupted": outcome.interrupted, "answers": len(journal.done), "tokens": list(journal.tokens)}


def _gather(
    step: str,
    out: Path,
    count: int,
    seed: int,
    writer: Writer,
    request: Callable[..., Request],
    read: Callable[[str], list[str]],
) -> dict[str, Any]:
    """Ask until there are `count` different ones, or nothing new comes; the list is in the order of the requests."""
    check_range(1, MAX_STORIES, count=count)
    if writer.ask == "opening":
        raise UserError(f"{step} are asked for in words: give --ask chat or completion")
    writer = resolve_model(out, writer)
    with Journal.open(out / f"{step}.journal", _identity(step, seed, writer)) as journal:
        answers: dict[int, list[str]] = {}
        known: set[str] = set()
        fruitless = 0  # answers in a row that brought nothing new, those of earlier runs included
        unasked = iter(index for index in range(1 << 40) if index not in journal.done)

        def received(entries: list[Entry]) -> int:
            nonlocal fruitless
            before = len(known)
            for entry in entries:
                answers[entry["index"]] = read(entry["text"])
                new = {one.casefold() for one in answers[entry["index"]]} - known
                fruitless = 0 if new else fruitless + 1
                known.update(new)
            return len(known) - before

        def next_request(in_flight: int) -> Request | None:
            wanted = ceil((count - len(known)) / max(1.0, len(known) / max(1, len(answers))))
            return None if in_flight >= min(wanted, MAX_FRUITLESS - fruitless) else request(next(unasked), seed=seed)

        received([entry for entry in read_journal(journal.file) if "index" in entry])
        bar = {"total": count, "initial": min(count, len(known)), "unit": step[:-1], "desc": step}
        outcome, summary = collect(writer, next_request, journal, received, **bar)
        different: dict[str, str] = {}
        for one in (one for index in sorted(answers) for one in answers[index]):
            different.setdefault(one.casefold(), one)
        found = list(different.values())[:count]
        if found:
            _write_list(out / f"{step}.txt", "".join(f"{one}\n" for one in found), journal)
        if fruitless >= MAX_FRUITLESS:
            nothing = f"the model had nothing new {fruitless} times in a row (asked {len(answers):,} times)"
            print(f"{nothing}: {len(found):,} {step} are all it knows")
        have = f"answers with {len(found):,} of {count:,} different {step}"
        return _end(outcome, summary, journal, have, whole=len(found) == count) | {step: found}


def _write_list(file: Path, text: str, journal: Journal) -> None:
    """Write the list, unless the file there is the user's own."""
    try:
        there = read_text(file) if file.exists() else None
    except (OSError, UserError):
        there = ""
    if there is not None and there != text and digest(there) != journal.list_digest:
        print(f"{file} is not overwritten: it was edited since it was written; move it away to have it written again")
        return
    if there != text:
        write_text(file, text)
    if journal.list_digest != digest(text):
        journal.append([{"list_digest": digest(text)}])
    print(f"written: {file}")


def read_names(text: str) -> list[str]:
    """The first names in an answer: one word each, with a capital letter."""
    parts = [BULLET.sub("", part) for line in text.splitlines() for part in line.split(",")]
    return [part for part in parts if re.fullmatch(r"[^\W\d_][\w'\u2019-]{1,14}", part) and part[0].isupper()]


def read_openings(text: str) -> list[str]:
    """The openings in an answer: two to eight words each, with a capital letter and without brackets."""
    lines = [BULLET.sub("", line) for line in text.splitlines()]
    few = [line for line in lines if 2 <= len(line.split()) <= 8 and line[0].isupper()]
    return [line for line in few if not re.search(r"[\[\]{}:<>]", line)]


def _identity(step: str, seed: int, writer: Writer) -> dict[str, Any]:
    """What a resumed run must have in common: everything that changes the answers."""
    same = {name: getattr(writer, name) for name in ("model", "ask", "length", "temperature", "top_p")}
    return {"step": step, "format": 2, "seed": seed} | same


def _default_list(out: Path, step: str, given: Path | None) -> Path | None:
    file = out / f"{step}.txt"
    return given or (file if file.is_file() else None)
