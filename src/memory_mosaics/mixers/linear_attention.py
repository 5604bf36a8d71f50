"""Linear attention: one matrix per head accumulates all pairs, so that a step costs the same at any length.

    S_t = diag(a_t) S_{t-1} + k_t^T v_t,    o_t = q_t S_t

    LinearTransformer    a = 1: attention without the softmax       Katharopoulos et al. 2020, without their feature map
    RetNet               a = gamma, one number per head             Sun et al. 2023, the first version
    GLA                  a_t = sigmoid of a map of x_t, per channel Yang et al. 2023, the first version

The details are those of the RegBench baselines (Akyürek et al. 2024). `linear_attention` is the recurrence, in time and
memory linear in T: products inside chunks and a scan over chunks. If flash-linear-attention is installed, its kernel
computes the same on CUDA, except under torch.compile.

Letters in shapes: B batch, T time, H heads, D key width, V value width, W model width; N chunks of C steps.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memory_mosaics.config import MixerConfig, PositiveInt, part
from memory_mosaics.extractors import head_width, split_heads
from memory_mosaics.mixers.attention import count_tokens
from memory_mosaics.ops.common import at_least_fp32_dtype, flash_kernel, full_precision
from memory_mosaics.ops.scan import Elements, scan, split_chunks
from memory_mosaics.shapes import Float, Int
from memory_mosaics.stores import Inputs, Mask, Outputs, State

CHUNK, GATED_CHUNK = 64, 16  # e^(3 * 16), the largest factor of a chunk of GLA, is well within float32
BLOCK = 128  # queries at a time under dropout of scores
GOLDEN, FACTORS = -0x61C8864680B583EB, (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # of splitmix64, as signed numbers
GATE_RANK, GATE_TEMPERATURE, FASTEST_GATE = 16, 16.0, -3.0  # of GLA


def linear_attention(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B T H D"],
    values: Float[Tensor, "B T H V"],
    log_decay: Float[Tensor, "_ T H _"],
    memory: Float[Tensor, "B H D V"] | None = None,
    *,
    chunk: int = GATED_CHUNK,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H D V"]]:
    """Outputs o and the last S, to continue from. `log_decay` may be shared by all rows or channels.

    In a chunk, with G_t the sum of its log decays so far, query t sees pair s with weight (q_t e^G_t) . (k_s e^-G_s).
    Longer chunks store fewer S, but e^-G must not overflow.
    """
    B, T, H, D = queries.shape
    memory = queries.new_zeros(B, H, D, values.shape[-1]) if memory is None else memory.to(queries.dtype)
    if T == 0:
        return values, memory
    fused = queries.is_cuda and T > 1 and queries.dtype == torch.float32 and not torch.compiler.is_compiling()
    if fused and (kernel := flash_kernel("gla", "chunk_gla")) is not None:
        decay = log_decay.expand(B, T, H, D)
        return kernel(queries, keys, values, decay, scale=1.0, initial_state=memory, output_final_state=True)
    q, k, v, g = split_chunks(min(chunk, T), queries, keys, values, log_decay)  # (B, N, C, H, _)
    with full_precision(queries.device):
        g = g.cumsum(dim=2)
        q, past, last = q * g.exp(), k * (-g).exp(), g[:, :, -1:]
        scores = torch.einsum("bnthd,bnshd->bnhts", q, past).tril()
        added = torch.einsum("bnshd,bnshv->bnhdv", k * (last - g).exp(), v)
        kept = last[:, :, 0, :, :, None].exp()
        start = kept[:, :1] * memory[:, None] + added[:, :1]
        _, leaving = scan(_decay_and_add, (kept, torch.cat([start, added[:, 1:]], dim=1)))
        entering = torch.cat([memory[:, None], leaving[:, :-1]], dim=1)
        found = torch.einsum("bnhts,bnshv->bnthv", scores, v)
        found = found + torch.einsum("bnthd,bnhdv->bnthv", q, entering)
    return found.flatten(1, 2)[:, :T], leaving[:, -1].clone()  # not a view, which would keep all of them alive


def _decay_and_add(earlier: Elements, later: Elements) -> Elements:
    (decay, memory), (later_decay, added) = earlier, later
    return decay * later_decay, later_decay * memory + added


def _attention_with_dropout(
    queries: Float[Tensor, "B T H D"], keys: Float[Tensor, "B T H D"], values: Float[Tensor, "B T H V"], dropout: float
) -> Float[Tensor, "B T H V"]:
    """Linear attention without decay and state, with dropout of scores: those of one block exist at a time."""

    def attend(start: int, seed: Tensor, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = torch.einsum("bthd,bshd->bhts", queries, keys).tril(start)
        scores = scores * (uniform(seed, scores.shape) >= dropout) / (1 - dropout)
        return torch.einsum("bhts,bshv->bthv", scores, values)

    outputs, starts = [values[:, :0]], range(0, queries.shape[1], BLOCK)
    for start, seed in zip(starts, torch.randint(2**62, (len(starts),), device=queries.device), strict=True):
        end = start + BLOCK
        block = seed, queries[:, start:end], keys[:, :end], values[:, :end]
        outputs.append(checkpoint(attend, start, *block, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(outputs, dim=1)


def uniform(seed: Int[Tensor, ""], shape: torch.Size) -> Float[Tensor, "..."]:
    """Numbers in [0, 1) as a function of the seed (splitmix64), so that the backward pass can recompute them.

    A generator would have to be rewound for that, which is impossible under CUDA graph capture.
    """
    x = (seed + torch.arange(shape.numel(), device=seed.device).view(shape)) * GOLDEN
    for factor, shift in zip(FACTORS, (30, 27), strict=True):
        x = (x ^ (x >> shift)) * factor
    return ((x ^ (x >> 31)) & (2**24 - 1)) / 2**24


class LinearTransformer(nn.Module):
    """Attention whose scores q_t . k_s / sqrt(D) are the weights themselves: no softmax, feature map or normaliser.

    State: S. In training, `dropout` drops scores between tokens of one call; what is in a state is not dropped.
    """

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0, bias: bool = False):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.combine = nn.Linear(width, width, bias=bias)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        exact = at_least_fp32_dtype(x)
        q, v = (split_heads(map(x), self.heads, None).to(exact) for map in (self.query, self.value))
        k = split_heads(self.key(x), self.heads, mask).to(exact) * q.shape[-1] ** -0.5
        if self.training and self.dropout:
            outputs = _attention_with_dropout(q, k, v, self.dropout)
            with full_precision(x.device):
                memory = torch.einsum("bthd,bthv->bhdv", k, v)
            if state:
                outputs, memory = outputs + torch.einsum("bthd,bhdv->bthv", q, state[0]), memory + state[0]
        else:
            no_decay = q.new_zeros(1, x.shape[1], self.heads, 1)
            outputs, memory = linear_attention(q, k, v, no_decay, *(state or ()), chunk=CHUNK)
        return self.combine(outputs.flatten(2).to(x.dtype)), (memory,)


class RetNet(nn.Module):
    """Retention: decay gamma, rotary positions, weights normalised by row, a norm and a gate per head.

    A_ts = q_t . k_s gamma^(t-s) / sqrt(sum_s gamma^(t-s)), divided by max(1, |sum_s A_ts|). The sum over s is the
    output for a value of one, so S has one more column. State: S, and the number of tokens seen, per row.
    """

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, heads: int, *, bias: bool = False):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, 2 * width, bias=bias)
        self.gate = nn.Linear(width, 2 * width, bias=bias)
        self.combine = nn.Linear(2 * width, width, bias=bias)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        B, T, _ = x.shape
        exact = at_least_fp32_dtype(x)
        memory, seen = state or (None, torch.zeros(B, dtype=torch.long, device=x.device))
        position, total_seen = count_tokens(x, seen, mask)
        q = rotate(split_heads(self.query(x), self.heads, None).to(exact), position)
        k = rotate(split_heads(self.key(x), self.heads, mask).to(exact) * q.shape[-1] ** -0.5, position)
        v = split_heads(self.value(x), self.heads, None).to(exact)

        # Not a buffer: 1 - 2^-12 is 1 in bfloat16.
        leak = 2.0 ** (-5 - torch.arange(self.heads, device=x.device, dtype=exact))  # 1 - gamma
        log_decay = torch.log1p(-leak)
        log_decays = log_decay[None, None, :, None].expand(1, T, -1, -1)
        width, padding = v.shape[-1] + 1, (0, 7)  # GPUs are fastest at widths that are multiples of eight
        v = F.pad(F.pad(v, (0, 1), value=1.0), padding)
        memory = None if memory is None else F.pad(memory, padding)
        found, memory = linear_attention(q, k, v, log_decays, memory, chunk=CHUNK)
        found, memory = found[..., :width], memory[..., :width].clone()
        total = -torch.expm1((position[..., None] + 1) * log_decay) / leak  # sum_s gamma^(t-s), (B, T, H)
        found = found / total.sqrt()[..., None]
        outputs = found[..., :-1] / found[..., -1:].detach().abs().clamp(min=1.0)
        return self.combine(gate_heads(self.gate(x), outputs)), (memory, total_seen)


class GLA(nn.Module):
    """Gated linear attention: each key channel has a decay of its own, a function of x. State: S.

    Keys are half as wide as values. Biases are where the paper has them, whatever the model's.
    """

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width // 2, bias=False)
        self.key = nn.Linear(width, width // 2, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.decay = nn.Sequential(nn.Linear(width, GATE_RANK, bias=False), nn.Linear(GATE_RANK, width // 2))
        self.gate = nn.Linear(width, width)
        self.combine = nn.Linear(width, width, bias=False)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        exact = at_least_fp32_dtype(x)
        q, v, decay = (split_heads(map(x), self.heads, None).to(exact) for map in (self.query, self.value, self.decay))
        k = split_heads(self.key(x), self.heads, mask).to(exact) * v.shape[-1] ** -0.5
        log_decay = (F.logsigmoid(decay) / GATE_TEMPERATURE).clamp(min=FASTEST_GATE)
        outputs, memory = linear_attention(q, k, v, log_decay, *(state or ()))
        return self.combine(gate_heads(self.gate(x), outputs)), (memory,)


def rotate(x: Float[Tensor, "B T H D"], position: Int[Tensor, "B T"]) -> Float[Tensor, "B T H D"]:
    """Rotate coordinates 2j and 2j + 1 together, by angles from `position` down to position / 10000."""
    speed = 10000.0 ** -torch.linspace(0, 1, x.shape[-1] // 2, device=x.device, dtype=x.dtype)
    angle = position[..., None, None] * speed  # (B, T, 1, D/2)
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    rotated = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.stack(rotated, dim=-1).flatten(-2)


def gate_heads(gate: Float[Tensor, "B T W"], outputs: Float[Tensor, "B T H V"]) -> Float[Tensor, "B T W"]:
    """SiLU of the gate times the outputs, each head normalised."""
    return F.silu(gate) * F.layer_norm(outputs, outputs.shape[-1:]).flatten(2).to(gate.dtype)


@part("linear_transformer")
class LinearTransformerConfig(MixerConfig):
    """Attention without the softmax."""

    heads: PositiveInt

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> LinearTransformer:
        head_width(width, self.heads)
        return LinearTransformer(width, self.heads, dropout=dropout, bias=bias)


@part("retnet")
class RetNetConfig(MixerConfig):
    """Retention; published with biases."""

    heads: PositiveInt

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> RetNet:
        if head_width(width, self.heads) % 2:
            raise ValueError(f"RetNet rotates pairs of coordinates, but a head is {width // self.heads} wide")
        return RetNet(width, self.heads, bias=bias)


@part("gla")
class GLAConfig(MixerConfig):
    """Gated linear attention."""

    heads: PositiveInt = 1

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> GLA:
        if head_width(width, self.heads) % 2:
            raise ValueError(f"GLA's keys are half a head wide, but a head is {width // self.heads} wide")
        return GLA(width, self.heads)
