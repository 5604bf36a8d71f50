"""The story world: who and what there is, and a state that only events change.

An event has a kind and fills roles: a, b, c are people, o and q things, p and r places, s a hiding spot, x and y words.
RULES in rules.py says for each kind what must hold before and what holds after:

    "lend": "a has o & a at p & b at p -> b has o & b owes a"

A condition or effect is a subject, a verb and an object:

    a has o, o at p, a at p      where a thing or a person is: with somebody, at a place, in a spot
    o is broken, a feels sad     the state of a thing, the mood of a person
    a owes b, a knows s, ...     any other verb is a fact about two of them; `not` in front denies it

The trace of events is what the teller tells. A want is a condition, too: it decides whether the story ends well.
"""

from random import Random
from typing import Any

from memory_mosaics.text.story.rules import RULES


class Place:
    """A place and how to say that somebody is there."""

    __slots__ = ("at", "has", "name", "to")

    def __init__(self, name: str, preposition: str, has: str):
        self.name, self.has = name, has
        self.at = f"{preposition} {name}" if name else preposition
        self.to = f"to {name}" if name else "home"


class Spot:
    """A hiding spot: in the blue box under the bed."""

    __slots__ = ("core", "tail")

    def __init__(self, core: str, tail: str):
        self.core, self.tail = core, tail


class Person:
    """Anybody who can want something: a child, a parent, a pet, a talking animal."""

    __slots__ = ("he", "kind", "mood", "name", "relation", "seen", "streak", "told", "trait", "where")

    def __init__(self, name: str, *, he: bool, kind: str, relation: str = "", trait: str = ""):
        self.name, self.he, self.kind, self.relation, self.trait = name, he, kind, relation, trait
        self.mood = ""
        self.where: Place | Spot | None = None
        self.told, self.seen, self.streak = False, -9, 0  # the teller's: introduced? last sentence, pronouns in a row


class Thing:
    """A thing: what it is called, how it looks, what can happen to it, where it is and in which state."""

    __slots__ = ("adjective", "can", "noun", "state", "told", "where")

    def __init__(self, noun: str, adjective: str, can: str):
        self.noun, self.adjective, self.can = noun, adjective, can
        self.state, self.told = "whole", False
        self.where: Person | Place | Spot | None = None


Roles = dict[str, Any]
_PARSED: dict[str, list[tuple[bool, str, str, str]]] = {}


def parse(conditions: str) -> list[tuple[bool, str, str, str]]:
    """`a has o & not a knows s` as (truth, subject, verb, object) each, kept for the next time."""
    if conditions not in _PARSED:
        parsed = []
        for clause in filter(None, (clause.strip() for clause in conditions.split("&"))):
            truth, (subject, verb, object) = not clause.startswith("not "), clause.removeprefix("not ").split()
            parsed.append((truth, subject, verb, object))
        _PARSED[conditions] = parsed
    return _PARSED[conditions]


class World:
    """The state of a story and the trace of what happened in it."""

    def __init__(self, rng: Random):
        self.random = rng.random
        self.facts: set[tuple[str, Any, Any]] = set()
        self.trace: list[tuple[str, Roles]] = []
        self.wants: list[tuple[str, Roles]] = []
        self.marks: set[str] = set()  # Twist, Conflict: set where an event makes them true
        self.planted: dict[str, int] = {}
        self.lesson = ""
        self.used: set[str] = set()  # nouns, colours of spots, names: everything in a story is told apart by its noun

    def pick(self, options: Any) -> Any:
        """One of them, at random."""
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.random() < probability

    def holds(self, conditions: str, roles: Roles) -> bool:
        """Whether all conditions are true now."""
        return all(
            self._true(verb, roles, subject, object) == truth for truth, subject, verb, object in parse(conditions)
        )

    def _true(self, verb: str, roles: Roles, subject: str, object: str) -> bool:
        who = roles[subject]
        if verb == "has":
            return roles[object].where is who
        if verb == "at":
            return who.where is roles[object]
        if verb == "is":
            return who.state == object
        if verb == "feels":
            return who.mood == object
        return (verb, who, roles[object]) in self.facts

    def _make(self, truth: bool, verb: str, who: Any, object: str, roles: Roles) -> None:
        if verb == "has":
            roles[object].where = who if truth else None
        elif verb == "at":
            who.where = roles[object] if truth else None
        elif verb == "is":
            who.state = object
        elif verb == "feels":
            who.mood = object
        elif truth:
            self.facts.add((verb, who, roles[object]))
        else:
            self.facts.discard((verb, who, roles[object]))

    def can(self, kind: str, **roles: Any) -> bool:
        """Whether the state allows the event."""
        return self.holds(RULES.get(kind, ("", ""))[0], roles)

    def do(self, kind: str, **roles: Any) -> None:
        """The event happens: its conditions hold, its effects hold from now on, and it will be told."""
        needs, makes = RULES.get(kind, ("", ""))
        for truth, subject, verb, object in parse(needs):
            held = self._true(verb, roles, subject, object)
            assert held == truth, f"{kind} needs {subject} {verb} {object}"
        for truth, subject, verb, object in parse(makes):
            self._make(truth, verb, roles[subject], object, roles)
        self.trace.append((kind, roles))

    def silently(self, effects: str, **roles: Any) -> None:
        """Set the state without telling, for how things are before the story begins."""
        for truth, subject, verb, object in parse(effects):
            self._make(truth, verb, roles[subject], object, roles)

    def paragraph(self) -> None:
        """What follows is a new paragraph."""
        self.trace.append(("", {}))

    def want(self, condition: str, **roles: Any) -> None:
        """What the story is about: if one want is not fulfilled in the final state, the ending is bad."""
        self.wants.append((condition, roles))

    def plant(self, key: str) -> None:
        """The last event mentioned something that may matter later."""
        self.planted.setdefault(key, len(self.trace))

    def pay(self, key: str) -> None:
        """It matters now: foreshadowing, if it was planted well before."""
        if key in self.planted and len(self.trace) - self.planted[key] >= 3:
            self.marks.add("Foreshadowing")

    def ends_well(self) -> bool:
        """Whether every want is fulfilled."""
        return all(self.holds(condition, roles) for condition, roles in self.wants)
