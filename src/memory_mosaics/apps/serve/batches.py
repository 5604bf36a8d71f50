"""Rows of many requests decoded side by side, in a thread of its own. Knows ids, not text, nor what a request is.

A row that comes while others are on their way reads its prompt and joins them; one that has ended leaves at once. So
whoever comes late does not wait for who came early, and a step of the model serves all of them. States that cannot be
laid side by side, as those of mixers that grow without room, stay in batches of their own and take turns.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memory_mosaics.decoding import Decoder, Sampler
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.shapes import Int

READ_AT_ONCE = 16_384  # tokens of prompts, padding among them: reading more together is not faster, and needs memory
ALIKE = 2  # rows with more than so many times the room of others do not join them: all would pay for it
STOPPING = "the server is being stopped"


class Likely(NamedTuple):
    """The log-probability of the token drawn, and the most probable tokens with theirs."""

    log: float
    top: list[tuple[int, float]]


@dataclass(eq=False, kw_only=True)
class Row:
    """One text to write. `take` gets each token and says whether to go on; `fail` gets what went wrong instead."""

    prompt: Int[Tensor, " T"]
    length: int
    sampler: Sampler
    generator: torch.Generator
    top: int | None = None  # how many of the most probable tokens to tell with each; None tells nothing
    take: Callable[[int, Likely | None], bool]
    fail: Callable[[BaseException], None]
    ended: bool = False  # also set from outside, by who does not want it any more


class Busy(Exception):
    """There are as many requests as there may be."""


class Stopped(Exception):
    """Nothing is decoded any more."""


class Engine:
    """Takes requests, each a few rows, and decodes at most `rows` rows at a time, one of each request in turn."""

    def __init__(self, model: LanguageModel, *, vocabulary: int, rows: int = 16, requests: int = 64):
        self.model, self.vocabulary, self.rows, self.requests = model, vocabulary, rows, requests
        self.waiting: deque[deque[Row]] = deque()
        self.inside: list[Sequence[Row]] = []
        self.batches: list[Batch] = []
        self.news = threading.Condition()
        self.stopped = False
        self.thread = threading.Thread(target=self._work, name="decoding", daemon=True)
        self.thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """Queue a request, or raise Busy or Stopped."""
        with self.news:
            self.check()
            self.inside.append(rows)
            self.waiting.append(deque(rows))
            self.news.notify()

    def check(self) -> None:
        """Raise what `submit` would raise now."""
        if self.stopped:
            raise Stopped(STOPPING)
        if self.load >= self.requests:
            raise Busy

    @property
    def load(self) -> int:
        """How many requests are not finished."""
        with self.news:
            self.inside = [rows for rows in self.inside if not all(row.ended for row in rows)]
            return len(self.inside)

    def halt(self) -> None:
        """Decode no more, after the step that is being taken. What is not finished fails."""
        with self.news:
            self.stopped = True
            self.news.notify()

    def stop(self) -> None:
        """Halt, and wait for it."""
        self.halt()
        self.thread.join()

    def _work(self) -> None:
        try:
            with torch.no_grad():
                while not self.stopped:
                    self._turn()
        finally:
            self.halt()  # nothing is queued from here on
            with _failing([row for request in self.inside for row in request if not row.ended]):
                raise Stopped(STOPPING)

    def _turn(self) -> None:
        """Begin the rows that there is a place for, and decode a token of all."""
        with self.news:
            self.news.wait_for(lambda: self.waiting or self.batches or self.stopped)
            new = self._next()
        for rows in _of_a_length(new):
            with _failing(rows):
                self._add(Batch(self.model, rows, self.vocabulary))
        for batch in self.batches:
            with _failing(batch.live):
                batch.step()
        self.batches = [batch for batch in self.batches if batch.live]

    def _next(self) -> list[Row]:
        """The rows to begin now: one of each request in turn, as far as there is room."""
        new: list[Row] = []
        free = self.rows - sum(len(batch.live) for batch in self.batches)
        while self.waiting and len(new) < free:
            request = self.waiting.popleft()
            row = request.popleft()
            if request:
                self.waiting.append(request)
            if not row.ended:
                new.append(row)
        return new

    def _add(self, new: "Batch") -> None:
        if not any(batch.join(new) for batch in self.batches):
            self.batches.append(new)


class Batch:
    """Rows that are decoded by the same steps. A place without a row repeats another one: nobody looks at it."""

    def __init__(self, model: LanguageModel, rows: Sequence[Row], vocabulary: int):
        self.places: list[Row | None] = list(rows)
        self.vocabulary = vocabulary
        self.decoder = Decoder(model, [row.prompt for row in rows])
        self.counts = [self.decoder.num_tokens] * len(rows)  # of tokens that each place has read, padding among them
        # On the CPU a step costs as much as there is room: it grows as it is needed. On CUDA each growth is recorded.
        self.decoder.reserve(max(row.length for row in rows) if self.decoder.device.type == "cuda" else 1)
        if self._size(len(rows)) > len(rows):
            self._settle()

    @property
    def live(self) -> list[Row]:
        return [row for row in self.places if row is not None and not row.ended]

    def step(self) -> None:
        """Draw a token of every row, tell it, and read it where the row goes on."""
        tokens = self._draw()
        drawn = tokens.tolist()
        for place, row in enumerate(self.places):
            if row is not None and not row.ended:
                likely = None if row.top is None else self._likely(place, drawn[place], row.top)
                if not row.take(
                    drawn[place], likely
                ):  # no assignment otherwise: it may be ended from outside meanwhile
                    row.ended = True
        if any(row is not None and row.ended for row in self.places):
            tokens = tokens[self._settle()]
        if self.places:
            self.decoder.step(tokens)
            self.counts = [count + 1 for count in self.counts]

    def join(self, other: "Batch") -> bool:
        """Take over the rows of another batch, if its states can lie beside those of this one."""
        rooms = self.decoder.capacity, other.decoder.capacity
        if not self.live or not min(rooms) or max(rooms) > ALIKE * min(rooms):
            return False
        mine, theirs = (each.decoder.model.to_fixed_capacity(each.decoder.state, max(rooms)) for each in (self, other))
        if not _beside(mine, theirs):
            return False
        decoder = self.decoder
        decoder.state, decoder.capacity = _joined(mine, theirs), max(rooms)
        decoder.logits = torch.cat([decoder.logits, other.decoder.logits])
        decoder.tokens = torch.cat([decoder.tokens, other.decoder.tokens])
        decoder.replay = None  # was of other tensors
        self.places += other.places
        self.counts += other.counts
        self._settle()
        return True

    def _settle(self) -> Int[Tensor, " places"]:
        """Leave out rows that have ended, and give each place to a row. Where each place was is returned."""
        kept = [place for place, row in enumerate(self.places) if row is not None and not row.ended]
        size = self._size(len(kept))
        order = kept + kept[:1] * (size - len(kept))
        where = torch.tensor(order, dtype=torch.long, device=self.decoder.device)
        if kept and order != list(range(len(self.places))):
            self.decoder.select(where)
        self.places = [self.places[place] for place in kept] + [None] * (size - len(kept))
        self.counts = [self.counts[place] for place in order]
        self.decoder.num_tokens = max(self.counts, default=0)  # room is for those that are still here
        return where

    def _size(self, rows: int) -> int:
        """Places for so many rows: on CUDA a power of two, since each other number has a step to be recorded."""
        return rows if self.decoder.device.type != "cuda" or rows < 2 else 1 << (rows - 1).bit_length()

    def _draw(self) -> Int[Tensor, " places"]:
        logits = self.decoder.logits[:, : self.vocabulary]
        tokens = logits.argmax(dim=-1)
        kinds: dict[Sampler, list[int]] = {}
        for place, row in enumerate(self.places):
            if row is not None and not row.ended and row.sampler.temperature > 0:
                kinds.setdefault(row.sampler, []).append(place)
        for sampler, places in kinds.items():
            own = [row.generator for row in (self.places[place] for place in places) if row is not None]
            tokens[places] = sampler(logits[places], own)
        return tokens

    def _likely(self, place: int, token: int, top: int) -> Likely:
        logs = self.decoder.logits[place, : self.vocabulary].float().log_softmax(dim=-1)
        best = logs.topk(min(top, len(logs)))
        return Likely(float(logs[token]), list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))


@contextmanager
def _failing(rows: Sequence[Row]) -> Iterator[None]:
    """What goes wrong within is told to these rows, and ends them; the others go on."""
    try:
        yield
    except Exception as error:
        for row in rows:
            row.ended = True
            row.fail(error)


def _of_a_length(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """In groups whose prompts are about as long: none is filled up to more than twice its length, and a few tokens."""
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.prompt)):
        if group and len(row.prompt) > min(2 * len(group[0].prompt) + 32, READ_AT_ONCE // (len(group) + 1)):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _beside(one: Any, other: Any) -> bool:
    """Whether two states differ in nothing but the number of their rows."""
    if isinstance(one, Tensor):
        return one.dim() > 0 and one.shape[1:] == other.shape[1:] and one.dtype == other.dtype
    return len(one) == len(other) and all(_beside(*parts) for parts in zip(one, other, strict=True))


def _joined(one: Any, other: Any) -> Any:
    if isinstance(one, Tensor):
        return torch.cat([one, other])
    return tuple(_joined(*parts) for parts in zip(one, other, strict=True))
