"""`mosaics babistories`: names and openings, then stories, cleaned and counted. Everything is in one folder.

- names.journal, openings.journal, stories.journal: every answer as received, JSON lines
- names.txt, openings.txt: what the stories draw from, where they exist
- train.jsonl, valid.jsonl: the corpus, one JSON string per line, as in the public files
- dropped.log, clean.json, statistics.json: what was dropped and why, and the numbers
"""

import re
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

from memory_mosaics.apps.babistories import cleaning, prompts
from memory_mosaics.apps.babistories.collect import Entry, Journal, Outcome, collect, digest, find_model, source
from memory_mosaics.apps.babistories.prompts import Request
from memory_mosaics.apps.babistories.writers import Writer
from memory_mosaics.config import MAX_SEED, MAX_STORIES
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.files import read_text, write_text

OUT = Path("runs/babistories")
MAX_FRUITLESS = 24  # answers in a row that bring nothing new: the model knows no more
MARK = re.compile(r"^\s*(?:[-*•\u2013]|\(?\d+[.):]?)?\s*[\"“'*_]*|[\s\"”'*_.,;:…]+$")


def names(out: Path = OUT, *, count: int = 500, seed: int = 0, **writer: Any) -> dict[str, Any]:
    """Ask a language model for first names, and write the different ones to OUT/names.txt.

    Args:
        out: the folder of the corpus; the same command goes on with what is there
        count: different names to gather
        seed: another seed, other answers
        **writer: the language model
    """
    return _gather("names", out, count, seed, Writer(**writer), prompts.names_request, read_names)


def openings(out: Path = OUT, *, count: int = 500, seed: int = 0, **writer: Any) -> dict[str, Any]:
    """Ask a language model for the first words of stories, and write the different ones to OUT/openings.txt.

    Args:
        out: the folder of the corpus; the same command goes on with what is there
        count: different openings to gather
        seed: another seed, other answers
        **writer: the language model
    """
    return _gather("openings", out, count, seed, Writer(**writer), prompts.openings_request, read_openings)


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
        out: the folder of the corpus; the same command goes on with what is there
        count: stories to ask for
        first: the number of the first one; other machines can make other numbers
        seed: another seed, other prompts
        words: a JSON file with "nouns", "verbs" and "adjectives" in place of our lists
        names: a file with one first name a line; OUT/names.txt if it is there
        openings: a file with one opening a line; OUT/openings.txt if it is there
        template: a file with the text of the prompt and slots such as {noun}, in place of ours
        **writer: the language model
    """
    asked = Writer(**writer)
    check_range(1, MAX_STORIES, count=count)
    check_range(0, MAX_SEED, first=first)
    names, openings = _existing(out, "names", names), _existing(out, "openings", openings)
    lists, text = prompts.read_lists(words, names, openings), prompts.read_template(template)
    asked = _ready(out, asked)
    kinds = [lists.nouns, lists.verbs, lists.adjectives, lists.features]
    identity = _identity("stories", seed, asked) | {
        "words": source(sum(map(len, kinds[:3])), words, kinds),
        "names": source(len(lists.names), names, lists.names),
        "openings": source(len(lists.openings), openings, lists.openings),
        "template": source(1, template, text),
    }
    sources = f"{len(lists.names)} names ({names or 'ours'}), {len(lists.openings)} openings ({openings or 'ours'})"
    print(f"prompts of seed {seed} from {sources}")
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
            return None if index is None else prompts.story_request(index, **how, opening_only=asked.ask == "opening")

        bar = {"total": count, "initial": complete(), "unit": "story", "desc": "stories"}
        outcome, summary = collect(asked, next_request, journal, len, **bar)
        have = f"{complete():,} of {count:,} stories"
        return _end(outcome, summary, journal, have, whole=complete() == count)


def _end(outcome: Outcome, summary: str, journal: Journal, have: str, *, whole: bool) -> dict[str, Any]:
    """Say where everything is; a server that gave up or left requests unanswered makes one line and exit code 2."""
    again = "the same command goes on"
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
    writer = _ready(out, writer)
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

        received([entry for entry in journal.read() if "index" in entry])
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
    if there is not None and there != text and digest(there) != journal.given:
        print(f"{file} is left as it is: it is not what this journal gave last; move it away to have it written anew")
        return
    if there != text:
        write_text(file, text)
    if journal.given != digest(text):
        journal.append([{"given": digest(text)}])
    print(f"written: {file}")


def read_names(text: str) -> list[str]:
    """The first names in an answer: one word each, with a capital letter."""
    parts = [MARK.sub("", part) for line in text.splitlines() for part in line.split(",")]
    return [part for part in parts if re.fullmatch(r"[^\W\d_][\w'\u2019-]{1,14}", part) and part[0].isupper()]


def read_openings(text: str) -> list[str]:
    """The openings in an answer: two to eight words each, with a capital letter and without brackets."""
    lines = [MARK.sub("", line) for line in text.splitlines()]
    few = [line for line in lines if 2 <= len(line.split()) <= 8 and line[0].isupper()]
    return [line for line in few if not re.search(r"[\[\]{}:<>]", line)]


def _identity(step: str, seed: int, writer: Writer) -> dict[str, Any]:
    """What a resumed run must have in common: everything that changes the answers."""
    same = {name: getattr(writer, name) for name in ("model", "ask", "length", "temperature", "top_p")}
    return {"step": step, "format": 2, "seed": seed} | same


def _ready(out: Path, writer: Writer) -> Writer:
    """The writer with the name of its model; the folder is checked first."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is there, and no folder; name another --out")
    return find_model(writer)


def _existing(out: Path, step: str, given: Path | None) -> Path | None:
    file = out / f"{step}.txt"
    return given or (file if file.is_file() else None)


COMMANDS: dict[str, Any] = {
    "_help": "Make a corpus of tiny stories with a language model, as the paper did.",
    "names": names,
    "openings": openings,
    "stories": stories,
    "clean": cleaning.clean,
    "stats": cleaning.stats,
}
