"""From journals to a corpus: unusable stories are dropped, the others are split and written as in the public files.

A story is dropped for the first of `REASONS` that applies.
"""

import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from memory_mosaics import results
from memory_mosaics.apps.babistories.collect import Entry, read_journal
from memory_mosaics.apps.babistories.prompts import contains_word
from memory_mosaics.errors import UserError
from memory_mosaics.experiments.report import text_table
from memory_mosaics.files import atomic_write
from memory_mosaics.text.corpus import split_of
from memory_mosaics.text.sources import Source, read_documents
from memory_mosaics.text.tokenizer import Tokenizer, gpt2_if_installed

URL = re.compile(r"(?i)https?:|www\.|\b[\w-]+\.(?-i:com|org|net|edu|gov|io|co|info|html?)\b")
MODEL = re.compile(r"(?i)\bas an? (?:ai|artificial intelligence)\b|\blanguage model\b")
NOT = r"i (?:can(?:no|['\u2019])t|can not|could not|am (?:unable|not able)|won['\u2019]t|will not|do not|don['\u2019]t)"
REFUSAL = re.compile(  # at the very beginning, and not within a quotation
    rf"(?i)[^\"“]{{0,60}}\b(?:i(?:['\u2019]m| am) (?:sorry,? (?:but\b|{NOT})|afraid,? (?:that )?(?:this|{NOT}))"
    r"|i(?:['\u2019]m| am) unable to\b|i (?:can|could) not write\b"
    r"|i (?:can(?:no|['\u2019])t|won['\u2019]t|will not) (?:write|help|assist|create|provide|fulfil))"
)
END = re.compile(r"[.!?…。\uff01\uff1f][^\w,;:(\[{\u2013\u2014-]*$")  # emoji and quotation marks may follow
THE_END = re.compile(r"(?i)(?:^|\n|[.!?…\"”]\s)[^\w\n]*the end\W*$")
HEADING = re.compile(
    r"(?i)^(?:#+ .*|\*\*[^*\n]{1,80}\*\*|title\s*:.*|story\s*:[^.!?]*|[\"“*]*the end[.!\"”*]*|[-*_~=# ]{3,})$"
)
LABEL = re.compile(r"(?i)^story\s*:\s*")
TAIL = re.compile(r"<\|endoftext\|>|</s>|<\|im_end\|>|<\|eot_id\|>")
LATIN = re.compile(  # languages written in these letters
    "af|ca|cs|cy|da|de|en|es|et|eu|fi|fr|ga|hr|hu|id|is|it|la|lt|lv|ms|mt|nl|no|pl|pt|ro|sk|sl|sq|sv|sw|tr|vi"
)
FILES = {"train": "train.jsonl", "valid": "valid.jsonl", "dropped": "dropped.log"}
PAPER = (("paper train", "2.2M", "474,704,907", "888"), ("paper valid", "2.2k", "4,749,107", "889"))
BATCH = 1000  # stories that are counted at a time
PERMUTATIONS, BANDS, SHINGLE = 128, 32, 4
Cleaned = tuple[Entry, str, str | None]  # the entry, the tidied text, the reason to drop it
HALVES = 600  # characters from which the language of each half is tested


def tidy(text: str) -> str:
    """The story alone: without a heading, "The end", marks of the model's own, and quotation marks around it all."""
    lines = [line.rstrip() for line in TAIL.split(text)[0].replace("\r\n", "\n").strip().split("\n")]
    while lines and (not lines[0] or HEADING.match(lines[0].strip())):
        del lines[0]
    while lines and (not lines[-1] or HEADING.match(lines[-1].strip())):
        del lines[-1]
    text = LABEL.sub("", re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip())
    for opened, closed in ('""', "“”"):
        inside = text[1:-1]
        if text[:1] == opened and text[-1:] == closed and opened not in inside and closed not in inside:
            text = inside.strip()
    return text


@dataclass
class Cleaner:
    """Checks stories one after the other; of near-duplicates the first is kept."""

    language: str | None = "en"
    shortest: int = 50
    similarity: float = 0.7
    allow: frozenset[str] = frozenset()
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        unknown = sorted(self.allow - set(REASONS))
        if unknown:
            raise UserError(f"there is no reason {unknown[0]!r} to allow; they are {', '.join(REASONS)}")
        self.is_of_language, self.is_duplicate = _language_test(self.language), _duplicate_test(self.similarity)

    def clean(self, entries: Iterable[Entry]) -> Iterator[Cleaned]:
        """Each entry with its tidied text and the reason to drop it, None to keep it."""
        for entry in entries:
            text = tidy(entry["text"])
            reason = self.reason(entry, text)
            self.counts[reason or "kept"] += 1
            yield entry, text, reason

    def reason(self, entry: Entry, text: str) -> str | None:
        checked = (name for name in REASONS if name not in self.allow)
        return next((name for name in checked if REASONS[name](self, entry, text)), None)


def _is_cut_off(_: Cleaner, entry: Entry, text: str) -> bool:
    """Whether the last sentence is incomplete, and the answer does not say "The end"."""
    complete = END.search(text) or THE_END.search(TAIL.split(entry["text"])[0])
    return entry.get("finish") in ("length", "content_filter") or not complete


def _has_wrong_opening(_: Cleaner, entry: Entry, text: str) -> bool:
    """Whether the first words are not the requested ones, whatever the case and the marks between them."""
    opening = entry.get("opening", "")
    asked = re.findall(r"\w+", opening.casefold())
    return re.findall(r"\w+", text[: 4 * len(opening) + 80].casefold())[: len(asked)] != asked


def _misses_words(_: Cleaner, entry: Entry, text: str) -> bool:
    wanted = entry.get("words", {}) | ({"name": entry["name"]} if entry.get("name") else {})
    return not all(contains_word(text, word, kind) for kind, word in wanted.items())


REASONS: dict[str, Callable[[Cleaner, Entry, str], bool]] = {
    "no answer": lambda _, entry, text: not text,
    "refusal": lambda _, entry, text: bool(REFUSAL.match(text) or MODEL.search(text)),
    "URL": lambda _, entry, text: URL.search(text) is not None,
    "too short": lambda cleaner, entry, text: len(text.split()) < cleaner.shortest,
    "cut off": _is_cut_off,
    "other language": lambda cleaner, entry, text: not cleaner.is_of_language(text),
    "wrong opening": _has_wrong_opening,
    "missing words": _misses_words,
    "near-duplicate": lambda cleaner, entry, text: cleaner.is_duplicate(text),
}


def _language_test(language: str | None) -> Callable[[str], bool]:
    """Return a test whether a text is in the language, each half of it, and written in its letters."""
    if language is None:
        return lambda text: True
    try:
        import py3langid
    except ImportError:
        raise UserError(
            "telling languages needs py3langid: pip install 'memory-mosaics[babistories]', or give --language null"
        ) from None
    if language not in {code for code, _ in py3langid.rank("any text loads the model")}:
        raise UserError(f"there is no language {language!r}; it is a code of two letters such as en, de, fr, or null")

    def is_of(text: str) -> bool:
        if LATIN.fullmatch(language) and not text.isascii():
            letters = [letter for letter in text if letter.isalpha()]
            foreign = sum(not unicodedata.name(letter, "").startswith("LATIN") for letter in letters if letter > "\x7f")
            if foreign > 0.02 * len(letters):
                return False
        middle = len(text) // 2
        parts = (text[:middle], text[middle:]) if len(text) >= HALVES else (text,)
        return all(py3langid.classify(part)[0] == language for part in parts)

    return is_of


def _duplicate_test(similarity: float) -> Callable[[str], bool]:
    """Return a test whether a text is similar to an earlier one, by MinHash of its runs of four words."""
    if not 0 < similarity <= 1:
        raise UserError(f"similarity must be in (0, 1], not {similarity}")
    try:
        import rensa  # in Rust, and needs nothing else
    except ImportError:
        raise UserError("finding near-duplicates needs rensa: pip install 'memory-mosaics[babistories]'") from None
    library: Any = rensa  # it comes without types
    seen = library.RMinHashDeduplicator(similarity, PERMUTATIONS, True, BANDS, 0)

    def is_known(text: str) -> bool:
        words = re.findall(r"\w+", text.casefold())
        runs = {" ".join(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))}
        sketch = library.RMinHash(num_perm=PERMUTATIONS, seed=0)
        sketch.update(sorted(runs))
        return not seen.add(str(seen.len()), sketch)

    return is_known


def clean(
    out: Path = Path("runs/babistories"),
    *,
    journals: list[Path] | None = None,
    language: str | None = "en",
    shortest: int = 50,
    similarity: float = 0.7,
    allow: list[str] | None = None,
    valid_share: float = 0.01,
    seed: int = 0,
) -> dict[str, Any]:
    """Drop unusable stories, log why, and write the others to OUT/train.jsonl and OUT/valid.jsonl.

    Args:
        out: the folder of the corpus
        journals: the journals to take stories from, such as those of several machines; OUT/stories.journal by default
        language: the language of the stories, by a code of two letters; null for any
        shortest: minimum number of words of a story
        similarity: share of common runs of four words from which two stories are near-duplicates
        allow: reasons that do not count, such as 'missing words'
        valid_share: the share of stories held out for validation, chosen by a hash of the seed and their number
        seed: chooses the stories held out
    """
    if not 0 <= valid_share < 1:
        raise UserError(f"valid_share must be at least 0 and below 1, not {valid_share}")
    files = journals or [out / "stories.journal"]
    cleaner = Cleaner(language, shortest, similarity, frozenset(allow or ()))
    for file in files:
        if next(read_journal(file), {"step": "stories"})["step"] != "stories":
            raise UserError(f"{file} is not a journal of stories")
    results.create_output_folder(out)
    counts = _write(out, cleaner.clean(_read_answers(files)), seed, valid_share)
    answers = cleaner.counts.total()
    found: dict[str, Any] = {"answers": answers, "kept": cleaner.counts["kept"]}
    found |= {"dropped": {reason: cleaner.counts[reason] for reason in REASONS}, "stories": counts}
    options = {"language": language, "shortest": shortest, "similarity": similarity, "allow": sorted(cleaner.allow)}
    results.write_results(out / "clean.json", found | {"options": options | {"valid_share": valid_share, "seed": seed}})
    for name, count in (("answers", answers), *found["dropped"].items(), ("kept", found["kept"])):
        print(f"{name:16}{count:>10,}{count / max(1, answers):>9.1%}")
    if not found["kept"]:
        raise UserError(f"no story is left of {answers:,} answers; the reasons are in {out / 'dropped.log'}")
    kept = ", ".join(f"{count:,} in {out / name}.jsonl" for name, count in counts.items())
    print(f"written: {kept}; dropped stories, with reasons: {out / 'dropped.log'}")
    return found


def _write(out: Path, cleaned: Iterator[Cleaned], seed: int, valid_share: float) -> dict[str, int]:
    """Write the kept and the dropped stories, all files or none; returns the number of stories per split."""
    counts: dict[str, int] = {"train": 0, "valid": 0}
    first = None  # held back: a small corpus in which chance leaves none to validate on takes it
    with ExitStack() as stack:
        paths = {name: stack.enter_context(atomic_write(out / file)) for name, file in FILES.items()}
        streams = {name: stack.enter_context(path.open("w", encoding="utf-8")) for name, path in paths.items()}

        def keep(split: str, text: str) -> None:
            counts[split] += 1
            streams[split].write(json.dumps(text) + "\n")

        for entry, text, reason in cleaned:
            split = split_of(entry["index"], seed, valid_share)
            if reason is not None:
                line = {"index": entry["index"], "reason": reason, "text": entry["text"]}
                streams["dropped"].write(json.dumps(line, ensure_ascii=False) + "\n")
            elif first is None and split == "train":
                first = text
            else:
                keep(split, text)
        if first is not None:
            keep("valid" if valid_share and counts["train"] and not counts["valid"] else "train", first)
    return counts


def _read_answers(files: list[Path]) -> Iterator[Entry]:
    """The answers in journals, one after the other; each number once, as it was first answered."""
    size = sum(file.stat().st_size for file in files)
    seen: dict[str, set[int]] = {}
    with tqdm(total=size, unit="B", unit_scale=True, desc="clean", disable=None, file=sys.stderr) as bar:
        for file in files:
            lines = read_journal(file, bar.update)
            numbers = seen.setdefault(json.dumps(next(lines, {}), sort_keys=True), set())
            for entry in lines:
                if "index" in entry and entry["index"] not in numbers:  # not the digest of a list
                    numbers.add(entry["index"])
                    yield entry


def stats(out: Path = Path("runs/babistories")) -> dict[str, Any]:
    """Count the stories, the tokens and the characters of train.jsonl and valid.jsonl, as in the paper's table.

    Args:
        out: the folder of the corpus, or any folder with these two files
    """
    tokenizer = gpt2_if_installed()
    table: dict[str, Any] = {}
    for split in ("train", "valid"):
        file = out / f"{split}.jsonl"
        if not file.is_file():
            raise UserError(f"there is no {file}; mosaics babistories clean writes it")
        table[split] = _count(file, tokenizer)
    note = "" if tokenizer else "; GPT-2's tokenizer is not installed: pip install 'memory-mosaics[gpt2]'"
    rows = []
    for split, found in table.items():
        tokens = "-" if found["tokens"] is None else f"{found['tokens']:,}"
        rows.append((split, f"{found['stories']:,}", tokens, f"{found['characters_per_story']:,.0f}"))
    print(text_table(("partition", "stories", "tokens (GPT-2)", "characters per story"), [*rows, *PAPER]))
    try:
        results.write_results(out / "statistics.json", table)
        print(f"written: {out / 'statistics.json'}{note}")
    except UserError:
        print(f"{out} is not writable: the table is not saved{note}")
    return table


def _count(file: Path, tokenizer: Tokenizer | None) -> dict[str, Any]:
    stories = characters = tokens = 0
    source = Source(file.name, "json", str(file))
    texts = (document.text for document in read_documents(source, text_field="text"))
    texts = iter(tqdm(texts, file.name, unit="story", disable=None, file=sys.stderr))
    while batch := list(islice(texts, BATCH)):
        stories += len(batch)
        characters += sum(map(len, batch))
        tokens += sum(map(len, tokenizer.encode_batch(batch))) if tokenizer else 0
    per_story = characters / max(1, stories)
    return {"stories": stories, "tokens": tokens if tokenizer else None, "characters_per_story": round(per_story, 1)}
