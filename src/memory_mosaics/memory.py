"""Associative memories, and the units that the paper builds from them. Every part can be replaced by another.

    contextual_retrieval        the definition of what a contextual memory computes              equation 7
    AssociativeMemory           section 3: stores pairs and estimates E(V | K = k)                equations 1, 2, 3
    ContextualMemory            a layer of memories that start empty and store as they read      figure 1, equation 7
    PersistentMemory            a layer of memories whose pairs are trained                      appendix D.1
    Combine, OutputGate         what becomes of their answers                                    figure 6

What keys and values are is in extractors.py. The sharpness beta, a function of the number of visible pairs, is in
scales.py. Which pairs a query sees (Visibility) and where they are stored (GrowingStore, FixedStore) is in stores.py.

Letters in shapes: B batch, T time, N stored pairs, H heads (one memory each), D head width, W model width.

Every layer is a mixer: `y, state = mixer(x, state=None, mask=None)`. A state is a tuple of tensors with the batch
first, all that is needed to continue where x ended. `mask` is True where a token is real; padding comes before or
after a sequence, never inside.
"""

import os
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from math import e, gcd
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.bounded_stores import EXACT, UNBOUNDED, BoundedStore, StorePolicy
from memory_mosaics.config import ExtractorConfig, MixerConfig, Part, PositiveInt, SharpnessConfig, check_choices, part
from memory_mosaics.errors import UserError
from memory_mosaics.extractors import Extractor, LeakyAverageConfig, TapsConfig, check_causal, head_width
from memory_mosaics.indexed_store import IndexedStore, IndexPolicy
from memory_mosaics.ops.indexed_recall import check_unit
from memory_mosaics.ops.recall import dot_product, gaussian, recall
from memory_mosaics.scales import ConstantSharpnessConfig, Fixed, ScaleConfig, depends_on_count, fold_parts
from memory_mosaics.shapes import Float
from memory_mosaics.store_files import load_stores, newest_pairs, save_stores
from memory_mosaics.stores import (
    ALL_EARLIER,
    AnswersWithBounds,
    DropoutOf,
    GrowingStore,
    Inputs,
    Mask,
    MemoryInfo,
    Outputs,
    Pairs,
    Retrieval,
    RetrievalMixer,
    State,
    Store,
    Visibilities,
    Visibility,
    VisiblePairs,
    append,
    head_groups,
    map_state,
)

# Initial values; docs/LOG.md has what was tried. The initial beta distinguishes random keys: their scores have these
# standard deviations. Slots are as small as all other matrices, so that they learn as fast under Adam; beta and the
# scale of the answers compensate for it.
SPREAD, PERSISTENT_SPREAD, SLOTS_STD = e**2 / 8, e**3 / 8, 0.02
ANSWER_SCALE = ScaleConfig()
TOKEN_GROUPS = 4  # more would drop slots more independently; each has a copy of them

Kernel = Callable[[Tensor, Tensor, float | Tensor], tuple[Tensor, Tensor]]


def contextual_retrieval(
    keys: Float[Tensor, "B T H D"], values: Float[Tensor, "B T H V"], sharpness: float | Float[Tensor, "... H"]
) -> Float[Tensor, "B T H V"]:
    """Equation 7, the definition of what ContextualMemory computes: y_t = sum_{i<t} softmax_i(beta k_t.k_i) v_i.

    Kernel smoothing over the pairs stored strictly before t; an empty memory (t = 0) answers zero.
    """
    beta = torch.as_tensor(sharpness)[..., None]
    scores = torch.einsum("bthd,bihd->bhti", beta * keys, keys)
    earlier = torch.ones(scores.shape[-2:], dtype=torch.bool, device=keys.device).tril(-1)
    weights = scores.masked_fill(~earlier, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
    return torch.einsum("bhti,bihv->bthv", weights, values)


class AssociativeMemory:
    """Section 3: `store` pairs, `retrieve` the value that belongs to a key.

    Retrieval is Gaussian kernel smoothing (equation 2), which estimates E(V | K = key) from the stored sample whatever
    the order of storing. With `kernel=dot_product` it is equation 3, for keys of unit norm. `sharpness` (beta) is a
    number or a function of the number of stored pairs; `math.sqrt` is the choice of the paper's footnote.

    `policy` is "exact", or which pairs are kept and how many, such as "lru:4096" (bounded_stores.py). beta then depends
    on `count`, in which each pair counts with its mass. Or it is "indexed" (indexed_store.py), for millions of pairs
    with keys of norm 1: answers are then near the exact ones, and `retrieve_with_bounds` tells how near.
    """

    def __init__(
        self,
        sharpness: float | Tensor | Callable[[int], float | Tensor],
        *,
        kernel: Kernel = gaussian,
        policy: str = EXACT,
    ):
        self.sharpness, self.kernel = sharpness, kernel
        parsed = StorePolicy.parse(policy) or UNBOUNDED
        if isinstance(parsed, StorePolicy):
            parsed = replace(parsed, keep_norm=kernel is dot_product)
        self._check_kernel(parsed)
        self.policy = parsed
        self.batch: tuple[int, ...] = ()
        self.pairs: BoundedStore | IndexedStore | None = None  # every memory is a row of one head

    def __len__(self) -> int:
        return 0 if self.pairs is None else self.pairs.complete

    @property
    def count(self) -> int:
        """The number of pairs that a query sees, each counted with its mass."""
        if isinstance(self.pairs, IndexedStore):
            return len(self)
        if self.pairs is None or not len(self.pairs.now):
            return 0
        found = self.pairs.pairs(self.pairs.now[:, None], (ALL_EARLIER,))
        return round(float(found.visible_counts(1)[0]))

    @property
    def keys(self) -> Float[Tensor, "... D"] | None:
        return None if self.pairs is None else self.pairs.keys.reshape(*self.batch, *self.pairs.keys.shape[1::2])

    @property
    def values(self) -> Float[Tensor, "... V"] | None:
        return None if self.pairs is None else self.pairs.values.reshape(*self.batch, *self.pairs.values.shape[1::2])

    def store(self, keys: Float[Tensor, "... D"], values: Float[Tensor, "... V"]) -> None:
        """Add pairs, keys (..., N, D) with values (..., N, V). Leading dimensions are memories side by side."""
        if keys.ndim < 2 or keys.shape[:-1] != values.shape[:-1]:
            raise ValueError(f"keys {tuple(keys.shape)} and values {tuple(values.shape)} are not pairs of vectors")
        self._check(keys, values)
        self.batch = keys.shape[:-2]
        rows = [_one_head(x.clone()) for x in (keys, values)]  # the caller may modify the originals
        if isinstance(self.policy, IndexPolicy):
            check_unit(rows[0].flatten(0, 2))
            pairs = IndexedStore.empty(self.policy, rows[0], rows[1], [Visibility(delay=0)])
        else:
            pairs = BoundedStore.empty(self.policy, *rows)
        self.pairs = (self.pairs or pairs).extend(*rows)

    def merge(self, other: "AssociativeMemory") -> None:
        """Add the pairs of another memory, with their masses, and room for them."""
        if isinstance(self.policy, IndexPolicy) != isinstance(other.policy, IndexPolicy):
            raise ValueError(f"a memory with a store {self.policy} does not merge with one of {other.policy}")
        if other.pairs is not None and other.keys is not None and other.values is not None:
            self._check(other.keys, other.values)
            mine: Any = self.pairs
            self.batch, self.pairs = other.batch, other.pairs if mine is None else mine.union(other.pairs)

    def retrieve(self, keys: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """The estimate of E(V | K = key) for each key (..., T, D); zero while the memory is empty.

        Before anything is stored the width of values is not known: the zeros then have that of keys.
        """
        return self.retrieve_with_bounds(keys).answers

    def retrieve_with_bounds(self, keys: Float[Tensor, "... D"]) -> AnswersWithBounds:
        """Answers (..., T, V), and |answer - exact answer| <= bound (..., T).

        `guaranteed` is False where the bound exceeds the largest norm of a value, and guarantees nothing. Without an
        index, answers are exact for the pairs that the store has kept.
        """
        self._check(keys)
        store, shape = self.pairs, keys.shape[:-1]
        if isinstance(store, IndexedStore) and store.indexed is not None:
            beta = 2 * self._beta() if self.kernel is gaussian else self._beta()  # on unit keys this is equation 3
            pairs = store.pairs(keys.shape[-2], (ALL_EARLIER,))._replace(seen=(VisiblePairs(),))
            found = Retrieval(_one_head(keys).to(store.newest.keys.dtype), pairs, beta).answers_with_bounds()
            answers, bounds, guaranteed = (x.reshape(*shape, *x.shape[3:]) for x in found)
            return AnswersWithBounds(answers.to(keys.dtype), bounds, guaranteed)
        answers = self._retrieve(keys)
        return AnswersWithBounds(answers, answers.new_zeros(shape), answers.new_ones(shape, dtype=torch.bool))

    def _retrieve(self, keys: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        if self.pairs is None or self.keys is None or self.values is None:
            return torch.zeros_like(keys)
        if len(self) == 0:
            return keys.new_zeros(*keys.shape[:-1], self.values.shape[-1])
        # Distances between far keys are small differences of large numbers: twice the precision where there is any.
        exact = torch.float32 if keys.device.type == "mps" else torch.float64
        queries, stored = map(_one_head, self.kernel(keys.to(exact), self.keys.to(exact), self._beta()))
        values = _one_head(self.values.to(exact))
        if self.policy.kind == EXACT or isinstance(self.pairs, IndexedStore):
            answers = recall(queries, stored, values)
        else:
            times = self.pairs.now[:, None].expand(-1, keys.shape[-2])
            pairs = self.pairs.pairs(times, (ALL_EARLIER,))._replace(keys=stored, values=values)
            retrieval = Retrieval(queries, pairs, sharpness=1.0)
            answers, self.pairs = retrieval.answers(), self.pairs.evict(retrieval)
        return answers.reshape(*keys.shape[:-1], answers.shape[-1]).to(keys.dtype)

    def _beta(self) -> float | Tensor:
        return self.sharpness(self.count) if callable(self.sharpness) else self.sharpness

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write all pairs to a safetensors file, atomically."""
        if self.pairs is None:
            raise ValueError("there is nothing to save: the memory is empty")
        save_stores(Path(file), [self.pairs], {"batch": list(self.batch)})

    def load(self, file: str | os.PathLike[str]) -> None:
        """Replace all pairs by those of a file. They stay on the disk, memory-mapped, until `to_memory`."""
        [pairs], about, _ = load_stores(Path(file))
        batch = tuple(about["batch"])
        if isinstance(pairs, GrowingStore) or torch.Size(batch).numel() != len(newest_pairs(pairs).keys):
            raise UserError(f"{file} holds no memory of its own, but those of a model")
        self._check_kernel(pairs.policy)
        self.batch, self.pairs, self.policy = batch, pairs, pairs.policy

    def to_memory(self) -> None:
        """Copy the pairs of a file into memory."""
        self.pairs = map_state(torch.clone, self.pairs)

    def _check_kernel(self, policy: StorePolicy | IndexPolicy) -> None:
        if isinstance(policy, IndexPolicy) and self.kernel not in (dot_product, gaussian):
            raise ValueError(f"an index is for the kernels dot_product and gaussian, not {self.kernel}")

    def _check(self, *pairs: Tensor) -> None:
        if self.pairs is None:
            return
        newest = newest_pairs(self.pairs)
        for name, new, stored in zip(("keys", "values"), pairs, (newest.keys, newest.values), strict=False):
            if new.ndim < 2 or new.shape[:-2] != self.batch or new.shape[-1] != stored.shape[-1]:
                shape = (*self.batch, len(self), stored.shape[-1])
                raise ValueError(f"{name} {tuple(new.shape)} do not go with the stored {name} {shape}")


def _one_head(x: Float[Tensor, "... N D"]) -> Float[Tensor, "B N 1 D"]:
    """Memories side by side as the rows of a batch."""
    return x.reshape(x.shape[:-2].numel(), x.shape[-2], 1, x.shape[-1])


def evaluate_sharpness(sharpness: Any, pairs: Pairs, time: int) -> float | Tensor:
    """beta(n) of each of `time` queries, n the number of pairs it sees; n is counted only where beta depends on it.

    n is (T, 1) or (B, T, 1), or has one number for each head where groups of heads see different pairs.
    """
    if not depends_on_count(sharpness):
        return sharpness(None)
    heads, counts = pairs.keys.shape[2], [group.visible_counts(time)[..., None] for group in pairs.groups()]
    if len(counts) > 1:
        counts = [torch.cat(torch.broadcast_tensors(*counts), dim=-1).repeat_interleave(heads // len(counts), dim=-1)]
    beta = torch.as_tensor(sharpness(counts[0])).to(pairs.keys.device)
    return beta.expand(*beta.shape[:-1], heads)


class ContextualMemory(RetrievalMixer):
    """A layer of associative memories, one per head, that start empty and store what they read (figure 1).

    At time t each memory answers its key k_t from the pairs stored before (equation 7, `contextual_retrieval`); the
    pair (k_t, v_t) is complete once the `value.peek` inputs that v_t depends on have come. `sharpness` is a number, or
    is called with the numbers of pairs that the queries see, (T, 1) or (B, T, 1), and returns betas that broadcast to
    (T, H) or (B, T, H). The delay of its `visibility` is at least `value.peek`; a tuple has one for each group of
    heads: the numbers of pairs are then (T, H) or (B, T, H).
    State: the extractors' own, then the store.
    """

    def __init__(
        self,
        *,
        key: Extractor,
        value: Extractor,
        sharpness: float | Callable[[Any], float | Tensor],
        combine: nn.Module,
        gate: nn.Module | None = None,
        visibility: Visibilities = ALL_EARLIER,
        dropout: float = 0.0,
        dropout_of: DropoutOf = "weights",
    ):
        super().__init__()
        if value.peek < 1:
            raise ValueError(f"a value must peek at least 1 step ahead, or it is no prediction; got {value.peek}")
        self.key, self.value, self.gate, self.combine = check_causal(key), value, gate, combine
        self.sharpness = sharpness if callable(sharpness) else Fixed(sharpness)
        self.dropout = dropout
        self.dropout_of: DropoutOf = dropout_of
        self.visibility = tuple(each.at_least(value.peek) for each in head_groups(visibility, key.heads))
        self.maps: nn.Module | None = None  # those of key, value and gate in one, once folded for inference
        self.maps_widths: list[int] = []

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        retrieval, state = self.prepare_retrieval(x, state, mask)
        return self.combine(retrieval.answers(self.dropout if self.training else 0.0, self.dropout_of)), state

    def prepare_retrieval(self, x: Inputs, state: State | None = None, mask: Mask = None) -> tuple[Retrieval, State]:
        key_state, value_state, store = state or (None, None, None)
        for_keys, for_values, for_gate = self._apply_maps(x)
        keys, key_state = self.key(for_keys, key_state, mask)
        values, value_state = self.value(for_values, value_state, mask)
        first = store is None and mask is None and self.visibility == (ALL_EARLIER,)
        options = {"visibility": self.visibility, "training": self.training}
        pairs, store = append(store, keys, values, mask, peek=self.value.peek, **options)
        beta = evaluate_sharpness(self.sharpness, pairs, keys.shape[1])
        gate = None if self.gate is None else self.gate(for_gate)
        retrieval = Retrieval(keys, pairs, beta, queries_are_keys=first, gate=gate)
        return retrieval, (key_state, value_state, store.evict(retrieval))

    def empty_state(self, store: Store) -> State:
        return None, None, store

    def memory_info(self) -> MemoryInfo:
        beta = None if depends_on_count(self.sharpness) else torch.as_tensor(self.sharpness(None))
        return MemoryInfo(
            name="contextual memory",
            heads=self.key.heads,
            peek=self.value.peek,
            sharpness=None if beta is None else beta.expand(self.key.heads),
            visibility=self.visibility,
        )

    def decays(self, x: Inputs | None = None) -> Tensor | None:
        return self.key.decays(x if x is None else self._apply_maps(x)[0])

    def _apply_maps(self, x: Tensor) -> tuple[Tensor, ...]:
        """The inputs of key, value and gate: x, or its products with their maps, once these are folded into one."""
        return (x, x, x) if self.maps is None else self.maps(x).split(self.maps_widths, dim=-1)

    def fold_for_inference(self) -> "ContextualMemory":
        """One matrix product for key, value and gate in place of three."""
        twin = fold_parts(self)
        parts = [part for part in (twin.key, twin.value, twin.gate) if part is not None]
        maps: list[Any] = [part.map for part in parts]
        if all(type(one) is nn.Linear and one.bias is None for one in maps):
            twin.maps = copy(maps[0])
            twin.maps_widths = [one.out_features for one in maps] + [0] * (3 - len(maps))
            twin.maps._parameters = {"weight": nn.Parameter(torch.cat([one.weight for one in maps])), "bias": None}
            for part in parts:
                part.map = nn.Identity()
        return twin


class PersistentMemory(RetrievalMixer):
    """A layer of associative memories whose pairs are parameters, found by training (appendix D.1).

    With `memories` > 1 each head queries several memories and takes the mean of their answers. The stored keys are not
    normalised. Dropout of pairs drops others for each of TOKEN_GROUPS parts of the tokens. State: the key extractor's
    own.
    """

    init_roles: ClassVar = {"": "slots"}

    def __init__(
        self,
        *,
        key: Extractor,
        slots: int,
        head_shape: tuple[int, int],
        sharpness: float | Callable[[Any], float | Tensor],
        combine: nn.Module,
        memories: int = 1,
        dropout: float = 0.0,
        dropout_of: DropoutOf = "weights",
    ):
        super().__init__()
        self.key, self.combine = check_causal(key), combine
        self.sharpness = sharpness if callable(sharpness) else Fixed(sharpness)
        self.keys = nn.Parameter(torch.empty(memories, slots, *head_shape))
        self.values = nn.Parameter(torch.empty(memories, slots, *head_shape))
        self.dropout = dropout
        self.dropout_of: DropoutOf = dropout_of
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for pairs in (self.keys, self.values):
            nn.init.normal_(pairs, std=SLOTS_STD)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        retrieval, state = self.prepare_retrieval(x, state, mask)
        dropout, rows = self.dropout if self.training else 0.0, 1
        if dropout and self.dropout_of == "pairs":
            rows = gcd(retrieval.queries.shape[1], TOKEN_GROUPS)
            retrieval = retrieval.split_rows(rows)
        answers = retrieval.answers(dropout, self.dropout_of)
        answers = answers if rows == 1 else answers.unflatten(0, (-1, rows)).flatten(1, 2)
        answers = answers.squeeze(0) if len(answers) == 1 else answers.mean(dim=0)  # a view costs no copy
        return self.combine(answers.unflatten(0, x.shape[:2])), state

    def prepare_retrieval(self, x: Inputs, state: State | None = None, mask: Mask = None) -> tuple[Retrieval, State]:
        """The queries of all rows of x as one row, (memories, B*T, H, D): every query sees the same pairs.

        The key extractor multiplies its keys by beta, in the pass that normalises them: they are queries only.
        """
        keys, key_state = self.key(x, state[0] if state else None, mask, self._beta())
        queries = keys.flatten(0, 1)[None].expand(len(self.keys), -1, -1, -1)
        pairs = Pairs(self.keys.to(queries.dtype), self.values.to(queries.dtype))
        return Retrieval(queries, pairs, sharpness=1.0), (key_state,)

    def memory_info(self) -> MemoryInfo:
        beta = torch.as_tensor(self._beta()).expand(self.keys.shape[2])
        slots = self.keys.shape[:2].numel()
        return MemoryInfo(name="persistent memory", heads=self.keys.shape[2], slots=slots, sharpness=beta)

    def _beta(self) -> float | Tensor:
        """One number per head: every query sees as many pairs."""
        beta = evaluate_sharpness(self.sharpness, Pairs(self.keys, self.values), 1)
        return beta[0] if isinstance(beta, Tensor) and beta.ndim > 1 else beta


class Combine(nn.Module):
    """The combining layer: one matrix for the answers of all heads, each with a trained scale."""

    init_roles: ClassVar = {"map": "residual", "scale": "scale"}

    def __init__(
        self, width: int, heads: int, *, head_width: int, bias: bool = False, scale: ScaleConfig = ANSWER_SCALE
    ):
        super().__init__()
        self.scale = scale.build(heads)
        self.map = nn.Linear(heads * head_width, width, bias=bias)

    def forward(self, answers: Float[Tensor, "B T H D"]) -> Float[Tensor, "B T W"]:
        scale, width = self.scale(), self.map.out_features
        if answers.shape[:2].numel() <= width:
            return self.map((answers * scale[:, None].to(answers.dtype)).flatten(2))
        weight = self._scale_weight(scale)  # the matrix is smaller than the answers
        return F.linear(answers.flatten(2), weight, self.map.bias)

    def fold_for_inference(self) -> nn.Module:
        scaled = copy(self.map)
        scaled._parameters = self.map._parameters | {"weight": nn.Parameter(self._scale_weight(self.scale()).detach())}
        return nn.Sequential(nn.Flatten(2), scaled)

    def _scale_weight(self, scale: Float[Tensor, " H"]) -> Float[Tensor, "W V"]:
        weight = self.map.weight
        return (weight * scale.repeat_interleave(weight.shape[1] // len(scale))).to(weight.dtype)


class OutputGate(nn.Module):
    """Factors of the answers, 2 sigmoid(G x), one per channel (Qiu et al. 2025). They are initially near 1."""

    def __init__(self, width: int, heads: int, *, head_width: int, bias: bool = False):
        super().__init__()
        self.heads = heads
        self.map = nn.Linear(width, heads * head_width, bias=bias)

    def forward(self, x: Inputs) -> Float[Tensor, "B T H D"]:
        return 2 * self.map(x).sigmoid().unflatten(-1, (self.heads, -1))


@part("output_gate")
class OutputGateConfig(Part):
    """2 sigmoid(G x)."""

    def build(self, width: int, heads: int, *, head_width: int, bias: bool = False) -> OutputGate:
        return OutputGate(width, heads, head_width=head_width, bias=bias)


@part("contextual_memory")
class ContextualMemoryConfig(MixerConfig):
    """Contextual memories as in the paper's language models, or with other extractors."""

    heads: PositiveInt
    head_width: PositiveInt | None = None  # None: the width of the model divided by the heads
    key: ExtractorConfig = LeakyAverageConfig()
    value: ExtractorConfig = TapsConfig()
    sharpness: SharpnessConfig = ConstantSharpnessConfig()
    scale: ScaleConfig = ANSWER_SCALE
    gate: OutputGateConfig | None = None
    visibility: Visibilities = ALL_EARLIER  # of all heads, or of groups of them, one after the other
    dropout_of: DropoutOf = "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        head_groups(self.visibility, self.heads)

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> ContextualMemory:
        shape = {"head_width": self.head_width or head_width(width, self.heads), "bias": bias}
        return ContextualMemory(
            key=self.key.build(width, self.heads, **shape),
            value=self.value.build(width, self.heads, **shape),
            sharpness=self.sharpness.build(self.heads, initial=SPREAD * shape["head_width"] ** 0.5),
            combine=Combine(width, self.heads, **shape, scale=self.scale),
            gate=None if self.gate is None else self.gate.build(width, self.heads, **shape),
            visibility=self.visibility,
            dropout=dropout,
            dropout_of=self.dropout_of,
        )


@part("persistent_memory")
class PersistentMemoryConfig(MixerConfig):
    """Persistent memories of `slots` pairs each, `memories` of them per head."""

    heads: PositiveInt
    slots: PositiveInt
    memories: PositiveInt = 1
    key: ExtractorConfig = LeakyAverageConfig()
    dropout_of: DropoutOf = "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> PersistentMemory:
        shape = {"head_width": head_width(width, self.heads), "bias": bias}
        scale = ANSWER_SCALE.initial / (SLOTS_STD * shape["head_width"] ** 0.5)
        return PersistentMemory(
            key=self.key.build(width, self.heads, **shape),
            slots=self.slots,
            memories=self.memories,
            head_shape=(self.heads, shape["head_width"]),
            sharpness=ConstantSharpnessConfig().build(self.heads, initial=PERSISTENT_SPREAD / SLOTS_STD),
            combine=Combine(width, self.heads, **shape, scale=ScaleConfig(initial=scale)),
            dropout=dropout,
            dropout_of=self.dropout_of,
        )
