"""Who and what a story is about: the people, things, places and spots it may use, each drawn once."""

from random import Random

from memory_mosaics.text.story.words import (
    ANIMALS,
    BAKED,
    COLOURS,
    CONTAINERS,
    FEELS,
    FINDERS,
    INSIDE,
    JOBS,
    OUTSIDE,
    PETS,
    PLACES,
    RIPE,
    SURNAMES,
    THINGS,
    TRAITS,
)
from memory_mosaics.text.story.world import Person, Place, Spot, Thing, World
from memory_mosaics.text.word_lists import BOYS, GIRLS

_TRAITS = list(TRAITS)
_PETS = [(kind, names.split()) for kind, names in PETS.items()]
_THINGS = {flag: [noun for noun, can in THINGS.items() if flag in can] for flag in "bekrnwhtsv"}
_THINGS["baked"] = [noun for noun, can in THINGS.items() if can == "e"]
_THINGS["keep"] = [noun for noun, can in THINGS.items() if "e" not in can]
_PLACES = {
    world + flag: [(name, at, has) for name, (at, has) in PLACES.items() if world in has and (flag in has or not flag)]
    for world in "tw"
    for flag in ("", "T", "W", "O", "I")
}
_OUTDOORS = {world: [place for place in _PLACES[world] if "I" not in place[2]] for world in "tw"}
_TAILS = {(True, False): INSIDE, (False, False): OUTSIDE}
_TAILS |= {
    (at, True): [tail for tail in _TAILS[at, False] if tail.split()[0] not in ("under", "on")] for at in (True, False)
}
_ELDERS = [("Mom", False), ("Dad", True), ("Grandma", False), ("Grandpa", True), ("Mama", False), ("Papa", True)]


class Stage(World):
    """A world with a hero, perhaps a friend and a pet, somebody older, and a home."""

    def __init__(self, rng: Random):
        super().__init__(rng)
        self.people: list[Person] = []
        self.wild = self.chance(0.3)
        self.home = Place("", "at home", "I")
        he = self.chance(0.5)
        kind = self.pick(ANIMALS) if self.wild else ("boy" if he else "girl")
        self.used.add(kind)
        self.hero = self._person(self.name(he), he=he, kind=kind)
        self.hero.trait = self.pick(_TRAITS)
        he = self.chance(0.5)
        if self.wild:
            self.friend = self._person(self.name(he), he=he, kind=self.animal(ANIMALS))
            self.friend.relation = f"friend {self.friend.name} the {self.friend.kind}"
        else:
            self.friend = self._person(self.name(he), he=he, kind="boy" if he else "girl")
            relation = self.pick(("friend", "friend", "best friend", "cousin", "neighbor"))
            self.friend.relation = f"{relation} {self.friend.name}"
        self.friend.trait = self.pick(_TRAITS)
        name, he = self.pick(_ELDERS)
        self.elder = self._person(name, he=he, kind="man" if he else "woman", relation=name.lower())
        self.elder.where = self.hero.where = self.friend.where = self.home
        self._pet: Person | None = None

    def _person(self, name: str, *, he: bool, kind: str, relation: str = "") -> Person:
        person = Person(name, he=he, kind=kind, relation=relation)
        self.people.append(person)
        return person

    def fresh(self, options: list[str]) -> str:
        """One that the story does not use yet."""
        while (word := self.pick(options)) in self.used:
            pass
        self.used.add(word)
        return word

    def name(self, he: bool) -> str:
        """A first name that nobody else has."""
        return self.fresh(BOYS if he else GIRLS)

    def animal(self, options: list[str]) -> str:
        """A kind of animal that nobody else is."""
        return self.fresh(options)

    @property
    def pet(self) -> Person:
        """The hero's pet; among talking animals, a little brother or sister."""
        if self._pet is None:
            he = self.chance(0.5)
            if self.wild:
                relation = "little brother" if he else "little sister"
                self._pet = self._person(self.name(he), he=he, kind=self.hero.kind)
                self._pet.relation = f"{relation} {self._pet.name}"
            else:
                kind, names = self.pick(_PETS)
                self._pet = self._person(self.fresh(names), he=he, kind=self.fresh([kind]))
                self._pet.relation = f"{kind} {self._pet.name}"
            self._pet.where = self.home
        return self._pet

    def stranger(self) -> Person:
        """An animal met on the way."""
        he = self.chance(0.5)
        size = self.pick(("little", "small", "young", "old", "thin"))
        return self._person(self.name(he), he=he, kind=f"{size} {self.animal(FINDERS)}")

    def child(self) -> Person:
        """Somebody of the hero's own age whom the hero does not know yet."""
        he = self.chance(0.5)
        kind = self.animal(ANIMALS) if self.wild else ("boy" if he else "girl")
        return self._person(self.name(he), he=he, kind=kind)

    def neighbour(self) -> Person:
        """A grown-up with a job, known to everybody."""
        he = self.chance(0.5)
        job = self.fresh(JOBS)
        if job in ("postman", "fisherman"):
            he = True
        name = ("Mr. " if he else "Mrs. ") + self.fresh(SURNAMES)
        return self._person(name, he=he, kind="man" if he else "woman", relation=f"={name} the {job}")

    def thing(self, flag: str) -> Thing:
        """A thing with which something can happen: see THINGS."""
        noun = self.fresh(_THINGS[flag])
        if "e" in THINGS[noun]:
            adjective = self.pick(RIPE if "j" in THINGS[noun] else BAKED)
        else:
            adjective = self.pick(COLOURS) if self.chance(0.75) else self.pick(FEELS)
        return Thing(noun, adjective, THINGS[noun])

    def named_thing(self, noun: str, colours: list[str] = COLOURS) -> Thing:
        """A certain kind of thing, in a colour."""
        self.used.add(noun)
        return Thing(noun, self.pick(colours), "")

    def place(self, has: str = "") -> Place:
        """A place out of doors, or one that has trees, water, wind or walls."""
        options = _PLACES[("w" if self.wild else "t") + has] if has else _OUTDOORS["w" if self.wild else "t"]
        while True:
            name, at, flags = self.pick(options)
            if name not in self.used:
                self.used.add(name)
                return Place(name, at, flags)

    def spot(self, *, inside: bool = True, fit: str = "") -> Spot:
        """A spot at home or in the yard: any, one that is `big` enough for a child, or one with `earth` in it."""
        container = self.fresh(CONTAINERS[f"{'inside' if inside else 'outside'} {fit}".strip()])
        tails = _TAILS[inside, fit == "big"]
        return Spot(f"{self.pick(COLOURS)} {container}", self.fresh(tails))
