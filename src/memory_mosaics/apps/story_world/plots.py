"""The plots of data/plots.txt, and the scenes that they share.

A plot is made of scripts (world.py), and of conditions with the scripts that depend on them:

    o = thing s; p = place          a role is taken by what is drawn, or by who or what has another: see DRAWS
    wise = hero careful or 40%      or by the truth of a condition
    go; good_deed; skill_$skill     events and scenes; $ puts in a word that has a role
    if wise and not o can b: ...    conditions with `not`, `and`, `or`; then steps, or indented lines
    elif 40%: ...
    else: ...

    40%                 true with this probability
    hero brave kind     the hero has one of these traits
    o can b, p with W   a thing or place has this flag of data/words.txt
    skill is climb      the word that has this role
    well, freed         see CONDITIONS; or a role that a condition has given a value

Every plot has the roles a, the hero, b, the friend, e, somebody older, and h, home; d is somebody met on the way.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from memory_mosaics.apps.story_world.cast import StoryWorld
from memory_mosaics.apps.story_world.words import PLOTS as TEXTS
from memory_mosaics.apps.story_world.words import table, words
from memory_mosaics.apps.story_world.world import ACTIONS, Person, Roles

Value = Callable[[StoryWorld], Any]
DAYS, MADE_OF = words("days"), table("made of")
TROUBLES = ("thorn", "bush", "back", "thirst", "wet")
WORKS = {"stick": 0.7, "helper": 1.0, "climb": 0.5, "friend": 0.5, "wait": 0.3, "shake": 0.3}  # with this probability

# Scenes


def open_story(w: StoryWorld, _: str, __: Roles) -> None:
    """Who the hero is."""
    w.play("open", x=w.pick(DAYS))
    if w.chance(0.65):
        w.play(f"trait_{w.hero.trait}")


def introduce_pet(w: StoryWorld, _: str, roles: Roles) -> None:
    """The hero's pet; among talking animals, a little brother or sister."""
    w.event("meet_sibling" if w.wild else "meet_pet", roles)


def own(w: StoryWorld, _: str, __: Roles) -> None:
    """The hero has a thing and loves it."""
    w.play("set a has o")
    w.play("gift_before b=e" if w.chance(0.4) else "own")


def detour(w: StoryWorld, _: str, roles: Roles) -> None:
    """Something small that may happen on the way, without consequence."""
    if w.chance(0.6):
        seen = [f"see_{flag}" for flag in "TWO" if flag in roles["p"].has] or ["see_any"]
        w.event(w.pick(seen), roles)


def good_deed(w: StoryWorld, _: str = "", __: Roles | None = None) -> bool:
    """Somebody on the way needs help; whether the hero helps, or has no time for it."""
    w.bind(d=w.stranger())
    trouble = w.pick(TROUBLES)
    w.play(f"set d at p; trouble_{trouble} c=d")
    selfish = w.hero.trait in ("greedy", "proud", "careless") and w.chance(0.5)
    w.play("pass_by c=d; plant deed" if selfish else f"help_{trouble} c=d; plant deed")
    return not selfish


def freed(w: StoryWorld) -> bool:
    """Try one way after another to get a thing from a tree or out of the water; whether one of them works."""
    high, helped = w.roles["high"], w.roles["helped"]
    ways = ["jump", "shake", "friend"] if high else ["reach", "friend", "wait"]
    if high:
        ways.append("climb" if w.hero.trait in ("brave", "careless", "proud", "curious") else "afraid_climb")
    ways += ["stick"] * ("stick" in w.planted) + ["helper"] * helped
    tries = 2 if w.chance(0.7) else 3
    while ways and tries:
        way = ways.pop(int(w.random() * len(ways)))
        tries -= 1
        works = w.chance(WORKS.get(way, 0.0))
        w.play(f"{'high' if high else 'water'}_{way}_{'works' if works else 'fails'} c={'d' if helped else 'b'}")
        if way == "helper":
            w.play("pay deed; lesson deed")
        if way == "stick":
            w.play("pay stick")
        if way == "friend" and works:
            w.play("lesson together")
        if works:
            return True
    return False


def close_story(w: StoryWorld, role: str, roles: Roles) -> None:
    """The last feelings, with a friend who is there or about a thing, and the moral where there is one to draw."""
    well, what = w.ends_well(), roles.get(role)
    kind = "end_well" if well else "end_badly"
    if isinstance(what, Person):
        w.play(f"{kind}_two" if what.where is w.hero.where else kind)
    elif what and well and what.where is w.hero and what.state == "whole" and w.chance(0.6):
        w.play("end_with", o=what)
    else:
        w.play(kind)
    if w.lesson and w.chance(0.55):
        w.play(f"moral_{w.lesson}; feature MoralValue")


# What plots are written with


def assign(w: StoryWorld, text: str, _: Roles) -> None:
    """`o thing e`: what is drawn takes the role, or who or what has another role, or the truth of a condition."""
    role, value = _assignment(text)
    drawn = value(w)  # which may bind roles, too
    w.roles = {**w.roles, role: drawn}


@cache
def _assignment(text: str) -> tuple[str, Value]:
    role, name, *arguments = text.split()
    if name in DRAWS:
        draw = DRAWS[name]
        return role, (lambda w: draw(w, *arguments)) if arguments else draw
    return role, _condition(" ".join([name, *arguments]))


def substitute(w: StoryWorld, step: str, roles: Roles) -> None:
    """`skill_$skill`: a step with a word that has a role."""
    w.play(re.sub(r"\$(\w+)", lambda found: roles[found[1]], step))


def _condition(text: str) -> Value:
    """Alternatives with `or` between them, each of conditions with `and` between them."""
    alternatives = [[_clause(clause) for clause in each.split(" and ")] for each in text.split(" or ")]
    if len(alternatives) == len(alternatives[0]) == 1:
        return alternatives[0][0]

    def true(w: StoryWorld) -> bool:  # any(all(...)), which would take twice as long
        for each in alternatives:
            for clause in each:
                if not clause(w):
                    break
            else:
                return True
        return False

    return true


def _clause(text: str) -> Value:
    check = _check(text.removeprefix("not ").split())
    return (lambda w: not check(w)) if text.startswith("not ") else check


def _check(words: list[str]) -> Value:
    match words:
        case ["hero", *traits]:
            return lambda w: w.hero.trait in traits
        case [role, "can", flag]:
            return lambda w: flag in w.roles[role].can
        case [role, "with", flag]:
            return lambda w: flag in w.roles[role].has
        case [role, "is", word]:
            return lambda w: w.roles[role] == word
        case [chance] if chance.endswith("%"):
            probability = int(chance[:-1]) / 100
            return lambda w: w.chance(probability)
        case [name]:
            return CONDITIONS.get(name) or (lambda w: w.roles[name])
    raise ValueError(f"not a condition of a plot: {' '.join(words)}")


DRAWS: dict[str, Callable[..., Any]] = {
    "thing": StoryWorld.thing, "place": StoryWorld.place, "spot": StoryWorld.spot, "pet": StoryWorld.pet,
    "stranger": StoryWorld.stranger, "child": StoryWorld.child, "playmate": StoryWorld.playmate,
    "neighbour": StoryWorld.neighbour,
    "named": lambda w, *noun: w.named_thing(*(part.strip() for part in " ".join(noun).split(" in "))),
    "pick": lambda w, *options: w.pick(options), "text": lambda w, text: text,
    "any": lambda w, section: w.pick(words(section)), "unused": lambda w, section: w.unused(words(section)),
    "the": lambda w, role: "the " + w.roles[role].split(" ", 1)[1],
    "part": lambda w, role, number: MADE_OF[w.roles[role].noun][int(number) - 1],
}  # fmt: skip
CONDITIONS: dict[str, Value] = {
    "well": StoryWorld.ends_well, "good_deed": good_deed, "freed": freed,
}  # fmt: skip
ACTIONS |= {
    "begin": open_story, "introduce_pet": introduce_pet, "owns": own, "detour": detour, "good_deed": good_deed,
    "close": close_story, "=": assign, "$": substitute,
}  # fmt: skip


def _read(lines: list[str], indent: str = "") -> list[Any]:
    """A block of lines as scripts and lists of (condition, block): of the first that is true, the block is played."""
    block: list[Any] = []
    while lines and lines[0].startswith(indent):
        line = lines.pop(0).removeprefix(indent)
        found = re.fullmatch(r"(if|elif|else)\b ?([^:]*):(.*)", line)
        if found is None:
            block.append(line)
            continue
        keyword, text, script = found.groups()
        condition = _condition(text) if text else lambda _: True
        branch = (condition, [script.strip()] if script else _read(lines, f"{indent}  "))
        block.append([branch]) if keyword == "if" else block[-1].append(branch)
    return block


def _play(block: list[Any], w: StoryWorld) -> None:
    for part in block:
        if type(part) is str:
            w.play(part)
            continue
        for condition, then in part:
            if condition(w):
                _play(then, w)
                break


PLOTS: dict[str, Callable[[StoryWorld], None]] = {
    name: partial(_play, _read([*lines])) for name, lines in TEXTS.items()
}
