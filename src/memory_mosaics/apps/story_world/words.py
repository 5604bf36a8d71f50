"""The data of the story world, as the files in data/ have it: words, synonyms, rules, plots and phrases."""

from functools import cache

from memory_mosaics.text.word_lists import items, read_sections

_PACKAGE = "memory_mosaics.apps.story_world"
_PHRASES = "common traits morals details things owners friends games journeys days"
_WORDS = read_sections(_PACKAGE, "data/words.txt")


@cache
def words(section: str) -> list[str]:
    """The items of a section of words.txt; with `+` between two lists, one of the first and one of the second each."""
    lines = _WORDS[section]
    if "+" not in lines:
        return items(lines)
    at = lines.index("+")
    return [f"{first} {second}" for first in items(lines[:at]) for second in items(lines[at + 1 :])]


def table(section: str) -> dict[str, list[str]]:
    """A section of lines `key: values`."""
    pairs = (line.split(":") for line in _WORDS[section])
    return {key: items([values]) for key, values in pairs}


def attributes(section: str) -> dict[str, str]:
    """A section of items `key: value`."""
    pairs = (item.split(":") for item in words(section))
    return {key: value.strip() for key, value in pairs}


def _rules() -> dict[str, tuple[str, str]]:
    lines = (line for rules in read_sections(_PACKAGE, "data/rules.txt").values() for line in rules)
    pairs = (line.split(":") for line in lines)
    return {event: tuple(side.strip() for side in rule.split("->")) for event, rule in pairs}  # type: ignore[misc]


PHRASES: dict[str, list[str]] = {}  # by kind of event
for _name in _PHRASES.split():
    PHRASES |= read_sections(_PACKAGE, f"data/phrases/{_name}.txt")
PLOTS = read_sections(_PACKAGE, "data/plots.txt")  # by name, as plots.py reads them
RULES = _rules()  # what an event needs and what it changes, by its kind
SYNONYMS = [line.split("|") for line in read_sections(_PACKAGE, "data/synonyms.txt")["synonyms"]]
TRAITS = [event.removeprefix("trait_") for event in PHRASES if event.startswith("trait_")]
COLOURS = words("colours")
THINGS = attributes("things")
