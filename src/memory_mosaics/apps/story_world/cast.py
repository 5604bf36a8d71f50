"""Who and what a story is about: the people, things, places and spots it may use, each drawn once."""

from random import Random

from memory_mosaics.apps.story_world.words import COLOURS, THINGS, TRAITS, attributes, table, words
from memory_mosaics.apps.story_world.world import Person, Place, Spot, Thing, World
from memory_mosaics.text.word_lists import BOYS, GIRLS

ANIMALS, STRANGERS, STRANGER_LOOKS = words("animals"), words("strangers"), words("stranger looks")
SURNAMES, JOBS, JOBS_OF_MEN = words("surnames"), words("jobs"), words("jobs of men")
PETS = list(table("pets").items())
ELDERS = [(name, pronoun == ["he"]) for name, pronoun in table("elders").items()]
RELATIONS = words("relations")
LOOKS, FRUIT_LOOKS, BAKED_LOOKS = words("looks"), words("fruit looks"), words("baked looks")
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


class StoryWorld(World):
    """A world with a hero, a friend, somebody older and a home; it draws whatever else a plot asks for."""

    def __init__(self, rng: Random):
        super().__init__(rng)
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
            self.friend.relation = f"{self.pick(RELATIONS)} {self.friend.name}"
        self.friend.trait = self.pick(TRAITS)
        name, he = self.pick(ELDERS)
        self.elder = self._person(name, he=he, kind="man" if he else "woman", relation=name.lower())
        self.elder.where = self.hero.where = self.friend.where = self.home
        self.bind(a=self.hero, b=self.friend, e=self.elder, h=self.home)

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
        size = self.pick(STRANGER_LOOKS)
        return self._person(self._name(he), he=he, kind=f"{size} {self.unused(STRANGERS)}")

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
        job = self.unused(JOBS)
        he = he or job in JOBS_OF_MEN
        name = ("Mr. " if he else "Mrs. ") + self.unused(SURNAMES)
        return self._person(name, he=he, kind="man" if he else "woman", relation=f"={name} the {job}")

    def thing(self, flag: str, also: str = "") -> Thing:
        """A thing with which something can happen, and perhaps something else, too: see data/words.txt."""
        while True:
            noun = self.unused(THINGS_THAT[flag])
            can = THINGS[noun]
            if "e" in can:
                adjective = self.pick(FRUIT_LOOKS if "j" in can else BAKED_LOOKS)
            else:
                adjective = self.pick(COLOURS) if self.chance(0.75) else self.pick(LOOKS)
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
