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
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from memory_mosaics.text.word_lists import BOYS, GIRLS, items, read_sections

PACKAGE = "memory_mosaics.apps.story_world"
Roles = dict[str, Any]
Clause = tuple[bool, str, str, str]  # truth, subject, verb, object
Action = Callable[[Any, str, Roles], None]
_WORDS = read_sections(PACKAGE, "data/words.txt")


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


TRAITS = [kind.removeprefix("trait_") for kind in read_sections(PACKAGE, "data/phrases/traits.txt")]
COLOURS, THINGS = words("colours"), attributes("things")
ANIMALS, SURNAMES, PETS = words("animals"), words("surnames"), list(table("pets").items())
ELDERS = [(name, pronoun == ["he"]) for name, pronoun in table("elders").items()]
THINGS_THAT = {flag: [noun for noun, can in THINGS.items() if flag in can] for flag in "bekrnwhtsv"}
THINGS_THAT["baked"] = [noun for noun, can in THINGS.items() if can == "e"]
THINGS_THAT["keep"] = [noun for noun, can in THINGS.items() if "e" not in can]
PLACES = [(name, *value.split()) for name, value in attributes("places").items()]
PLACES_WITH = {
    region + flag: [place for place in PLACES if region in place[2] and flag in place[2]]
    for region in "tw"
    for flag in "TWOI"
}
PLACES_WITH |= {region: [place for place in PLACES if region in place[2] and "I" not in place[2]] for region in "tw"}
CONTAINERS = table("containers")
SPOTS = {("inside", ""): words("spots inside"), ("outside", ""): words("spots outside")}
SPOTS |= {(side, "big"): [tail for tail in tails if tail.split()[0] not in ("under", "on")]
          for (side, _), tails in SPOTS.items()}  # fmt: skip


@dataclass(slots=True, eq=False)
class Place:
    """A place, its preposition ("at", "in"), and flags for what it has: see data/words.txt. Home has no name."""

    name: str
    preposition: str
    has: str

    @property
    def at(self) -> str:
        return f"{self.preposition} {self.name}".strip()

    @property
    def to(self) -> str:
        return f"to {self.name}" if self.name else "home"


@dataclass(slots=True, eq=False)
class Spot:
    """A hiding spot: in the blue box (core) under the bed (tail)."""

    core: str
    tail: str


@dataclass(slots=True, eq=False)
class Person:
    """Anybody who can want something: a child, a parent, a pet, a talking animal."""

    name: str
    he: bool
    kind: str
    relation: str = ""
    trait: str = ""
    mood: str = ""
    where: Place | Spot | None = None
    introduced: bool = False  # for narration, as the sentence of the last mention and the pronouns since the name
    mentioned: int = -9
    pronouns: int = 0


@dataclass(slots=True, eq=False)
class Thing:
    """A thing: what it is called, how it looks, what can happen to it, where it is and in which state."""

    noun: str
    adjective: str
    can: str
    state: str = "whole"
    introduced: bool = False
    where: Person | Place | Spot | None = None


@cache
def parse(conditions: str) -> list[Clause]:
    """`a has o & not a knows s` as clauses."""
    parsed = []
    for clause in filter(None, map(str.strip, conditions.split("&"))):
        subject, verb, object = clause.removeprefix("not ").split()
        parsed.append((not clause.startswith("not "), subject, verb, object))
    return parsed


ATTRIBUTES = {"has": "where", "at": "where", "is": "state", "feels": "mood"}  # that verbs are about


def _attribute(verb: str, roles: Roles, subject: str, object: str) -> tuple[Any, str, Any]:
    """Whose attribute a clause is about, its name, and its value where the clause is true."""
    if verb == "has":
        return roles[object], "where", roles[subject]
    return roles[subject], ATTRIBUTES[verb], roles[object] if verb == "at" else object


_LINES = (line for lines in read_sections(PACKAGE, "data/rules.txt").values() for line in lines)
RULES = {kind: rule.split("->") for kind, rule in (line.split(":") for line in _LINES)}  # what events need and make


class World:
    """The state of a story, the trace of what happened in it, and whom and what it has drawn.

    Every story has a hero, a friend, somebody older and a home; a plot draws whatever else it needs.
    """

    def __init__(self, rng: Random):
        self.random = rng.random
        self.roles: Roles = {}
        self.facts: set[tuple[str, Any, Any]] = set()
        self.trace: list[tuple[str, Roles]] = []
        self.wants: list[tuple[str, Roles]] = []
        self.features: set[str] = set()
        self.planted: dict[str, int] = {}
        self.lesson = ""
        self.people: list[Person] = []
        self.used: set[str] = set()  # names, nouns, places: everything in a story is told apart by its noun
        self.wild = self.chance(0.3)
        self.home = Place("", "at home", "I")
        he = self.chance(0.5)
        kind = self.pick(ANIMALS) if self.wild else ("boy" if he else "girl")
        self.used.add(kind)
        self.hero = self._person(self._name(he), he=he, kind=kind)
        self.hero.trait = self.pick(TRAITS)
        he = self.chance(0.5)
        if self.wild:
            self.friend = self._person(self._name(he), he=he, kind=self.unused(ANIMALS))
            self.friend.relation = f"friend {self.friend.name} the {self.friend.kind}"
        else:
            self.friend = self._person(self._name(he), he=he, kind="boy" if he else "girl")
            self.friend.relation = f"{self.pick(words('relations'))} {self.friend.name}"
        self.friend.trait = self.pick(TRAITS)
        name, he = self.pick(ELDERS)
        self.elder = self._person(name, he=he, kind="man" if he else "woman", relation=name.lower())
        self.elder.where = self.hero.where = self.friend.where = self.home
        self.bind(a=self.hero, b=self.friend, e=self.elder, h=self.home)

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
            given = {**self.roles, **roles}
            action(self, argument, {**given, **{role: given[other] for role, other in renamed}} if renamed else given)

    def event(self, kind: str, roles: Roles) -> None:
        """The event happens: its conditions hold, its effects hold from now on, and it will be narrated."""
        needs, makes = RULES.get(kind, ("", ""))
        for truth, subject, verb, object in parse(needs):
            assert self._true(verb, roles, subject, object) == truth, f"{kind} needs {subject} {verb} {object}"
        self.set(makes, roles)
        self.trace.append((kind, roles))

    def holds(self, conditions: str, roles: Roles) -> bool:
        """Whether all conditions are true now."""
        clauses = parse(conditions)
        return all(self._true(verb, roles, subject, object) == truth for truth, subject, verb, object in clauses)

    def ends_well(self) -> bool:
        """Whether every want is fulfilled."""
        return all(self.holds(conditions, roles) for conditions, roles in self.wants)

    def _true(self, verb: str, roles: Roles, subject: str, object: str) -> bool:
        if verb not in ATTRIBUTES:
            return (verb, roles[subject], roles[object]) in self.facts
        owner, attribute, value = _attribute(verb, roles, subject, object)
        return getattr(owner, attribute) == value

    def set(self, effects: str, roles: Roles) -> None:
        """Make the effects true, of an event or before the story begins."""
        for truth, subject, verb, object in parse(effects):
            if verb in ATTRIBUTES:
                owner, attribute, value = _attribute(verb, roles, subject, object)
                setattr(owner, attribute, value if truth else None)
            elif truth:
                self.facts.add((verb, roles[subject], roles[object]))
            else:
                self.facts.discard((verb, roles[subject], roles[object]))

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

    def unused(self, options: list[str]) -> str:
        """One that the story does not use yet."""
        while (word := self.pick(options)) in self.used:
            pass
        self.used.add(word)
        return word

    def _name(self, he: bool) -> str:
        return self.unused(BOYS if he else GIRLS)

    def _person(self, name: str, *, he: bool, kind: str, relation: str = "") -> Person:
        person = Person(name, he=he, kind=kind, relation=relation)
        self.people.append(person)
        return person

    def pet(self) -> Person:
        """A pet of the hero; among talking animals, a little brother or sister."""
        he = self.chance(0.5)
        if self.wild:
            pet = self._person(self._name(he), he=he, kind=self.hero.kind)
            pet.relation = f"little {'brother' if he else 'sister'} {pet.name}"
        else:
            kind, names = self.pick(PETS)
            pet = self._person(self.unused(names), he=he, kind=self.unused([kind]))
            pet.relation = f"{kind} {pet.name}"
        pet.where = self.home
        return pet

    def stranger(self) -> Person:
        """An animal met on the way."""
        he = self.chance(0.5)
        size = self.pick(words("stranger looks"))
        return self._person(self._name(he), he=he, kind=f"{size} {self.unused(words('strangers'))}")

    def child(self) -> Person:
        """Somebody of the hero's own age whom the hero does not know yet."""
        he = self.chance(0.5)
        kind = self.unused(ANIMALS) if self.wild else ("boy" if he else "girl")
        return self._person(self._name(he), he=he, kind=kind)

    def playmate(self) -> Person:
        """One more friend of the hero."""
        child = self.child()
        child.relation = f"friend {child.name}" + (f" the {child.kind}" if self.wild else "")
        return child

    def neighbour(self) -> Person:
        """A grown-up with a job, known to everybody."""
        he = self.chance(0.5)
        job = self.unused(words("jobs"))
        he = he or job in words("jobs of men")
        name = ("Mr. " if he else "Mrs. ") + self.unused(SURNAMES)
        return self._person(name, he=he, kind="man" if he else "woman", relation=f"={name} the {job}")

    def thing(self, flag: str, also: str = "") -> Thing:
        """A thing with which something can happen, and perhaps something else, too: see data/words.txt."""
        while True:
            noun = self.unused(THINGS_THAT[flag])
            can = THINGS[noun]
            if "e" in can:
                adjective = self.pick(words("fruit looks" if "j" in can else "baked looks"))
            else:
                adjective = self.pick(COLOURS if self.chance(0.75) else words("looks"))
            if also in can:
                return Thing(noun, adjective, can)

    def named_thing(self, noun: str, looks: str) -> Thing:
        """A certain kind of thing that looks like one of a section of data/words.txt."""
        self.used.add(noun)
        return Thing(noun, self.pick(words(looks)), "")

    def place(self, has: str = "") -> Place:
        """A place out of doors, or one that has trees, water, wind or walls."""
        options = PLACES_WITH[("w" if self.wild else "t") + has]
        while True:
            name, at, flags = self.pick(options)
            if name not in self.used:
                self.used.add(name)
                return Place(name, at, flags)

    def spot(self, side: str, fit: str = "") -> Spot:
        """A spot in the house or outside: any, one `big` enough for a child, with a `lock`, or with `earth` in it."""
        container = self.unused(CONTAINERS[f"{side} {fit}".strip()])
        tails = SPOTS[side, "big" if fit == "big" else ""]
        return Spot(f"{self.pick(COLOURS)} {container}", self.unused(tails))


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
