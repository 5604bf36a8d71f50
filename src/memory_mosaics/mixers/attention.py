"""The transformer baselines: self-attention, encodings of positions, and the feed-forward networks.

    LearnedPositions    a trained vector per position, added to the embedding    GPT-2, Radford et al. 2019
    Rotary              queries and keys rotated by their position               RoPE, Su et al. 2021
    Alibi               scores decrease linearly with distance                   ALiBi, Press et al. 2022
    none                the causal mask alone carries order

Attention is `recall` with queries of its own and pairs visible from their own time on (delay 0). GPT-2 is attention
with learned positions and an MLP. A Llama-like model (Touvron et al. 2023) has rotary positions, optionally grouped
queries (Ainslie et al. 2023) and norms of queries and keys (Henry et al. 2020), SwiGLU, and RMSNorm in its blocks.
"""

import math
from typing import ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import (
    ExtractorConfig,
    MixerConfig,
    NormConfig,
    Part,
    PositiveFloat,
    PositiveInt,
    check_choices,
    part,
)
from memory_mosaics.errors import UserError
from memory_mosaics.extractors import Extractor, LinearConfig, check_causal, head_width
from memory_mosaics.memory import OutputGateConfig
from memory_mosaics.ops.common import at_least_fp32, at_least_fp32_dtype
from memory_mosaics.shapes import Float, Int
from memory_mosaics.stores import (
    DropoutOf,
    Inputs,
    Mask,
    MemoryInfo,
    Outputs,
    Retrieval,
    RetrievalMixer,
    State,
    Visibilities,
    Visibility,
    append,
    head_groups,
)

ALL_TO_NOW = Visibility(delay=0)


@runtime_checkable
class PositionCode(Protocol):
    """Encodes the positions start, start + 1, ... in queries or keys; `start` is an integer, or one per row (B)."""

    def queries(self, x: Tensor, start: int | Tensor, /) -> Tensor: ...

    def keys(self, x: Tensor, start: int | Tensor, /) -> Tensor: ...


def positions(x: Float[Tensor, "B T H D"], start: int | Tensor) -> Float[Tensor, "_ T"]:
    """The positions of T steps: (1, T) for all rows, or (B, T)."""
    time = torch.arange(x.shape[1], device=x.device, dtype=at_least_fp32_dtype(x))
    return (start + time)[None] if isinstance(start, int) else start[:, None] + time


@part("rotary")
class Rotary(Part):
    """RoPE: coordinates j and j + D/2 rotate together by position * base^(-2j/D)."""

    base: PositiveFloat = 10000.0

    def queries(self, queries: Float[Tensor, "B T H D"], start: int | Tensor) -> Float[Tensor, "B T H D"]:
        D = queries.shape[-1]
        if D % 2:
            raise ValueError(f"rotary positions rotate pairs of coordinates, but a head is {D} wide")
        speed = self.base ** (-torch.arange(0, D, 2, device=queries.device, dtype=at_least_fp32_dtype(queries)) / D)
        angle = positions(queries, start)[:, :, None, None] * speed  # (B or 1, T, 1, D/2)
        x, y = at_least_fp32(queries).chunk(2, dim=-1)
        rotated = torch.cat([x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()], dim=-1)
        return rotated.to(queries.dtype)

    keys = queries


@part("alibi")
class Alibi:
    """ALiBi: slope_h * distance is subtracted from the score.

    -slope (t - s) = slope s - slope t, and the second term, common to all keys of a query, cancels in the softmax. So
    the bias is one more coordinate of the keys, and no T x T tensor is needed. It is split into three that add up,
    each exact in the dtype of the keys: in bfloat16 a single one could not tell distant positions apart.
    """

    def queries(self, queries: Float[Tensor, "B T H D"], start: int | Tensor) -> Float[Tensor, "B T H E"]:
        return F.pad(queries, (0, 3), value=math.sqrt(queries.shape[-1]))  # cancels the scale of the scores

    def keys(self, keys: Float[Tensor, "B T H D"], start: int | Tensor) -> Float[Tensor, "B T H E"]:
        B, H = len(keys), keys.shape[2]
        rest = positions(keys, start)[:, :, None] * alibi_slopes(
            H, keys.device, at_least_fp32_dtype(keys)
        )  # (B or 1, T, H)
        digits = []
        for _ in range(3):
            digits.append(rest.to(keys.dtype))
            rest = rest - digits[-1].to(rest.dtype)
        return torch.cat([keys, torch.stack(digits, dim=-1).expand(B, -1, -1, -1)], dim=-1)


def alibi_slopes(
    heads: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, " H"]:
    """The official slopes: 2^(-8h/n) for n a power of two; else those, then every second one of 2n.

    Computed on the device: a step under CUDA graph capture cannot copy from the host.
    """
    n = 2 ** int(math.log2(heads))
    powers = torch.arange(1, n + 1, device=device, dtype=dtype) / n
    between = torch.arange(1, 2 * n + 1, 2, device=device, dtype=dtype)[: heads - n] / (2 * n)
    return torch.exp2(-8 * torch.cat([powers, between]))


class Attention(RetrievalMixer):
    """Multi-head causal self-attention. With fewer heads of keys and values than of queries, each answers a group.

    State: the key extractor's own, then what is stored.
    """

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key: Extractor,
        key_value_heads: int | None = None,
        position: PositionCode | None = None,
        qk_norm: NormConfig | None = None,
        gate: nn.Module | None = None,
        visibility: Visibilities = ALL_TO_NOW,
        dropout: float = 0.0,
        dropout_of: DropoutOf = "weights",
        bias: bool = False,
    ):
        super().__init__()
        self.heads, self.position, self.gate = heads, position, gate
        self.dropout = dropout
        self.dropout_of: DropoutOf = dropout_of
        self.key_value_heads = heads if key_value_heads is None else key_value_heads
        self.visibility = head_groups(visibility, self.key_value_heads)
        head_width = width // heads
        self.query = nn.Linear(width, width, bias=bias)
        self.key = check_causal(key)
        self.value = nn.Linear(width, self.key_value_heads * head_width, bias=bias)
        self.combine = nn.Linear(width, width, bias=bias)
        self.query_norm, self.key_norm = (None if qk_norm is None else qk_norm.build(head_width) for _ in range(2))

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        retrieval, state = self.prepare_retrieval(x, state, mask)
        answers = retrieval.answers(self.dropout if self.training else 0.0, self.dropout_of)
        return self.combine(answers.flatten(2)), state

    def prepare_retrieval(self, x: Inputs, state: State | None = None, mask: Mask = None) -> tuple[Retrieval, State]:
        key_state, store = state or (None, None)
        queries = self.query(x).unflatten(-1, (self.heads, -1))
        keys, key_state = self.key(x, key_state, mask)
        values = self.value(x).unflatten(-1, (self.key_value_heads, -1))
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = self.query_norm(queries), self.key_norm(keys)
        sharpness = queries.shape[-1] ** -0.5
        if self.position is not None:
            start = 0 if store is None else store.length
            queries, keys = self.position.queries(queries, start), self.position.keys(keys, start)
        options = {"visibility": self.visibility, "training": self.training}
        pairs, store = append(store, keys, values, mask, peek=0, **options)
        gate = None if self.gate is None else self.gate(x)
        return Retrieval(queries, pairs, sharpness, gate=gate), (key_state, store)

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(name="attention", heads=self.heads, peek=0, visibility=self.visibility)


@part("attention")
class AttentionConfig(MixerConfig):
    """Attention with rotary, ALiBi or no positions, and any key extractor (GPT-2: linear)."""

    heads: PositiveInt
    position: Rotary | Alibi | None = None
    key: ExtractorConfig = LinearConfig()
    key_value_heads: PositiveInt | None = None  # fewer than heads: grouped-query attention; None: as many
    qk_norm: NormConfig | None = None  # of queries and keys, per head, before their positions
    gate: OutputGateConfig | None = None
    visibility: Visibilities = ALL_TO_NOW  # of all heads, or of groups of them; with delay=0 a query sees its own pair
    dropout_of: DropoutOf = "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        head_groups(self.visibility, self.key_value_heads or self.heads)
        if self.key_value_heads is None:
            return
        if self.heads % self.key_value_heads:
            raise UserError(f"{self.heads} heads do not split into {self.key_value_heads} groups of key_value_heads")
        if isinstance(self.position, Alibi) and self.key_value_heads != self.heads:
            raise UserError(f"ALiBi has keys of its own in each of {self.heads} heads, not {self.key_value_heads}")

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> Attention:
        each = head_width(width, self.heads)
        names = ("key_value_heads", "position", "qk_norm", "visibility", "dropout_of")
        options = {name: getattr(self, name) for name in names}
        key = self.key.build(width, self.key_value_heads or self.heads, head_width=each, bias=bias)
        gate = None if self.gate is None else self.gate.build(width, self.heads, head_width=each, bias=bias)
        return Attention(width, self.heads, key=key, gate=gate, **options, dropout=dropout, bias=bias)


def count_tokens(x: Inputs, seen: Int[Tensor, " B"], mask: Mask) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """Positions that count the real tokens of each row, after `seen` earlier ones, and their number after x."""
    real = torch.ones(x.shape[:2], dtype=torch.long, device=x.device) if mask is None else mask.long()
    return (seen[:, None] + real.cumsum(dim=1) - 1).clamp(min=0), seen + real.sum(dim=1)


class LearnedPositions(nn.Module):
    """x_t + P_t, t counted from the first real token of each row. State: how many tokens each row has seen."""

    def __init__(self, width: int, *, context: int):
        super().__init__()
        self.table = nn.Embedding(context, width)
        self.max_positions = context

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        B, T, _ = x.shape
        (seen,) = state or (torch.zeros(B, dtype=torch.long, device=x.device),)
        (position, total), context = count_tokens(x, seen, mask), self.table.num_embeddings
        longest = T if state is None and mask is None else 0
        captured = torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing())
        if B > 0 and longest == 0 and not captured:  # a capture cannot wait for the device
            longest = int(total.max())
        if longest > context:
            raise ValueError(f"{longest} tokens are more than the {context} learned positions of this model")
        return x + self.table(position), (total,)


@part("learned_positions")
class LearnedPositionsConfig(MixerConfig):
    """A trained vector for each of `context` positions."""

    context: PositiveInt

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> LearnedPositions:
        return LearnedPositions(width, context=self.context)


class MLP(nn.Module):
    """The feed-forward network of GPT-2: two matrices around a GELU in the tanh form. It has no state."""

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, *, expansion: int | float = 4, bias: bool = False):
        super().__init__()
        hidden = round(expansion * width)
        self.expand = nn.Linear(width, hidden, bias=bias)
        self.combine = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        return self.combine(F.gelu(self.expand(x), approximate="tanh")), ()


@part("mlp")
class MLPConfig(MixerConfig):
    """A feed-forward network with expansion * width hidden units, rounded."""

    expansion: int | PositiveFloat = 4

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> MLP:
        return MLP(width, expansion=self.expansion, bias=bias)


class SwiGLU(nn.Module):
    """The gated feed-forward network of Shazeer 2020, W (silu(G x) . E x). It has no state."""

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, *, hidden: int, bias: bool = False):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=bias)
        self.expand = nn.Linear(width, hidden, bias=bias)
        self.combine = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        return self.combine(F.silu(self.gate(x)) * self.expand(x)), ()


@part("swiglu")
class SwiGLUConfig(MixerConfig):
    """SwiGLU with `hidden` hidden units."""

    hidden: PositiveInt

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> SwiGLU:
        return SwiGLU(width, hidden=self.hidden, bias=bias)
