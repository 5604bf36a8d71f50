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

from memory_mosaics.apps.story_world.world import ACTIONS, COLOURS, PACKAGE, Person, Roles, World, table, words
from memory_mosaics.text.word_lists import read_sections

Value = Callable[[World], Any]
DAYS, MADE_OF = words("days"), table("made of")
TROUBLES = ("thorn", "bush", "back", "thirst", "wet")
WORKS = {"stick": 0.7, "helper": 1.0, "climb": 0.5, "friend": 0.5, "wait": 0.3, "shake": 0.3}  # with this probability
DETAILS = {kind: words(section) for kind, (section, _) in table("details").items()}
RECALLED = {
    when: [kind for kind, (_, then) in table("details").items() if then == when]
    for when in ("trouble", "home", "away", "well")
}
TROUBLE, ARRIVALS = set(words("troubling events")), set(words("arrivals"))
MAX_EVENTS = 17  # details are added up to this number
SIGHTS, DOING, CLOTHES = words("sight looks"), words("what they do"), words("clothes")
SMALL, LARGE = ((words(f"{size} animals"), words(f"where {size} animals are")) for size in ("small", "large"))

# Scenes


def open_story(w: World, _: str, __: Roles) -> None:
    """Introduce the hero."""
    w.play("open", x=w.pick(DAYS))
    if w.chance(0.65):
        w.play(f"trait_{w.hero.trait}")


def introduce_pet(w: World, _: str, roles: Roles) -> None:
    """The hero's pet; among talking animals, a little brother or sister."""
    w.event("meet_sibling" if w.wild else "meet_pet", roles)


def own(w: World, _: str, __: Roles) -> None:
    """The hero has a thing and loves it."""
    w.play("set a has o")
    w.play("gift_before b=e" if w.chance(0.4) else "own")


def detour(w: World, _: str, roles: Roles) -> None:
    """Something small that may happen on the way, without consequence."""
    if w.chance(0.6):
        seen = [f"see_{flag}" for flag in "TWO" if flag in roles["p"].has] or ["see_any"]
        w.event(w.pick(seen), roles)


def good_deed(w: World, _: str = "", __: Roles | None = None) -> bool:
    """Somebody on the way needs help; whether the hero helps, or has no time for it."""
    w.bind(d=w.stranger())
    trouble = w.pick(TROUBLES)
    w.play(f"set d at p; trouble_{trouble} c=d")
    selfish = w.hero.trait in ("greedy", "proud", "careless") and w.chance(0.5)
    w.play("pass_by c=d; plant deed" if selfish else f"help_{trouble} c=d; plant deed")
    return not selfish


def freed(w: World) -> bool:
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


def close_story(w: World, role: str, roles: Roles) -> None:
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


def assign(w: World, text: str, _: Roles) -> None:
    """`o thing e`: what is drawn takes the role, or who or what has another role, or the truth of a condition."""
    role, value = _assignment(text)
    w.bind(**{role: value(w)})


@cache
def _assignment(text: str) -> tuple[str, Value]:
    role, name, *arguments = text.split()
    if draw := DRAWS.get(name):
        return role, lambda w: draw(w, *arguments)
    return role, _condition(" ".join([name, *arguments]))


def substitute(w: World, step: str, roles: Roles) -> None:
    """`skill_$skill`: a step with a word that has a role."""
    w.play(re.sub(r"\$(\w+)", lambda found: roles[found[1]], step))


def _condition(text: str) -> Value:
    """Alternatives with `or` between them, each of conditions with `and` between them."""
    alternatives = [[_clause(clause) for clause in each.split(" and ")] for each in text.split(" or ")]
    if len(alternatives) == len(alternatives[0]) == 1:
        return alternatives[0][0]

    def is_true(w: World) -> bool:  # any(all(...)), which would take twice as long
        for each in alternatives:
            for clause in each:
                if not clause(w):
                    break
            else:
                return True
        return False

    return is_true


def _clause(text: str) -> Value:
    match text.split():
        case ["not", *words]:
            check = _clause(" ".join(words))
            return lambda w: not check(w)
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
    raise ValueError(f"not a condition of a plot: {text}")


DRAWS: dict[str, Callable[..., Any]] = {
    "thing": World.thing, "place": World.place, "spot": World.spot, "pet": World.pet,
    "stranger": World.stranger, "child": World.child, "playmate": World.playmate,
    "neighbour": World.neighbour,
    "named": lambda w, *noun: w.named_thing(*(part.strip() for part in " ".join(noun).split(" in "))),
    "pick": lambda w, *options: w.pick(options), "text": lambda w, text: text,
    "any": lambda w, section: w.pick(words(section)), "unused": lambda w, section: w.unused(words(section)),
    "the": lambda w, role: "the " + w.roles[role].split(" ", 1)[1],
    "part": lambda w, role, number: MADE_OF[w.roles[role].noun][int(number) - 1],
}  # fmt: skip
CONDITIONS: dict[str, Value] = {"well": World.ends_well, "good_deed": good_deed, "freed": freed}
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


def _play(block: list[Any], w: World) -> None:
    for part in block:
        if type(part) is str:
            w.play(part)
            continue
        for condition, then in part:
            if condition(w):
                _play(then, w)
                break


PLOTS: dict[str, Callable[[World], None]] = {
    name: partial(_play, _read([*lines])) for name, lines in read_sections(PACKAGE, "data/plots.txt").items()
}


def add_details(w: World) -> None:
    """Insert details and sights on the way into the trace of a story, unless it has many events already."""
    trace = w.trace
    room = MAX_EVENTS - sum(1 for kind, _ in trace if kind)
    arrivals = [at for at, (kind, _) in enumerate(trace) if kind in ARRIVALS]
    if room > 0 and arrivals and w.chance(0.6):
        trace.insert(w.pick(arrivals) + 1, ("sight", {"a": w.hero, "x": _sight(w)}))
        room -= 1
    end = next(at for at, (kind, _) in enumerate(trace) if kind.startswith("end_"))
    troubles = [at for at, (kind, _) in enumerate(trace) if kind in TROUBLE]
    introduced = []
    if room >= 2 and w.chance(0.6):
        when = "well" if w.ends_well() and w.chance(0.2) else ("home" if w.hero.where is w.home else "away")
        introduced.append(_recall(w, when, end))
        room -= 2
    if room >= 2 and troubles and w.chance(0.8):
        introduced.append(_recall(w, "trouble", w.pick(troubles) + 1))
        room -= 2
    first = 2 if trace[1][0].startswith("trait_") else 1
    trace[first:first] = introduced
    meeting = next((at for at, (kind, _) in enumerate(trace) if kind == "meet_friend"), None)
    if room >= 2 and meeting is not None and any(kind.endswith("_two") for kind, _ in trace[-2:]) and w.chance(0.5):
        roles = {"b": w.friend, "x": w.pick(COLOURS), "y": w.pick(CLOTHES)}
        trace.insert(meeting + 1, ("has_wear", roles))
        trace.insert(len(trace) - (1 if trace[-1][0].endswith("_two") else 2), ("recall_wear", roles))


def _sight(w: World) -> str:
    """Draw a small thing to see on the way."""
    animals, where = SMALL if w.chance(0.6) else LARGE
    text = f"{w.pick(SIGHTS)} {w.pick(animals)} {w.pick(where)}"
    return f"{text}, {w.pick(DOING)}" if w.chance(0.3) else text


def _recall(w: World, when: str, at: int) -> tuple[str, Roles]:
    """Insert the event that recalls a detail into the trace, and return the event that introduces it."""
    kind = w.pick(RECALLED[when])
    roles = {"a": w.hero, "x": w.pick(DETAILS[kind])}
    w.trace.insert(at, (f"recall_{kind}", roles))
    return f"has_{kind.partition('_')[0]}", roles
