"""Narration: from a trace of events to English, with other words each time.

Each kind of event has phrases in data/phrases/. A phrase is text with choices and roles:

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
from functools import cache
from typing import Any

from memory_mosaics.apps.story_world.world import PACKAGE, Person, Place, Roles, Spot, Thing, World
from memory_mosaics.text.word_lists import read_sections

PHRASES: dict[str, list[str]] = {}  # by kind of event
for _name in ("common", "traits", "morals", "details", "things", "owners", "friends", "games", "journeys", "days"):
    PHRASES |= read_sections(PACKAGE, f"data/phrases/{_name}.txt")

PRONOUNS = {"he": ("she", "he"), "him": ("her", "him"), "his": ("her", "his"), "himself": ("herself", "himself")}
PRONOUN_OF = {"": "he", "obj": "him", "pos": "his"}
SENTENCE_ENDS = (". ", "! ", "? ")
OPEN, CLOSE = "\x01", "\x02"  # around the answer of a probe until the text is whole

Parts = tuple[Any, ...]  # strings, slots (role, form, capital, probe), lists of alternatives: strings or Parts
_SYNONYMS = (line.split("|") for line in read_sections(PACKAGE, "data/synonyms.txt")["synonyms"])
_ALTERNATIVES = {synonyms[0]: synonyms for synonyms in _SYNONYMS}
_SYNONYM = re.compile(r"\b(" + "|".join(sorted(_ALTERNATIVES, key=len, reverse=True)) + r")\b")


def with_article(words: str) -> str:
    """The words with a or an before them."""
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def compile_phrase(text: str) -> Parts:
    """A phrase as strings, slots and lists of alternatives."""
    alternatives, end = _parse(text, 0)
    assert end == len(text), f"unbalanced brackets: {text}"
    return alternatives[0]


def _parse(text: str, at: int) -> tuple[list[Parts], int]:
    """The alternatives from here to a closing bracket or the end, and where that is."""
    alternatives: list[Parts] = []
    parts: list[Any] = []
    start = at
    while at < len(text) and text[at] != "]":
        if text[at] not in "{[|":
            at += 1
            continue
        parts += _with_synonyms(text[start:at])
        if text[at] == "|":
            alternatives.append(tuple(parts))
            parts = []
        elif text[at] == "[":
            options, at = _parse(text, at + 1)
            parts.append([each[0] if len(each) == 1 and type(each[0]) is str else each for each in options])
        else:
            end = text.index("}", at)
            role, _, form = text[at + 1 : end].rstrip("*").partition(".")
            parts.append((role.lower(), form, role[0].isupper(), text[end - 1] == "*"))
            at = end
        start = at = at + 1
    alternatives.append((*parts, *_with_synonyms(text[start:at])))
    return alternatives, at


def _with_synonyms(text: str) -> list[Any]:
    """Plain text, with a choice in place of each word or group of words that has synonyms."""
    parts: list[Any] = []
    end = 0
    for found in _SYNONYM.finditer(text):
        parts += [text[end : found.start()], _ALTERNATIVES[found.group()]]
        end = found.end()
    return [part for part in (*parts, text[end:]) if part]


@cache
def phrases(kind: str, dialogue: bool) -> list[Parts]:
    """The compiled phrases of a kind of event; without those that quote somebody, where nobody shall talk."""
    lines = [line for line in PHRASES[kind] if dialogue or '"' not in line]
    assert lines, f"no phrase without dialogue for {kind}"
    return list(map(compile_phrase, lines))


def _capitalise(text: str) -> str:
    start = 1 if text[0] in ('"', OPEN) else 0
    return text[:start] + text[start].upper() + text[start + 1 :]


def _mark(text: str, what: Any) -> str:
    """The text with marks around what a probe asks for."""
    answer = what.core if type(what) is Spot else text.removeprefix("the ")
    return text.replace(answer, f"{OPEN}{answer}{CLOSE}", 1)


class Narrator:
    """Narrates one story: keeps track of who and what was mentioned where, and so what to call it now."""

    def __init__(self, world: World, *, dialogue: bool):
        self.trace, self.random, self.people, self.dialogue = world.trace, world.random, world.people, dialogue
        self.sentence = 0
        self.last: dict[str, int] = {}  # the phrase that an event of this kind had

    def narrate(self) -> str:
        """The whole story, with the answers of probes still marked."""
        texts: list[str] = []
        separator = ""
        for kind, roles in self.trace:
            if not kind:
                separator = "\n"
                self.sentence += 2
                continue
            texts += (separator, self.phrase(kind, roles))
            separator = " "
        return "".join(texts)

    def phrase(self, kind: str, roles: Roles) -> str:
        """One event in words, not in the words used the last time."""
        options = phrases(kind, self.dialogue)
        number = int(self.random() * len(options))
        if number == self.last.get(kind):
            number = (number + 1) % len(options)
        self.last[kind] = number
        self.sentence += 1
        out: list[str] = []
        self._emit(options[number], roles, out)
        text = "".join(out)
        return text if text[0].isupper() else _capitalise(text)

    def _emit(self, parts: Parts, roles: Roles, out: list[str]) -> None:
        for part in parts:
            if type(part) is str:
                out.append(part)
            elif type(part) is list:
                chosen = part[int(self.random() * len(part))]
                if type(chosen) is str:
                    out.append(chosen)
                else:
                    self._emit(chosen, roles, out)
            else:
                role, form, capital, probe = part
                what = roles[role]
                text = self._person(what, form) if type(what) is Person else self._refer(what, form)
                if probe:
                    text = _mark(text, what)
                capital = capital or (bool(out) and out[-1][-2:] in SENTENCE_ENDS)
                out.append(_capitalise(text) if capital else text)

    def _refer(self, what: Any, form: str) -> str:
        if type(what) is Thing:
            return self._thing(what, form)
        if type(what) is Spot:
            return f"{'the' if form == 'the' else 'in the'} {what.core} {what.tail}"
        if type(what) is Place:
            return what.name if not form else (what.at if form == "at" else what.to)
        return with_article(what) if form == "an" else what

    def _person(self, who: Person, form: str) -> str:
        if form == "name":
            return who.name
        if form in PRONOUNS:
            return PRONOUNS[form][who.he]
        if not who.introduced:
            return self._introduce(who, form)
        now = self.sentence
        if who.mentioned == now and form in ("obj", "pos"):
            return PRONOUNS[PRONOUN_OF[form]][who.he]
        pronoun = who.mentioned >= now - 1 and who.pronouns < 3 and form != "who"
        for other in self.people if pronoun else ():
            if other.mentioned >= now - 1 and other is not who and other.he == who.he:
                pronoun = False
        if pronoun and who.mentioned < now and self.random() < 0.15:
            pronoun = False
        who.mentioned = now
        if pronoun:
            who.pronouns += 1
            return PRONOUNS[PRONOUN_OF[form]][who.he]
        who.pronouns = 0
        return f"{who.name}'s" if form == "pos" else who.name

    def _introduce(self, who: Person, form: str) -> str:
        """A person nobody has heard of yet: a fox named Rusty; her friend Ben; his mom, who is Mom from then on."""
        if form == "new" or not who.relation:
            kind = who.kind if not who.trait else f"{who.trait} {who.kind}"
            text = f"{with_article(kind)} named {who.name}"
        elif who.relation[0] == "=":
            text = who.relation[1:]
        else:
            text = f"{self._person(self.people[0], 'pos')} {who.relation}"
        who.introduced, who.mentioned, who.pronouns = True, self.sentence, 0
        return f"{text}'s" if form == "pos" else text

    def _thing(self, what: Thing, form: str) -> str:
        if form == "noun":
            return what.noun
        if form == "adj":
            return what.adjective
        first, what.introduced = not what.introduced, True
        full = f"{what.adjective} {what.noun}"
        if form == "full":
            return full
        if form == "a" or (first and not form):
            return with_article(full)
        short = full if first or self.random() < 0.4 else what.noun
        return short if form == "n" else f"the {short}"
