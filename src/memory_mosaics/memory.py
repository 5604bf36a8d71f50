"""Associative memories, and the units that the paper builds from them.

    AssociativeMemory    section 3: a device that stores pairs and estimates E(V | K = k)         equations 1, 2, 3
    ContextualMemory     a layer of memories that start empty and store as they read             figure 1, equation 7
    PersistentMemory     a layer of memories whose pairs are trained                             appendix D.1

What the keys and values of a sequence are (equations 4, 5, 6) is said by the parts in extractors.py.

Letters in shapes: B batch, T time, N stored pairs, H heads (one memory each), D head width, W model width.

Every layer is a mixer: `y, state = mixer(x, state=None, mask=None)`. A state is a tuple of tensors with the batch
first, all that is needed to go on from where x ended. `mask` is True where a token is real; padding goes before or
after a sequence, never inside.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from math import e
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import ExtractorConfig, MixerConfig, at_least, part
from memory_mosaics.extractors import Extractor, LeakyAverageConfig, TapsConfig, check_causal
from memory_mosaics.ops.recall import gaussian, recall
from memory_mosaics.scales import Fixed, Scale, fold_parts
from memory_mosaics.shapes import Bool, Float
from memory_mosaics.stores import Pairs, Retrieval, State, append, to_fixed_capacity

# How training begins; docs/LOG.md has what was tried. Beta starts where a memory tells random keys apart: their scores
# have these deviations. Slots are as small as all other matrices, so that they learn as fast under Adam; beta and the
# scale of the answers make up for it.
SPREAD, PERSISTENT_SPREAD, SLOTS_STD = e**2 / 8, e**3 / 8, 0.02

Kernel = Callable[[Tensor, Tensor, float | Tensor], tuple[Tensor, Tensor]]


class AssociativeMemory:
    """The little machine of section 3: `store` pairs, `retrieve` the value that a key calls up.

    Retrieval is Gaussian kernel smoothing (equation 2), which estimates E(V | K = key) from the stored sample whatever
    the order of storing. With `kernel=dot_product` it is equation 3, for keys of unit norm. `sharpness` (beta) is a
    number or a function of the number of stored pairs; `math.sqrt` is the choice of the paper's footnote.
    """

    def __init__(self, sharpness: float | Tensor | Callable[[int], float | Tensor], *, kernel: Kernel = gaussian):
        self.sharpness = sharpness
        self.kernel = kernel
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.shape[-2]

    def store(self, keys: Float[Tensor, "... D"], values: Float[Tensor, "... V"]) -> None:
        """Add pairs, keys (..., N, D) with values (..., N, V). Leading dimensions are memories side by side."""
        if keys.ndim < 2 or keys.shape[:-1] != values.shape[:-1]:
            raise ValueError(f"keys {tuple(keys.shape)} and values {tuple(values.shape)} are not pairs of vectors")
        if self.keys is None or self.values is None:
            self.keys, self.values = keys.clone(), values.clone()  # what the caller does next to his is his affair
            return
        _same_memories("keys", keys, self.keys)
        _same_memories("values", values, self.values)
        self.keys = torch.cat([self.keys, keys], dim=-2)
        self.values = torch.cat([self.values, values], dim=-2)

    def retrieve(self, keys: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """The estimate of E(V | K = key) for each key (..., T, D); zero while the memory is empty."""
        if self.keys is None or self.values is None:
            return torch.zeros_like(keys)
        _same_memories("keys", keys, self.keys)
        if len(self) == 0:
            return keys.new_zeros(*keys.shape[:-1], self.values.shape[-1])
        sharpness = self.sharpness(len(self)) if callable(self.sharpness) else self.sharpness
        # Distances between far keys are small differences of large numbers: twice the precision where there is any.
        exact = torch.float32 if keys.device.type == "mps" else torch.float64
        queries, stored = self.kernel(keys.to(exact), self.keys.to(exact), sharpness)
        one_head = (x.reshape(-1, x.shape[-2], 1, x.shape[-1]) for x in (queries, stored, self.values.to(exact)))
        return recall(*one_head).reshape(*keys.shape[:-1], self.values.shape[-1]).to(keys.dtype)


def _same_memories(name: str, new: Tensor, stored: Tensor) -> None:
    if new.ndim < 2 or new.shape[:-2] != stored.shape[:-2] or new.shape[-1] != stored.shape[-1]:
        raise ValueError(f"{name} {tuple(new.shape)} do not go with the stored {name} {tuple(stored.shape)}")


class Combine(nn.Module):
    """The combining layer: the answers of all heads, each with its trained scale, through one matrix."""

    init_roles: ClassVar = {"map": "residual", "scale": "scale"}

    def __init__(self, width: int, heads: int, *, head_width: int, bias: bool = False, scale: float = e**-0.5):
        super().__init__()
        self.scale = Scale(heads, initial=scale)
        self.map = nn.Linear(heads * head_width, width, bias=bias)

    def forward(self, answers: Float[Tensor, "B T H D"]) -> Float[Tensor, "B T W"]:
        scale, width = self.scale(), self.map.out_features
        if answers.shape[:2].numel() <= width:
            return self.map((answers * scale[:, None].to(answers.dtype)).flatten(2))
        return F.linear(answers.flatten(2), self._scaled(scale), self.map.bias)  # the matrix is the smaller to scale

    def fold_for_inference(self) -> nn.Module:
        scaled = copy(self.map)
        scaled._parameters = self.map._parameters | {"weight": nn.Parameter(self._scaled(self.scale()).detach())}
        return nn.Sequential(nn.Flatten(2), scaled)

    def _scaled(self, scale: Float[Tensor, " H"]) -> Float[Tensor, "W V"]:
        weight = self.map.weight
        return (weight * scale.repeat_interleave(weight.shape[1] // len(scale))).to(weight.dtype)


class ContextualMemory(nn.Module):
    """A layer of associative memories, one per head, that start empty and store what they read (figure 1).

    At time T each memory answers its key k_T from the pairs stored before (equation 7); the pair (k_T, v_T) is stored
    once the `value.peek` inputs that v_T depends on have come. State: the extractors' own, then what is stored.
    """

    init_roles: ClassVar = {"sharpness": "sharpness"}

    def __init__(
        self,
        *,
        key: Extractor,
        value: Extractor,
        sharpness: float | Callable[[], float | Tensor],
        combine: nn.Module,
        dropout: float = 0.0,
    ):
        super().__init__()
        if value.peek < 1:
            raise ValueError(f"a value must peek at least 1 step ahead, or it is no prediction; got {value.peek}")
        self.key, self.value, self.combine = check_causal(key), value, combine
        self.sharpness, self.dropout = sharpness if callable(sharpness) else Fixed(sharpness), dropout
        self.maps: nn.Module | None = None  # those of key and value in one, once worked out

    def forward(
        self, x: Float[Tensor, "B T W"], state: State | None = None, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T W"], State]:
        retrieval, state = self.prepare_retrieval(x, state, mask)
        return self.combine(retrieval.answer(self.dropout if self.training else 0.0)), state

    def prepare_retrieval(
        self, x: Tensor, state: State | None = None, mask: Tensor | None = None
    ) -> tuple[Retrieval, State]:
        """What is asked at every time of x, and the state after it. Keys of length sqrt(beta) have the products
        beta q.k: nothing is left to multiply.
        """
        key_state, value_state = state[:2] if state else (None, None)
        for_keys, for_values = (x, x) if self.maps is None else self.maps(x).chunk(2, dim=-1)
        queries, key_state = self.key(for_keys, key_state, mask, self.sharpness() ** 0.5)
        values, value_state = self.value(for_values, value_state, mask)
        pairs, stored = append(state[2:] if state else None, queries, values, mask, peek=self.value.peek)
        fresh = state is None and mask is None
        return Retrieval(queries, pairs, sharpness=1.0, queries_are_keys=fresh), (key_state, value_state, *stored)

    def to_fixed_capacity(self, state: State, capacity: int) -> State:
        """The same state with room for `capacity` pairs, to be read on one token at a time."""
        return *state[:2], *to_fixed_capacity(state[2:], capacity)

    def fold_for_inference(self) -> "ContextualMemory":
        """One matrix for key and value: both have to wait for one product, not for two."""
        twin = fold_parts(self)
        maps: list[Any] = [getattr(part, "map", None) for part in (self.key, self.value)]
        plain = all(type(one) is nn.Linear and one.bias is None for one in maps)
        if plain and maps[0].weight.shape == maps[1].weight.shape:
            twin.maps = copy(maps[0])
            twin.maps._parameters = {"weight": nn.Parameter(torch.cat([one.weight for one in maps])), "bias": None}
            twin.key.map = twin.value.map = nn.Identity()
        return twin


class PersistentMemory(nn.Module):
    """A layer of associative memories whose pairs are parameters, found by training (appendix D.1).

    With `memories` > 1 each head asks several memories and takes the mean of their answers. The stored keys are not
    normalised. State: the key extractor's own.
    """

    init_roles: ClassVar = {"": "slots", "sharpness": "sharpness"}

    def __init__(
        self,
        *,
        key: Extractor,
        slots: int,
        head_shape: tuple[int, int],
        sharpness: float | Callable[[], float | Tensor],
        combine: nn.Module,
        memories: int = 1,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.key, self.combine = check_causal(key), combine
        self.sharpness = sharpness if callable(sharpness) else Fixed(sharpness)
        self.keys = nn.Parameter(torch.empty(memories, slots, *head_shape))
        self.values = nn.Parameter(torch.empty(memories, slots, *head_shape))
        self.dropout = dropout
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for pairs in (self.keys, self.values):
            nn.init.normal_(pairs, std=SLOTS_STD)

    def forward(
        self, x: Float[Tensor, "B T W"], state: State | None = None, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T W"], State]:
        retrieval, state = self.prepare_retrieval(x, state, mask)
        answers = retrieval.answer(self.dropout if self.training else 0.0)
        answers = answers.squeeze(0) if len(answers) == 1 else answers.mean(dim=0)  # a view costs no copy
        return self.combine(answers.unflatten(0, x.shape[:2])), state

    def prepare_retrieval(
        self, x: Tensor, state: State | None = None, mask: Tensor | None = None
    ) -> tuple[Retrieval, State]:
        """What is asked at every time of every row of x, as if it were one row: (memories, B*T, H, D). Queries have
        the length beta: the stored keys are as they are.
        """
        keys, key_state = self.key(x, state[0] if state else None, mask, self.sharpness())
        queries = keys.flatten(0, 1)[None].expand(len(self.keys), -1, -1, -1)
        pairs = Pairs(self.keys.to(queries.dtype), self.values.to(queries.dtype))
        return Retrieval(queries, pairs, sharpness=1.0), (key_state,)


def head_width(width: int, heads: int) -> int:
    """Width of one of `heads` equal heads."""
    if heads < 1 or width % heads:
        raise ValueError(f"width {width} does not split into {heads} heads")
    return width // heads


def learned_sharpness(heads: int, initial: float) -> Scale:
    """Beta, one per head."""
    return Scale(heads, initial=initial, speed=20.0)


@part("contextual_memory")
@dataclass(frozen=True, kw_only=True)
class ContextualMemoryConfig(MixerConfig):
    """Contextual memories as in the paper's language models, or with other extractors."""

    heads: int
    key: ExtractorConfig = LeakyAverageConfig()
    value: ExtractorConfig = TapsConfig()

    def __post_init__(self) -> None:
        at_least(self, heads=1)

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> ContextualMemory:
        shape = {"head_width": head_width(width, self.heads), "bias": bias}
        return ContextualMemory(
            key=self.key.build(width, self.heads, **shape),
            value=self.value.build(width, self.heads, **shape),
            sharpness=learned_sharpness(self.heads, SPREAD * shape["head_width"] ** 0.5),
            combine=Combine(width, self.heads, **shape),
            dropout=dropout,
        )


@part("persistent_memory")
@dataclass(frozen=True, kw_only=True)
class PersistentMemoryConfig(MixerConfig):
    """Persistent memories of `slots` pairs each, `memories` of them a head."""

    heads: int
    slots: int
    memories: int = 1
    key: ExtractorConfig = LeakyAverageConfig()

    def __post_init__(self) -> None:
        at_least(self, heads=1, slots=1, memories=1)

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> PersistentMemory:
        shape = {"head_width": head_width(width, self.heads), "bias": bias}
        return PersistentMemory(
            key=self.key.build(width, self.heads, **shape),
            slots=self.slots,
            memories=self.memories,
            head_shape=(self.heads, shape["head_width"]),
            sharpness=learned_sharpness(self.heads, PERSISTENT_SPREAD / SLOTS_STD),
            combine=Combine(width, self.heads, scale=e**-0.5 / (SLOTS_STD * shape["head_width"] ** 0.5), **shape),
            dropout=dropout,
        )
