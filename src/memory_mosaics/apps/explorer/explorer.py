"""What the page requests and gets, as plain dictionaries: the app answers requests with it, `show` writes it to a file.

Every request names its model, text and edits. A session only caches what was computed for the last request, so that
little is computed again: a session that is lost costs time and nothing else.
"""

import hashlib
import json
import zlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Literal, NamedTuple

from memory_mosaics.apps.explorer import moons
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
from memory_mosaics.bounded_stores import StorePolicy
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError
from memory_mosaics.indexed_store import IndexPolicy
from memory_mosaics.memory_files import load_memories, start_state
from memory_mosaics.text.tokenizer import StreamDecoder

MAX_CHARACTERS, MAX_TOKENS, MAX_EDITS = 20_000, 4096, 64  # of a text
MAX_TOKEN_CHARACTERS = 100  # of a text typed for one token
REST_OF_CHARACTER = 3  # bytes at most that follow the first one of a character
MAX_CONTINUED = 64  # tokens added at once
PAGE_TOKENS = 6 * CHUNK_TOKENS
SESSIONS = 4  # kept per model, and one where each has a copy of memory files
AROUND = 10  # tokens shown before and after a pair of a memory file
LISTED_PAIRS = 8  # of which the page has a row
MAX_RECORDED = 6000  # memories times positions of which a file has every memory; beyond that it has one
EXAMPLES: dict[str, list[str]] = json.loads(read_asset("examples.json"))  # a text, and what comes next
MAX_TEXTS, PASSAGES = 3, 4  # texts of memory files of which passages are tried as examples, and how many of each
PASSAGE_TOKENS = 96
MOST_ADDED, MAX_TRIED = 3, 8  # memories tried at a token of an example, and pairs that are removed to see what they do
MIN_RISE = 0.2  # of the loss without the pairs that predict a token, for it to be called recalled
FIRST_RECALL = 6  # the position in an example from which on a recalled token can be shown


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
class ContinueRequest(TextRequest):
    """So many tokens that continue a text, each the most probable; the first is `token` if that is given."""

    length: int = 16
    token: int | None = None


@dataclass(frozen=True, kw_only=True)
class PaneRequest(ReadRequest):
    """A pane to be saved as it is."""

    look: Look = field(default_factory=Look)
    pinned: bool = False
    measure: Literal["contribution", "effective", "lambda", "beta", "files"] = "contribution"


class Session:
    """One text in one model, without and with edits."""

    def __init__(self, model: InstrumentedModel):
        self.model, self.tokenizer = model, model.tokenizer
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
        tokenizer = self.tokenizer
        tokens = tokenizer.encode(request.text)
        limit = min(MAX_TOKENS, self.model.model.max_positions or MAX_TOKENS)
        if len(tokens) > limit:
            raise UserError(f"the text has {len(tokens):,} tokens; {self.model.name} reads at most {limit:,} here")
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
        self.check_memory((edit.block, edit.kind, edit.head))
        info, rewrites = self.model.info[edit.layer], edit.token is not None or edit.text is not None
        if rewrites and (edit.pair is None or info.peek is None):
            raise UserError("only pairs of the text can be rewritten")
        if edit.pair is not None and info.slots is not None and not 0 <= edit.pair < info.slots:
            raise UserError(f"there is no slot {edit.pair} among {info.slots}")
        if edit.pair is None or info.peek is None:
            return replace(edit, checksum=None)
        if edit.pair < 0 and self.model.memory is not None:
            if rewrites or edit.pair < -self.model.before:
                raise UserError(f"pair {edit.pair} is of a memory file: such a pair can be removed, but not rewritten")
            return replace(edit, checksum=None)
        if edit.checksum is None:
            raise UserError(f"the edit of pair {edit.pair} has no checksum of its text")
        value = edit.pair + info.peek
        if not 0 <= edit.pair <= value < len(self.checksums) or self.checksums[value] != edit.checksum:
            self.dropped += 1
            return None
        if not rewrites:
            return edit
        token = self._token(edit.text or "", value) if edit.token is None else edit.token
        if token is None:
            return None
        self.check_token(token)
        return replace(edit, token=token, text=self.tokenizer.display(token))

    def _token(self, text: str, position: int) -> int | None:
        """Return the token of a typed text, with a space before it if the token at `position` has one."""
        if len(text) > MAX_TOKEN_CHARACTERS:
            raise UserError(f"a token of {len(text)} characters is too long; at most {MAX_TOKEN_CHARACTERS} are read")
        text = f" {text}" if self.texts[position].startswith(" ") and not text.startswith(" ") else text
        tokens = self.tokenizer.encode(text)
        if len(tokens) == 1:
            return tokens[0]
        parts = ", ".join(f"“{self.tokenizer.display(token)}”" for token in tokens)
        reason = f"not the {len(tokens)} of “{text}”: {parts}" if tokens else "and none was given"
        self.errors.append(f"The pair was not rewritten: it has one token, {reason}.")
        return None

    def page(self, page: int, characters: int | None) -> dict[str, Any]:
        """Return a page of the text by its number, or the one where the first `characters` end."""
        tokens, count = self.plain.tokens, len(self.plain.tokens)
        pages = max(1, -(-count // PAGE_TOKENS))
        page = page if characters is None else self.token_at(characters) // PAGE_TOKENS
        page = page if 0 <= page < pages else pages - 1
        first, last = page * PAGE_TOKENS, min((page + 1) * PAGE_TOKENS, count)
        found: dict[str, Any] = {"count": count, "page": page, "pages": pages, "first": first, "last": last}
        found |= {"ids": tokens[first:last], "tokens": self.texts[first:last]}
        found["names"] = {at - first: self.word(at) for at in range(first, last) if not self.texts[at]}
        found["after"] = [self.word(last), tokens[last]] if last < count else None
        found["offset"] = self.ends[first - 1] if first else 0
        found |= {"edits": [self._describe(edit) for edit in self.edits], "edited": None}
        found |= {"dropped": self.dropped, "errors": self.errors, "recomputed": self.plain.recomputed}
        if count:
            found |= self.plain.predictions(first, last)
            if self.edits:
                found["edited"] = self.edited.predictions(first, last)
        return found

    def look(self, position: int, look: Look) -> dict[str, Any]:
        """Return all memories at one position, what they add to one token, and one of them in detail."""
        target = look.target
        if isinstance(target, str):
            target = next(iter(self.tokenizer.encode(target)), None)
        if target is not None:
            self.check_token(target)
        with single_thread():
            if target is None:
                target = int(self.current.most_probable(position, position + 1))
            (overview,) = self.current.overview(position, position + 1, target)
            found: dict[str, Any] = {"position": position, "overview": overview}
            found["target"] = [self.tokenizer.display(target), target]
            if look.memory is not None:
                self.check_memory(look.memory)
                (found["memory"],) = self._detail(look.memory, position, position + 1)
                peek = self.model.info[look.memory[:2]].peek
                if peek is not None:
                    pairs = [pair for pair, *_ in found["memory"]["pairs"]]
                    found["memory"]["checksums"] = {pair: self.checksums[pair + peek] for pair in pairs if pair >= 0}
        return found

    def continuation(self, length: int, token: int | None) -> str:
        """Return the text of the tokens that continue this one, with its edits."""
        if not 1 <= length <= MAX_CONTINUED:
            raise UserError(f"length must be from 1 to {MAX_CONTINUED}, not {length}")
        if not self.plain.tokens:
            raise UserError("the text is empty: there is nothing to continue")
        if token is not None:
            self.check_token(token)
        tokens, limit = list(self.plain.tokens), min(MAX_TOKENS, self.model.model.max_positions or MAX_TOKENS)
        text, count = CachedText(self.model), len(tokens)
        continued = lambda: self.tokenizer.decode(tokens[count:]).rstrip("\ufffd")  # without a part of a character  # noqa: E731
        while len(tokens) < min(count + length + (0 if continued() else REST_OF_CHARACTER), limit):
            text.update(tokens, self.edits, self.plain)
            following = int(text.most_probable(len(tokens) - 1, len(tokens))) if token is None else token
            if following == self.tokenizer.end_of_text:
                break
            tokens, token = [*tokens, following], None
        return continued()

    def record(self, first: int, last: int, memory: Memory | None) -> dict[str, Any]:
        """Return everything that can be shown of a page: of all memories, or if that is too much of one in detail."""
        memories = [(*layer, head) for layer, info in self.model.info.items() for head in range(info.heads)]
        if (last - first) * len(memories) > MAX_RECORDED:
            memories = [memory] if memory else memories[:1]
        found: dict[str, Any] = {"overview": [], "memories": {".".join(map(str, one)): [] for one in memories}}
        for start, end in self.current.spans(first, last):
            found["overview"] += self.current.overview(start, end)
            for one, details in zip(memories, found["memories"].values(), strict=True):
                details += self._detail(one, start, end)
        return found

    def _detail(self, memory: Memory, first: int, last: int) -> list[dict[str, Any]]:
        """Return one memory at the times in [first, last), with the words of pairs that are on another page.

        Of the heaviest pairs of memory files it has their place in these too.
        """
        details, peek = self.current.detail(memory, first, last), self.model.info[memory[:2]].peek
        for position, detail in enumerate(details if peek is not None else (), first):
            pairs = [pair for pair, *_ in detail["pairs"]]
            positions = {at for pair in pairs if pair >= 0 for at in (pair, pair + peek)}
            words = {at: self.word(at) for at in sorted(positions) if at // PAGE_TOKENS != position // PAGE_TOKENS}
            detail |= {"distant_words": words} if words else {}
            places = {pair: self._place(memory[:2], pair) for pair in pairs[:LISTED_PAIRS] if pair < 0}
            detail |= {"places": places} if places else {}
        return details

    def _place(self, layer: Layer, pair: int) -> dict[str, Any]:
        """Return where a pair of a memory file is: its text, the position of its key, and the words around."""
        texts, peek = self.model.memory, self.model.info[layer].peek or 0
        assert texts is not None
        around = texts.excerpt(pair + self.model.before, AROUND, self.plain.tokens[: AROUND + 1])
        decode, tokens = self.tokenizer.decode, [around.before[-1], *around.after]
        found = {"text": texts.texts.index(around.text), "position": around.position}
        found |= {
            "before": decode(around.before[:-1]),
            "words": [self.tokenizer.display(tokens[at]) for at in sorted({0, peek})],
        }
        return found | {"between": decode(tokens[1:peek]), "after": decode(tokens[peek + 1 :])}

    def _pair_words(self, layer: Layer, pair: int) -> list[str]:
        """Return the words of a pair: its key and its value, or one where peek is 0."""
        if pair < 0:
            return self._place(layer, pair)["words"]
        return [self.word(at) for at in sorted({pair, pair + (self.model.info[layer].peek or 0)})]

    def _describe(self, edit: Edit) -> dict[str, Any]:
        """Return an edit for the page, which sends it back without `words`: the words of its pair."""
        of_text = edit.pair is not None and self.model.info[edit.layer].peek is not None
        return asdict(edit) | {"words": self._pair_words(edit.layer, edit.pair or 0) if of_text else None}

    def word(self, position: int) -> str:
        """Return one token of the text as it is displayed by itself."""
        return self.texts[position] or self.tokenizer.display(self.plain.tokens[position])

    def token_at(self, characters: int) -> int:
        """Return the position of the token that ends the first so many characters."""
        return min(bisect_left(self.ends, characters), max(0, len(self.ends) - 1))

    def position(self, look: Look, default: int) -> int:
        """Return the position of the token that is looked at, by default this one."""
        if look.characters is not None:
            return self.token_at(look.characters)
        return default if look.position is None else look.position

    def check_memory(self, memory: Memory) -> None:
        """Raise an error if the model has no such memory."""
        if not self.model.has(memory):
            block, kind, head = memory
            raise UserError(f"there is no {kind} memory {head} in block {block} of {self.model.name}")

    def check_token(self, token: int) -> None:
        """Raise an error if the model has no such token."""
        if not 0 <= token < self.model.model.config.vocabulary:
            raise UserError(f"there is no token {token}")


class Explorer:
    """Several models, and the texts that were read with them for several pages."""

    def __init__(self, models: Sequence[LoadedModel], *, memory: Sequence[Path] = (), store: str | None = None):
        if memory and len(models) > 1:
            raise UserError("--memory holds what one model has read; explore that model alone")
        _refuse_index(None if store is None else StorePolicy.parse(store))  # before it is built
        texts = load_memories(models[0], memory, store) if memory else None
        _refuse_index(texts and texts.policy)
        self.models = [InstrumentedModel(loaded, state=start_state(loaded, (), store)) for loaded in models]
        if texts:
            self.models[0].name += " without memory files"  # to compare with
            self.models.insert(0, InstrumentedModel(models[0], state=texts.state(models[0].model), memory=texts))
        self.max_sessions = len(self.models) * (1 if memory else SESSIONS)
        self.sessions: OrderedDict[tuple[str, int], Session] = OrderedDict()
        self.lock = Lock()

    @cached_property
    def examples(self) -> dict[str, Any]:
        """Example `texts` by name, best first, and an `opening`: a text before a token that the first model recalls.

        It expects that token rightly, since a memory retrieves a pair with it; of a memory file, if there are any.
        Reading the examples also warms up torch.
        """
        found: dict[str, tuple[float, float, str, Recall | None]] = {}
        examples = [(name, text, answer) for name, (text, answer) in EXAMPLES.items()]
        for name, text, answer in [*self._passages()] or examples:
            loss, recall = inf, None
            with suppress(UserError):  # a model of few learned positions
                loss, recall = _try_example(self.models[0], text, answer)
            score = recall.score if recall else 0.0
            if name not in found or score > found[name][0]:
                found[name] = score, -loss, text, recall
        order = sorted(found, key=lambda name: found[name][:2], reverse=True)
        recall = found[order[0]][3]
        opening = recall and {"text": recall.text, "memory": recall.memory}
        return {"texts": {name: found[name][2] for name in order}, "opening": opening}

    def _passages(self) -> Iterator[tuple[str, str, str]]:
        """Passages of memory files: a name, a text and the word that follows it."""
        model, memory, start = self.models[0], self.models[0].memory, 0
        if memory is None:
            return
        for text in memory.texts[:MAX_TEXTS]:
            for number in range(PASSAGES):
                at = start + number * text["read"] // PASSAGES
                tokens = memory.tokens[at : min(at + PASSAGE_TOKENS, start + text["read"])].tolist()
                passage = model.tokenizer.decode(tokens).strip("\ufffd")
                _, _, sentence = passage.partition(". ")  # from its second sentence on, if there are two
                words = (sentence.strip() or passage).rsplit(maxsplit=1)
                if words:
                    yield f"from {text['name']}", words[0], f" {words[-1]}"
            start += text["read"]

    @cached_property
    def description(self) -> dict[str, Any]:
        """What the page needs before anything is read. `identity` tells these models from others served later."""
        models = []
        for model in self.models:
            size = {"width": model.model.config.width, "blocks": model.model.config.blocks}
            texts = [] if model.memory is None else model.memory.texts
            read = {"texts": texts, "pairs": model.before, "store": model.store}
            models.append({"name": model.name, **size, **read, "layers": model.describe_layers()})
        digest = hashlib.sha256(json.dumps(models).encode())
        for model in self.models:
            digest.update(model.tokenizer.fingerprint.encode())
            for weight in model.model.parameters():  # a training step changes all of them
                digest.update(weight.detach().flatten()[:64].float().cpu().numpy().tobytes())
        found = {"models": models, "identity": digest.hexdigest()[:16], "moons": moons.limits()}
        return found | {"limits": {"characters": MAX_CHARACTERS}, "examples": None}

    def read(self, request: ReadRequest) -> dict[str, Any]:
        """Return a page of the text, without and with the edits, and what `look` asks for at a token of that page."""
        with self.lock:
            return self._read(self._session(request), request)

    def look(self, request: LookRequest) -> dict[str, Any]:
        """Return all memories at one position, what they add to one token, and one of them in detail."""
        with self.lock:
            session = self._session(request)
            count = len(session.plain.tokens)
            position = session.position(request.look, count - 1)
            if not 0 <= position < count:
                raise UserError(f"position {position} is outside a text of {count} tokens")
            return session.look(position, request.look)

    def continuation(self, request: ContinueRequest) -> dict[str, str]:
        """Return the text that continues a text."""
        with self.lock:
            return {"text": self._session(request).continuation(request.length, request.token)}

    def record(self, request: PaneRequest) -> dict[str, Any]:
        """Return a page of a text with everything that can be shown of it, for a file without a server."""
        with self.lock:
            session, look = self._session(request), request.look
            read = self._read(session, request)
            if read["count"] == 0:
                raise UserError("the text is empty: there is nothing to export")
            target = None if look.target is None else read["look"]["target"][1]
            pane = {"model": request.model, "text": request.text, "memory": look.memory, "target": target}
            pane |= {"read": read, "pinned": request.pinned, "measure": request.measure}
            return pane | session.record(read["first"], read["last"], look.memory)

    def moons(self, periods: list[int], seed: int) -> dict[str, Any]:
        """Return three moons and the predictions of both networks."""
        with self.lock:
            return moons.watch(periods, seed=seed)

    def halt(self) -> None:
        """Make what is being read fail."""
        for model in self.models:
            model.stopped = True

    def _read(self, session: Session, request: ReadRequest) -> dict[str, Any]:
        found, look = session.page(request.page, request.characters), request.look
        if found["count"] and look is not None:
            first, last = found["first"], found["last"] - 1
            found["look"] = session.look(min(max(session.position(look, last), first), last), look)
        return found

    def _session(self, request: TextRequest) -> Session:
        """Return the session of a request, which has read its text."""
        if not 0 <= request.model < len(self.models):
            raise UserError(f"there is no model {request.model}")
        name = request.session, request.model
        session = self.sessions.pop(name, None) or Session(self.models[request.model])
        self.sessions[name] = session
        try:
            session.read(request)
        except UserError:
            raise
        except Exception:
            del self.sessions[name]  # half read
            raise
        while len(self.sessions) > self.max_sessions:
            self.sessions.popitem(last=False)
        return session


def _refuse_index(policy: Any) -> None:
    if isinstance(policy, IndexPolicy):
        raise UserError("the explorer shows the weights of all pairs, and an index reads few: take --store exact")


class Recall(NamedTuple):
    """The beginning of a text after which a token is expected rightly, how telling that is, and due to which memory."""

    score: float
    text: str
    memory: Memory


def _try_example(model: InstrumentedModel, text: str, answer: str) -> tuple[float, Recall | None]:
    """Return the mean loss of a text, and where a token is expected rightly since a memory recalls it.

    That is where the loss rises most without the pairs that predict it; at the end of the text, if it is so there. If
    no pair matters anywhere, it is the word with the smallest loss, and the memory that adds most to it.
    """
    tokenizer, reading = model.tokenizer, CachedText(model)
    tokens = [*tokenizer.encode(text), *tokenizer.encode(answer)[:1]]
    reading.update(tokens)
    losses = reading.predictions(0, len(tokens))["losses"]
    end, recalls, others = len(tokens) - 2, [], []
    for first, last in reading.spans(min(FIRST_RECALL, end), end + 1):
        expected, overview = reading.most_probable(first, last).tolist(), reading.overview(first, last)
        for at in (at for at in range(first, last) if expected[at - first] == tokens[at + 1]):
            layers = zip(model.info, overview[at - first], strict=False)
            added = [
                (value, (*layer, head)) for layer, here in layers for head, value in enumerate(here["contribution"])
            ]
            added.sort(reverse=True)
            for value, memory in added[:MOST_ADDED]:
                pairs = _recalled_pairs(reading, memory, at)
                recalls.append((value * sum(pairs.values()), at, memory, list(pairs)))
            if added and sum(map(str.isalpha, tokenizer.display(tokens[at + 1]))) > 2:
                others.append((losses[at + 1], at, added[0][1]))
    found = [(1 / (1 + loss), at, memory) for loss, at, memory in sorted(others)[:1]]
    heads = [
        (*layer, head) for layer, info in model.info.items() if info.peek is not None for head in range(info.heads)
    ]
    for score, at, _, pairs in sorted(recalls, reverse=True)[:MAX_TRIED]:
        rise = _rise(reading, heads, pairs, at)  # in all memories, since several may recall the same
        if score > 0 and rise > MIN_RISE:
            own = [(_rise(reading, [one], pairs, at), one) for one in heads if _recalled_pairs(reading, one, at)]
            found.append((1 + rise + (1000 if at == end else 0), at, max(own)[1]))
    texts = {at: tokenizer.decode(tokens[: at + 1]) for _, at, _ in found}
    whole = [one for one in found if tokenizer.encode(texts[one[1]]) == tokens[: one[1] + 1]]
    score, at, memory = max(whole, default=(0.0, 0, None))
    return sum(losses[1:]) / max(1, end + 1), None if memory is None else Recall(score, texts[at], memory)


def _rise(reading: CachedText, memories: Sequence[Memory], pairs: Sequence[int], at: int) -> float:
    """Return how much the loss of the token after `at` rises without some pairs in some memories."""
    edits = [Edit(block=block, kind=kind, head=head, pair=pair) for block, kind, head in memories for pair in pairs]
    without = CachedText(reading.model)
    without.update(reading.tokens[: at + 2], edits)
    return without.predictions(at + 1, at + 2)["losses"][0] - reading.predictions(at + 1, at + 2)["losses"][0]


def _recalled_pairs(reading: CachedText, memory: Memory, at: int) -> dict[int, float]:
    """Return the pairs of a memory that predict the token after `at`, with weights, if the heaviest is one of them.

    With memory files, the heaviest must be one of theirs.
    """
    model, peek = reading.model, reading.model.info[memory[:2]].peek
    (detail,) = reading.detail(memory, at, at + 1)

    def value(pair: int) -> int | None:
        assert peek is not None
        if pair >= 0:
            return reading.tokens[pair + peek]
        assert model.memory is not None
        place = model.memory.excerpt(pair + model.before, peek, reading.tokens[: peek + 1])
        return [place.before[-1], *place.after][peek]

    pairs = {pair: weight for pair, weight, *_ in detail["pairs"][:LISTED_PAIRS]}
    heaviest = next(iter(pairs), None)
    if heaviest is None or peek is None or (model.memory is not None and heaviest >= 0):
        return {}
    found = {pair: weight for pair, weight in pairs.items() if value(pair) == reading.tokens[at + 1]}
    return found if heaviest in found else {}
