"""Continuous batching: rows of many requests decoded together, in a thread of its own. Works on token ids, not on text.

A row that arrives while others are decoded reads its prompt and joins them, and a finished row leaves at once. So a
late request does not wait for an early one, and one step of the model serves all. States that cannot be concatenated,
such as those of mixers without a fixed capacity, stay in batches of their own, which take turns.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memory_mosaics.decoding import Decoder, Sampler
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.shapes import Float, Int
from memory_mosaics.stores import map_state

MAX_PREFILL_TOKENS = 16_384  # with padding: reading more prompts together is not faster, and needs memory
SCORED_TOKENS = 512  # of a prompt, whose logits are in memory at once
MAX_CAPACITY_RATIO = 2  # batches of more different capacities are not merged: every row would pay for the largest
STOPPED = "the server is being stopped"


class TokenLogprobs(NamedTuple):
    """The log-probability of the sampled token, and the most probable tokens with theirs."""

    sampled: float
    top: list[tuple[int, float]]


@dataclass(eq=False, kw_only=True)
class Penalties:
    """What is added to the logits of a row: a bias, and less for tokens that it has generated, once and each time."""

    bias: dict[int, float]
    presence: float
    frequency: float
    counts: Counter[int] = field(default_factory=Counter)

    def apply(self, logits: Float[Tensor, " vocabulary"]) -> Float[Tensor, " vocabulary"]:
        """Return the logits to sample from."""
        added = self.bias | {
            token: self.bias.get(token, 0.0) - self.presence - self.frequency * count
            for token, count in self.counts.items()
        }
        index = torch.tensor(list(added), dtype=torch.long, device=logits.device)
        return logits.index_add(0, index, torch.tensor(list(added.values())).to(logits))


@dataclass(eq=False, kw_only=True)
class Row:
    """One sequence to generate. `on_token` gets each token and returns whether more follow; `on_error` gets errors.

    `on_prompt`, if given, gets the log-probabilities of the prompt's tokens from the second on, if these are wanted,
    and returns whether any are to be generated.
    """

    prompt: Int[Tensor, " T"]
    length: int
    sampler: Sampler
    generator: torch.Generator
    logprobs: int | None = None  # how many of the most probable tokens to report with each; None reports nothing
    penalties: Penalties | None = None
    on_prompt: Callable[[list[TokenLogprobs] | None], bool] | None = None
    on_token: Callable[[int, TokenLogprobs | None], bool]
    on_error: Callable[[BaseException], None]
    finished: bool = False  # also set from other threads, to cancel the row


class QueueFull(Exception):
    """There are as many unfinished requests as allowed."""

    status = 429  # of the HTTP response


class EngineStopped(Exception):
    """Nothing is decoded any more."""

    status = 503


class Engine:
    """Decode at most `max_rows` rows at a time, one of each request in turn, of at most `max_requests` requests."""

    def __init__(self, model: LanguageModel, *, vocabulary: int, max_rows: int = 16, max_requests: int = 64):
        self.model, self.vocabulary, self.max_rows, self.max_requests = model, vocabulary, max_rows, max_requests
        self.waiting: deque[deque[Row]] = deque()
        self.requests: list[Sequence[Row]] = []
        self.batches: list[Batch] = []
        self.changed = threading.Condition()
        self.stopped = False
        self.thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self.thread.start()

    def submit(self, rows: Sequence[Row]) -> None:
        """Queue the rows of a request, or raise QueueFull or EngineStopped."""
        with self.changed:
            self.check()
            self.requests.append(rows)
            self.waiting.append(deque(rows))
            self.changed.notify()

    def check(self) -> None:
        """Raise what `submit` would raise now."""
        if self.stopped:
            raise EngineStopped(STOPPED)
        if self.unfinished >= self.max_requests:
            raise QueueFull(f"{self.max_requests} requests are unfinished, the maximum; retry later")

    @property
    def unfinished(self) -> int:
        """The number of unfinished requests."""
        with self.changed:
            self.requests = [rows for rows in self.requests if not all(row.finished for row in rows)]
            return len(self.requests)

    def halt(self) -> None:
        """Stop after the current step. Unfinished rows fail."""
        with self.changed:
            self.stopped = True
            self.changed.notify()

    def stop(self) -> None:
        """Halt, and wait for the thread to end."""
        self.halt()
        self.thread.join()

    def _run(self) -> None:
        try:
            with torch.no_grad():
                while not self.stopped:
                    self._step()
        finally:
            self.halt()  # nothing is queued from here on
            with _report_errors([row for request in self.requests for row in request if not row.finished]):
                raise EngineStopped(STOPPED)

    def _step(self) -> None:
        """Start waiting rows as far as `max_rows` allows, and decode one token of every row."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.batches or self.stopped)
            started = self._next_rows()
        for row in started:
            with _report_errors([row]):
                if row.on_prompt is not None and not row.on_prompt(self._score(row)):
                    row.finished = True
        for rows in _group_by_length([row for row in started if not row.finished]):
            with _report_errors(rows):
                batch = Batch(self.model, rows, self.vocabulary)
                if not any(other.merge(batch) for other in self.batches):
                    self.batches.append(batch)
        for batch in self.batches:
            with _report_errors(batch.live):
                batch.step()
        self.batches = [batch for batch in self.batches if batch.live]

    def _score(self, row: Row) -> list[TokenLogprobs] | None:
        """Return the log-probabilities of the tokens of a prompt from the second on, or None if none are wanted."""
        scored: list[TokenLogprobs] = []
        if row.logprobs is None or len(row.prompt) < 2:
            return None if row.logprobs is None else scored
        tokens = row.prompt.to(self.model.embedding.weight.device)
        features = self.model.features(self.model.embedding(tokens[None, :-1]))[0][0]
        for part, following in zip(features.split(SCORED_TOKENS), tokens[1:].split(SCORED_TOKENS), strict=True):
            scored += logprobs_of(self.model.logits(part)[:, : self.vocabulary], following.tolist(), row.logprobs)
        return scored

    def _next_rows(self) -> list[Row]:
        """Return the rows to start now, one of each request in turn."""
        rows: list[Row] = []
        free = self.max_rows - sum(len(batch.live) for batch in self.batches)
        while self.waiting and len(rows) < free:
            request = self.waiting.popleft()
            row = request.popleft()
            if request:
                self.waiting.append(request)
            if not row.finished:
                rows.append(row)
        return rows


class Batch:
    """Rows that are decoded by the same steps. An empty slot (None) repeats another row, and its output is ignored."""

    def __init__(self, model: LanguageModel, rows: Sequence[Row], vocabulary: int):
        self.slots: list[Row | None] = list(rows)
        self.vocabulary = vocabulary
        self.decoder = Decoder(model, [row.prompt for row in rows])
        self.counts = [self.decoder.num_tokens] * len(rows)  # tokens read per slot, with padding
        # On the CPU a step costs as much as the capacity, which grows as needed. On CUDA each growth needs a new graph.
        self.decoder.reserve(max(row.length for row in rows) if self.decoder.device.type == "cuda" else 1)
        if self._size(len(rows)) > len(rows):
            self._compact()

    @property
    def live(self) -> list[Row]:
        """The rows that are not finished."""
        return [row for row in self.slots if row is not None and not row.finished]

    def step(self) -> None:
        """Sample a token of every row, report it, and feed it to the model where the row continues."""
        tokens = self._sample()
        sampled = tokens.tolist()
        for slot, row in enumerate(self.slots):
            if row is not None and not row.finished:
                logprobs = None if row.logprobs is None else self._logprobs(slot, sampled[slot], row.logprobs)
                if row.penalties is not None:
                    row.penalties.counts[sampled[slot]] += 1
                if not row.on_token(sampled[slot], logprobs):
                    row.finished = True  # never set to False: another thread may have cancelled the row meanwhile
        if any(row is not None and row.finished for row in self.slots):
            tokens = tokens[self._compact()]
        if self.slots:
            self.decoder.step(tokens)
            self.counts = [count + 1 for count in self.counts]

    def merge(self, other: "Batch") -> bool:
        """Take over the rows of another batch if their states can be concatenated; return whether they were."""
        capacities = self.decoder.capacity, other.decoder.capacity
        if not self.live or not min(capacities) or max(capacities) > MAX_CAPACITY_RATIO * min(capacities):
            return False
        states = [each.decoder.model.to_fixed_capacity(each.decoder.state, max(capacities)) for each in (self, other)]
        if not _can_concatenate(*states):
            return False
        decoder = self.decoder
        decoder.state, decoder.capacity = map_state(lambda *rows: torch.cat(rows), *states), max(capacities)
        decoder.logits = torch.cat([decoder.logits, other.decoder.logits])
        decoder.tokens = torch.cat([decoder.tokens, other.decoder.tokens])
        decoder.replay = None  # was captured with other tensors
        self.slots += other.slots
        self.counts += other.counts
        self._compact()
        return True

    def _compact(self) -> Int[Tensor, " slots"]:
        """Drop finished rows and fill empty slots with copies; return the old slot of each new one."""
        kept = [slot for slot, row in enumerate(self.slots) if row is not None and not row.finished]
        size = self._size(len(kept))
        order = kept + kept[:1] * (size - len(kept))
        index = torch.tensor(order, dtype=torch.long, device=self.decoder.device)
        if kept and order != list(range(len(self.slots))):
            self.decoder.select(index)
        self.slots = [self.slots[slot] for slot in kept] + [None] * (size - len(kept))
        self.counts = [self.counts[slot] for slot in order]
        self.decoder.num_tokens = max(self.counts, default=0)  # capacity is for the remaining rows
        return index

    def _size(self, rows: int) -> int:
        """Return the slots for `rows` rows: on CUDA a power of two, since a graph is captured for each number."""
        return rows if self.decoder.device.type != "cuda" or rows < 2 else 1 << (rows - 1).bit_length()

    def _sample(self) -> Int[Tensor, " slots"]:
        logits = self.decoder.logits[:, : self.vocabulary]
        penalties = {slot: row.penalties for slot, row in enumerate(self.slots) if row is not None and row.penalties}
        logits = logits.clone() if penalties else logits
        for slot, each in penalties.items():
            logits[slot] = each.apply(logits[slot])
        tokens = logits.argmax(dim=-1)
        groups: dict[Sampler, list[int]] = {}
        for slot, row in enumerate(self.slots):
            if row is not None and not row.finished and row.sampler.temperature > 0:
                groups.setdefault(row.sampler, []).append(slot)
        for sampler, slots in groups.items():
            generators = [row.generator for row in (self.slots[slot] for slot in slots) if row is not None]
            tokens[slots] = sampler(logits[slots], generators)
        return tokens

    def _logprobs(self, slot: int, token: int, count: int) -> TokenLogprobs:
        return logprobs_of(self.decoder.logits[slot : slot + 1, : self.vocabulary], [token], count)[0]


def logprobs_of(logits: Float[Tensor, "T vocabulary"], tokens: list[int], count: int) -> list[TokenLogprobs]:
    """Return the log-probability of each token, and the `count` most probable ones beside it."""
    logprobs = logits.float().log_softmax(dim=-1)
    top = logprobs.topk(min(count, logprobs.shape[1]))
    own = logprobs[range(len(tokens)), tokens].tolist()
    pairs = [list(zip(*row, strict=True)) for row in zip(top.indices.tolist(), top.values.tolist(), strict=True)]
    return [TokenLogprobs(*each) for each in zip(own, pairs, strict=True)]


@contextmanager
def _report_errors(rows: Sequence[Row]) -> Iterator[None]:
    """Report an exception within to these rows, and finish them; others continue."""
    try:
        yield
    except Exception as error:
        for row in rows:
            row.finished = True
            row.on_error(error)


def _group_by_length(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield groups of rows with prompts of similar lengths: none is padded to much more than twice its length."""
    group: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.prompt)):
        if group and len(row.prompt) > min(2 * len(group[0].prompt) + 32, MAX_PREFILL_TOKENS // (len(group) + 1)):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _can_concatenate(one: Any, other: Any) -> bool:
    """Return whether two states differ in nothing but the number of their rows."""
    if isinstance(one, Tensor):
        return one.dim() > 0 and one.shape[1:] == other.shape[1:] and one.dtype == other.dtype
    return len(one) == len(other) and all(_can_concatenate(*parts) for parts in zip(one, other, strict=True))
