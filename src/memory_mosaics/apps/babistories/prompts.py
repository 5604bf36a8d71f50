"""What the language model is asked. The prompt of a story is a pure function of the seed, its index and the lists.

So any machine can make any part of a corpus, in any order, and a story can be traced back to what it was asked for. A
word may name other forms that count as using it, after a slash: `run/ran`; regular English endings need not be named.
"""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from memory_mosaics.errors import UserError
from memory_mosaics.files import read_json, read_text
from memory_mosaics.text.word_lists import BOYS, GIRLS

KINDS = ("nouns", "verbs", "adjectives")
SLOTS = {"name", "noun", "verb", "adjective", "features", "opening"}
SLOT = re.compile(r"\{(\w+)\}")


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(files("memory_mosaics.apps.babistories").joinpath("lists.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Lists:
    """What prompts are drawn from."""

    nouns: Sequence[str]
    verbs: Sequence[str]
    adjectives: Sequence[str]
    names: Sequence[str]
    openings: Sequence[str]
    features: Sequence[tuple[str, str]]  # name and meaning


@cache
def default_lists() -> Lists:
    """The small lists that come with the package."""
    data = _data()
    words = {kind: tuple(data[kind].split()) for kind in KINDS}
    openings, features = tuple(data["openings"].splitlines()), tuple(data["features"].items())
    return Lists(**words, names=tuple(sorted(BOYS + GIRLS)), openings=openings, features=features)


def read_lists(words_file: Path | None, names: Path | None, openings: Path | None) -> Lists:
    """The default lists, each replaced by the file that is given for it."""
    lists = default_lists()
    if words_file is not None:
        lists = replace(lists, **_read_words(words_file))
    if names is not None:
        lists = replace(lists, names=_read_lines(names))
    return replace(lists, openings=_read_lines(openings)) if openings is not None else lists


def read_template(file: Path | None) -> str:
    """The text of the story prompt: the default one, or a file with any of the slots, each in braces."""
    if file is None:
        return _data()["story"]
    template = read_text(file).strip()
    slots = SLOT.findall(template)
    if unknown := [slot for slot in slots if slot not in SLOTS]:
        raise UserError(f"{file} has a slot {{{unknown[0]}}}; there are {', '.join(sorted(SLOTS))}")
    if not slots:
        raise UserError(f"{file} has no slot such as {{noun}}: every story would be asked for with the same words")
    return template


def _read_lines(file: Path) -> tuple[str, ...]:
    lines = tuple(dict.fromkeys(line.strip() for line in read_text(file).splitlines() if line.strip()))
    if not lines:
        raise UserError(f"{file} is empty: it should have one entry per line")
    return lines


def _read_words(file: Path) -> dict[str, Any]:
    """{"nouns": [...], "verbs": [...], "adjectives": [...]} and optionally {"features": {name: meaning}}."""
    layout = 'an object of "nouns", "verbs", "adjectives" (lists of words) and optionally "features" (an object)'
    found = read_json(file)
    if not isinstance(found, dict) or not set(KINDS) <= set(found) <= {*KINDS, "features"}:
        raise UserError(f"{file} should be {layout}")
    for kind in KINDS:
        if not (isinstance(found[kind], list) and found[kind] and all(isinstance(w, str) and w for w in found[kind])):
            raise UserError(f"{file}: {kind} should be a list of words")
    features = found.get("features", _data()["features"])
    if not isinstance(features, dict) or not all(isinstance(meaning, str) for meaning in features.values()):
        raise UserError(f"{file}: features should be an object of names and what they mean")
    return {kind: tuple(found[kind]) for kind in KINDS} | {"features": tuple(features.items())}


@dataclass(frozen=True)
class Request:
    """One prompt. The answer starts with `prefix`; `metadata` is what the journal keeps of the prompt."""

    index: int
    text: str
    prefix: str
    seed: int
    metadata: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The prompt of a completion: the instruction, if there is one, and the words to continue."""
        return "\n\n".join(part for part in (self.text, self.prefix) if part)


def story_request(
    index: int, *, seed: int, lists: Lists, template: str | None = None, opening_only: bool = False
) -> Request:
    """The prompt of a story. With `opening_only` it is nothing but the first words, for models without instructions."""
    template = read_template(None) if template is None else template
    draw = _random("story", seed, index)
    words = {kind[:-1]: draw.choice(getattr(lists, kind)) for kind in KINDS}
    count = min(len(lists.features), draw.choice((0, 1, 1, 2, 2, 3)))
    features = [lists.features[at] for at in sorted(draw.sample(range(len(lists.features)), count))]
    name, opening = draw.choice(lists.names), draw.choice(lists.openings)
    answer_seed = draw.getrandbits(31)
    if opening_only:
        prefix = f"{opening}, {name}" if opening[-1:].isalnum() else f"{opening} {name}"
        return Request(index, "", prefix, answer_seed, {"name": name, "opening": prefix})
    meanings = "; ".join(meaning for _, meaning in features)
    filled = {kind: word.split("/")[0] for kind, word in words.items()}
    filled |= {"name": name, "opening": opening, "features": f"In this story, {meanings}.\n" if meanings else ""}
    text = SLOT.sub(lambda slot: filled[slot[1]], template)
    used = set(SLOT.findall(template))
    metadata: dict[str, Any] = {"words": {kind: word for kind, word in words.items() if kind in used}}
    metadata |= {"features": [feature for feature, _ in features] if "features" in used else []}
    metadata |= {slot: filled[slot] for slot in ("name", "opening") if slot in used}
    return Request(index, text, opening if "opening" in used else "", answer_seed, metadata)


def names_request(index: int, *, seed: int) -> Request:
    """Ask for first names with a given first letter."""
    draw, letters = _random("names", seed, index), _data()["letters"]
    metadata = {"letter": letters[index % len(letters)]}
    return Request(index, _data()["names_request"].format(**metadata), "", draw.getrandbits(31), metadata)


def openings_request(index: int, *, seed: int) -> Request:
    """Ask for first words of stories."""
    draw, data = _random("openings", seed, index), _data()
    metadata = {"where": draw.choice(data["places"].splitlines()), "when": draw.choice(data["times"].splitlines())}
    return Request(index, data["openings_request"].format(**metadata), "", draw.getrandbits(31), metadata)


def _random(step: str, seed: int, index: int) -> Random:
    """Independent of the other requests, of their order and of the machine: a string seeds Random by its SHA-512."""
    return Random(f"{step}:{seed}:{index}")


def contains_word(text: str, word: str, kind: str) -> bool:
    """Whether a text contains a word: one of its named forms, or the first with a regular English ending of its kind.

    The kinds are noun, verb, adjective and name, which has no endings.
    """
    return _forms(word, kind).search(text) is not None


@cache
def _forms(word: str, kind: str) -> re.Pattern[str]:
    first, *named = word.split("/")
    found = {first, *named, *(ENDINGS[kind](first.casefold()) if kind in ENDINGS else ())}
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(found)))})(?!\w)", re.IGNORECASE)


def _with_s(word: str) -> list[str]:
    """Plural, or third person."""
    if re.search(r"[^aeiou]y$", word):
        return [f"{word[:-1]}ies"]
    if re.search(r"(?:[sxz]|[cs]h)$", word):
        return [f"{word}es"]
    return [f"{word}s", f"{word}es"] if word.endswith("o") else [f"{word}s"]


def _stems(word: str) -> list[str]:
    """The stem before an ending with a vowel: hop, hopp-; bake, bak-; longer words may double or not."""
    if word.endswith("e"):
        return [word[:-1]]
    if not re.search(r"(?:[^aeiou]|qu)[aeiou][^aeiouwxy]$", f" {word}"):
        return [word]
    return [word + word[-1]] if len(re.findall(r"[aeiouy]+", word)) == 1 else [word, word + word[-1]]


def _verb(word: str) -> list[str]:
    past = [f"{word[:-1]}ied"] if re.search(r"[^aeiou]y$", word) else [f"{stem}ed" for stem in _stems(word)]
    participle = [f"{word}ing"] if re.search(r"[eoy]e$", word) else [f"{stem}ing" for stem in _stems(word)]
    return [*_with_s(word), *past, *participle]


def _adjective(word: str) -> list[str]:
    stems = [f"{word[:-1]}i", word] if re.search(r"[^aeiou]y$", word) else _stems(word)
    adverbs = [f"{word[:-1]}ily", f"{word}ly"] if word.endswith("y") else [f"{word}ly"]
    adverbs += [f"{word[:-1]}y"] if word.endswith("le") else [f"{word}y"] if word.endswith("ll") else []
    return [*(stem + ending for stem in stems for ending in ("er", "est")), *adverbs]


ENDINGS: dict[str, Callable[[str], list[str]]] = {"noun": _with_s, "verb": _verb, "adjective": _adjective}
