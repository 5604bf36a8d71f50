"""The simulated world of a story: who and what there is, and a state that only events change.

An event has a kind and takes its participants from roles: a, b, c, d, e are people (a the hero, b the friend, e
somebody older), o and q things, p and r places, s a hiding spot, x, y and z words. data/rules.txt gives for each kind
of event what must hold before it and what holds after it:

    lend: a has o & a at p & b at p -> b has o & b owes a

A condition or effect is a subject, a verb and an object:

    a has o, o at p, a at p      where a thing or a person is: with somebody, at a place, in a spot
    o is broken, a feels sad     the state of a thing, the mood of a person
    a owes b, a knows s, ...     any other verb is a fact about two of them; `not` in front denies it

A script is a list of steps with semicolons between them. A step is an event, with other participants where it says so,
or one of ACTIONS:

    set a has o; hide; seen_hiding c=e; want b has o

The trace of events is what is narrated. A want is a condition, too: it decides whether the story ends well.
"""

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from memory_mosaics.apps.story_world.words import RULES

Roles = dict[str, Any]
Clause = tuple[bool, str, str, str]  # truth, subject, verb, object
Action = Callable[[Any, str, Roles], None]


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

    __slots__ = ("he", "introduced", "kind", "mentioned", "mood", "name", "pronouns", "relation", "trait", "where")

    def __init__(self, name: str, *, he: bool, kind: str, relation: str = "", trait: str = ""):
        self.name, self.he, self.kind, self.relation, self.trait = name, he, kind, relation, trait
        self.mood = ""
        self.where: Place | Spot | None = None
        self.introduced, self.mentioned, self.pronouns = False, -9, 0  # for narration: last sentence, pronouns in a row


class Thing:
    """A thing: what it is called, how it looks, what can happen to it, where it is and in which state."""

    __slots__ = ("adjective", "can", "introduced", "noun", "state", "where")

    def __init__(self, noun: str, adjective: str, can: str):
        self.noun, self.adjective, self.can = noun, adjective, can
        self.state, self.introduced = "whole", False
        self.where: Person | Place | Spot | None = None


@cache
def parse(conditions: str) -> list[Clause]:
    """`a has o & not a knows s` as clauses."""
    parsed = []
    for clause in filter(None, map(str.strip, conditions.split("&"))):
        subject, verb, object = clause.removeprefix("not ").split()
        parsed.append((not clause.startswith("not "), subject, verb, object))
    return parsed


_RULES = {kind: (parse(needs), parse(makes)) for kind, (needs, makes) in RULES.items()}


class World:
    """The state of a story and the trace of what happened in it."""

    def __init__(self, rng: Random):
        self.random = rng.random
        self.roles: Roles = {}
        self.facts: set[tuple[str, Any, Any]] = set()
        self.trace: list[tuple[str, Roles]] = []
        self.wants: list[tuple[str, Roles]] = []
        self.features: set[str] = set()
        self.planted: dict[str, int] = {}
        self.lesson = ""

    def pick(self, options: Any) -> Any:
        """One of them, at random."""
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random() < probability

    def bind(self, **roles: Any) -> None:
        """From now on these take the roles; the roles of earlier events stay as they were."""
        self.roles = {**self.roles, **roles}

    def play(self, script: str, **roles: Any) -> None:
        """Do the steps of a script, in which `roles` are taken by these."""
        for action, argument, renamed in _steps(script):
            bound = self.roles
            if roles or renamed:
                bound = given = {**bound, **roles}
                if renamed:
                    bound = given.copy()
                    for role, other in renamed:
                        bound[role] = given[other]
            action(self, argument, bound)

    def event(self, kind: str, roles: Roles) -> None:
        """The event happens: its conditions hold, its effects hold from now on, and it will be narrated."""
        needs, makes = _RULES.get(kind, ((), ()))
        for truth, subject, verb, object in needs:
            held = self._true(verb, roles, subject, object)
            assert held == truth, f"{kind} needs {subject} {verb} {object}"
        for truth, subject, verb, object in makes:
            self._make(truth, verb, roles[subject], object, roles)
        self.trace.append((kind, roles))

    def holds(self, conditions: str, roles: Roles) -> bool:
        """Whether all conditions are true now."""
        clauses = parse(conditions)
        return all(self._true(verb, roles, subject, object) == truth for truth, subject, verb, object in clauses)

    def ends_well(self) -> bool:
        """Whether every want is fulfilled."""
        return all(self.holds(conditions, roles) for conditions, roles in self.wants)

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

    def set(self, effects: str, roles: Roles) -> None:
        """Change the state without an event, for how things are before the story begins."""
        for truth, subject, verb, object in parse(effects):
            self._make(truth, verb, roles[subject], object, roles)

    def want(self, conditions: str, roles: Roles) -> None:
        """What the story is about: if one want is not fulfilled in the final state, the ending is bad."""
        self.wants.append((conditions, roles))

    def paragraph(self, _: str, __: Roles) -> None:
        """What follows is a new paragraph."""
        self.trace.append(("", {}))

    def plant(self, key: str, _: Roles) -> None:
        """The last event mentioned something that may matter later."""
        self.planted.setdefault(key, len(self.trace))

    def pay(self, key: str, _: Roles) -> None:
        """It matters now: foreshadowing, if it was planted well before."""
        if key in self.planted and len(self.trace) - self.planted[key] >= 3:
            self.features.add("Foreshadowing")

    def teach(self, lesson: str, _: Roles) -> None:
        """What can be learned from what has just happened; the first lesson counts."""
        self.lesson = self.lesson or lesson

    def feature(self, name: str, _: Roles) -> None:
        """What has just happened gives the story a feature, such as Twist."""
        self.features.add(name)


ACTIONS: dict[str, Action] = {
    "set": World.set, "want": World.want, "paragraph": World.paragraph, "plant": World.plant, "pay": World.pay,
    "lesson": World.teach, "feature": World.feature,
}  # fmt: skip


@cache
def _steps(script: str) -> list[tuple[Action, str, list[list[str]]]]:
    """The steps of a script: what to do, with which argument, and which roles are taken by those of others."""
    steps = []
    for step in map(str.strip, script.split(";")):
        name, *rest = step.split()
        if "$" in step:
            steps.append((ACTIONS["$"], step, []))
        elif rest[:1] == ["="]:
            steps.append((ACTIONS["="], " ".join([name, *rest[1:]]), []))
        else:
            renamed = [word.split("=") for word in rest if "=" in word]
            argument = " ".join(word for word in rest if "=" not in word)
            steps.append((ACTIONS[name], argument, renamed) if name in ACTIONS else (World.event, name, renamed))
    return steps
