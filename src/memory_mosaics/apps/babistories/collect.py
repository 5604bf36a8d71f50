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
from dataclasses import replace
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch brings it
from tqdm import tqdm

from memory_mosaics.apps.babistories import clients, prompts
from memory_mosaics.apps.babistories.clients import Answer, ModelOptions, RequestPostponed, RequestRejected, RunStopped
from memory_mosaics.apps.babistories.prompts import Request
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


class Journal:
    """A file of answers: which are there, their tokens, and the digest of the list written from them."""

    def __init__(self, file: Path, identity: Entry):
        self.file, self.list_digest = file, ""
        self.done, self.tokens = set[int](), [0, 0]
        self.size = 0  # in bytes
        if file.exists():
            self._resume(identity)
        self.stream = file.open("ab", buffering=0)
        self.stream.truncate(self.size)  # drops an incomplete last line
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
                journal = cls(file, identity)
            except Timeout:
                raise UserError(f"{file} is being written by another process; wait for it, or {REMEDY}") from None
            except OSError as error:
                raise UserError(f"cannot write {file}: {error.strerror or one_line(error)}; {REMEDY}") from error
            stack.callback(journal._close)
            yield journal

    def append(self, entries: list[Entry]) -> None:
        """Write entries, and return when they are on the disk. A full disk leaves no incomplete line."""
        data = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries).encode("utf-8", "replace")
        try:
            if self.stream.write(data) != len(data):
                raise OSError("the disk is full")
            os.fsync(self.stream.fileno())
        except OSError as error:
            self.stream.truncate(self.size)
            raise UserError(f"cannot write {self.file}: {error.strerror or one_line(error)}") from error
        self.size += len(data)
        self._count(entries)

    def token_counts(self) -> str:
        read, written = map(tqdm.format_sizeof, self.tokens)
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
        """Compare the first line, and count the others. A journal without an answer is begun again."""

        def add_size(count: int) -> None:
            self.size += count

        file, entries = self.file, read_journal(self.file, add_size)
        first, second = next(entries, None), next(entries, None)
        if first is None or second is None:
            self.size = 0
            return
        for name, mine in identity.items():
            if difference := _difference(name, first.get(name), mine):
                raise UserError(f"{file} was started with {difference}, or {REMEDY}")
        self._count(tqdm(chain([second], entries), f"reading {file.name}", delay=2, disable=None, leave=False))


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
    """Yield the entries of a journal, the identity first, without an incomplete last line.

    `progress` is called with the number of bytes of each complete line.
    """
    try:
        check_regular(file)
        with file.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE), b""), 1):
                if len(line) == MAX_LINE:
                    raise UserError(f"{file}, line {number} is longer than {MAX_LINE:,} bytes: it is not of a journal")
                if line.endswith(b"\n"):
                    progress(len(line))
                    yield _parse(line, number, file)
    except FileNotFoundError:
        raise UserError(f"there is no {file}; mosaics babistories stories makes one") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or one_line(error)}") from error


def _parse(line: bytes, number: int, file: Path) -> Entry:
    try:
        entry = parse_json(line.decode())
    except (ValueError, RecursionError):
        entry = None
    match entry:
        case {"step": str()} if number == 1:
            return entry
        case {"list_digest": str()} if number > 1:
            return entry
        case {"index": int(), "text": str(), "tokens": [int(), int()]} if number > 1 and _has_texts(entry):
            return entry
    wanted = "step" if number == 1 else "index, text and two tokens, and texts as words, name and opening"
    raise UserError(f"{file}, line {number} is not of a journal: it should be an object with {wanted}")


def _has_texts(entry: Entry) -> bool:
    words = entry.get("words", {})
    texts = [entry.get("name", ""), entry.get("opening", ""), *(words.values() if isinstance(words, dict) else [None])]
    return all(isinstance(text, str) for text in texts)


class Collector:
    """Asks a language model until there is nothing left to ask, and keeps every answer in a journal.

    `next_request` gets the number of requests in flight; `received` gets entries that are on the disk, and returns the
    progress that they make.
    """

    def __init__(
        self,
        options: ModelOptions,
        journal: Journal,
        next_request: Callable[[int], Request | None],
        received: Callable[[list[Entry]], int],
    ):
        self.options, self.journal, self.next_request, self.received = options, journal, next_request, received
        self.pending: dict[asyncio.Task[Answer], Request] = {}
        self.postponed: list[Request] = []
        self.problem = self.rejection = self.summary = ""
        self.rejected = self.rejected_in_row = self.retried = 0
        self.interrupted = False

    def run(self, **bar: Any) -> None:
        """Ask until `next_request` returns None, with a progress bar."""
        start, before = time.monotonic(), len(self.journal.done)
        with tqdm(**bar, disable=None, file=sys.stderr) as progress:
            try:
                asyncio.run(self._ask_all(progress))
            except KeyboardInterrupt:
                self.interrupted = True
        new, seconds = len(self.journal.done) - before, time.monotonic() - start
        self.summary = f"{new:,} new answers in {seconds:,.1f} s ({new / max(seconds, 1e-3) * 60:,.0f} per minute)"
        self.summary += self._retries()

    def _retries(self) -> str:
        return f", {self.retried} retries" if self.retried else ""

    async def _ask_all(self, progress: Any) -> None:
        stop, pending, local = asyncio.Event(), self.pending, self.options.server is None
        client = clients.LocalModel(self.options) if local else clients.ServerClient(self.options, stop)
        async with aclosing(client):
            with self._handle_interrupts(stop):
                entries: list[Entry] = []
                while True:
                    progress.set_postfix_str(f"{self.journal.token_counts()}{self._retries()}", refresh=False)
                    progress.update(self.received(entries))
                    while len(pending) < min(self.options.concurrency, int(client.limit)) and not stop.is_set():
                        request = self.postponed.pop() if self.postponed else self.next_request(len(pending))
                        if request is None:
                            break
                        pending[asyncio.create_task(client.ask(request))] = request
                    if not pending:
                        break
                    await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    done = [task for task in pending if task.done()]
                    entries = [entry for task in done if (entry := self._receive(task, client.answered))]
                    if entries:
                        self.journal.append(entries)
                    self.retried = client.retried
                    if self.problem:
                        stop.set()

    def _receive(self, task: asyncio.Task[Answer], answered: int) -> Entry | None:
        """The entry of an answer, or None. Too many rejections in a row end the run: the server is at fault."""
        request = self.pending.pop(task)
        try:
            answer = task.result()
        except asyncio.CancelledError:
            return None
        except RequestPostponed:
            self.postponed.append(request)
            return None
        except RequestRejected as error:
            self.rejected += 1
            self.rejected_in_row += 1
            self.rejection = one_line(error)
            few = isinstance(error, clients.RetriesExhausted) or not (self.journal.done or answered)
            if self.rejected_in_row >= (MAX_FAILED if few else MAX_REJECTED):
                self.problem = self.problem or self.rejection
            return None
        except Exception as error:  # also what is not expected: the answers in flight are still received
            if self.options.server is None:
                raise
            known = isinstance(error, RunStopped)
            self.problem = self.problem or one_line(error if known else ValueError(f"{type(error).__name__}: {error}"))
            return None
        self.rejected_in_row = 0
        # A completion continues the opening words, which belong to the text.
        text = answer.text if self.options.ask == "chat" else request.prefix + answer.text
        entry = {"index": request.index, **request.metadata, "text": text, "finish": answer.finish_reason}
        return entry | {"tokens": list(answer.usage or (0, 0))}

    @contextmanager
    def _handle_interrupts(self, stop: asyncio.Event) -> Iterator[None]:
        """The first Ctrl-C stops the run, and prints how many answers are in flight; the second drops them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def interrupt(*_: Any) -> None:
            if not self.interrupted:
                self.interrupted = True
                loop.call_soon_threadsafe(stop.set)
                if count := len(self.pending):
                    tqdm.write(f"stopping after the {count} answers in flight; Ctrl-C again drops them", sys.stderr)
            elif self.options.server is None:
                raise KeyboardInterrupt  # within the computation of a batch
            else:
                for task in self.pending:
                    loop.call_soon_threadsafe(task.cancel)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def report(self, have: str, *, is_complete: bool) -> dict[str, Any]:
        """Print where everything is; a server that gave up or left requests unanswered is an error of one line."""
        journal, again = self.journal, "the same command resumes"
        if self.problem and not self.interrupted:
            kept = f"{have} are in {journal.file}: {again}" if journal.done else "nothing was answered"
            raise UserError(f"the server gave up: {self.problem}; {kept}")
        print(f"{'stopped: ' if self.interrupted else ''}{have} are in {journal.file}; {journal.token_counts()}")
        print(f"this run: {self.summary}")
        if self.rejected and not is_complete and not self.interrupted:
            rejected = f"{self.rejected} {'request was' if self.rejected == 1 else 'requests were'} not answered"
            where = f"are in {journal.file}" if journal.done else "were answered"
            raise UserError(f"{have} {where}: {rejected}, the last with {self.rejection}; the same command asks again")
        if self.interrupted:
            print(again)
        return {"interrupted": self.interrupted, "answers": len(journal.done), "tokens": list(journal.tokens)}


def resolve_model(out: Path, options: ModelOptions) -> ModelOptions:
    """The options with the name of the model. Reports early that there is no server, or no folder to write to."""

    async def find_model() -> str:
        async with aclosing(clients.ServerClient(options, asyncio.Event())) as server:
            return await server.find_model()

    if out.exists() and not out.is_dir():
        raise UserError(f"{out} exists and is not a folder; name another --out")
    return options if options.server is None else replace(options, model=asyncio.run(find_model()))


def names(out: Path = OUT, *, count: int = 500, seed: int = 0, **options: Any) -> dict[str, Any]:
    """Ask a language model for first names, and write the different ones to OUT/names.txt.

    Args:
        out: the folder of the corpus; the same command resumes
        count: number of different names
        seed: random seed of the requests
        **options: the language model
    """
    return _collect_list("names", out, count, seed, ModelOptions(**options))


def openings(out: Path = OUT, *, count: int = 500, seed: int = 0, **options: Any) -> dict[str, Any]:
    """Ask a language model for the first words of stories, and write the different ones to OUT/openings.txt.

    Args:
        out: the folder of the corpus; the same command resumes
        count: number of different openings
        seed: random seed of the requests
        **options: the language model
    """
    return _collect_list("openings", out, count, seed, ModelOptions(**options))


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
    **options: Any,
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
        **options: the language model
    """
    model = ModelOptions(**options)
    check_range(1, MAX_STORIES, count=count)
    check_range(0, MAX_SEED, first=first)
    names, openings = _default_list(out, "names", names), _default_list(out, "openings", openings)
    lists, text = prompts.read_lists(words, names, openings), prompts.read_template(template)
    model = resolve_model(out, model)
    kinds = [lists.nouns, lists.verbs, lists.adjectives, lists.features]
    sources = {
        "words": (sum(map(len, kinds[:3])), words, kinds),
        "names": (len(lists.names), names, lists.names),
        "openings": (len(lists.openings), openings, lists.openings),
        "template": (1, template, text),
    }
    identity = _identity("stories", seed, model) | {
        name: {"count": size, "of": str(file or "the package"), "digest": digest(json.dumps(content))}
        for name, (size, file, content) in sources.items()
    }
    drawn = (f"{identity[name]['count']} {name} of {identity[name]['of']}" for name in ("names", "openings"))
    print(f"prompts of seed {seed} from {', '.join(drawn)}")
    with Journal.open(out / "stories.journal", identity) as journal:
        wanted = range(first, first + count)
        # Missing indices below the last answered one were rejected, or lost by a kill: they come last.
        last = max(journal.done, default=-1)
        order = chain(range(max(first, last), wanted.stop), range(first, min(last, wanted.stop)))
        missing = (index for index in order if index not in journal.done)

        def complete() -> int:
            return sum(index in wanted for index in journal.done)

        def next_request(_: int) -> Request | None:
            if (index := next(missing, None)) is None:
                return None
            return prompts.story_request(
                index, seed=seed, lists=lists, template=text, opening_only=model.ask == "opening"
            )

        collector = Collector(model, journal, next_request, len)
        collector.run(total=count, initial=complete(), unit="story", desc="stories")
        return collector.report(f"{complete():,} of {count:,} stories", is_complete=complete() == count)


def _collect_list(step: str, out: Path, count: int, seed: int, options: ModelOptions) -> dict[str, Any]:
    """Ask until there are `count` different ones, or nothing new comes; the list is in the order of the requests."""
    check_range(1, MAX_STORIES, count=count)
    request, read = LISTS[step]
    if options.ask == "opening":
        raise UserError(f"{step} are asked for in words: give --ask chat or completion")
    options = resolve_model(out, options)
    with Journal.open(out / f"{step}.journal", _identity(step, seed, options)) as journal:
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
        collector = Collector(options, journal, next_request, received)
        collector.run(total=count, initial=min(count, len(known)), unit=step[:-1], desc=step)
        different: dict[str, str] = {}
        for index in sorted(answers):
            for one in answers[index]:
                different.setdefault(one.casefold(), one)
        found = list(different.values())[:count]
        if found:
            _write_list(out / f"{step}.txt", "".join(f"{one}\n" for one in found), journal)
        if fruitless >= MAX_FRUITLESS:
            nothing = f"the model had nothing new {fruitless} times in a row (asked {len(answers):,} times)"
            print(f"{nothing}: {len(found):,} {step} are all it knows")
        have = f"answers with {len(found):,} of {count:,} different {step}"
        return collector.report(have, is_complete=len(found) == count) | {step: found}


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


LISTS = {"names": (prompts.names_request, read_names), "openings": (prompts.openings_request, read_openings)}


def _identity(step: str, seed: int, options: ModelOptions) -> dict[str, Any]:
    """What a resumed run must have in common: everything that changes the answers."""
    same = {name: getattr(options, name) for name in ("model", "ask", "length", "temperature", "top_p")}
    return {"step": step, "seed": seed} | same


def _default_list(out: Path, step: str, given: Path | None) -> Path | None:
    file = out / f"{step}.txt"
    return given or (file if file.is_file() else None)
