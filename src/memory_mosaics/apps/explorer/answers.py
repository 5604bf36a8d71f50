"""What the page asks and gets, as plain dictionaries: the app answers requests with it, `show` writes it to a file."""

import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import Any

from memory_mosaics.apps.explorer import analysis, moons
from memory_mosaics.apps.explorer.edits import Layer
from memory_mosaics.apps.explorer.reading import GRID, Engine, one_thread
from memory_mosaics.apps.explorer.sessions import CHARACTERS, TOKENS, Asked, Look, Session
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError

PAGE = 6 * GRID  # tokens
SESSIONS = 4
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


class Explorer:
    """Several models, and what was read with them for several pages."""

    def __init__(self, models: Sequence[LoadedModel]):
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
                    found = self.read(Asked(model=number, text=text[:200]), look=Look(position=0))["losses"][1:]
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
        found = {"models": models, "limits": limits, "examples": {}, "sky": moons.limits()}
        return found | {"identity": self._identity(models)}

    def _identity(self, models: list[dict[str, Any]]) -> str:
        """Tells these models from others that may be served at the same address later."""
        digest = hashlib.sha256(json.dumps(models).encode())
        for trained in self.models:
            digest.update(trained.tokenizer.fingerprint.encode())
            for weight in trained.model.parameters():  # a step of training changes them all
                digest.update(weight.detach().flatten()[:64].float().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def read(
        self, asked: Asked, *, page: int = -1, letters: int | None = None, look: Look | None = None
    ) -> dict[str, Any]:
        """A page of the text: tokens, losses, what was expected, also with the edits; and what `look` wants to see.

        The page with the last of so many `letters`, or by its number, or the last. Looked at is a token of that page,
        the one next to the one that was asked for if need be.
        """
        begin = time.perf_counter()
        with self.lock:
            session = self._session(asked)
            found = self._page(session, page, letters)
            if found["count"] and look is not None:
                position = look.position if look.letters is None else session.token_at(look.letters)
                position = found["last"] - 1 if position is None else position
                position = min(max(position, found["first"]), found["last"] - 1)
                found["look"] = self._look(session, position, look)
            found["again"] = session.plain.read_again
        return found | {"milliseconds": round(1000 * (time.perf_counter() - begin), 1)}

    def look(self, asked: Asked, look: Look) -> dict[str, Any]:
        """All memories at one position, what they add to one token, and one of them closely."""
        with self.lock:
            session = self._session(asked)
            count = len(session.plain.tokens)
            position = count - 1 if look.position is None else look.position
            if not 0 <= position < count:
                raise UserError(f"position {position} is outside a text of {count} tokens")
            return self._look(session, position, look)

    def record(self, asked: Asked, *, page: int = -1, look: Look) -> dict[str, Any]:
        """A page of a text with all that can be seen of it, for a file that nobody serves."""
        read = self.read(asked, page=page, look=look)
        if read["count"] == 0:
            raise UserError("the text is empty: there is nothing to export")
        with self.lock:
            session = self._session(asked)
            first, last = read["first"], read["last"]
            parts = [(start, min(start + GRID, last)) for start in range(first, last, GRID)]
            overviews = [analysis.overview(session.reading, *part) for part in parts]
            return {
                "model": asked.model,
                "text": asked.text,
                "read": read,
                "memory": look.memory,
                "target": None if look.target is None else read["look"]["target"][1],
                "overview": [
                    [_at_one_time(layer, at) for layer in of_part]
                    for of_part, (start, end) in zip(overviews, parts, strict=True)
                    for at in range(end - start)
                ],
                "memories": {
                    f"{layer[0]}.{layer[1]}.{head}": [
                        self._detail(session, layer, head, at, one)
                        for part in parts
                        for at, one in enumerate(
                            analysis.detail(session.reading, session.trained.tokenizer, layer, head, *part), part[0]
                        )
                    ]
                    for layer, head in self._recorded(session, last - first, look)
                },
            }

    def sky(self, periods: list[int], seed: int) -> dict[str, Any]:
        """Three moons and both astronomers."""
        with self.lock:
            return moons.watch(periods, seed=seed)

    def stop(self) -> None:
        """What is being read is not read to its end."""
        for engine in self.engines:
            engine.stopped = True

    def _session(self, asked: Asked) -> Session:
        """Having read what is asked about."""
        model = asked.model
        if not 0 <= model < len(self.models):
            raise UserError(f"there is no model {model}")
        name = asked.session, model
        session = self.sessions.pop(name, None) or Session(self.models[model], self.engines[model])
        self.sessions[name] = session
        try:
            session.read(asked)
        except UserError:
            raise
        except Exception:
            del self.sessions[name]  # half read
            raise
        while len(self.sessions) > SESSIONS * len(self.models):
            self.sessions.popitem(last=False)
        return session

    def _page(self, session: Session, page: int, letters: int | None) -> dict[str, Any]:
        tokens, tokenizer = session.plain.tokens, session.trained.tokenizer
        count = len(tokens)
        pages = max(1, -(-count // PAGE))
        page = page if letters is None else session.token_at(letters) // PAGE
        page = page if 0 <= page < pages else pages - 1
        first, last = page * PAGE, min((page + 1) * PAGE, count)
        found: dict[str, Any] = {"count": count, "page": page, "pages": pages, "first": first, "last": last}
        found |= {"ids": tokens[first:last], "tokens": session.spelt[first:last]}
        found["names"] = {at - first: session.word(at) for at in range(first, last) if not session.spelt[at]}
        found["after"] = [session.word(last), tokens[last]] if last < count else None
        found["offset"] = session.ends[first - 1] if first else 0
        found |= {"edits": [session.described(edit) for edit in session.made]}
        found |= {"undone": session.undone, "refused": session.refused, "edited": None}
        if count:
            found |= analysis.page(session.plain, tokenizer, first, last)
            found["edited"] = analysis.page(session.edited, tokenizer, first, last) if session.made else None
        return found

    def _look(self, session: Session, position: int, look: Look) -> dict[str, Any]:
        reading, tokenizer, target = session.reading, session.trained.tokenizer, look.target
        if isinstance(target, str):
            target = next(iter(tokenizer.encode(target)), None)
        if target is not None:
            session.check_token(target)
        with one_thread():
            layers = analysis.overview(reading, position, position + 1, target)
            found: dict[str, Any] = {"position": position, "overview": [_at_one_time(layer, 0) for layer in layers]}
            if target is None:
                target = int(reading.best([position // GRID])[0].tokens[position % GRID, 0])
            found["target"] = [tokenizer.display(target), target]
            if look.memory is not None:
                layer, head = session.memory(look.memory)
                seen = analysis.detail(reading, tokenizer, layer, head, position, position + 1)[0]
                found["memory"] = self._detail(session, layer, head, position, seen)
                peek = session.engine.peek(layer)
                if peek is not None:
                    places = [place for place, _ in seen["pairs"]]
                    found["memory"]["marks"] = {place: session.marks[place + peek] for place in places}
        return found

    def _detail(self, session: Session, layer: Layer, head: int, position: int, seen: dict[str, Any]) -> dict[str, Any]:
        """With the words of pairs that are on another page than the position."""
        peek, page = session.engine.peek(layer), position // PAGE
        if peek is None:
            return seen
        places = {at for place, _ in seen["pairs"] for at in (place, place + peek)}
        far = {place: session.word(place) for place in sorted(places) if place // PAGE != page}
        return seen | {"far": far} if far else seen

    def _recorded(self, session: Session, count: int, look: Look) -> list[tuple[Layer, int]]:
        """The memories of which a file holds everything: all, or if that is too much one."""
        engine = session.engine
        memories = [(layer, head) for layer in engine.layers for head in range(engine.heads(layer))]
        if count * len(memories) <= LOOKS:
            return memories
        return [session.memory(look.memory)] if look.memory else memories[:1]


def _at_one_time(layer: dict[str, Any], at: int) -> dict[str, Any]:
    return {name: layer[name][at] for name in layer}
