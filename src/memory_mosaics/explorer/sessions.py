"""What the page asks and gets, as plain dictionaries. The app answers requests with it, `show` writes it into a file.

Every request says all that it is about: model, text, edits. A session only remembers what was read for the last one,
so that little has to be read again; one that is gone costs time and nothing else.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any

from memory_mosaics.errors import UserError
from memory_mosaics.explorer import analysis, moons
from memory_mosaics.explorer.edits import Edit, Layer
from memory_mosaics.explorer.reading import GRID, Engine, Reading, common, one_thread
from memory_mosaics.trained import Trained

CHARACTERS, TOKENS = 20_000, 4096  # of a text
PAGE = 6 * GRID  # tokens
SESSIONS = 4
EDITS = 64
EXAMPLES = {
    "a red kite": "Once there was a little girl named Lily. She had a red kite and a small dog named Max. One day Lily "
    "and Max went to the park. The wind was strong and Lily was happy. She wanted to fly her red",
    "a hidden watch": "Near a quiet lake lived a gentle girl named Anja. Before long it would be the birthday of her "
    "friend Oscar, and Anja had a gift ready: a white watch. Finally, she put the watch in the red suitcase near the "
    'fireplace. The days were full. Anja helped in the kitchen. "Happy birthday, Oscar!" everyone sang. But where was '
    "it? Dad remembered. He took her by the hand. It was in the red",
    "a made-up name": "Zorbo lived in a cave. Every morning Zorbo ate a big bowl of soup. One day a bird came and "
    'said, "Hello, Zorbo! Will you share the soup with me?" "Yes," said',
}
LOOKS = 6000  # memories times positions that a record holds of all memories; else of one


@dataclass
class Session:
    """One text in one model: read as it is, and with edits."""

    plain: Reading
    edited: Reading
    spelt: list[str] = field(default_factory=list)


class Explorer:
    """Several models, and what was read with them for several pages."""

    def __init__(self, models: Sequence[Trained]):
        self.models = list(models)
        self.engines = [Engine(trained.model) for trained in models]
        self.sessions: OrderedDict[tuple[str, int], Session] = OrderedDict()
        self.lock = Lock()

    @cached_property
    def examples(self) -> dict[str, str]:
        """Texts to begin with, first those that the first model knows best. Each ends before a word that it told."""
        # Also, the first real text then does not wait for what torch does once.
        losses = dict.fromkeys(EXAMPLES, 0.0)
        for name, text in EXAMPLES.items():
            for number in reversed(range(len(self.models))):
                with suppress(UserError):  # one of few learned positions
                    self.look(model=number, text=text[:200], position=0)
                    found = self.read(model=number, text=text[:200])["losses"][1:]
                    losses[name] = sum(found) / max(1, len(found))
        self.sessions.clear()
        return {name: EXAMPLES[name] for name in sorted(EXAMPLES, key=lambda name: losses[name])}

    def about(self) -> dict[str, Any]:
        """What the page has to know before anything is read."""
        models = []
        for trained, engine in zip(self.models, self.engines, strict=True):
            config = trained.model.config
            size = {"width": config.width, "blocks": config.blocks, "context": config.context}
            models.append({"name": trained.name, **size, "layers": analysis.about(engine)})
        limits = {"characters": CHARACTERS, "tokens": TOKENS}
        return {"models": models, "limits": limits, "examples": {}, "sky": moons.limits()}

    def read(
        self,
        *,
        session: str = "",
        model: int = 0,
        text: str,
        edits: Sequence[dict[str, Any]] = (),
        page: int = -1,
        look: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A page of the text (the last if there is no such): tokens, losses, what was expected, also with the edits.

        `look` says what of it to look at too: position (or the one next to it on the page; None for the last), memory
        and target, as in `look`.
        """
        begin = time.perf_counter()
        with self.lock:
            desk, made, dropped = self._at(session, model, text, edits)
            count, tokenizer = len(desk.plain.tokens), self.models[model].tokenizer
            pages = max(1, -(-count // PAGE))
            page = page if 0 <= page < pages else pages - 1
            first, last = page * PAGE, min((page + 1) * PAGE, count)
            found: dict[str, Any] = {"count": count, "page": page, "pages": pages, "first": first, "last": last}
            found |= {"tokens": desk.spelt[first:last], "after": (desk.spelt[last : last + 1] or [None])[0]}
            found["offset"] = sum(map(len, desk.spelt[:first]))
            found |= {"edits": [self._plain(edit, model) for edit in made], "dropped": dropped}
            if count:
                found |= analysis.page(desk.plain, tokenizer, first, last)
                found["edited"] = analysis.page(desk.edited, tokenizer, first, last) if made else None
            if count and look is not None:
                position = last - 1 if look["position"] is None else min(max(look["position"], first), last - 1)
                reading = desk.edited if made else desk.plain
                found["look"] = self._look(reading, model, position, look["memory"], look["target"])
            found["again"] = desk.plain.read_again
        return found | {"milliseconds": round(1000 * (time.perf_counter() - begin), 1)}

    def look(
        self,
        *,
        session: str = "",
        model: int = 0,
        text: str,
        edits: Sequence[dict[str, Any]] = (),
        position: int,
        memory: tuple[int, str, int] | None = None,
        target: int | None = None,
    ) -> dict[str, Any]:
        """All memories at one position, what they add to `target` or the token expected most, and one closely."""
        with self.lock:
            desk, made, _ = self._at(session, model, text, edits)
            return self._look(desk.edited if made else desk.plain, model, position, memory, target)

    def _look(
        self, reading: Reading, model: int, position: int, memory: tuple[int, str, int] | None, target: int | None
    ) -> dict[str, Any]:
        if not 0 <= position < len(reading.tokens):
            raise UserError(f"position {position} is outside a text of {len(reading.tokens)} tokens")
        if target is not None and not 0 <= target < self.models[model].model.config.vocabulary:
            raise UserError(f"there is no token {target}")
        with one_thread():
            layers = analysis.overview(reading, position, position + 1, target)
            found: dict[str, Any] = {"position": position, "overview": [_at_one_time(layer, 0) for layer in layers]}
            if memory is not None:
                layer, head = self._memory(model, memory)
                tokenizer = self.models[model].tokenizer
                found["memory"] = analysis.detail(reading, tokenizer, layer, head, position, position + 1)[0]
        return found

    def record(
        self,
        *,
        session: str = "",
        model: int = 0,
        text: str,
        edits: Sequence[dict[str, Any]] = (),
        page: int = -1,
        memory: tuple[int, str, int] | None = None,
    ) -> dict[str, Any]:
        """A page of a text with all that can be seen of it, for a file that nobody serves."""
        read = self.read(session=session, model=model, text=text, edits=edits, page=page)
        if read["count"] == 0:
            raise UserError("the text is empty: there is nothing to export")
        with self.lock:
            desk, made, _ = self._at(session, model, text, edits)
            reading, tokenizer = desk.edited if made else desk.plain, self.models[model].tokenizer
            engine, first, last = self.engines[model], read["first"], read["last"]
            memories = [(layer, head) for layer in engine.layers for head in range(engine.heads(layer))]
            if (last - first) * len(memories) > LOOKS:
                memories = [self._memory(model, memory)] if memory else memories[:1]
            parts = [(start, min(start + GRID, last)) for start in range(first, last, GRID)]
            overviews = [analysis.overview(reading, *part) for part in parts]
            return {
                "model": model,
                "text": text,
                "read": read,
                "overview": [
                    [_at_one_time(layer, at) for layer in of_part]
                    for of_part, (start, end) in zip(overviews, parts, strict=True)
                    for at in range(end - start)
                ],
                "memories": {
                    f"{layer[0]}.{layer[1]}.{head}": [
                        one for part in parts for one in analysis.detail(reading, tokenizer, layer, head, *part)
                    ]
                    for layer, head in memories
                },
            }

    def _at(
        self, session: str, model: int, text: str, edits: Sequence[dict[str, Any]]
    ) -> tuple[Session, list[Edit], int]:
        """The session, having read this text with these edits, the edits that could be made, and how many not."""
        if not 0 <= model < len(self.models):
            raise UserError(f"there is no model {model}")
        if len(text) > CHARACTERS:
            raise UserError(f"the text has {len(text):,} characters; at most {CHARACTERS:,} are read")
        if len(edits) > EDITS:
            raise UserError(f"{len(edits)} edits are too many; at most {EDITS} can be made")
        engine, trained = self.engines[model], self.models[model]
        tokens = trained.tokenizer.encode(text)
        longest = min(TOKENS, trained.model.longest or TOKENS)
        if len(tokens) > longest:
            raise UserError(f"the text has {len(tokens):,} tokens; {trained.name} reads at most {longest:,} here")
        desk = self.sessions.pop((session, model), None) or Session(Reading(engine), Reading(engine))
        before = desk.plain.tokens
        desk.plain.read(tokens)
        desk.spelt = analysis.spelt(trained.tokenizer, tokens) if before != tokens else desk.spelt
        same = common(before, desk.plain.tokens) if before else len(desk.plain.tokens)
        made = list(dict.fromkeys(edit for each in edits if (edit := self._edit(desk, model, each, same))))
        if made or desk.edited.edits:
            desk.edited.read(desk.plain.tokens if made else [], made, desk.plain)
        self.sessions[session, model] = desk
        while len(self.sessions) > SESSIONS * len(self.models):
            self.sessions.popitem(last=False)
        return desk, made, len(edits) - len(made)

    def _edit(self, desk: Session, model: int, asked: dict[str, Any], same: int) -> Edit | None:
        """An edit as it was asked for; none where the text that it was about has changed since."""
        layer, head = self._memory(model, (asked["block"], asked["kind"], asked["head"]))
        place, text = asked.get("place"), asked.get("text")
        peek, token = self.engines[model].peek(layer), None
        if place is not None and peek is not None and not 0 <= place + peek < min(same, len(desk.plain.tokens)):
            return None
        if place is not None and place < 0:
            return None
        if text is not None:
            if place is None or peek is None:
                raise UserError("only pairs that come from the text can be written anew")
            was = desk.spelt[place + peek]
            text = f" {text}" if was.startswith(" ") and not text.startswith(" ") else text
            tokens = self.models[model].tokenizer.encode(text)
            if not tokens:
                raise UserError("give the pair a token to hold")
            token = tokens[0]
        return Edit(block=layer[0], kind=layer[1], head=head, place=place, token=token)

    def _plain(self, edit: Edit, model: int) -> dict[str, Any]:
        text = None if edit.token is None else analysis.said(self.models[model].tokenizer, edit.token)
        return {"block": edit.block, "kind": edit.kind, "head": edit.head, "place": edit.place, "text": text}

    def has(self, model: int, memory: tuple[int, str, int]) -> bool:
        """Whether a model has this memory."""
        engine, (block, kind, head) = self.engines[model], memory
        return (block, kind) in engine.layers and 0 <= head < engine.heads((block, kind))

    def _memory(self, model: int, memory: tuple[int, str, int]) -> tuple[Layer, int]:
        block, kind, head = memory
        if self.has(model, memory):
            return (block, kind), head
        raise UserError(f"there is no {kind} memory {head} in block {block} of {self.models[model].name}")


def _at_one_time(layer: dict[str, Any], at: int) -> dict[str, Any]:
    return {name: layer[name][at] for name in layer}
