"""Prompts and rules that judge their continuations, read from data files.

A rule looks at the first sentences of a continuation. It gives a first impression of many texts: it does not understand
them, and has no verdict where it cannot tell. People have the last word.

    {"any": [...]}      one of these words or phrases, in any case; a star at the end matches any letters
    {"none": [...]}     none of these; where both are given, the first match decides
    {"keeps": [...]}    the first person named is one of these
    {"within": 2}       in so many sentences, 1 by default
    {"otherwise": false}    the verdict without any match, for prompts with one right answer: looks wrong
"""

import json
import re
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

from memory_mosaics.config import from_plain
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.files import read_text
from memory_mosaics.text.word_lists import BOYS, GIRLS, TITLES

STRAIGHT = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})
TITLE = re.compile(r"\b(Mrs?|Ms|Dr)\.")  # its full stop ends no sentence
SENTENCE = re.compile(r"[^.!?\n]*[.!?\n]*[\"')]*")
BEGINNING = re.compile(r"(^|[.!?:\n][\"')]*)\s*$|[\"']$")
NAME = re.compile(r"\b[A-Z][a-z]+\b")
NAMES = frozenset([*BOYS, *GIRLS])
NOT_NAMES = frozenset(TITLES)


@dataclass(frozen=True)
class Rule:
    """When a continuation looks right, and when wrong."""

    any: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    within: int = 1
    otherwise: bool | None = None

    def __post_init__(self) -> None:
        check_range(1, inf, within=self.within)
        phrases = self.any + self.none + self.keeps
        if not phrases or not all(phrase.strip("* ") for phrase in phrases):
            raise UserError(f"a rule needs words as any, none or keeps, not {list(phrases)}")

    def judge(self, text: str) -> bool | None:
        """Return whether a continuation looks right; None where the rule cannot tell."""
        text = _beginning(TITLE.sub(r"\1", text.translate(STRAIGHT)), self.within)
        if self.keeps:
            named = next(iter(names(text, known=self.keeps)), None)
            if named is not None and named not in self.keeps:
                return False
            if named is not None and not (self.any or self.none):
                return True
        good, bad = (_first(phrases, text) for phrases in (self.any, self.none))
        if good is None and bad is None:
            return self.otherwise
        return bad is None or (good is not None and good <= bad)


@dataclass(frozen=True)
class Prompt:
    """The opening of a text, the ability that it tests, and the rule if there is one."""

    prompt: str
    group: str = ""
    ability: str = ""
    rule: Rule | None = None

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON, without empty ones."""
        plain = asdict(self)
        if self.rule is not None:
            plain["rule"] = {name: value for name, value in asdict(self.rule).items() if value not in ((), None)}
        return {name: value for name, value in plain.items() if value}


def names(text: str, known: tuple[str, ...] = ()) -> list[str]:
    """Return the names in a text, in order: known names, and capitalised words that do not start a sentence."""
    found = []
    for match in NAME.finditer(text):
        is_start = BEGINNING.search(text[: match.start()]) is not None
        word = match[0]
        if word in known or word in NAMES or not (is_start or word in NOT_NAMES):
            found.append(word)
    return found


def default_prompts() -> list[Prompt]:
    """Return the 24 prompts of this library: 9 about facts, 9 about reasoning, 6 about consistency."""
    text = files("memory_mosaics.text").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    return parse(text, "prompts.jsonl", as_json=True)


def read(file: Path) -> list[Prompt]:
    """Read prompts from a file: one per line, or as JSON (.jsonl, .ndjson, .json) an object per line, or an array."""
    try:
        text = read_text(file)
    except FileNotFoundError:
        raise UserError(f"there is no file {file}") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {one_line(error)}") from error
    found = parse(text, str(file), as_json=file.suffix in (".jsonl", ".ndjson", ".json"))
    if not found:
        raise UserError(f"{file} holds no prompt, only blanks")
    return found


def parse(text: str, name: str, *, as_json: bool) -> list[Prompt]:
    """Return the prompts of a text, without blank lines. `name` is for errors."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not as_json:
        return [Prompt(line.rstrip("\r")) for _, line in lines]
    if text.lstrip().startswith("["):
        array = _json(text, f"{name} starts as an array of prompts, and")
        return [_prompt(plain, f"{name}, prompt {number}") for number, plain in enumerate(array, 1)]
    places = [(f"{name}, line {number}", line) for number, line in lines]
    return [_prompt(_json(line, where), where) for where, line in places]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {one_line(error)}") from None


def _prompt(plain: Any, where: str) -> Prompt:
    plain = {"prompt": plain} if isinstance(plain, str) else plain
    if not isinstance(plain, dict) or not isinstance(plain.get("prompt"), str):
        raise UserError(f'{where} should be an object with a text as "prompt"')
    texts = {name: plain[name] for name in ("prompt", "group", "ability") if plain.get(name)}
    try:
        rule = None if plain.get("rule") is None else from_plain(Rule, plain["rule"])
        return replace(from_plain(Prompt, {"prompt": ""} | texts), rule=rule)
    except ValueError as error:
        raise UserError(f"{where}: {one_line(error)}") from None


def _beginning(text: str, sentences: int) -> str:
    """Return the first sentences; punctuation without a word before it belongs to the next sentence."""
    end = 0
    for match in SENTENCE.finditer(text):
        end = match.end()
        sentences -= any(character.isalnum() for character in match[0])
        if sentences <= 0:
            break
    return text[:end]


def _first(phrases: tuple[str, ...], text: str) -> int | None:
    """Return the index of the first match of any phrase, as whole words."""
    patterns = (re.escape(phrase.rstrip("*")) + (r"\w*" if phrase.endswith("*") else "") for phrase in phrases)
    found = (re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE) for pattern in patterns)
    return min((match.start() for match in found if match), default=None)
