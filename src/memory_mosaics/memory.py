"""Associative memories, and the units that the paper builds from them. Every part can be replaced by another.

    Key and value extractors    what the keys and values of a sequence are                       equations 4, 5, 6
        Linear          phi_T = W x_{T+peek}                                  the three moons
        LeakyAverage    k_T = Norm(W x_T + lambda W x_{T-1} + ...)            the keys of the language models
        GatedAverage    k_T = Norm(g_T W x_T + lambda_T g_{T-1} W x_{T-1} + ...)  those of Memory Mosaics v2
        Taps            v_T = Norm(c_0 W x_T + c_1 W x_{T+1})                 their values; any number of taps
        Mix             v_T = Norm(gamma W x_T + (1 - gamma) W x_{T+1})       the values of Memory Mosaics v2
        Convolution     phi_T = Norm(sum_j W_j x_{T+j})                       a full matrix for every tap
    AssociativeMemory           section 3: stores pairs and estimates E(V | K = k)                equations 1, 2, 3
    ContextualMemory            a layer of memories that start empty and store as they read      figure 1, equation 7
    PersistentMemory            a layer of memories whose pairs are trained                      appendix D.1

The sharpness beta, a function of the number of visible pairs, is in scales.py. Which pairs a query sees (Visibility)
and where they are stored (GrowingStore, FixedStore) is in stores.py.

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
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.bounded_stores import EXACT, UNBOUNDED, BoundedStore, StorePolicy
from memory_mosaics.config import (
    ExtractorConfig,
    MixerConfig,
    NonNegativeInt,
    Part,
    PositiveInt,
    SharpnessConfig,
    check_choices,
    part,
)
from memory_mosaics.errors import UserError
from memory_mosaics.indexed_store import IndexedStore, IndexPolicy
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.ops.gated_average import NO_PEAK, gated_key, rescale_gates
from memory_mosaics.ops.indexed_recall import check_unit
from memory_mosaics.ops.leaky_average import leaky_key
from memory_mosaics.ops.normalise import HeadScale, normalise
from memory_mosaics.ops.recall import dot_product, gaussian, recall, scale_features
from memory_mosaics.ops.taps import apply_taps, extend_window, tap_values
from memory_mosaics.parameters import SENSITIVE
from memory_mosaics.scales import (
    ConstantSharpnessConfig,
    Decay,
    Fixed,
    ScaleConfig,
    depends_on_count,
    fold_parts,
)
from memory_mosaics.shapes import Bool, Float
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

Features = tuple[Float[Tensor, "B N H D"], Tensor]  # and the state of the extractor
Norm = Callable[[Tensor], Tensor]
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


def identity(x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """No norm: for keys and values whose norm matters."""
    return x


class Extractor(nn.Module):
    """Turns inputs into keys (equation 4, peek = 0) or values (equation 5): `features, state = extractor(x)`.

    Values may depend on the next `peek` inputs, so that T inputs complete the features of T - peek times: those are
    returned, with one tensor of state for the features still to come. `scale` multiplies them, per head.
    Features depend on `map(x)` only, so that the maps of key and value can be computed as one product.
    """

    heads: int
    peek: int = 0
    map: nn.Module

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        raise NotImplementedError

    def decays(self, x: Inputs | None = None) -> Tensor | None:
        """Lambda where the features are an average over time: (H), or (B T H) where it depends on x."""
        return None


def check_causal(key: Extractor) -> Extractor:
    """Return the key extractor, or refuse it: a key cannot depend on inputs still to come."""
    if key.peek != 0:
        raise ValueError(f"a key cannot depend on inputs still to come; got peek {key.peek}")
    return key


def split_heads(x: Float[Tensor, "B T W"], heads: int, mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T H D"]:
    """Split into heads, with zeros where there is padding."""
    x = x if mask is None else x * mask[..., None]
    return x.unflatten(-1, (heads, -1))


class Linear(Extractor):
    """phi_T = W x_{T+peek}: enough where one observation determines the next, as in the three moons.

    `map` may be another W.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int,
        peek: int = 0,
        bias: bool = False,
        map: nn.Module | None = None,
    ):
        super().__init__()
        self.heads, self.peek = heads, peek
        self.map = nn.Linear(width, heads * head_width, bias=bias) if map is None else map

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        window, state = extend_window(state, split_heads(self.map(x), self.heads, mask), self.peek, back=0)
        return scale_features(window[:, self.peek :], scale), state


class LeakyAverage(Extractor):
    """k_T = Norm(k-_T),  k-_T = W x_T + lambda k-_{T-1}: the keys of equation 6."""

    init_roles: ClassVar = {"map": "normalised"}

    def __init__(self, width: int, heads: int, *, head_width: int, bias: bool = False):
        super().__init__()
        self.heads = heads
        self.map = nn.Linear(width, heads * head_width, bias=bias)
        self.decay = Decay(heads)

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        raw = split_heads(self.map(x), self.heads, mask)
        if raw.dtype == torch.float16 and isinstance(scale, Tensor):
            scale = scale.clamp(max=torch.finfo(torch.float16).max)  # a sharp memory may leave its narrow range
        return leaky_key(raw, self.decay(), state, scale)

    def decays(self, x: Inputs | None = None) -> Tensor | None:
        return self.decay()


class GatedAverage(Extractor):
    """k_T = Norm(k-_T),  k-_T = g_T W x_T + lambda_T k-_{T-1}: what is averaged, and how long, depends on the input.

    Per head, g_T = exp(w.x_T) and lambda_T = exp(-|u.x_T|). State: the average, and the logarithm of its scale.
    """

    init_roles: ClassVar = {"map": "normalised"}

    def __init__(self, width: int, heads: int, *, head_width: int, bias: bool = False):
        super().__init__()
        self.heads = heads
        self.map = nn.Linear(width, heads * (head_width + 2), bias=bias)  # W, then the w and the u of all heads

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        raw, log_gate, rate = self._split(self.map(x))
        raw = split_heads(raw, self.heads, mask)
        log_gate, log_decay = at_least_fp32(log_gate), -at_least_fp32(rate).abs()
        if mask is not None:  # padding adds nothing and lets nothing decay
            log_gate = log_gate.masked_fill(~mask[..., None], NO_PEAK)
            log_decay = log_decay.masked_fill(~mask[..., None], 0.0)
        if state is None:
            state = F.pad(torch.zeros_like(raw[:, :1].sum(dim=1), dtype=log_gate.dtype), (0, 1), value=NO_PEAK)
        if x.shape[1] == 0:
            return raw, state
        decay, gate, peak = rescale_gates(log_decay, log_gate, state[..., -1])
        keys, average = gated_key(raw, decay, gate, state[..., :-1])
        return scale_features(keys, scale), torch.cat([average, peak[..., None]], dim=-1)

    def decays(self, x: Inputs | None = None) -> Tensor | None:
        return None if x is None else (-at_least_fp32(self._split(self.map(x))[2]).abs()).exp()

    def _split(self, mapped: Float[Tensor, "B T _"]) -> tuple[Tensor, ...]:
        return mapped.split([mapped.shape[-1] - 2 * self.heads, self.heads, self.heads], dim=-1)


class Taps(Extractor):
    """v_T = Norm(sum_j c_j W x_{T+j}),  j from -back to peek, the c_j trained per head.

    With back = 0 and peek = 1 these are the values of equation 6: two taps, initialised to c and 1 - c with uniform c.
    With back > 0 and peek = 0 they are keys; `initial` "decaying" then makes them leaky averages of a few steps.
    """

    init_roles: ClassVar = {"": "taps", "map": "normalised"}
    param_specs: ClassVar = {"taps": SENSITIVE}

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int,
        back: int = 0,
        peek: int = 1,
        norm: Norm = normalise,
        initial: str = "uniform",
        bias: bool = False,
    ):
        super().__init__()
        self.initial = initial
        self.heads, self.back, self.peek, self.norm = heads, back, peek, norm
        self.map = nn.Linear(width, heads * head_width, bias=bias)
        self.taps = nn.Parameter(torch.empty(heads, back + 1 + peek))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A random split of 1: uniform c and 1 - c where there are two taps. Or "decaying", c_j = lambda^|j|, with the
        lambdas of a leaky average: the current input outweighs its neighbours.
        """
        if self.initial == "decaying":
            lags = torch.arange(-self.back, self.peek + 1).abs()
            with torch.no_grad():
                self.taps.copy_(Decay(len(self.taps))()[:, None] ** lags)
            return
        cuts = torch.rand(self.taps.shape[0], self.taps.shape[1] - 1).sort(dim=-1).values
        with torch.no_grad():
            self.taps.copy_(F.pad(cuts, (0, 1), value=1.0) - F.pad(cuts, (1, 0)))

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        raw = split_heads(self.map(x), self.heads, mask)
        window, state = extend_window(state, raw, self.back + self.peek, back=self.back)
        if self.taps.shape[1] == 2 and self.norm is normalise and scale is None:
            return tap_values(window, self.taps), state
        return scale_features(self.norm(apply_taps(at_least_fp32(window), self.taps)), scale).to(window.dtype), state


class Mix(Extractor):
    """v_T = Norm(gamma W x_T + (1 - gamma) W x_{T+1}), gamma trained per head and initially uniform."""

    peek = 1
    init_roles: ClassVar = {"": "taps", "map": "normalised"}
    param_specs: ClassVar = {"gamma": SENSITIVE}

    def __init__(self, width: int, heads: int, *, head_width: int, bias: bool = False):
        super().__init__()
        self.heads = heads
        self.map = nn.Linear(width, heads * head_width, bias=bias)
        self.gamma = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.gamma)

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        window, state = extend_window(state, split_heads(self.map(x), self.heads, mask), 1, back=0)
        return scale_features(tap_values(window, torch.stack([self.gamma, 1 - self.gamma], dim=-1)), scale), state


class Convolution(Extractor):
    """phi_T = Norm(sum_j W_j x_{T+j}),  j from -back to peek: a full matrix for every tap."""

    init_roles: ClassVar = {"map": "normalised"}

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int,
        back: int = 1,
        peek: int = 0,
        norm: Norm = normalise,
        bias: bool = False,
    ):
        super().__init__()
        self.heads, self.back, self.peek, self.norm = heads, back, peek, norm
        self.map = nn.Linear(width, (back + 1 + peek) * heads * head_width, bias=bias)

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        taps = self.back + 1 + self.peek
        raw = split_heads(self.map(x), taps * self.heads, mask)
        window, state = extend_window(state, raw, taps - 1, back=self.back)
        complete = max(window.shape[1] - taps + 1, 0)
        terms = [part[:, j : j + complete] for j, part in enumerate(window.chunk(taps, dim=2))]
        return scale_features(self.norm(torch.stack(terms).sum(dim=0)), scale), state


def evaluate_sharpness(sharpness: Any, pairs: Pairs, time: int) -> float | Tensor:
    """beta(n) of each of `time` queries, n the number of pairs it sees; n is counted only where beta depends on it."""
    if not depends_on_count(sharpness):
        return sharpness(None)
    betas = [torch.as_tensor(sharpness(group.visible_counts(time)[..., None])) for group in pairs.groups()]
    heads, here = pairs.keys.shape[2], pairs.keys.device  # each group's betas are those of all heads
    betas = torch.broadcast_tensors(*(beta.to(here).expand(*beta.shape[:-1], heads) for beta in betas))
    if len(betas) == 1:
        return betas[0]
    return torch.cat([beta.chunk(len(betas), dim=-1)[group] for group, beta in enumerate(betas)], dim=-1)


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
        # A copy: the caller may modify the originals.
        rows = [x.clone().reshape(self.batch.numel(), x.shape[-2], 1, x.shape[-1]) for x in (keys, values)]
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
        if isinstance(self.pairs, IndexedStore) and self.pairs.indexed is not None:
            return self._retrieve_indexed(self.pairs, keys)
        answers = self._retrieve(keys)
        return AnswersWithBounds(answers, answers.new_zeros(keys.shape[:-1]), keys.new_ones(keys.shape[:-1]).bool())

    def _retrieve_indexed(self, store: IndexedStore, keys: Float[Tensor, "... D"]) -> AnswersWithBounds:
        self._check(keys)
        sharpness = self.sharpness(self.count) if callable(self.sharpness) else self.sharpness
        sharpness = 2 * sharpness if self.kernel is gaussian else sharpness  # on unit keys this is equation 3
        rows = keys.reshape(-1, keys.shape[-2], 1, keys.shape[-1]).to(store.newest.keys.dtype)
        pairs = store.pairs(keys.shape[-2], (ALL_EARLIER,))._replace(seen=(VisiblePairs(),))
        answers, bounds, guaranteed = Retrieval(rows, pairs, sharpness).answer_with_bounds()
        shape = keys.shape[:-1]
        return AnswersWithBounds(
            answers.reshape(*shape, -1).to(keys.dtype), bounds.reshape(shape), guaranteed.reshape(shape)
        )

    def _retrieve(self, keys: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        if self.pairs is None or self.keys is None or self.values is None:
            return torch.zeros_like(keys)
        self._check(keys)
        if len(self) == 0:
            return keys.new_zeros(*keys.shape[:-1], self.values.shape[-1])
        sharpness = self.sharpness(self.count) if callable(self.sharpness) else self.sharpness
        # Distances between far keys are small differences of large numbers: twice the precision where there is any.
        exact = torch.float32 if keys.device.type == "mps" else torch.float64
        queries, stored = self.kernel(keys.to(exact), self.keys.to(exact), sharpness)
        one_head = [x.reshape(-1, x.shape[-2], 1, x.shape[-1]) for x in (queries, stored, self.values.to(exact))]
        if self.policy.kind == EXACT or isinstance(self.pairs, IndexedStore):
            answers = recall(*one_head)
        else:
            times = self.pairs.now[:, None].expand(-1, keys.shape[-2])
            found = self.pairs.pairs(times, (ALL_EARLIER,))
            retrieval = Retrieval(one_head[0], found._replace(keys=one_head[1], values=one_head[2]), 1.0)
            answers, self.pairs = retrieval.answer(), self.pairs.evict(retrieval)
        return answers.reshape(*keys.shape[:-1], self.values.shape[-1]).to(keys.dtype)

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


class ContextualMemory(RetrievalMixer):
    """A layer of associative memories, one per head, that start empty and store what they read (figure 1).

    At time t each memory answers its key k_t from the pairs stored before (equation 7, `contextual_retrieval`); the
    pair (k_t, v_t) is complete once the `value.peek` inputs that v_t depends on have come. `sharpness` is a number, or
    is called with the numbers of pairs that the queries see, (T, 1) or (B, T, 1), and returns betas that broadcast to
    (T, H) or (B, T, H). The delay of its `visibility` is at least `value.peek`; a tuple has one for each group of
    heads.
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
        return self.combine(retrieval.answer(self.dropout if self.training else 0.0, self.dropout_of)), state

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
            lookahead=self.value.peek,
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
        answers = retrieval.answer(dropout, self.dropout_of)
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


def head_width(width: int, heads: int) -> int:
    """Width of one of `heads` equal heads."""
    if heads < 1 or width % heads:
        raise ValueError(f"width {width} does not split into {heads} heads")
    return width // heads


@part("linear")
class LinearConfig(ExtractorConfig):
    """W x_{T+peek}."""

    extractor: ClassVar = Linear
    peek: NonNegativeInt = 0


@part("leaky_average")
class LeakyAverageConfig(ExtractorConfig):
    """Norm of the leaky average of W x."""

    extractor: ClassVar = LeakyAverage


@part("gated_average")
class GatedAverageConfig(ExtractorConfig):
    """Norm of the gated average of W x."""

    extractor: ClassVar = GatedAverage


@part("mix")
class MixConfig(ExtractorConfig):
    """Norm of gamma W x_T + (1 - gamma) W x_{T+1}."""

    extractor: ClassVar = Mix


@part("convolution")
class ConvolutionConfig(ExtractorConfig):
    """Norm of the sum of W_j x_{T+j}, j from -back to peek."""

    extractor: ClassVar = Convolution
    back: NonNegativeInt = 1
    peek: NonNegativeInt = 0
    norm: bool = True

    def build(self, width: int, heads: int, *, head_width: int, bias: bool = False) -> Extractor:
        options = vars(self) | {"norm": normalise if self.norm else identity}
        return self.extractor(width, heads, head_width=head_width, bias=bias, **options)


@part("taps")
class TapsConfig(ConvolutionConfig):
    """Norm of the sum of c_j W x_{T+j}, j from -back to peek."""

    extractor: ClassVar = Taps
    back: NonNegativeInt = 0
    peek: NonNegativeInt = 1
    initial: Literal["uniform", "decaying"] = "uniform"  # a random split of 1, or lambda^|j|: for keys

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)


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
