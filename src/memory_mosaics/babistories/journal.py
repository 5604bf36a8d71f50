"""The journal of one step: JSON lines, on the disk before the next is asked for. What is in it is never asked again.

The first line says what was begun, so that a run that goes on is the same one. A line with "given" is the digest of the
list that was made of the answers so far. A last line that was cut off by a kill or a power cut is dropped; the answer
in it had not been acknowledged.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout  # torch brings it
from tqdm import tqdm

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import check_regular, flush, parse_json

LONGEST = 64 << 20  # bytes of a line
REMEDY = "name another --out"


class Journal:
    """Open for appending by one process."""

    def __init__(self, file: Path, done: set[int], tokens: list[int]):
        self.file, self.done, self.tokens, self.given = file, done, tokens, ""
        self.stream = file.open("ab", buffering=0)

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        """Write answers, and return when they are on the disk. On a full disk nothing half-written stays."""
        entries = list(entries)
        data = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries).encode("utf-8", "replace")
        before = os.fstat(self.stream.fileno()).st_size
        try:
            if data and self.stream.write(data) != len(data):
                raise OSError("the disk is full")
            os.fsync(self.stream.fileno())
        except OSError as error:
            self.stream.truncate(before)
            raise UserError(f"cannot write {self.file}: {error.strerror or one_line(error)}") from error
        for entry in entries:
            self.given = entry.get("given", self.given)
            if "index" in entry:
                self.done.add(entry["index"])
                add_tokens(self.tokens, entry)


def add_tokens(tokens: list[int], entry: dict[str, Any]) -> None:
    """Add what was read and written for an answer."""
    tokens[0] += entry["tokens"][0]
    tokens[1] += entry["tokens"][1]


@contextmanager
def opened(file: Path, identity: dict[str, Any]) -> Iterator[Journal]:
    """The journal, begun or gone on with. It must be of the same `identity`, and no other process may have it open."""
    lock = FileLock(file.with_name(f".{file.name}.lock"), timeout=0)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise UserError(f"{file} is being written by another process; wait for it, or name another --out") from None
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or one_line(error)}; {REMEDY}") from error
    journal = None
    try:
        if file.exists() and not file.is_file():
            raise UserError(f"{file} is no file; {REMEDY}")
        done, tokens, given = _begun(file, identity) if file.exists() else (set[int](), [0, 0], "")
        journal = Journal(file, done, tokens)
        journal.given = given
        if not done:
            journal.append([identity])
            flush(file.parent)
        yield journal
    finally:
        if journal is not None:
            journal.stream.close()
            if not journal.done:
                file.unlink(missing_ok=True)  # nothing to go on with; a wrong address may be put right
        lock.release()


def _begun(file: Path, identity: dict[str, Any]) -> tuple[set[int], list[int], str]:
    """Drop half a last line; compare the first line; gather what is there. Without an answer it begins anew."""
    try:
        with file.open("rb+") as stream:
            stream.truncate(_whole(stream.read, stream.seek))
        lines = entries(file)
        first, second = next(lines, None), next(lines, None)
        if first is None or second is None:
            os.truncate(file, 0)
            return set(), [0, 0], ""
    except OSError as error:
        raise UserError(f"cannot go on with {file}: {error.strerror or one_line(error)}; {REMEDY}") from error
    if first.get("format") != identity.get("format"):
        raise UserError(f"{file} was begun by another version; {REMEDY}, and give both to clean --journals")
    for name, mine in identity.items():
        if told := _other(name, first.get(name), mine):
            raise UserError(f"{file} was begun with {told}, or {REMEDY}")
    done, tokens, given = set[int](), [0, 0], ""
    for entry in tqdm(chain([second], lines), f"reading {file.name}", delay=2, disable=None, leave=False):
        if "index" in entry:
            done.add(entry["index"])
            add_tokens(tokens, entry)
        else:
            given = entry["given"]
    return done, tokens, given


def source(count: int, file: Path | None, content: Any) -> dict[str, Any]:
    """What an identity says of a list: how many, where from, and a digest, which alone is compared."""
    return {"count": count, "of": str(file) if file else "ours", "digest": digest(json.dumps(content))}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _other(name: str, theirs: Any, mine: Any) -> str:
    """What differs, and what to give to go on; nothing where it is the same."""
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return "" if theirs == mine else f"{name} {theirs}, not {mine}: give --{name} {theirs}"
    if theirs.get("digest") == mine["digest"]:
        return ""
    now = f"{theirs.get('count')} {name} of {theirs.get('of')}, now {mine['count']} of {mine['of']}"
    if theirs.get("of") == mine["of"]:
        return f"{now}: put the file back as it was"
    return f"{now}: " + (
        "go on without that file" if theirs.get("of") == "ours" else f"give --{name} {theirs.get('of')}"
    )


def _whole(read: Any, seek: Any) -> int:
    """Where the last whole line ends, looked for from the end."""
    end = seek(0, os.SEEK_END)
    at = end
    while max(0, end - LONGEST) < at:
        start = max(0, at - (1 << 16))
        seek(start)
        newline = read(at - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        at = start
    return end if at else 0  # a line too long for a journal is refused by who reads it


def entries(file: Path, read: Callable[[int], Any] = lambda _: None) -> Iterator[dict[str, Any]]:
    """What a journal holds, its first line first; `read` is told the bytes. Half a last line is left out."""
    try:
        check_regular(file)
        with file.open("rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(LONGEST), b""), 1):
                read(len(line))
                if len(line) == LONGEST:
                    raise UserError(f"{file}, line {number} is longer than {LONGEST:,} bytes: it is not of a journal")
                if line.endswith(b"\n"):
                    yield _entry(line, number, file)
    except FileNotFoundError:
        raise UserError(f"there is no {file}; mosaics babistories stories makes one") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or one_line(error)}") from error


def _entry(line: bytes, number: int, file: Path) -> dict[str, Any]:
    wanted = {"step": str} if number == 1 else {"index": int, "tokens": list, "text": str}
    try:
        entry = parse_json(line.decode())
    except (ValueError, RecursionError):
        entry = None
    if number > 1 and isinstance(entry, dict) and isinstance(entry.get("given"), str):
        return entry
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), kind) for name, kind in wanted.items()):
        raise UserError(f"{file}, line {number} is not of a journal: it should be an object with {', '.join(wanted)}")
    if number == 1:
        return entry
    words = entry.get("words", [])
    texts = [
        entry.get("name", ""),
        entry.get("opening", ""),
        *(words.values() if isinstance(words, dict) else words if isinstance(words, list) else [0]),
    ]
    counts = entry.get("tokens", [0, 0])
    if [*map(type, counts)] != [int, int] or not all(isinstance(text, str | None) for text in texts):
        raise UserError(f"{file}, line {number} is damaged: tokens should be two numbers, and words texts")
    return entry
