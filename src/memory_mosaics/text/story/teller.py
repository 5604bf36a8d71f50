"""The teller: from a trace of events to English, with other words each time.

Each kind of event has phrases in the phrases files. A phrase is text with choices and roles:

    {a} [ran|hurried] to {p}. {A} was [very |]happy.

    {a}, {a.obj}, {a.pos}       a person as subject, object, owner: the pronoun if only one can be meant, else the name
    {a.he} {a.him} {a.his} {a.himself}   the pronoun, where the sentence makes it clear
    {a.who} {a.name} {a.new}    the name, after an introduction the first time; Lily; a brave girl named Lily
    {o} {o.a} {o.n} {o.full} {o.noun} {o.adj}   the kite; a red kite; kite or red kite; red kite; kite; red
    {p} {p.at} {p.to}           the park; at the park; to the park
    {s} {s.the}                 in the blue box under the bed; the blue box under the bed
    {x} {x.an}                  a word as it is; with a or an before it
    {A}, {O}, {X}               capitalised, as any role is after a full stop or at the start of a phrase
    {o.adj*}                    a probe: what stands here follows from what was told before
"""

import re
from typing import Any

from memory_mosaics.text.story.phrases import PHRASES
from memory_mosaics.text.story.words import SYNONYMS
from memory_mosaics.text.story.world import Person, Place, Roles, Spot, Thing, World

PRONOUNS = {"he": ("she", "he"), "him": ("her", "him"), "his": ("her", "his"), "himself": ("herself", "himself")}
AUTO = {"": "he", "obj": "him", "pos": "his"}
SENTENCE_ENDS = (". ", "! ", "? ")
OPEN, CLOSE = "\x01", "\x02"  # around the answer of a probe until the text is whole

_COMPILED: dict[str, tuple[tuple[Any, ...], ...]] = {}
_CHOICES = {line.split("|")[0]: [(word,) for word in line.split("|")] for line in SYNONYMS}
_SYNONYM = re.compile(r"\b(" + "|".join(sorted(_CHOICES, key=len, reverse=True)) + r")\b")


def article(words: str) -> str:
    """The words with a or an before them."""
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def compile_phrase(text: str) -> tuple[Any, ...]:
    """A phrase as a tuple of strings, slots (role, form, capital, probe) and lists of alternatives."""
    parts, end = _parse(text, 0)
    assert end == len(text), f"unbalanced brackets: {text}"
    return parts[0]


def _parse(text: str, at: int) -> tuple[list[tuple[Any, ...]], int]:
    alternatives: list[tuple[Any, ...]] = []
    parts: list[Any] = []
    start = at
    while at < len(text) and text[at] != "]":
        if text[at] not in "{[|":
            at += 1
            continue
        if at > start:
            parts.extend(_varied(text[start:at]))
        if text[at] == "|":
            alternatives.append(tuple(parts))
            parts = []
            at += 1
        elif text[at] == "[":
            options, at = _parse(text, at + 1)
            parts.append(options)
            at += 1
        else:
            end = text.index("}", at)
            role, _, form = text[at + 1 : end].partition(".")
            probe = text[end - 1] == "*"
            role, form = role.rstrip("*"), form.rstrip("*")
            parts.append((role.lower(), form, role[0].isupper(), probe))
            at = end + 1
        start = at
    if at > start:
        parts.extend(_varied(text[start:at]))
    alternatives.append(tuple(parts))
    return alternatives, at


def _varied(text: str) -> list[Any]:
    """Plain text, with a choice in place of each word or group of words that has synonyms."""
    parts: list[Any] = []
    end = 0
    for found in _SYNONYM.finditer(text):
        parts += [text[end : found.start()], _CHOICES[found.group()]]
        end = found.end()
    return [part for part in (*parts, text[end:]) if part]


def phrases(kind: str, talk: bool) -> tuple[tuple[Any, ...], ...]:
    """The compiled phrases of a kind of event; without those that quote somebody, where nobody shall talk."""
    key = kind if talk else f"{kind} "
    if key not in _COMPILED:
        lines = [line.strip() for line in PHRASES[kind].strip().splitlines()]
        _COMPILED[key] = tuple(compile_phrase(line) for line in lines if talk or '"' not in line)
        assert _COMPILED[key], f"no phrase without talk for {kind}"
    return _COMPILED[key]


class Teller:
    """Tells one story: knows who and what was mentioned, where, and so what to call it now."""

    def __init__(self, world: World, cast: list[Person], *, talk: bool):
        self.world, self.cast, self.talk = world, cast, talk
        self.sentence = 0
        self.last: dict[str, int] = {}

    def tell(self) -> str:
        """The whole story, with the answers of probes still marked."""
        pieces: list[str] = []
        before = ""
        for kind, roles in self.world.trace:
            if not kind:
                before = "\n"
                self.sentence += 2
                continue
            pieces.append(before)
            pieces.append(self.phrase(kind, roles))
            before = " "
        return "".join(pieces)

    def phrase(self, kind: str, roles: Roles) -> str:
        """One event in words, not in the words used the last time."""
        options = phrases(kind, self.talk)
        number = int(self.world.random() * len(options))
        if number == self.last.get(kind):
            number = (number + 1) % len(options)
        self.last[kind] = number
        self.sentence += 1
        out: list[str] = []
        self._emit(options[number], roles, out)
        text = "".join(out)
        first = text[0]
        return text if first.isupper() else self._capital(text)

    def _capital(self, text: str) -> str:
        start = 1 if text[0] in ('"', OPEN) else 0
        return text[:start] + text[start].upper() + text[start + 1 :]

    def _emit(self, parts: tuple[Any, ...], roles: Roles, out: list[str]) -> None:
        for part in parts:
            if type(part) is str:
                out.append(part)
            elif type(part) is list:
                self._emit(part[int(self.world.random() * len(part))], roles, out)
            else:
                role, form, capital, probe = part
                text = self._refer(roles[role], form, probe)
                capital = capital or (bool(out) and out[-1][-2:] in SENTENCE_ENDS)
                out.append(self._capital(text) if capital else text)

    def _refer(self, what: Any, form: str, probe: bool) -> str:
        if type(what) is Person:
            text = self._person(what, form)
        elif type(what) is Thing:
            text = self._thing(what, form)
        elif type(what) is Spot:
            core = f"{OPEN}{what.core}{CLOSE}" if probe else what.core
            return f"the {core} {what.tail}" if form == "the" else f"in the {core} {what.tail}"
        elif type(what) is Place:
            text = what.name if not form else (what.at if form == "at" else what.to)
        else:
            text = article(what) if form == "an" else what
        if not probe:
            return text
        start = 4 if text.startswith("the ") else 0
        return f"{text[:start]}{OPEN}{text[start:]}{CLOSE}"

    def _person(self, who: Person, form: str) -> str:
        if form == "name":
            return who.name
        if form in PRONOUNS:
            return PRONOUNS[form][who.he]
        if not who.told:
            return self._introduce(who, form)
        now = self.sentence
        if who.seen == now and form in ("obj", "pos"):
            return PRONOUNS[AUTO[form]][who.he]
        pronoun = who.seen >= now - 1 and who.streak < 3 and form != "who"
        if pronoun:
            for other in self.cast:
                if other.seen >= now - 1 and other is not who and other.he == who.he:
                    pronoun = False
                    break
        if pronoun and who.seen < now and self.world.random() < 0.15:
            pronoun = False
        who.seen = now
        if pronoun:
            who.streak += 1
            return PRONOUNS[AUTO[form]][who.he]
        who.streak = 0
        return f"{who.name}'s" if form == "pos" else who.name

    def _introduce(self, who: Person, form: str) -> str:
        """A person nobody has heard of yet: a fox named Rusty; her friend Ben; his mom, who is Mom from then on."""
        if form == "new" or not who.relation:
            kind = who.kind if not who.trait else f"{who.trait} {who.kind}"
            text = f"{article(kind)} named {who.name}"
        elif who.relation[0] == "=":
            text = who.relation[1:]
        else:
            text = f"{self._person(self.cast[0], 'pos')} {who.relation}"
        who.told, who.seen, who.streak = True, self.sentence, 0
        return f"{text}'s" if form == "pos" else text

    def _thing(self, what: Thing, form: str) -> str:
        if form == "noun":
            return what.noun
        if form == "adj":
            return what.adjective
        first, what.told = not what.told, True
        full = f"{what.adjective} {what.noun}"
        if form == "full":
            return full
        if form == "a" or (first and not form):
            return article(full)
        short = full if first or self.world.random() < 0.4 else what.noun
        return short if form == "n" else f"the {short}"
