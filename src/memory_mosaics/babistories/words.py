"""What a story is asked to contain: words, features, a first name, opening words. Small lists of our own, or yours.

A word may name other forms that count as using it, after a slash: `run/ran`. Regular endings, those of its kind, need
not be named.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import read_text
from memory_mosaics.text.word_lists import BOYS, GIRLS


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def choices(text: str) -> list[str]:
    """The parts of a text between bars or line ends."""
    return [part.strip() for part in text.strip().replace("\n", "|").split("|")]


NOUNS = words("""
    acorn apple apron attic bag bakery ball balloon barn basket bath beach bean bear bed bee bell bench berry bike bird
    blanket boat bone book boot bottle bowl box branch bread bridge broom brother brush bubble bucket bug bus
    butterfly button cake camera candle cap car card carrot cart castle cat chair cheese cherry chick circle circus
    clock cloud coat coin cookie corn corner cow crayon crown cup curtain dance desk dinner doctor dog doll donkey door
    dragon drawer dream dress drum duck ear egg elephant engine envelope fair farm farmer feather fence field fire fish
    flag floor flower fog forest fountain fox friend frog fruit game garden gate ghost gift giraffe glove goat grass
    guitar hammer hand hat hen hill hole honey horse house ice island jacket jam jar jug kettle key king kite kitchen
    kitten ladder lake lamb lamp leaf/leaves lemon letter lion lunch map market mask meadow medal milk mirror mitten
    money monkey moon mountain mouse/mice mud mushroom music nail neighbor nest net night noise nose nurse nut oak
    ocean onion orange oven owl paint pan pancake paper parade park path peach pear pebble pen pencil penguin penny
    photo piano picnic picture pie pig pillow pirate plane plant plate pocket pond pony potato present prince princess
    pumpkin puppet puppy puzzle queen rabbit rain rainbow ribbon ring river road robin robot rock roof room root rope
    rose sail sailor sand sandwich scarf school sea seed sheep shell ship shirt shoe shop shovel shower sign sister
    sled snail snow soap sock song soup spider spoon spring squirrel stairs star station stick stone store storm
    street string sun swan swing table tail teacher tent toast tooth/teeth tower town toy train treasure tree truck
    trumpet tunnel turtle umbrella valley vase village wagon wall watch water wave whale wheel whistle wind window wing
    wolf/wolves wood worm yard zoo
""")
VERBS = words("""
    add answer ask bake bang bark beg/begged begin/began/begun bend/bent blink blow/blew/blown boil borrow bounce
    break/broke/broken bring/brought brush build/built burst bury button buy/bought call care carry catch/caught chase
    cheer choose/chose/chosen clap clean climb collect cook copy count cover crawl cry cut dance dare decide dig/dug
    dip disappear draw/drew/drawn dream drink/drank/drunk drive/drove/driven drop dry eat/ate/eaten explain explore
    fall/fell/fallen feed/fed feel/felt fetch fill find/found fix float fly/flew/flown fold follow forget/forgot
    forgive/forgave freeze/froze/frozen give/gave/given glow grab greet grow/grew/grown guess hang/hung hatch
    hear/heard help hide/hid/hidden hold/held hop hope hug hum hurry imagine invite join jump keep/kept kick kiss knit
    knock laugh lead/led lean learn leave/left lend/lent lick lift light/lit like listen look lose/lost love mail
    make/made march melt mend mix move nap nod notice open order own pack paint paste pat peek pet pick plant play
    point polish pour practice pretend promise pull push race reach read rest return ride/rode/ridden ring/rang/rung
    roar roll row rub run/ran sail save scare scrub search sew share shine/shone shout show/shown sing/sang/sung
    sit/sat skate skip sleep/slept slide/slid slip smell smile snap sneeze sniff sparkle spill spin/spun splash
    spread squeeze stack stand/stood start steal/stole/stolen stir stop stretch sweep/swept swim/swam/swum taste
    teach/taught tease tell/told thank think/thought throw/threw/thrown tickle tie/tying tiptoe touch trade trip trust
    try tumble turn twist visit wait wake/woke/woken walk wander wash watch water wave wear/wore/worn whisper whistle
    win/won wink wipe wish wonder work worry wrap write/wrote/written yawn yell
""")
ADJECTIVES = words("""
    afraid alone amazing angry awake bad/worse/worst beautiful bent big bitter blue bold brave bright broken brown busy
    calm careful careless cheerful clean clever cloudy clumsy cold comfortable cool crooked curious cute damp dark dear
    deep different dirty dizzy dry dull dusty eager early easy empty excited fair famous fancy fast fat fearful fierce
    fine fluffy foolish free fresh friendly full funny fuzzy generous gentle giant glad golden good/better/best grateful
    gray great greedy green grumpy happy hard healthy heavy helpful helpless high hollow honest hot huge humble hungry
    important jealous jolly juicy kind large late lazy light little lively lonely long loose lost loud lovely lucky
    magical messy mild muddy mysterious narrow naughty neat nervous new nice noisy odd old orange patient peaceful
    perfect pink plain playful polite poor popular pretty proud purple quick quiet rare ready red rich ripe rough round
    rude sad safe salty scared secret selfish shallow sharp shiny short shy silent silly silver simple sleepy slow
    small smart smooth soft sore sour special spicy spotted sticky stormy straight strange striped strong stubborn
    sunny surprised sweet tall tame tasty thankful thick thin thirsty tidy tiny tired tough troubled ugly unusual warm
    weak wet white wide wild wise wonderful wooden worried yellow young
""")
OPENINGS = choices("""
    Once upon a time|One sunny morning|One rainy day|Long ago|In a small village by the sea|At the edge of the forest
    One quiet evening|Late one night|On the first day of spring|When the snow began to fall|Before the sun came up
    In a little house on a hill|Deep in the green woods|On a warm summer day|After breakfast|One windy afternoon
    At the end of a long road|Under the old oak tree|It was a very special day|Nobody in the town knew why
    On the way to school|High up in the mountains|In the middle of the garden|Early in the morning|One cold winter day
    Behind the big red barn|When the bell rang|Far away from here|On a little boat|The day of the picnic had come
    Every day after lunch|There was once a strange noise|It all began with a letter|In the busy market
    Down by the river|One foggy morning|On the night of the full moon|In the big city|Just before bedtime
    The kitchen smelled of warm bread
""")
FEATURES = {  # each goes on from "In this story, "
    "dialogue": "characters talk with each other, in quotation marks",
    "bad ending": "things do not end well",
    "moral": "the child learns something that is good to know",
    "foreshadowing": "a small thing at the beginning becomes important at the end",
    "twist": "something happens that nobody expects",
    "conflict": "two of the characters want different things",
}
KINDS = ("nouns", "verbs", "adjectives")


@dataclass(frozen=True)
class Lists:
    """What prompts are drawn from."""

    nouns: Sequence[str] = tuple(NOUNS)
    verbs: Sequence[str] = tuple(VERBS)
    adjectives: Sequence[str] = tuple(ADJECTIVES)
    names: Sequence[str] = tuple(sorted(BOYS + GIRLS))
    openings: Sequence[str] = tuple(OPENINGS)
    features: Sequence[tuple[str, str]] = tuple(FEATURES.items())


def read_lists(words_file: Path | None, names: Path | None, openings: Path | None) -> Lists:
    """Our lists, with those in the files in place of ours."""
    lists = Lists()
    if words_file is not None:
        lists = replace(lists, **_read_words(words_file))
    if names is not None:
        lists = replace(lists, names=_read_lines(names))
    return replace(lists, openings=_read_lines(openings)) if openings is not None else lists


def _text(file: Path) -> str:
    try:
        return read_text(file)
    except OSError as error:
        raise UserError(f"cannot read {file}: {one_line(error)}") from error


def _read_lines(file: Path) -> tuple[str, ...]:
    lines = tuple(dict.fromkeys(line.strip() for line in _text(file).splitlines() if line.strip()))
    if not lines:
        raise UserError(f"{file} is empty: it should hold one entry a line")
    return lines


def _read_words(file: Path) -> dict[str, Any]:
    """{"nouns": [...], "verbs": [...], "adjectives": [...]} and perhaps {"features": {name: what it means}}."""
    layout = 'an object of "nouns", "verbs", "adjectives" (lists of words) and, if you like, "features" (an object)'
    try:
        found = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file} is not JSON: {one_line(error)}; it should be {layout}") from error
    if not isinstance(found, dict) or not set(KINDS) <= set(found) <= {*KINDS, "features"}:
        raise UserError(f"{file} should be {layout}")
    for kind in KINDS:
        if not (isinstance(found[kind], list) and found[kind] and all(isinstance(w, str) and w for w in found[kind])):
            raise UserError(f"{file}: {kind} should be a list of words")
    features = found.get("features", FEATURES)
    if not isinstance(features, dict) or not all(isinstance(meaning, str) for meaning in features.values()):
        raise UserError(f"{file}: features should be an object of names and what they mean")
    return {kind: tuple(found[kind]) for kind in KINDS} | {"features": tuple(features.items())}


def uses(text: str, word: str, kind: str | None = None) -> bool:
    """Whether a text has a word: in a form that is named, or the first with a regular English ending of its kind.

    The kinds are noun, verb, adjective and name, which has no endings; None stands for any of them.
    """
    return _forms(word, kind).search(text) is not None


@cache
def _forms(word: str, kind: str | None) -> re.Pattern[str]:
    first, *named = word.split("/")
    kinds = ENDINGS if kind is None else {kind} & set(ENDINGS)
    found = {first, *named, *(form for one in kinds for form in ENDINGS[one](first.casefold()))}
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(found)))})(?!\w)", re.IGNORECASE)


def _with_s(word: str) -> list[str]:
    """Plural, or third person."""
    if re.search(r"[^aeiou]y$", word):
        return [f"{word[:-1]}ies"]
    return (
        [f"{word}es"] if re.search(r"(?:[sxz]|[cs]h)$", word) else [f"{word}s", f"{word}es"][: 1 + word.endswith("o")]
    )


def _stems(word: str) -> list[str]:
    """What an ending that begins with a vowel is put to: hop, hopp-; bake, bak-; longer words may double or not."""
    if word.endswith("e"):
        return [word[:-1]]
    if not re.search(r"(?:[^aeiou]|qu)[aeiou][^aeiouwxy]$", f" {word}"):
        return [word]
    return [word + word[-1]] if len(re.findall(r"[aeiouy]+", word)) == 1 else [word, word + word[-1]]


def _verb(word: str) -> list[str]:
    past = [f"{word[:-1]}ied"] if re.search(r"[^aeiou]y$", word) else [f"{stem}ed" for stem in _stems(word)]
    lasting = [f"{word}ing"] if re.search(r"[eoy]e$", word) else [f"{stem}ing" for stem in _stems(word)]
    return [*_with_s(word), *past, *lasting]


def _adjective(word: str) -> list[str]:
    stems = [f"{word[:-1]}i", word] if re.search(r"[^aeiou]y$", word) else _stems(word)
    manner = [f"{word[:-1]}ily", f"{word}ly"] if word.endswith("y") else [f"{word}ly"]
    gently = [f"{word[:-1]}y"] if word.endswith("le") else [f"{word}y"] if word.endswith("ll") else []
    return [*(stem + ending for stem in stems for ending in ("er", "est")), *manner, *gently]


ENDINGS: dict[str, Callable[[str], list[str]]] = {"noun": _with_s, "verb": _verb, "adjective": _adjective}
