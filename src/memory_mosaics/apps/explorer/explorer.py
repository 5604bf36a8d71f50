"""What the page requests and gets, as plain dictionaries: the app answers requests with it, `show` writes it to a file.

Every request names its model, text and edits. A session only keeps what was computed for the last request, so that
little has to be computed again; a session that is gone costs time and nothing else.
"""

import hashlib
import json
import time
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate
from threading import Lock
from typing import Any, ClassVar, Literal

from memory_mosaics.apps.explorer import moons, reading
from memory_mosaics.apps.explorer.page import read_asset
from memory_mosaics.apps.explorer.reading import (
    CHUNK_TOKENS,
    CachedText,
    Edit,
    InstrumentedModel,
    Layer,
    Memory,
    single_thread,
)
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError
from memory_mosaics.text.tokenizer import StreamDecoder

MAX_CHARACTERS, MAX_TOKENS, MAX_EDITS = 20_000, 4096, 64  # of a text
MAX_TOKEN_CHARACTERS = 100  # of a text typed for one token
PAGE_TOKENS = 6 * CHUNK_TOKENS
SESSIONS = 4  # kept per model
MAX_RECORDED = 6000  # memories times positions of which a file has every memory; beyond that it has one
EXAMPLES: dict[str, str] = json.loads(read_asset("examples.json"))


@dataclass(frozen=True, kw_only=True)
class Request:
    """JSON with the fields of a subclass and no others."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Look(Request):
    """A token of the text, a memory to show in detail, and the token to which contributions are measured.

    The token of the text is at `position`, or ends the first `characters` characters, or is the last one. `target` is
    a token id, a text of which the first token is meant, or None for the most probable token.
    """

    position: int | None = None
    characters: int | None = None
    memory: Memory | None = None
    target: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class TextRequest(Request):
    """A text for a model to read, with edits of its memories."""

    text: str
    model: int = 0
    session: str = ""
    edits: Sequence[Edit] = ()


@dataclass(frozen=True, kw_only=True)
class ReadRequest(TextRequest):
    """A page of the text by its number (-1: the last), or the one where the first `characters` end."""

    page: int = -1
    characters: int | None = None
    look: Look | None = None


@dataclass(frozen=True, kw_only=True)
class LookRequest(TextRequest):
    """All memories at one token."""

    look: Look


@dataclass(frozen=True, kw_only=True)
class PaneRequest(LookRequest):
    """A pane to be saved as it is."""

    page: int = -1
    pinned: bool = False
    measure: Literal["contribution", "effective", "lambda", "beta"] = "contribution"


class Session:
    """One text in one model, without and with edits."""

    def __init__(self, loaded: LoadedModel, model: InstrumentedModel):
        self.loaded, self.model = loaded, model
        self.plain, self.edited = CachedText(model), CachedText(model)
        self.texts: list[str] = []  # that each token adds; empty within a character of several tokens
        self.ends: list[int] = []  # the number of characters up to the end of each token
        self.checksums: list[int] = []  # a checksum of all tokens up to each
        self.edits: list[Edit] = []
        self.dropped = 0  # edits whose text has changed
        self.errors: list[str] = []  # why others were not made

    @property
    def current(self) -> CachedText:
        """The text with the edits, if there are any."""
        return self.edited if self.edits else self.plain

    def read(self, request: TextRequest) -> None:
        """Read the text with the edits."""
        if len(request.text) > MAX_CHARACTERS:
            raise UserError(f"the text has {len(request.text):,} characters; at most {MAX_CHARACTERS:,} are read")
        if len(request.edits) > MAX_EDITS:
            raise UserError(f"{len(request.edits)} edits are too many; at most {MAX_EDITS} can be made")
        tokenizer = self.loaded.tokenizer
        tokens = tokenizer.encode(request.text)
        limit = min(MAX_TOKENS, self.loaded.model.max_positions or MAX_TOKENS)
        if len(tokens) > limit:
            raise UserError(f"the text has {len(tokens):,} tokens; {self.loaded.name} reads at most {limit:,} here")
        if tokens != self.plain.tokens:
            decoder = StreamDecoder(tokenizer)
            self.texts = [decoder.add(token) if token < tokenizer.vocabulary else "" for token in tokens]
            self.ends = list(accumulate(map(len, self.texts)))
            self.checksums = list(accumulate(tokens, lambda crc, token: zlib.crc32(b"%d " % token, crc), initial=0))[1:]
        self.plain.update(tokens)
        self.dropped, self.errors = 0, []
        self.edits = list(dict.fromkeys(edit for one in request.edits if (edit := self._check_edit(one))))
        if self.edits or self.edited.edits:
            self.edited.update(tokens if self.edits else [], self.edits, self.plain)

    def _check_edit(self, edit: Edit) -> Edit | None:
        """Return an edit with its token and checksum, or None if its text has changed or no token was typed."""
        layer, _ = self.memory((edit.block, edit.kind, edit.head))
        peek, rewrites = self.model.info[layer].lookahead, edit.token is not None or edit.text is not None
        if rewrites and (edit.pair is None or peek is None):
            raise UserError("only pairs of the text can be rewritten")
        slots = self.model.info[layer].slots
        if edit.pair is not None and slots is not None and not 0 <= edit.pair < slots:
            raise UserError(f"there is no slot {edit.pair} among {slots}")
        if edit.pair is None or peek is None:
            return replace(edit, checksum=None)
        if edit.checksum is None:
            raise UserError(f"the edit of pair {edit.pair} has no checksum of its text")
        value = edit.pair + peek
        if not 0 <= edit.pair <= value < len(self.checksums) or self.checksums[value] != edit.checksum:
            self.dropped += 1
            return None
        if not rewrites:
            return edit
        token = self._token(edit.text or "", value) if edit.token is None else edit.token
        if token is None:
            return None
        self.check_token(token)
        return replace(edit, token=token, text=self.loaded.tokenizer.display(token))

    def _token(self, text: str, position: int) -> int | None:
        """Return the token of a typed text, with a space before it if the token at `position` has one."""
        if len(text) > MAX_TOKEN_CHARACTERS:
            raise UserError(f"a token of {len(text)} characters is too long; at most {MAX_TOKEN_CHARACTERS} are read")
        text = f" {text}" if self.texts[position].startswith(" ") and not text.startswith(" ") else text
        tokens = self.loaded.tokenizer.encode(text)
        if len(tokens) == 1:
            return tokens[0]
        parts = ", ".join(f"“{self.loaded.tokenizer.display(token)}”" for token in tokens)
        reason = f"not the {len(tokens)} of “{text}”: {parts}" if tokens else "and none was given"
        self.errors.append(f"The pair was not rewritten: it has one token, {reason}.")
        return None

    def describe(self, edit: Edit) -> dict[str, Any]:
        """Return an edit for the page, which sends it back without `words`: the words of its pair."""
        peek, words = self.model.info[edit.layer].lookahead, None
        if edit.pair is not None and peek is not None:
            words = [self.word(at) for at in sorted({edit.pair, edit.pair + peek})]
        return asdict(edit) | {"words": words}

    def word(self, position: int) -> str:
        """Return one token of the text as it is displayed by itself."""
        return self.texts[position] or self.loaded.tokenizer.display(self.plain.tokens[position])

    def token_at(self, characters: int) -> int:
        """Return the position of the token that ends the first so many characters."""
        return min(bisect_left(self.ends, characters), max(0, len(self.ends) - 1))

    def memory(self, memory: Memory) -> tuple[Layer, int]:
        """Return the layer and the head of a memory, or raise an error if there is none."""
        block, kind, head = memory
        if self.model.has(memory):
            return (block, kind), head
        raise UserError(f"there is no {kind} memory {head} in block {block} of {self.loaded.name}")

    def check_token(self, token: int) -> None:
        """Raise an error if the model has no such token."""
        if not 0 <= token < self.loaded.model.config.vocabulary:
            raise UserError(f"there is no token {token}")


class Explorer:
    """Several models, and the texts that were read with them for several pages."""

    def __init__(self, models: Sequence[LoadedModel]):
        self.models = list(models)
        self.instrumented = [InstrumentedModel(loaded.model) for loaded in models]
        self.sessions: OrderedDict[tuple[str, int], Session] = OrderedDict()
        self.lock = Lock()

    @cached_property
    def examples(self) -> dict[str, str]:
        """Example texts, those with the lowest loss of the first model first. Reading them also warms up torch."""
        losses = dict.fromkeys(EXAMPLES, 0.0)
        for name, text in EXAMPLES.items():
            for model in reversed(range(len(self.models))):
                with suppress(UserError):  # a model of few learned positions
                    request = ReadRequest(model=model, text=text[:200], look=Look(position=0))
                    found = self.read(request)["losses"][1:]
                    losses[name] = sum(found) / max(1, len(found))
        self.sessions.clear()
        return {name: EXAMPLES[name] for name in sorted(EXAMPLES, key=lambda name: losses[name])}

    @cached_property
    def description(self) -> dict[str, Any]:
        """What the page needs before anything is read. `identity` tells these models from others served later."""
        models = []
        for loaded, model in zip(self.models, self.instrumented, strict=True):
            config = loaded.model.config
            size = {"width": config.width, "blocks": config.blocks, "context": config.context}
            models.append({"name": loaded.name, **size, "layers": reading.describe_layers(model)})
        digest = hashlib.sha256(json.dumps(models).encode())
        for loaded in self.models:
            digest.update(loaded.tokenizer.fingerprint.encode())
            for weight in loaded.model.parameters():  # a training step changes all of them
                digest.update(weight.detach().flatten()[:64].float().cpu().numpy().tobytes())
        limits = {"characters": MAX_CHARACTERS, "tokens": MAX_TOKENS}
        identity = digest.hexdigest()[:16]
        return {"models": models, "limits": limits, "examples": {}, "moons": moons.limits(), "identity": identity}

    def read(self, request: ReadRequest) -> dict[str, Any]:
        """Return a page of the text, without and with the edits, and what `look` asks for at a token of that page."""
        begin = time.perf_counter()
        with self.lock:
            session = self._session(request)
            found = self._page(session, request.page, request.characters)
            look = request.look
            if found["count"] and look is not None:
                position = look.position if look.characters is None else session.token_at(look.characters)
                position = found["last"] - 1 if position is None else position
                position = min(max(position, found["first"]), found["last"] - 1)
                found["look"] = self._look(session, position, look)
            found["recomputed"] = session.plain.recomputed
        return found | {"milliseconds": round(1000 * (time.perf_counter() - begin), 1)}

    def look(self, request: LookRequest) -> dict[str, Any]:
        """Return all memories at one position, what they add to one token, and one of them in detail."""
        with self.lock:
            session = self._session(request)
            count = len(session.plain.tokens)
            position = count - 1 if request.look.position is None else request.look.position
            if not 0 <= position < count:
                raise UserError(f"position {position} is outside a text of {count} tokens")
            return self._look(session, position, request.look)

    def record(self, request: PaneRequest) -> dict[str, Any]:
        """Return a page of a text with everything that can be shown of it, for a file without a server."""
        text = {"text": request.text, "model": request.model, "session": request.session, "edits": request.edits}
        read = self.read(ReadRequest(**text, page=request.page, look=request.look))
        if read["count"] == 0:
            raise UserError("the text is empty: there is nothing to export")
        target = None if request.look.target is None else read["look"]["target"][1]
        pane = {"model": request.model, "text": request.text, "memory": request.look.memory, "target": target}
        pane |= {"read": read, "pinned": request.pinned, "measure": request.measure, "overview": [], "memories": {}}
        with self.lock:
            session = self._session(request)
            memories = self._recorded_memories(session, read["last"] - read["first"], request.look)
            for start in range(read["first"], read["last"], CHUNK_TOKENS):
                end = min(start + CHUNK_TOKENS, read["last"])
                pane["overview"] += reading.overview(session.current, start, end)
                for layer, head in memories:
                    details = reading.detail(session.current, session.loaded.tokenizer, layer, head, start, end)
                    of_memory = pane["memories"].setdefault(f"{layer[0]}.{layer[1]}.{head}", [])
                    of_memory += [self._with_words(session, layer, at, one) for at, one in enumerate(details, start)]
        return pane

    def moons(self, periods: list[int], seed: int) -> dict[str, Any]:
        """Return three moons and the predictions of both networks."""
        with self.lock:
            return moons.watch(periods, seed=seed)

    def halt(self) -> None:
        """Make what is being read fail."""
        for model in self.instrumented:
            model.stopped = True

    def _session(self, request: TextRequest) -> Session:
        """Return the session of a request, which has read its text."""
        model = request.model
        if not 0 <= model < len(self.models):
            raise UserError(f"there is no model {model}")
        name = request.session, model
        session = self.sessions.pop(name, None) or Session(self.models[model], self.instrumented[model])
        self.sessions[name] = session
        try:
            session.read(request)
        except UserError:
            raise
        except Exception:
            del self.sessions[name]  # half read
            raise
        while len(self.sessions) > SESSIONS * len(self.models):
            self.sessions.popitem(last=False)
        return session

    def _page(self, session: Session, page: int, characters: int | None) -> dict[str, Any]:
        tokens, tokenizer = session.plain.tokens, session.loaded.tokenizer
        count = len(tokens)
        pages = max(1, -(-count // PAGE_TOKENS))
        page = page if characters is None else session.token_at(characters) // PAGE_TOKENS
        page = page if 0 <= page < pages else pages - 1
        first, last = page * PAGE_TOKENS, min((page + 1) * PAGE_TOKENS, count)
        found: dict[str, Any] = {"count": count, "page": page, "pages": pages, "first": first, "last": last}
        found |= {"ids": tokens[first:last], "tokens": session.texts[first:last]}
        found["names"] = {at - first: session.word(at) for at in range(first, last) if not session.texts[at]}
        found["after"] = [session.word(last), tokens[last]] if last < count else None
        found["offset"] = session.ends[first - 1] if first else 0
        found |= {"edits": [session.describe(edit) for edit in session.edits]}
        found |= {"dropped": session.dropped, "errors": session.errors, "edited": None}
        if count:
            found |= reading.predictions(session.plain, tokenizer, first, last)
            if session.edits:
                found["edited"] = reading.predictions(session.edited, tokenizer, first, last)
        return found

    def _look(self, session: Session, position: int, look: Look) -> dict[str, Any]:
        text, tokenizer, target = session.current, session.loaded.tokenizer, look.target
        if isinstance(target, str):
            target = next(iter(tokenizer.encode(target)), None)
        if target is not None:
            session.check_token(target)
        with single_thread():
            (layers,) = reading.overview(text, position, position + 1, target)
            found: dict[str, Any] = {"position": position, "overview": layers}
            if target is None:
                target = int(text.next_tokens([position // CHUNK_TOKENS])[0].tokens[position % CHUNK_TOKENS, 0])
            found["target"] = [tokenizer.display(target), target]
            if look.memory is not None:
                layer, head = session.memory(look.memory)
                (detail,) = reading.detail(text, tokenizer, layer, head, position, position + 1)
                found["memory"] = self._with_words(session, layer, position, detail)
                peek = session.model.info[layer].lookahead
                if peek is not None:
                    found["memory"]["checksums"] = {pair: session.checksums[pair + peek] for pair, _ in detail["pairs"]}
        return found

    def _with_words(self, session: Session, layer: Layer, position: int, detail: dict[str, Any]) -> dict[str, Any]:
        """Add the words of pairs that are on another page than the position."""
        peek, page = session.model.info[layer].lookahead, position // PAGE_TOKENS
        if peek is None:
            return detail
        positions = {at for pair, _ in detail["pairs"] for at in (pair, pair + peek)}
        words = {at: session.word(at) for at in sorted(positions) if at // PAGE_TOKENS != page}
        return detail | {"distant_words": words} if words else detail

    def _recorded_memories(self, session: Session, count: int, look: Look) -> list[tuple[Layer, int]]:
        """Return the memories of which a file has everything: all, or if that is too much one."""
        model = session.model
        memories = [(layer, head) for layer in model.layers for head in range(model.info[layer].heads)]
        if count * len(memories) <= MAX_RECORDED:
            return memories
        return [session.memory(look.memory)] if look.memory else memories[:1]
