"""Where the pairs of a memory are stored, and what queries retrieve from them.

    GrowingStore     tensors that grow with every call, by any number of tokens
    FixedStore       tensors of a fixed capacity, written in place one token at a time: no shape ever changes, so that a
                     decoding step can be captured as a CUDA graph
    BoundedStore     at most so many pairs, in bounded_stores.py
    IndexedStore     all pairs, of which each query reads few, in indexed_store.py
    Visibility       which of the earlier pairs a query sees: all but the newest, or a window of them; of all heads of
                     a layer, or of groups of them, such as a short-term and a long-term memory side by side. Every
                     head stores all pairs, those of short-term memories too
    Retrieval        queries, pairs and sharpness: a layer computes its `answer`, inspection its `weights`
    RetrievalMixer   the interface of every layer that retrieves: inspection, the explorer and the Hugging Face adapter
                     use nothing else of a memory

A store is part of a mixer's state: a tuple of tensors, the batch first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, NamedTuple, Protocol, Union, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import NonNegativeInt, Part, PositiveInt, part
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.ops.common import at_least_fp32, at_least_fp32_dtype, host_count
from memory_mosaics.ops.contextual_recall import contextual_recall
from memory_mosaics.ops.recall import Sharpness, recall, recall_with_bias, repeat_heads
from memory_mosaics.shapes import Bool, Float, Int

DropoutOf = Literal["weights", "pairs"]  # each retrieval weight by itself, as in the paper, or whole pairs

# The contract of a mixer: `def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs`.
State = tuple[Any, ...]
Inputs = Float[Tensor, "B T W"]
Mask = Bool[Tensor, "B T"] | None
Outputs = tuple[Float[Tensor, "B T W"], State]


@part("visibility")
class Visibility(Part):
    """The query at time t sees the pairs i <= t - `delay`; with a `window`, only the newest that many of them.

    With `train_delay`, the delay in training is drawn uniformly from this interval, in every layer at every forward
    pass: which delays are drawn depends on micro-batches and processes, as dropout does.
    """

    delay: NonNegativeInt = 1
    window: PositiveInt | None = None
    train_delay: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_delay is not None:
            low, high = self.train_delay
            check_range(0, high, train_delay=low)

    def at_least(self, delay: int) -> "Visibility":
        """The same with delays of at least `delay`."""
        drawn = None if self.train_delay is None else tuple(max(delay, each) for each in self.train_delay)
        return replace(self, delay=max(delay, self.delay), train_delay=drawn)

    def seen(self, offset: int, device: torch.device, *, training: bool = False) -> "VisiblePairs":
        """What it means for queries of which the first sees `offset` pairs without delay."""
        if self.train_delay is None or not training:
            return VisiblePairs(offset - self.delay, window=self.window)
        low, high = self.train_delay
        shift = torch.randint(high - low + 1, (), device=device)
        return VisiblePairs(offset - low, window=self.window, shift=shift, max_shift=high - low)

    def __str__(self) -> str:
        if self.window is None:
            few = {0: "all pairs up to its own", 1: "all earlier pairs"}
            return few.get(self.delay, f"pairs {self.delay} or more steps ago")
        few = {0: f"the last {self.window} pairs up to its own", 1: f"the last {self.window} pairs"}
        return few.get(self.delay, f"pairs {self.delay} to {self.delay + self.window - 1} steps ago")


ALL_EARLIER = Visibility()
Visibilities = Visibility | tuple[Visibility, ...]  # of all heads, or of groups of neighbouring heads


def head_groups(visibility: Visibilities, heads: int) -> tuple[Visibility, ...]:
    """The visibility of each group of heads; groups are of one size."""
    groups = visibility if isinstance(visibility, tuple) else (visibility,)
    if not groups or heads % len(groups):
        raise UserError(f"{heads} heads do not split into {len(groups)} groups, one for each visibility")
    return groups


class VisiblePairs(NamedTuple):
    """Which pairs a group of heads sees, in the arguments of `recall`: by default all."""

    causal_offset: int | None = None
    lengths: Int[Tensor, " B"] | None = None
    window: int | None = None
    shift: Int[Tensor, ""] | None = None
    max_shift: int = 0


class PairTimes(NamedTuple):
    """When each pair was stored and how many pairs it stands for (0: padding), and the times of the queries.

    Needed where some pairs have been evicted, in each head others. Pairs are then visible by their times.
    """

    times: Int[Tensor, "B N K"]
    mass: Float[Tensor, "B N K"]
    query_times: Int[Tensor, "B T"]

    def groups(self, count: int) -> list["PairTimes"]:
        """The times of each of `count` groups of heads."""
        parts = zip(self.times.chunk(count, dim=2), self.mass.chunk(count, dim=2), strict=True)
        return [PairTimes(times, mass, self.query_times) for times, mass in parts]


class Pairs(NamedTuple):
    """Stored pairs, one memory per head or fewer (K), and which of them each group of heads sees."""

    keys: Float[Tensor, "B N K D"]
    values: Float[Tensor, "B N K V"]
    key_padding_mask: Bool[Tensor, "B N"] | None = None
    seen: tuple[VisiblePairs, ...] = (VisiblePairs(),)
    stored: PairTimes | None = None  # None: pair i was stored at time i, and none has been evicted
    indexed: Any = None  # IndexedPairs of indexed_store.py, stored before these and seen where there is no window

    def groups(self) -> list["Pairs"]:
        """The pairs of each group of heads."""
        count, mask = len(self.seen), self.key_padding_mask
        keys, values = (x.chunk(count, dim=2) for x in (self.keys, self.values))
        stored = [None] * count if self.stored is None else self.stored.groups(count)
        indexes = [None] * count if self.indexed is None else self.indexed.groups(count)
        parts = zip(keys, values, self.seen, stored, indexes, strict=True)
        return [Pairs(k, v, mask, (one,), at, index if one.window is None else None) for k, v, one, at, index in parts]

    def without_index(self) -> "Pairs":
        """The same with the pairs of an index among the others, to be read one by one."""
        return self if self.indexed is None else self.indexed.joined(self)

    def per_head(self, heads: int) -> "Pairs":
        """The same with one memory per head: copies, where heads share memories."""
        return self._replace(keys=repeat_heads(self.keys, heads), values=repeat_heads(self.values, heads))

    def visible(self, times: Int[Tensor, " t"]) -> Bool[Tensor, "B _ t N"]:
        """Whether the queries of one group see each pair; the first dimension is 1 where all rows are alike."""
        (seen,) = self.seen
        if self.stored is not None:
            pair, end = self.stored.times.transpose(1, 2)[:, :, None], self._end(times)[:, None, :, None]
            visible = (pair < end) & (self.stored.mass > 0).transpose(1, 2)[:, :, None]
            # Pairs are in the order of time: a window is of the newest, whatever was evicted between them.
            if seen.window is not None:
                visible = visible & (visible.flip(-1).cumsum(dim=-1).flip(-1) <= seen.window)
        else:
            pair, end = torch.arange(self.keys.shape[1], device=self.keys.device), self._end(times)[..., None]
            visible = pair < end
            if seen.window is not None:
                visible = visible & (pair >= end - seen.window)
            visible = visible[:, None] if visible.ndim == 3 else visible[None, None]
        return visible if self.key_padding_mask is None else visible & self.key_padding_mask[:, None, None]

    def times(self, head: int) -> Int[Tensor, " N"]:
        """When the first row's pairs of a head were stored; of a persistent memory, the numbers of its slots."""
        if self.stored is None:
            return torch.arange(self.keys.shape[1], device=self.keys.device)
        return self.stored.times[0, :, head]

    def visible_counts(self, time: int) -> Float[Tensor, "... time"]:
        """The number of pairs that each of `time` queries of one group sees: (time), or (B, time) where rows differ.

        A pair counts with its mass. All heads of a group see as many.
        """
        if self.indexed is not None:
            return self.indexed.counts() + self._replace(indexed=None).visible_counts(time)
        (seen,) = self.seen
        if self.stored is not None:
            first_head = PairTimes(self.stored.times[..., :1], self.stored.mass[..., :1], self.stored.query_times)
            visible = self._replace(stored=first_head).visible(torch.arange(time, device=self.keys.device))
            return torch.einsum("btn,bn->bt", visible[:, 0].to(first_head.mass), first_head.mass[..., 0])
        end = self._end(torch.arange(time, device=self.keys.device)).clamp(0, self.keys.shape[1])
        start = torch.zeros_like(end) if seen.window is None else (end - seen.window).clamp(min=0)
        if self.key_padding_mask is None:
            count = end - start
        else:
            before = F.pad(self.key_padding_mask.cumsum(dim=1), (1, 0))  # (B, N + 1): real pairs before each
            rows = (len(before), time)
            count = before.gather(1, end.expand(rows)) - before.gather(1, start.expand(rows))
        return count.to(at_least_fp32_dtype(self.keys))

    def score_bias(self, times: Int[Tensor, " t"]) -> Float[Tensor, "B H t N"]:
        """What is added to the scores of pairs that have a mass: its logarithm, -inf for pairs that are not seen."""
        assert self.stored is not None
        return self.stored.mass.log().transpose(1, 2)[:, :, None].masked_fill(~self.visible(times), -torch.inf)

    def _end(self, times: Int[Tensor, " t"]) -> Int[Tensor, "... t"]:
        """Pairs before this one are visible, unless they are padding or older than the window: (t), or (B, t)."""
        (seen,) = self.seen
        if self.stored is not None:
            return self.stored.query_times[:, times] + (seen.causal_offset or 0)
        if seen.lengths is not None:
            return seen.lengths[:, None].expand(-1, len(times))
        if seen.causal_offset is None:
            return torch.full_like(times, self.keys.shape[1])
        return times + seen.causal_offset - (0 if seen.shift is None else seen.shift)


class AnswersWithBounds(NamedTuple):
    """Answers, |answer - exact answer| <= bound, and whether that is less than the largest norm of a value.

    A bound beyond that guarantees nothing: every answer is as near.
    """

    answers: Float[Tensor, "B T H V"]
    bounds: Float[Tensor, "B T H"]
    guaranteed: Bool[Tensor, "B T H"]


class Retrieval(NamedTuple):
    """What a layer retrieves: one query per time and head, the pairs to answer it from, and beta.

    `sharpness` is a number, or one per head (H), per time (T H), or per row (B T H). If `queries_are_keys`, the queries
    are the keys of the pairs from the first on, and query t sees all pairs before it. `gate` multiplies the answers.
    """

    queries: Float[Tensor, "B T H D"]
    pairs: Pairs
    sharpness: Sharpness
    queries_are_keys: bool = False
    gate: Float[Tensor, "B T H V"] | None = None

    def groups(self) -> list["Retrieval"]:
        """The retrieval of each group of heads with a visibility of its own."""
        queries, pairs, beta, _, gate = self
        count = len(pairs.seen)
        betas = beta.chunk(count, dim=-1) if isinstance(beta, Tensor) and beta.ndim > 0 else [beta] * count
        gates = [None] * count if gate is None else gate.chunk(count, dim=2)
        parts = zip(queries.chunk(count, dim=2), pairs.groups(), betas, gates, strict=True)
        return [Retrieval(queries, pairs, beta, gate=gate) for queries, pairs, beta, gate in parts]

    def answers(self, dropout: float = 0.0, dropout_of: DropoutOf = "weights") -> Float[Tensor, "B T H V"]:
        """The estimates of E(V | K = query). `dropout` is the probability of dropping a retrieval weight.

        With `dropout_of` "pairs" all queries of a row drop the weights of the same pairs: one factor for each value,
        which costs nothing beside the kernels that answer.
        """
        if dropout and dropout_of == "pairs":
            kept = F.dropout(torch.ones_like(self.pairs.values[..., :1]), dropout)
            return self._replace(pairs=self.pairs._replace(values=self.pairs.values * kept)).answers()
        queries, (keys, values, mask, (seen, *others), stored, _), beta, queries_are_keys, gate = self
        if others:
            return torch.cat([group.answers(dropout) for group in self.groups()], dim=2)
        if self.pairs.indexed is not None:
            answers = self.answers_with_bounds().answers
        elif stored is not None:
            bias = self.pairs.score_bias(torch.arange(queries.shape[1], device=queries.device))
            answers = recall_with_bias(queries, keys, values, beta, bias=bias)
        elif queries_are_keys and not dropout:
            answers = contextual_recall(queries, values, beta)
        else:
            answers = recall(queries, keys, values, beta, key_padding_mask=mask, dropout=dropout, **seen._asdict())
        return answers if gate is None else answers * gate.to(answers.dtype)

    def split_rows(self, parts: int) -> "Retrieval":
        """The queries of each row as `parts` rows, each with a copy of its pairs, which all of them see."""
        keys, values = (x.repeat_interleave(parts, dim=0) for x in self.pairs[:2])
        return Retrieval(self.queries.unflatten(1, (parts, -1)).flatten(0, 1), Pairs(keys, values), self.sharpness)

    def answers_with_bounds(self) -> AnswersWithBounds:
        """The answers before the gate, and how far those of an index can be from exact ones."""
        if len(self.pairs.seen) > 1:
            groups = [group.answers_with_bounds() for group in self.groups()]
            return AnswersWithBounds(*(torch.cat(parts, dim=2) for parts in zip(*groups, strict=True)))
        if self.pairs.indexed is None:
            answers = self._replace(gate=None).answers()
            bounds = torch.zeros(answers.shape[:3], device=answers.device)
            return AnswersWithBounds(answers, bounds, torch.ones_like(bounds, dtype=torch.bool))
        return self.pairs.indexed.answers(self.queries, self.sharpness, self.pairs)

    def weights(self, times: Sequence[int] | None = None) -> Float[Tensor, "B H t N"]:
        """The softmax weights behind the answers at all times, or at some (negative: from the end), in float32.

        They sum to one over the pairs that a query sees and are zero elsewhere, everywhere for an empty memory.
        """
        queries, pairs, sharpness = self.queries, self.pairs.without_index(), self.sharpness
        if len(pairs.seen) > 1:
            return torch.cat([group.weights(times) for group in self._replace(pairs=pairs).groups()], dim=1)
        chosen = list(range(queries.shape[1])) if times is None else [range(queries.shape[1])[time] for time in times]
        queries, keys = at_least_fp32(queries[:, chosen]), at_least_fp32(repeat_heads(pairs.keys, queries.shape[2]))
        if isinstance(sharpness, Tensor):
            sharpness = (sharpness[..., chosen, :] if sharpness.ndim > 1 else sharpness)[..., None]
        scores = torch.einsum("bthd,bnhd->bhtn", sharpness * queries, keys)
        visible = pairs.visible(torch.tensor(chosen, dtype=torch.long, device=keys.device))
        scores = scores if pairs.stored is None else scores + pairs.stored.mass.log().transpose(1, 2)[:, :, None]
        return scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(dim=-1) * visible

    def weights_and_answers(self, times: Sequence[int]) -> tuple[Float[Tensor, "B H t N"], Float[Tensor, "B t H V"]]:
        """The weights at some times, and the answers that they give, in float32."""
        weights = self.weights(times)
        values = repeat_heads(self.pairs.without_index().values, weights.shape[1]).to(weights.dtype)
        answers = torch.einsum("bhtn,bnhv->bthv", weights, values)
        return weights, answers if self.gate is None else answers * self.gate[:, list(times)].to(answers.dtype)


class GrowingStore(NamedTuple):
    """Keys, the values that are complete, and the mask of padding: (B, 0) as long as there is no padding."""

    keys: Float[Tensor, "B N H D"]
    values: Float[Tensor, "B M H V"]
    key_padding_mask: Bool[Tensor, "B _"]

    @property
    def complete(self) -> int:
        """The number of pairs whose value has come."""
        return self.values.shape[1]

    def append(self, keys: Tensor, values: Tensor, mask: Tensor | None) -> "GrowingStore":
        padding = self.key_padding_mask
        if mask is not None or padding.shape[1] > 0:
            before = padding if padding.shape[1] > 0 else padding.new_ones(self.keys.shape[:2])
            padding = torch.cat([before, padding.new_ones(keys.shape[:2]) if mask is None else mask], dim=1)
        return GrowingStore(torch.cat([self.keys, keys], dim=1), torch.cat([self.values, values], dim=1), padding)

    def pairs(self, time: int, visibility: tuple[Visibility, ...], *, training: bool = False) -> Pairs:
        """As the last `time` tokens see them."""
        complete = self.values.shape[1]
        mask = self.key_padding_mask[:, :complete] if self.key_padding_mask.shape[1] > 0 else None
        offset = self.keys.shape[1] - time + 1
        seen = tuple(each.seen(offset, self.keys.device, training=training) for each in visibility)
        return Pairs(self.keys[:, :complete], self.values, mask, seen)

    def evict(self, retrieval: Retrieval) -> "GrowingStore":
        return self

    def union(self, later: "GrowingStore") -> "GrowingStore":
        """The pairs of both, those of `later` as if stored after those of this one."""
        keys = torch.cat([self.keys[:, : self.values.shape[1]], later.keys], dim=1)  # the last values never come
        return GrowingStore(keys, torch.cat([self.values, later.values], dim=1), later.key_padding_mask)

    @property
    def length(self) -> int | Tensor:
        """The number of tokens stored: one number, or one per row."""
        return self.keys.shape[1]

    def to_fixed_capacity(self, capacity: int) -> "FixedStore":
        lengths = torch.full((len(self.keys),), self.keys.shape[1], device=self.keys.device)
        return FixedStore(self.keys, self.values, self.key_padding_mask, lengths).to_fixed_capacity(capacity)


class FixedStore(NamedTuple):
    """Keys, values and mask with a capacity of C tokens, and the number stored in each row."""

    keys: Float[Tensor, "B C H D"]
    values: Float[Tensor, "B C H V"]
    key_padding_mask: Bool[Tensor, "B C"]
    lengths: Int[Tensor, " B"]

    def append(self, keys: Tensor, values: Tensor, mask: Tensor | None, *, peek: int) -> "FixedStore":
        """Write one token of every row in place; its value completes the pair of `peek` tokens ago."""
        if keys.shape[1] != 1:
            raise ValueError(f"a store of fixed capacity takes one token at a time, not {keys.shape[1]}")
        row: Any = slice(None)
        now: Any = host_count(self.lengths)
        if now is None:
            row, now = torch.arange(len(self.lengths), device=self.lengths.device), self.lengths
        self.keys[row, now] = keys[:, 0].to(self.keys.dtype)
        if values.shape[1] > 0:
            self.values[row, now - peek] = values[:, 0].to(self.values.dtype)
        if mask is not None:
            self.key_padding_mask[row, now] = mask[:, 0]
        return FixedStore(self.keys, self.values, self.key_padding_mask, self.lengths + 1)

    def evict(self, retrieval: Retrieval) -> "FixedStore":
        return self

    @property
    def length(self) -> int | Tensor:
        """The number of tokens stored: one number, or one per row."""
        return self.lengths

    def to_fixed_capacity(self, capacity: int) -> "FixedStore":
        if self.keys.shape[1] > capacity:
            raise ValueError(f"{self.keys.shape[1]} pairs exceed a capacity of {capacity}")
        keys, values = (F.pad(x, (0, 0, 0, 0, 0, capacity - x.shape[1])) for x in (self.keys, self.values))
        mask = F.pad(self.key_padding_mask, (0, capacity - self.key_padding_mask.shape[1]), value=True)
        return FixedStore(keys, values, mask, self.lengths)


@runtime_checkable
class Store(Protocol):
    """What `append` and a layer call of any other store, such as those of bounded_stores.py."""

    @property
    def tokens_at_once(self) -> int:
        """How many tokens a model reads before `evict`: it reads longer inputs in parts."""
        ...

    def add(
        self, keys: Tensor, values: Tensor, mask: Tensor | None, visibility: tuple[Visibility, ...]
    ) -> tuple[Pairs, "Store"]:
        """Store more tokens; return the pairs as these tokens see them, and the new store."""
        ...

    def evict(self, retrieval: Retrieval) -> "Store":
        """The store once these queries, those of the newest tokens, have been answered."""
        ...


AnyStore = Union[GrowingStore, FixedStore, Store]  # noqa: UP007 (NamedTuples in annotations that are checked at run time)


def append(
    store: AnyStore | None,
    keys: Float[Tensor, "B T H D"],
    values: Float[Tensor, "B M H V"],
    mask: Bool[Tensor, "B T"] | None,
    *,
    peek: int,
    visibility: tuple[Visibility, ...],
    training: bool = False,
) -> tuple[Pairs, AnyStore]:
    """Store the pairs of T more tokens, and return all of them as these tokens see them, with the new store.

    A value that depends on the next `peek` inputs completes its pair that much later: there are fewer values than keys.
    """
    if isinstance(store, FixedStore):
        before, store = store.lengths, store.append(keys, values, mask, peek=peek)
        # Launch no kernel that is not needed: these few numbers take as long as a small memory.
        seen = []
        for each in visibility:
            lengths = {0: store.lengths, 1: before}.get(each.delay)
            lengths = store.lengths - each.delay if lengths is None else lengths
            lengths = lengths if values.shape[1] > 0 else torch.zeros_like(lengths)
            seen.append(VisiblePairs(lengths=lengths, window=each.window))
        return Pairs(store.keys, store.values, store.key_padding_mask, tuple(seen)), store
    if store is not None and not isinstance(store, GrowingStore):
        return store.add(keys, values, mask, visibility)
    if store is None:
        padding = keys.new_ones(len(keys), 0, dtype=torch.bool) if mask is None else mask
        # A compiled graph must not return views of its own: torch 2.13 restores their shapes wrongly from its cache.
        compiling = torch.compiler.is_compiling()
        store = GrowingStore(*((keys.clone(), values.clone()) if compiling else (keys, values)), padding)
    else:
        store = store.append(keys, values, mask)
    return store.pairs(keys.shape[1], visibility, training=training), store


# A state can be saved with torch.save and loaded with weights_only: these tuples hold tensors and nothing else.
torch.serialization.add_safe_globals([GrowingStore, FixedStore])


def stores_of(state: Any) -> Iterator[Any]:
    """All stores of a state, in order."""
    if hasattr(state, "evict"):
        yield state
    elif isinstance(state, tuple):
        for part in state:
            yield from stores_of(part)


def tokens_at_once(state: State) -> int | float:
    """How many tokens a model in this state can read before pairs are evicted."""
    first = next(stores_of(state), None)  # all layers have read as many
    return getattr(first, "tokens_at_once", inf)


def state_tensors(state: Any) -> Iterator[Tensor]:
    """All tensors of a state, in order."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple | list):
        for part in state:
            yield from state_tensors(part)


def map_state(function: Callable[..., Any], state: Any, *others: Any) -> Any:
    """Apply `function` to each tensor of a state (and of others of the same structure), to reorder or move it."""
    if state is None or isinstance(state, Part):  # nothing yet, or how a store is bounded
        return state
    if not isinstance(state, tuple):
        return function(state, *others)
    parts = [map_state(function, *each) for each in zip(state, *others, strict=True)]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def select_rows(x: Tensor, rows: Int[Tensor, " rows"]) -> Tensor:
    """Some rows of a tensor of a state; no copies where all rows are views of one, such as of an index."""
    alike = len(x) > 0 and x.stride(0) == 0
    return x[:1].expand(len(rows), *x.shape[1:]) if alike else x.index_select(0, rows)


@dataclass(frozen=True, kw_only=True)
class MemoryInfo:
    """Properties of a layer of memories that do not depend on its input."""

    name: str
    heads: int
    peek: int | None = None  # later inputs that a value depends on; None where the pairs are parameters
    slots: int | None = None  # pairs that are parameters
    sharpness: Float[Tensor, " H"] | None = None  # beta, where it does not depend on the number of pairs
    visibility: tuple[Visibility, ...] = ()  # of each group of heads

    @property
    def sees(self) -> list[str]:
        """What each head sees, where heads differ."""
        groups = self.visibility if len(self.visibility) > 1 else ()
        return [str(group) for group in groups for _ in range(self.heads // len(groups))]


class RetrievalMixer(nn.Module):
    """A layer that answers queries from stored pairs: memories of all kinds, and attention."""

    key: Any  # the key extractor
    combine: nn.Module

    def prepare_retrieval(self, x: Inputs, state: State | None = None, mask: Mask = None) -> tuple[Retrieval, State]:
        """The retrieval at every time of x, with its answers still to be computed, and the state after x."""
        raise NotImplementedError

    def memory_info(self) -> MemoryInfo:
        raise NotImplementedError

    def decays(self, x: Inputs | None = None) -> Tensor | None:
        """Lambda where keys are an average over time: (H), or (B T H) where it depends on x."""
        return self.key.decays(x)

    def empty_state(self, store: Store) -> State:
        """A state that has read nothing, to store pairs in a store of this kind."""
        raise UserError(f"{self.memory_info().name} takes no store: that is for contextual memories")

    def to_fixed_capacity(self, state: State, capacity: int) -> State:
        """The same state with a store of fixed capacity, to be continued one token at a time."""
        return tuple(
            part.to_fixed_capacity(capacity) if isinstance(part, GrowingStore | FixedStore) else part for part in state
        )
