"""Stories: drawn from an endless sequence, as a source of documents, or written to a file by the command."""

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tqdm import tqdm

from memory_mosaics.apps.story_world.narration import CLOSE, OPEN, Narrator
from memory_mosaics.apps.story_world.plots import PLOTS, add_details
from memory_mosaics.apps.story_world.world import ANIMALS, THINGS, TRAITS, World, words
from memory_mosaics.config import MAX_STORIES
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.files import atomic_write
from memory_mosaics.results import create_output_folder
from memory_mosaics.text.tokenizer import gpt2_if_installed

FEATURES = ("Dialogue", "BadEnding", "MoralValue", "Foreshadowing", "Twist", "Conflict")  # of TinyStories' prompts
WORDS = (100, 250)  # the fewest and the most words of a story
PROBE_DISTANCE = 40  # words between where a probe's answer was told and where it is asked for
TOKEN_SAMPLE = 5_000  # stories whose tokens are counted; the rest is estimated from them
_PLOTS = list(PLOTS.values())
_NOUNS = {*(noun for noun in THINGS if " " not in noun), *ANIMALS, *words("nouns")}
_VERBS = set(words("verbs"))
_ADJECTIVES = {*TRAITS, *words("colours"), *words("looks"), *words("fruit looks"), *words("baked looks")}


@dataclass(frozen=True)
class Story:
    """A story and what is true of it.

    `features` are those of FEATURES that the story has, `words` a noun, a verb and an adjective that occur in it. Each
    probe is (prefix, answer): the text starts with prefix + " " + answer, and the answer follows from what was told at
    least 40 words before.
    """

    text: str
    features: tuple[str, ...]
    words: tuple[str, str, str]
    probes: tuple[tuple[str, str], ...]


def story(seed: int, index: int) -> Story:
    """Story number `index` of the endless sequence `seed`: the same whenever and wherever it is asked for."""
    rng = Random(_mix(seed, index))
    while True:
        drawn = _try(rng)
        if drawn is not None:
            return drawn


def stories(count: int, *, seed: int = 0, start: int = 0) -> Iterator[Story]:
    """Stories number `start` to `start + count - 1`."""
    return (story(seed, index) for index in range(start, start + count))


def documents(name: str) -> Iterator[str]:
    """The texts of the source `stories:COUNT` or `stories:COUNT:SEED` of a corpus."""
    asked = re.fullmatch(r"stories:([1-9]\d{0,18})(?::(\d{1,18}))?", name)
    if asked is None:
        raise UserError(f"{name[:80]}: write stories:COUNT or stories:COUNT:SEED, such as stories:1000:0")
    count, seed = int(asked[1]), int(asked[2] or 0)
    check_range(1, MAX_STORIES, count=count)
    return (story.text for story in stories(count, seed=seed))


def _mix(seed: int, index: int) -> int:
    """Mix two integers into one, far apart for neighbours."""
    return ((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) ^ (index * 0xD1342543DE82EF95)) & ((1 << 128) - 1)


def _try(rng: Random) -> Story | None:
    """Draw a story; None if it is too long or too short."""
    world = World(rng)
    world.pick(_PLOTS)(world)
    add_details(world)
    marked = Narrator(world, dialogue=world.chance(0.9)).narrate()
    text = marked.replace(OPEN, "").replace(CLOSE, "") if OPEN in marked else marked
    tokens = text.split()
    if not WORDS[0] <= len(tokens) <= WORDS[1]:
        return None
    there = set(tokens)
    nouns, verbs, adjectives = (sorted(there & known) for known in (_NOUNS, _VERBS, _ADJECTIVES))
    if not (nouns and verbs and adjectives):
        return None
    features = world.features
    if '"' in text:
        features.add("Dialogue")
    if not world.ends_well():
        features.add("BadEnding")
    return Story(
        text=text,
        features=tuple(name for name in FEATURES if name in features),
        words=(world.pick(nouns), world.pick(verbs), world.pick(adjectives)),
        probes=_probes(marked) if marked is not text else (),
    )


def _probes(marked: str) -> tuple[tuple[str, str], ...]:
    """The marked answers that were mentioned long enough before."""
    prefix, *rest = marked.split(OPEN)
    probes = []
    for piece in rest:
        answer, after = piece.split(CLOSE)
        told = _first(prefix, answer)
        if (
            told >= 0
            and prefix[-1] == " "
            and prefix.count(" ", told) + prefix.count("\n", told) - answer.count(" ") > PROBE_DISTANCE
        ):
            probes.append((prefix.rstrip(), answer))
        prefix += answer + after
    return tuple(probes)


def _first(text: str, answer: str) -> int:
    """The index of the answer in the text as whole words, -1 if it does not occur."""
    at = text.find(f" {answer}")
    while at >= 0 and text[at + 1 + len(answer) : at + 2 + len(answer)].isalpha():
        at = text.find(f" {answer}", at + 1)
    return at + 1 if at >= 0 else -1


def run(count: int = 50_000, out: Path = Path("runs/stories.jsonl"), *, seed: int = 0) -> dict[str, Any]:
    """Write stories of the embedded story world to a file: one JSON string per line, as in the files of BabiStories.

    Half a minute for 50,000 stories, about 10 million words. A larger COUNT starts with the same stories.

    Args:
        count: number of stories
        out: file to write; an existing one is replaced once the new one is complete
        seed: random seed
    """
    check_range(1, MAX_STORIES, count=count)
    if out.is_dir():
        raise UserError(f"out is a folder: {out}; name a file in it, such as {out / 'stories.jsonl'}")
    create_output_folder(out.parent)
    with atomic_write(out) as tmp:
        statistics = _write(count, tmp, seed)
    statistics |= {"file": str(out), "seed": seed}
    print(_table(statistics))
    return statistics


def _write(count: int, file: Path, seed: int) -> dict[str, Any]:
    """Write the stories, and collect the statistics."""
    characters = words = 0
    forms: set[str] = set()
    features: Counter[str] = Counter()
    sample: list[str] = []
    start = time.perf_counter()
    with file.open("w", encoding="utf-8") as lines:
        for one in tqdm(stories(count, seed=seed), total=count, unit="story", disable=None, file=sys.stderr):
            lines.write(json.dumps(one.text) + "\n")
            tokens = one.text.lower().split()
            characters += len(one.text)
            words += len(tokens)
            forms.update(tokens)
            features.update(one.features)
            if len(sample) < TOKEN_SAMPLE:
                sample.append(one.text)
    seconds = time.perf_counter() - start
    return {
        "stories": count,
        **_tokens(sample, count),
        "characters_per_story": characters / count,
        "words_per_story": words / count,
        "distinct_words": len({form.strip('.,!?;:"') for form in forms} - {""}),
        "features": {name: features[name] / count for name in FEATURES},
        "stories_per_second": round(count / seconds),
    }


def _tokens(sample: list[str], count: int) -> dict[str, Any]:
    """Tokens of GPT-2's tokenizer: counted, or estimated from the first stories, or None with the reason."""
    tokenizer = gpt2_if_installed()
    if tokenizer is None:
        return {"tokens": None, "tokens_note": "GPT-2's tokenizer is not installed"}
    counted = sum(map(len, tokenizer.encode_batch(sample)))
    if len(sample) == count:
        return {"tokens": counted, "tokens_note": "GPT-2's tokenizer"}
    return {"tokens": round(counted * count / len(sample)), "tokens_note": f"about, from the first {len(sample):,}"}


def _table(statistics: dict[str, Any]) -> str:
    """The statistics of the paper's table, and a few more."""
    tokens = "-" if statistics["tokens"] is None else f"{statistics['tokens']:,}"
    rows = [
        ("stories", f"{statistics['stories']:,}"),
        ("tokens", f"{tokens} ({statistics['tokens_note']})"),
        ("characters per story", f"{statistics['characters_per_story']:.0f}"),
        ("words per story", f"{statistics['words_per_story']:.0f}"),
        ("distinct words", f"{statistics['distinct_words']:,}"),
        *((name, f"{share:.0%} of the stories") for name, share in statistics["features"].items()),
        ("speed", f"{statistics['stories_per_second']:,} stories/s"),
        ("file", statistics["file"]),
    ]
    return "\n".join(f"{name:22}{value}" for name, value in rows)
