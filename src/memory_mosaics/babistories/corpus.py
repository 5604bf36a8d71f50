"""From the journal to a corpus: cleaned, split, written as the public files are, counted as in the paper's table."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from memory_mosaics import results
from memory_mosaics.babistories.cleaning import REASONS, Cleaned, Cleaner
from memory_mosaics.babistories.journal import entries
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import check_regular, written_whole
from memory_mosaics.text.writing import split_of

SPLITS = ("train", "valid")
NAMES = {"train": "train.jsonl", "valid": "valid.jsonl", "dropped": "dropped.log"}
PAPER = (("train", "2.2M", "474,704,907", "888"), ("valid", "2.2k", "4,749,107", "889"))
BATCH = 1000  # stories that are counted at a time


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
    """Leave out what is no good story, say why, and write the rest as OUT/train.jsonl and OUT/valid.jsonl.

    Args:
        out: the folder of the corpus
        journals: the journals to take stories from, those of several machines say; OUT/stories.journal by default
        language: the language of the stories, by a code of two letters; null for any
        shortest: a story has at least so many words
        similarity: a story with so large a share of another's runs of four words is a near-duplicate
        allow: reasons that do not count, such as 'missing words'
        valid_share: the share of stories held out for validation, chosen by a hash of the seed and their number
        seed: chooses the stories held out
    """
    if not 0 <= valid_share < 1:
        raise UserError(f"valid_share must be at least 0 and below 1, not {valid_share}")
    files = journals or [out / "stories.journal"]
    cleaner = Cleaner(language, shortest, similarity, frozenset(allow or ()))
    for file in files:
        if next(entries(file), {"step": "stories"})["step"] != "stories":
            raise UserError(f"{file} is not a journal of stories")
    results.prepare(out)
    counts = _write(out, cleaner.clean(_with_bar(files)), seed, valid_share)
    answers = cleaner.counts.total()
    found: dict[str, Any] = {"answers": answers, "kept": cleaner.counts["kept"]}
    found |= {"dropped": {reason: cleaner.counts[reason] for reason in REASONS}, "stories": counts}
    options = {"language": language, "shortest": shortest, "similarity": similarity, "allow": sorted(cleaner.allow)}
    results.write(out / "clean.json", found | {"options": options | {"valid_share": valid_share, "seed": seed}})
    for name, count in (("answers", answers), *found["dropped"].items(), ("kept", found["kept"])):
        print(f"{name:16}{count:>10,}{count / max(1, answers):>9.1%}")
    if not found["kept"]:
        raise UserError(f"no story is left of {answers:,} answers; the reasons are in {out / 'dropped.log'}")
    kept = ", ".join(f"{count:,} in {out / name}.jsonl" for name, count in counts.items())
    print(f"written: {kept}; what was left out, with reasons: {out / 'dropped.log'}")
    return found


def _write(out: Path, cleaned: Iterator[Cleaned], seed: int, valid_share: float) -> dict[str, int]:
    """Write what stays and what goes, all files whole or none; returns how many stories stay where."""
    counts: dict[str, int] = dict.fromkeys(SPLITS, 0)
    first = None  # held back: a small corpus in which chance leaves none to validate on takes it
    with ExitStack() as stack:
        files = {name: stack.enter_context(written_whole(out / name)) for name in NAMES.values()}
        streams = {name: stack.enter_context(files[NAMES[name]].open("w", encoding="utf-8")) for name in NAMES}

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


def _with_bar(files: list[Path]) -> Iterator[dict[str, Any]]:
    """The answers in journals, one after the other; each number once, as it was first answered."""
    size = sum(file.stat().st_size for file in files)
    seen: dict[str, set[int]] = {}
    with tqdm(total=size, unit="B", unit_scale=True, desc="clean", disable=None, file=sys.stderr) as bar:
        for file in files:
            lines = entries(file, bar.update)
            numbers = seen.setdefault(json.dumps(next(lines, {}), sort_keys=True), set())
            for entry in lines:
                if entry["index"] not in numbers:
                    numbers.add(entry["index"])
                    yield entry


def stats(out: Path = Path("runs/babistories")) -> dict[str, Any]:
    """Count the stories, the tokens and the characters of train.jsonl and valid.jsonl, as in the paper's table.

    Args:
        out: the folder of the corpus, or any folder with these two files
    """
    tokenizer = _gpt2()
    table: dict[str, Any] = {}
    for split in SPLITS:
        file = out / f"{split}.jsonl"
        if not file.is_file():
            raise UserError(f"there is no {file}; mosaics babistories clean writes it")
        table[split] = _count(file, tokenizer)
    note = "" if tokenizer else "; GPT-2's tokenizer is not at hand: pip install 'memory-mosaics[gpt2]'"
    print(f"{'partition':12}{'stories':>12}{'tokens (GPT-2)':>18}{'characters a story':>22}")
    for split, found in table.items():
        tokens = "-" if found["tokens"] is None else f"{found['tokens']:,}"
        print(f"{split:12}{found['stories']:>12,}{tokens:>18}{found['characters_per_story']:>22,.0f}")
    for split, stories, tokens, characters in PAPER:
        print(f"{f'paper {split}':12}{stories:>12}{tokens:>18}{characters:>22}")
    try:
        results.write(out / "statistics.json", table)
        print(f"written: {out / 'statistics.json'}{note}")
    except UserError:
        print(f"{out} is not to be written in: the table is only here{note}")
    return table


def _gpt2() -> Any:
    try:
        from memory_mosaics.text.tokenizer import gpt2

        return gpt2()
    except (UserError, ImportError):
        return None


def _count(file: Path, tokenizer: Any) -> dict[str, Any]:
    stories = characters = tokens = 0
    check_regular(file)
    with (
        file.open(encoding="utf-8") as lines,
        tqdm(desc=file.name, unit="story", disable=None, file=sys.stderr) as bar,
    ):
        numbered = enumerate(lines, 1)
        while batch := [_story(file, *line) for line in islice(numbered, BATCH)]:
            stories += len(batch)
            characters += sum(map(len, batch))
            tokens += sum(map(len, tokenizer.encode_many(batch))) if tokenizer else 0
            bar.update(len(batch))
    per_story = characters / max(1, stories)
    return {"stories": stories, "tokens": tokens if tokenizer else None, "characters_per_story": round(per_story, 1)}


def _story(file: Path, number: int, line: str) -> str:
    try:
        story = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}, line {number} is not JSON: {one_line(error)}") from error
    if not isinstance(story, str):
        raise UserError(f"{file}, line {number} should be a JSON string")
    return story
