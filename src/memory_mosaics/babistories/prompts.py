"""What the language model is asked. The prompt of a story is a pure function of the seed, its number and the lists.

So any machine can make any part of a corpus, in any order, and a story can be traced back to what it was asked for.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from memory_mosaics.babistories.words import Lists
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import read_text

TEMPLATE = """\
Write a story of three to five short paragraphs for a child of three or four years, in simple words and short sentences.
The first name of the main character is {name}.
The story uses the noun "{noun}", the verb "{verb}" and the adjective "{adjective}".
{features}The story begins with exactly these words: {opening}

Write nothing but the story: no title, no notes, no list of words."""
SLOTS = {"name", "noun", "verb", "adjective", "features", "opening"}
LETTERS = "ABCDEFGHIJKLMNOPRSTUVWYZ"
PLACES = (
    "at home",
    "by the sea",
    "in the woods",
    "in a town",
    "on a farm",
    "at school",
    "far away",
    "in the mountains",
)
TIMES = (
    "in the morning",
    "in the evening",
    "in winter",
    "in summer",
    "on a rainy day",
    "long ago",
    "at night",
    "today",
)


@dataclass(frozen=True)
class Request:
    """One thing to ask. `begin` is what the answer begins with, `asked` is what the journal keeps of it."""

    index: int
    text: str
    begin: str
    seed: int
    asked: dict[str, Any]

    @property
    def prompt(self) -> str:
        """What a model that goes on is given: the instruction, if there is one, and the words to go on from."""
        return "\n\n".join(part for part in (self.text, self.begin) if part)


def read_template(file: Path | None) -> str:
    """A template of the user's: any of the slots, each in braces."""
    if file is None:
        return TEMPLATE
    try:
        template = read_text(file).strip()
    except OSError as error:
        raise UserError(f"cannot read {file}: {one_line(error)}") from error
    slots = re.findall(r"\{(\w+)\}", template)
    if unknown := [slot for slot in slots if slot not in SLOTS]:
        raise UserError(f"{file} has a slot {{{unknown[0]}}}; there are {', '.join(sorted(SLOTS))}")
    if not slots:
        raise UserError(f"{file} has no slot such as {{noun}}: every story would be asked for with the same words")
    return template


def story_request(
    index: int, *, seed: int, lists: Lists, template: str = TEMPLATE, opening_only: bool = False
) -> Request:
    """The prompt of a story. With `opening_only` nothing but its first words is given, for models that only go on."""
    draw = _random("story", seed, index)
    words = {kind[:-1]: draw.choice(getattr(lists, kind)) for kind in ("nouns", "verbs", "adjectives")}
    features = sorted(
        draw.sample(range(len(lists.features)), min(len(lists.features), draw.choice((0, 1, 1, 2, 2, 3))))
    )
    name, opening = draw.choice(lists.names), draw.choice(lists.openings)
    answer_seed = draw.getrandbits(31)
    if opening_only:
        begin = f"{opening}, {name}" if opening[-1:].isalnum() else f"{opening} {name}"
        return Request(index, "", begin, answer_seed, {"name": name, "opening": begin})
    meanings = "; ".join(lists.features[at][1] for at in features)
    filled = {kind: word.split("/")[0] for kind, word in words.items()}
    filled |= {"name": name, "opening": opening, "features": f"In this story, {meanings}.\n" if meanings else ""}
    text = re.sub(r"\{(\w+)\}", lambda slot: filled[slot[1]], template)
    used = set(re.findall(r"\{(\w+)\}", template))
    asked: dict[str, Any] = {"words": {kind: word for kind, word in words.items() if kind in used}}
    asked |= {"features": [lists.features[at][0] for at in features] if "features" in used else []}
    asked |= {slot: filled[slot] for slot in ("name", "opening") if slot in used}
    return Request(index, text, opening if "opening" in used else "", answer_seed, asked)


def names_request(index: int, *, seed: int, batch: int = 30) -> Request:
    """Ask for first names that begin with some letter."""
    draw = _random("names", seed, index)
    letter = LETTERS[index % len(LETTERS)]
    text = (
        f"List {batch} first names of girls and boys from all over the world that begin with the letter {letter}. "
        "Names that a small child can read. One name a line, nothing else."
    )
    return Request(index, text, "", draw.getrandbits(31), {"letter": letter})


def openings_request(index: int, *, seed: int, batch: int = 20) -> Request:
    """Ask for ways to begin a story."""
    draw = _random("openings", seed, index)
    where, when = draw.choice(PLACES), draw.choice(TIMES)
    text = (
        f"List {batch} different ways to begin a story for small children that plays {where}, {when}. Each is only the "
        "first two to eight words of the story, before anybody is named. One a line, nothing else."
    )
    return Request(index, text, "", draw.getrandbits(31), {"where": where, "when": when})


def _random(step: str, seed: int, index: int) -> Random:
    """Independent of all others, of the order and of the machine: a text seeds Python's generator by its SHA-512."""
    return Random(f"{step}:{seed}:{index}")
