"""Pieces that many plots share: how a story opens, a good deed on the way, a quarrel, how it closes."""

from typing import Any

from memory_mosaics.text.story.cast import Stage
from memory_mosaics.text.story.world import Person, Place, Thing

DAYS = [
    "warm spring", "windy spring", "sunny spring", "hot summer", "bright summer", "cool fall", "windy fall",
    "misty fall",    "gray", "quiet", "bright", "lazy", "cloudy", "busy", "fine", "mild", "breezy",
]  # fmt: skip


def open_story(w: Stage, *, friend: bool = False, pet: bool = False) -> None:
    """Who the hero is, and who goes along."""
    a = w.hero
    w.do("open", a=a, x=w.pick(DAYS), y=a.trait)
    if w.chance(0.65):
        w.do(f"trait_{a.trait}", a=a)
    if friend:
        w.do("meet_friend", a=a, b=w.friend)
    if pet:
        w.do("meet_sibling" if w.wild else "meet_pet", a=a, b=w.pet)


def go(w: Stage, p: Place, *others: Person) -> None:
    """The hero goes somewhere, alone or with one other."""
    if others:
        w.do("go_two", a=w.hero, b=others[0], p=p)
        others[0].where = p
    else:
        w.do("go", a=w.hero, p=p)


def own(w: Stage, o: Thing, who: Person | None = None) -> None:
    """Somebody has a thing and loves it."""
    a = who or w.hero
    w.silently("a has o", a=a, o=o)
    if who is None and w.chance(0.4):
        w.do("gift_before", a=a, b=w.elder, o=o)
    else:
        w.do("own", a=a, o=o)


TROUBLES = ("thorn", "bush", "back", "thirst", "wet")


def good_deed(w: Stage, p: Place) -> tuple[Person, bool]:
    """Somebody on the way needs help, and the hero helps or has no time for it."""
    a, c = w.hero, w.stranger()
    trouble = w.pick(TROUBLES)
    w.silently("c at p", c=c, p=p)
    w.do(f"trouble_{trouble}", a=a, c=c, p=p)
    selfish = a.trait in ("greedy", "proud", "careless") and w.chance(0.5)
    if selfish:
        w.do("pass_by", a=a, c=c)
    else:
        w.do(f"help_{trouble}", a=a, c=c)
    w.plant("deed")
    return c, not selfish


def quarrel(w: Stage, b: Person, o: Thing, why: str) -> None:
    """The hero and somebody else are angry with each other, and say so."""
    w.do(f"quarrel_{why}", a=w.hero, b=b, o=o)
    w.marks.add("Conflict")


def make_up(w: Stage, b: Person) -> None:
    """They are friends again."""
    w.do("make_up", a=w.hero, b=b)


def detour(w: Stage, p: Place) -> None:
    """Something small that happens on the way, without consequence."""
    a = w.hero
    if w.chance(0.6):
        flags = [f"see_{flag}" for flag in "TWO" if flag in p.has] or ["see_any"]
        w.do(w.pick(flags), a=a, p=p)


def lesson(w: Stage, name: str) -> None:
    """What can be learned from what has just happened."""
    if not w.lesson:
        w.lesson = name


def close_story(w: Stage, *, friend: Person | None = None, o: Thing | None = None) -> None:
    """The last feelings, and the moral where there is one to draw."""
    a = w.hero
    well = w.ends_well()
    roles: dict[str, Any] = {"a": a}
    kind = "end_well" if well else "end_badly"
    if friend is not None and friend.where is a.where:
        roles["b"] = friend
        kind += "_two"
    elif o is not None and well and o.where is a and o.state == "whole" and w.chance(0.6):
        roles["o"] = o
        kind = "end_with"
    w.do(kind, **roles)
    if w.lesson and w.chance(0.55):
        w.do(f"moral_{w.lesson}", a=a)
        w.marks.add("MoralValue")
