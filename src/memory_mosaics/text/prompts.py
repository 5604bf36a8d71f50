"""Prompts and the rules that judge how a model goes on: data, so that another set is another file.

A rule looks at the first sentences of a continuation. It is for a first look over many texts: it does not understand
them, and where it cannot tell it says nothing. What counts is what a person says.

    {"any": [...]}      one of these words or phrases, whatever the case; a star at the end stands for any letters
    {"none": [...]}     none of these; where both are given, the one that comes first decides
    {"keeps": [...]}    the first person who is named is one of these
    {"within": 2}       in so many sentences, 1 by default
    {"otherwise": false}    what a text is that has none of them, where only one answer will do: looks wrong
"""

import json
import re
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import read_bytes
from memory_mosaics.text.word_lists import BOYS, GIRLS, TITLES

LISTS, RULES = ("any", "none", "keeps"), ("any", "none", "keeps", "within", "otherwise")
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

    def judge(self, text: str) -> bool | None:
        """Whether it looks right; None where the rule cannot tell."""
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
    """How a text begins, what it tests, and the rule if there is one."""

    prompt: str
    group: str = ""
    ability: str = ""
    rule: Rule | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON has it, without what says nothing."""
        said = asdict(self) | {"rule": None}
        if self.rule is not None:
            said["rule"] = {name: value for name, value in asdict(self.rule).items() if value not in ((), None)}
        return {name: value for name, value in said.items() if value}


def names(text: str, known: tuple[str, ...] = ()) -> list[str]:
    """Who is named, in order: known names, and words with a capital that no sentence begins with."""
    found = []
    for match in NAME.finditer(text):
        begins = BEGINNING.search(text[: match.start()]) is not None
        word = match[0]
        if word in known or word in NAMES or not (begins or word in NOT_NAMES):
            found.append(word)
    return found


def ours() -> list[Prompt]:
    """The 24 prompts of this library: 9 about facts, 9 that ask to reason, 6 to stay consistent."""
    text = files("memory_mosaics.text").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    return parse(text, "prompts.jsonl", as_json=True)


def read(file: Path) -> list[Prompt]:
    """Prompts from a file: one a line, or as JSON (.jsonl, .ndjson, .json) an object a line, or an array of them."""
    try:
        text = read_bytes(file).decode()
    except FileNotFoundError:
        raise UserError(f"there is no file {file}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8: {one_line(error)}; convert it with iconv -t UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {one_line(error)}") from error
    found = parse(text, str(file), as_json=file.suffix in (".jsonl", ".ndjson", ".json"))
    if not found:
        raise UserError(f"{file} holds no prompt, only blanks")
    return found


def parse(text: str, name: str, *, as_json: bool) -> list[Prompt]:
    """The prompts of a text, without blank lines. `name` is for errors."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not as_json:
        return [Prompt(line.rstrip("\r")) for _, line in lines]
    if text.lstrip().startswith("["):
        array = _json(text, f"{name} begins as an array of prompts, and")
        return [_prompt(plain, f"{name}, prompt {number}") for number, plain in enumerate(array, 1)]
    places = ((line, f"{name}, line {number}") for number, line in lines)
    return [_prompt(_json(line, where), where) for line, where in places]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {one_line(error)}") from None


def _prompt(plain: Any, where: str) -> Prompt:
    plain = {"prompt": plain} if isinstance(plain, str) else plain
    if not isinstance(plain, dict) or not isinstance(plain.get("prompt"), str):
        raise UserError(f'{where} should be an object with a text as "prompt"')
    said = {name: plain.get(name) or "" for name in ("group", "ability")}
    rule = plain.get("rule")
    if any(not isinstance(value, str) for value in said.values()):
        raise UserError(f"{where}: group and ability should be texts")
    return Prompt(plain["prompt"], **said, rule=None if rule is None else _rule(rule, where))


def _rule(plain: Any, where: str) -> Rule:
    known = ", ".join(RULES)
    if not isinstance(plain, dict) or not plain or not plain.keys() <= set(RULES):
        raise UserError(f"{where}: a rule is an object of {known}, not {json.dumps(plain)[:80]}")
    within, otherwise = plain.get("within", 1), plain.get("otherwise")
    if not isinstance(otherwise, bool | None):
        raise UserError(f"{where}: otherwise should be true or false, not {json.dumps(otherwise)[:80]}")
    if not isinstance(within, int) or within < 1:
        raise UserError(f"{where}: within should be a number of sentences, at least 1, not {json.dumps(within)[:80]}")
    lists: dict[str, Any] = {name: [plain[name]] if isinstance(plain[name], str) else plain[name] for name in LISTS
                             if name in plain}  # fmt: skip
    for name, phrases in lists.items():
        if not isinstance(phrases, list) or not all(isinstance(each, str) and each.strip("* ") for each in phrases):
            raise UserError(f"{where}: {name} should be a list of words, not {json.dumps(phrases)[:80]}")
    return Rule(**{name: tuple(phrases) for name, phrases in lists.items()}, within=within, otherwise=otherwise)


def _beginning(text: str, sentences: int) -> str:
    """The first sentences; marks without a word before them belong to what comes."""
    end = 0
    for match in SENTENCE.finditer(text):
        end = match.end()
        sentences -= any(character.isalnum() for character in match[0])
        if sentences <= 0:
            break
    return text[:end]


def _first(phrases: tuple[str, ...], text: str) -> int | None:
    """Where the first of them stands, as whole words."""
    patterns = (re.escape(phrase.rstrip("*")) + (r"\w*" if phrase.endswith("*") else "") for phrase in phrases)
    found = (re.search(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE) for pattern in patterns)
    return min((match.start() for match in found if match), default=None)
