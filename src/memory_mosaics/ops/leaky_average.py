"""Leaky average over time, and the keys of the language models, which are its norm: equation 6 of the paper.

    mean_t = x_t + decay * mean_{t-1},    key_t = scale * Norm(mean_t)

`leaky_average` takes time and memory linear in T: by products inside chunks, which suit compilers and GPUs, or on a CPU
step by step in all chunks at once, which is a third of the work. `leaky_key` on CUDA is one pass over memory: it reads
x once and writes the keys once. For the backward pass it saves the keys, which recall saves as well, and their norms:
key times norm is the average, as exact as the gradient of the keys, and x need not be saved.
"""

# pyright: reportInvalidTypeForm=false
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from memory_mosaics.ops.common import (
    WIDTHS,
    at_least_fp32,
    at_least_fp32_dtype,
    can_use_triton,
    contiguous,
    contiguous_rows,
    differentiable_op,
    full_precision,
    multiprocessors,
    tl,
    triton,
)
from memory_mosaics.ops.normalise import EPS, HeadScale, normalise
from memory_mosaics.shapes import Float

CHUNK = 16

# Launch options of the kernels, tuned by measurement (docs/LOG.md): with one segment, and with several.
FORWARD = dict(C=16, num_warps=2, num_stages=5)
BACKWARD = dict(P=8, C=16, num_warps=2, STAGES=6)
SEGMENT_FORWARD = dict(C=16, num_warps=1, num_stages=8)
SEGMENT_BACKWARD = dict(P=4, C=16, num_warps=1, STAGES=10)
SEGMENT_MULTIPLE = 32  # the steps of a segment are a multiple of this
SUMS = dict(C=SEGMENT_MULTIPLE, num_warps=1)  # most of these programs return at once
MIN_SEGMENT = 256  # steps
RESIDENT = 8  # programs per multiprocessor, with several segments


def reference(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"] | None = None
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """The definition, one step at a time in float32."""
    B, _, H, D = x.shape
    dtype = at_least_fp32_dtype(x)
    mean = x.new_zeros(B, H, D, dtype=dtype) if mean is None else mean
    means = [x.new_zeros(B, 0, H, D)]
    for x_t in x.to(dtype).unbind(dim=1):
        mean = x_t + decay[:, None] * mean
        means.append(mean[:, None])
    return torch.cat(means, dim=1).to(x.dtype), mean


def key_reference(
    raw: Float[Tensor, "B T H D"],
    decay: Float[Tensor, " H"],
    mean: Float[Tensor, "B H D"] | None = None,
    scale: Float[Tensor, " H"] | None = None,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """The definition of `leaky_key`: the leaky average step by step in float32, then the norm."""
    average, last = reference(raw.float(), decay, mean)
    key = F.normalize(average, dim=-1, eps=EPS)
    return (key if scale is None else scale[:, None] * key).to(raw.dtype), last


def leaky_key(
    raw: Float[Tensor, "B T H D"],
    decay: Float[Tensor, " H"],
    mean: Float[Tensor, "B H D"] | None = None,
    scale: HeadScale = None,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """Keys, and the last average in float32 at least, to continue from. `scale` is the norm of the keys, or 1."""
    if raw.shape[1] > 1 and can_use_triton(raw, widths=WIDTHS):
        if scale is not None and not isinstance(scale, Tensor):
            scale = torch.full((raw.shape[2],), scale, device=raw.device)
        mean, scale = (None if given is None else given.float() for given in (mean, scale))
        key, last, _ = _leaky_key(raw, decay.float(), mean, scale)
        return key, last
    average, last = leaky_average(at_least_fp32(raw), decay, mean)
    return normalise(average, scale).to(raw.dtype), last


def leaky_average(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"] | None = None
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """Average of every prefix, and the last one in float32 at least, to continue from. `decay` in [0, 1], per head."""
    B, T, H, D = x.shape
    dtype = at_least_fp32_dtype(x)
    mean = x.new_zeros(B, H, D, dtype=dtype) if mean is None else mean.to(dtype)
    if T == 0:
        return x, mean
    if T == 1:
        means = torch.addcmul(x.to(dtype), decay.to(dtype)[:, None], mean[:, None])
        return means.to(x.dtype), means[:, 0].clone() if torch.compiler.is_compiling() else means[:, 0]
    by_steps = x.device.type == "cpu" and not torch.compiler.is_compiling()
    with full_precision(x.device):
        average = cast(Callable[..., Tensor], _BySteps.apply) if by_steps else _in_chunks
        means = average(x.to(dtype), decay.to(dtype), mean)
    return means.to(x.dtype), means[:, -1].clone()  # not a view, which would keep all of means alive


def _in_chunks(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"]
) -> Float[Tensor, "B T H D"]:
    """Inside a chunk of C steps the averages are one product with the C x C matrix decay^(t-s).

    The last averages of chunks are again a leaky average, with decay^C over T/C steps: computed by recursion.
    """
    B, T, H, D = x.shape
    if T == 1:
        return x + (decay[:, None] * mean)[:, None]
    count = (T + CHUNK - 1) // CHUNK
    missing = count * CHUNK - T
    chunks = (F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x).reshape(B, count, CHUNK, H, D)
    t = torch.arange(CHUNK, device=x.device)
    weights = (decay[:, None, None] ** (t[:, None] - t).clamp(min=0)).tril()  # (H, C, C)
    means = torch.einsum("hts,bcshd->bcthd", weights, chunks)

    entering = mean[:, None]
    if T > CHUNK:
        leaving = _in_chunks(means[:, :, -1], decay**CHUNK, mean)
        entering = torch.cat([entering, leaving[:, : count - 1]], dim=1)  # (B, T/C, H, D)
    powers = (decay ** (t + 1)[:, None])[..., None]  # (C, H, 1)
    means = torch.addcmul(means, powers, entering[:, :, None])
    return means.reshape(B, count * CHUNK, H, D)[:, :T]


class _BySteps(torch.autograd.Function):
    """The gradient of a leaky average is a leaky average in reverse."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, decay: Tensor, mean: Tensor) -> Tensor:
        means = _by_steps(x, decay, mean)
        ctx.save_for_backward(means, decay, mean)
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        means, decay, mean = ctx.saved_tensors
        d_x = _by_steps(gradients[0], decay, torch.zeros_like(mean), reverse=True)
        first = d_x[:, 0]
        d_decay = torch.linalg.vecdot(d_x[:, 1:], means[:, :-1]).sum((0, 1)) + (first * mean).sum((0, 2))
        return d_x, d_decay, decay[:, None] * first


def _by_steps(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"], *, reverse: bool = False
) -> Float[Tensor, "B T H D"]:
    """Step by step in about sqrt(T) chunks in parallel; then the average entering each is added."""
    B, T, H, D = x.shape
    size = max(1, round(T**0.5))
    count = -(-T // size)
    missing = count * size - T
    chunks = (F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x).reshape(B, count, size, H, D)
    means, decay = torch.empty_like(chunks), decay[:, None]
    steps = range(size)[::-1] if reverse else range(size)
    x_t, mean_t = chunks.unbind(dim=2), means.unbind(dim=2)
    mean_t[steps[0]].copy_(x_t[steps[0]])
    for before, t in pairwise(steps):
        torch.addcmul(x_t[t], mean_t[before], decay, out=mean_t[t])

    entering, power = torch.empty_like(mean_t[0]), decay**size
    enters, leaves = entering.unbind(dim=1), mean_t[steps[-1]].unbind(dim=1)
    chunk_order = range(count)[::-1] if reverse else range(count)
    enters[chunk_order[0]].copy_(mean)
    for before, i in pairwise(chunk_order):
        torch.addcmul(leaves[before], enters[before], power, out=enters[i])
    powers = decay ** torch.tensor([steps.index(t) + 1 for t in range(size)])[:, None, None]  # (C, H, 1)
    return means.addcmul_(powers, entering[:, :, None]).view(B, count * size, H, D)[:, :T]


def segments(x: Tensor, chunk: int, resident: int) -> tuple[int, int]:
    """Steps per segment, a multiple of `chunk`, and segments: enough for `resident` programs per multiprocessor."""
    B, T, H, _ = x.shape
    count = max(1, min(resident * multiprocessors(x.device) // (B * H), T // MIN_SEGMENT))
    rows = -(-T // (count * chunk)) * chunk
    return rows, -(-T // rows)


def _bits(x: Tensor) -> float:
    """Halvings after which a step is negligible beside later ones, in the precision of x and more.

    Where there are none, as in padding, the direction of the remainder is lost at the border of a segment.
    """
    return 24.0 if x.dtype == torch.float32 else 16.0


def _forward(raw: Tensor, decay: Tensor, mean: Tensor | None, scale: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, the last average, and all norms."""
    (raw,), (decay, mean, scale) = contiguous_rows(raw), contiguous(decay, mean, scale)
    (B, T, H, D), (rows, S) = raw.shape, segments(raw, SEGMENT_MULTIPLE, RESIDENT)
    key, last, norm = empty_key(raw)
    sums = norm.new_empty(B, H, S, D) if S > 1 else None
    strides = raw.stride()[:3]
    if sums is not None:
        key_forward_sums[(B * H, S - 1)](raw, decay, sums, *strides, H, rows, S, D=D, BITS=_bits(raw), **SUMS)
    key_forward[(B * H, S)](
        raw, decay, scale, mean, sums, key, norm, last, *strides, T, H, rows, S, D=D, EPS=EPS,
        HAS_SCALE=scale is not None, HAS_MEAN=mean is not None, HAS_SUMS=sums is not None, BITS=_bits(raw),
        PRECISION="split" if raw.dtype == torch.bfloat16 else "tf32x3", **(FORWARD if S == 1 else SEGMENT_FORWARD),
    )  # fmt: skip
    return key, last, norm


def _backward(
    d_key: Tensor,
    d_last: Tensor | None,
    key: Tensor,
    norm: Tensor,
    decay: Tensor,
    mean: Tensor | None,
    scale: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of raw, decay, mean and scale; those of decay and scale per segment: (B*S, H). Empty for None."""
    (d_key,), (decay, mean, scale, d_last) = contiguous_rows(d_key), contiguous(decay, mean, scale, d_last)
    (B, T, H, D), (rows, S) = key.shape, segments(key, SEGMENT_MULTIPLE, RESIDENT)
    d_raw, d_decay, d_mean, d_scale = _empty_gradients(d_key, d_last, key, norm, decay, mean, scale)
    sums = norm.new_empty(B, H, S, D) if S > 1 else None
    sizes = (*d_key.stride()[:3], T, H, rows, S)
    flags = dict(D=D, EPS=EPS, HAS_SCALE=scale is not None, HAS_LAST=d_last is not None, BITS=_bits(key))
    if sums is not None:
        inputs = (d_key, key, norm, decay, scale, d_last, sums)
        key_backward_sums[(B * H, S - 1)](*inputs, *sizes, **flags, **SUMS)
    key_backward[(B * H, S)](
        d_key, key, norm, decay, scale, mean, d_last, sums, d_raw, d_decay, d_scale, d_mean, *sizes, **flags,
        HAS_MEAN=mean is not None, HAS_SUMS=sums is not None, **(BACKWARD if S == 1 else SEGMENT_BACKWARD),
    )  # fmt: skip
    return d_raw, d_decay, d_mean, d_scale


def empty_key(raw: Tensor, *_: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, last averages and norms, without their values."""
    B, T, H, D = raw.shape
    empty = partial(raw.new_empty, dtype=torch.float32)
    return raw.new_empty(B, T, H, D), empty(B, H, D), empty(B, H, T)


def empty_gradient(given: Tensor | None, like: Tensor) -> Tensor:
    """A gradient of this shape; an empty tensor for None, which a custom op cannot return."""
    return like.new_empty(0 if given is None else given.shape, dtype=torch.float32)


def _empty_gradients(d_key, d_last, key, norm, decay, mean, scale):
    per_segment = norm.new_empty(key.shape[0] * segments(key, SEGMENT_MULTIPLE, RESIDENT)[1], key.shape[2])
    d_scale = empty_gradient(None if scale is None else per_segment, key)
    return torch.empty_like(key), per_segment, empty_gradient(mean, key), d_scale


_leaky_key = differentiable_op(
    "leaky_key",
    _forward,
    _backward,
    fake=empty_key,
    fake_backward=_empty_gradients,
    saved=lambda inputs, outputs: (outputs[0], outputs[2], *inputs[1:]),
)


# The kernels. A program has one head of one row of the batch. Forward it iterates over time in chunks of C steps, with
# the running average in registers: inside a chunk the averages are one product with the triangular matrix decay^(t-s).
#
# Backward such products would not pay. A program splits its time into P intervals and iterates over them in parallel,
# one step of each at once: a tile is P distant steps that do not depend on each other. The gradient that enters each
# interval is computed first, from the beginning of the next interval, up to the decay horizon.
#
# With too few programs to fill the device, time is split into segments of one program each. What enters a segment is
# computed from the steps just outside it or, where the decay horizon is longer than a segment, from the `sums` of all
# segments.
TINY = tl.constexpr(1e-37)  # replaces a decay of zero, for its logarithm
LOOK = tl.constexpr(16)  # segments loaded at once


@triton.jit
def mix(weights, x, total, PRECISION: tl.constexpr):
    """Return total + weights @ x. For bfloat16 x, the weights are split into two halves."""
    if PRECISION == "split":
        x = x.to(tl.bfloat16)
        high = weights.to(tl.bfloat16)
        low = (weights - high.to(tl.float32)).to(tl.bfloat16)
        return tl.dot(low, x, tl.dot(high, x, total))
    else:
        return tl.dot(weights, x.to(tl.float32), total, input_precision=PRECISION)


@triton.jit
def decay_horizon(rate, limit, BITS: tl.constexpr):
    """Steps, at most about `limit`, after which the decay is 2^-BITS: older ones are negligible."""
    return tl.minimum(BITS / tl.maximum(-rate, 1e-6), limit * 1.0).to(tl.int32) + 1


@triton.jit
def gather(sums, s, step, count, rows, rate, D: tl.constexpr, BITS: tl.constexpr):
    """Decayed total of the sums of segments s + step, s + 2 step, ...; `count` of them exist."""
    d, j = tl.arange(0, D), tl.arange(0, LOOK)
    total = tl.zeros([D], tl.float32)
    count = tl.minimum(count, decay_horizon(rate * rows, count, BITS))
    for first in range(0, count, LOOK):
        back = first + j
        there = sums + (s + step * (1 + back))[:, None] * D + d[None, :]
        left = tl.load(there, mask=(back < count)[:, None], other=0.0)
        total += tl.sum(tl.exp2(back * rows * rate)[:, None] * left, axis=0)
    return total


@triton.jit
def norm_gradient(key, d_key, norm, scale, EPS: tl.constexpr):
    """Gradient of the average in key = scale * average / norm, and that of the scale, per step."""
    radial, inverse = tl.sum(key * d_key, axis=1) * (1.0 / scale), 1.0 / norm
    across = tl.where(norm > EPS, radial, 0.0)
    return (scale * inverse)[:, None] * d_key - (across * inverse)[:, None] * key, radial


@triton.jit
def key_forward_sums(raw, decay, sums, sb, st, sh, H, rows, S, D: tl.constexpr, C: tl.constexpr, BITS: tl.constexpr):
    """The last average of each segment but the last, from zero, if the horizon is longer than a segment."""
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1)
    h = row % H
    rate = tl.log2(tl.maximum(tl.load(decay + h), TINY))
    if decay_horizon(rate, rows, BITS) > rows:
        raw += (row // H) * sb + h * sh
        t, d = tl.arange(0, C), tl.arange(0, D)
        total = tl.zeros([C, D], tl.float32)
        for ago in range(0, rows, C):
            here = (s + 1) * rows - 1 - ago - t
            x = tl.load(raw + here.to(tl.int64)[:, None] * st + d[None, :]).to(tl.float32)
            total += tl.exp2((ago + t) * rate)[:, None] * x
        tl.store(sums + (row * S + s) * D + d, tl.sum(total, axis=0))


@triton.jit
def key_forward(
    raw, decay, scale, mean, sums, key, norm, last,
    sb, st, sh, T, H, rows, S,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_MEAN: tl.constexpr, HAS_SUMS: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Keys and norms of one segment; the last segment also stores the last average.

    It starts before the segment, at the decay horizon, if that is within the previous one.
    """
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b, h = row // H, row % H
    rate = tl.log2(tl.maximum(tl.load(decay + h), TINY))
    t, d = tl.arange(0, C), tl.arange(0, D)
    gap = t[:, None] - t[None, :]
    weights = tl.where(gap >= 0, tl.exp2(tl.maximum(gap, 0) * rate), 0.0)
    entering = tl.exp2((t + 1) * rate)

    begin = s * rows
    average = tl.zeros([D], tl.float32)
    if HAS_SUMS:
        reach = decay_horizon(rate, rows, BITS)
        if reach > rows:
            average += gather(sums + row * S * D, s, -1, s, rows, rate, D, BITS)
        else:
            begin = tl.maximum(begin - tl.cdiv(reach, C) * C, 0)
    if HAS_MEAN:
        average += tl.exp2(begin * rate) * tl.load(mean + row * D + d)
    raw += b * sb + h * sh
    factor = tl.load(scale + h) if HAS_SCALE else 1.0

    key += (b * T * H + h) * D
    at_raw, at_key = t[:, None] * st + d[None, :], t[:, None] * (H * D) + d[None, :]
    stop = tl.minimum((s + 1) * rows, T)
    for start in range(begin, stop, C):
        here = start + t
        inside = here < stop
        own = inside & (start >= s * rows)
        x = tl.load(raw + start * st + at_raw, mask=inside[:, None], other=0.0)
        averages = mix(weights, x, entering[:, None] * average[None, :], PRECISION)
        length = tl.maximum(tl.sqrt(tl.sum(averages * averages, axis=1)), EPS)
        unit = averages * (factor / length)[:, None]
        tl.store(key + start * (H * D) + at_key, unit.to(key.dtype.element_ty), mask=own[:, None])
        tl.store(norm + row * T + here, length, mask=own)
        final = here == tl.minimum(start + C, stop) - 1
        average = tl.sum(tl.where(final[:, None], averages, 0.0), axis=0)
    if s == S - 1:
        tl.store(last + row * D + d, average)


@triton.jit
def local_grad(d_key, key, norm, d_last, t, stop, T, factor, EPS: tl.constexpr, HAS_LAST: tl.constexpr):
    """Gradient of the averages at steps t through their own keys, that of the scale, keys and norms."""
    inside = t < stop
    k = tl.load(key, mask=inside[:, None], other=0.0).to(tl.float32)
    dk = tl.load(d_key, mask=inside[:, None], other=0.0).to(tl.float32)
    n = tl.load(norm, mask=inside, other=1.0)
    gradient, radial = norm_gradient(k, dk, n, factor, EPS)
    if HAS_LAST:
        gradient += tl.where(t == T - 1, 1.0, 0.0)[:, None] * d_last[None, :]
    return gradient, radial, k, n


@triton.jit
def grad_to_previous(
    d_key, key, norm, d_last, first, stop, T, factor, rate, limit, st, step,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, HAS_LAST: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """Gradient of the step before `first` from the steps up to `stop`, at most `limit` of them."""
    t, d = tl.arange(0, C), tl.arange(0, D)
    total = tl.zeros([C, D], tl.float32)
    for i in range(tl.cdiv(tl.minimum(decay_horizon(rate, limit, BITS), limit), C)):
        ahead = i * C + t
        here = first + ahead
        far = here.to(tl.int64)[:, None]
        e, _, _, _ = local_grad(
            d_key + far * st + d[None, :], key + far * step + d[None, :], norm + here, d_last,
            here, stop, T, factor, EPS, HAS_LAST,
        )  # fmt: skip
        total += tl.exp2(ahead * rate)[:, None] * e
    return tl.sum(total, axis=0)


@triton.jit
def key_backward_sums(
    d_key, key, norm, decay, scale, d_last, sums,
    sb, st, sh, T, H, rows, S,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_LAST: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """Gradient from each segment but the first to the previous one, if the horizon is longer than a segment."""
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1) + 1
    b, h = row // H, row % H
    rate = tl.log2(tl.maximum(tl.load(decay + h), TINY))
    if decay_horizon(rate, rows, BITS) > rows:
        factor = tl.load(scale + h) if HAS_SCALE else 1.0
        d = tl.arange(0, D)
        at_last = tl.load(d_last + row * D + d) if HAS_LAST else d
        sent = grad_to_previous(
            d_key + b * sb + h * sh, key + (b * T * H + h) * D, norm + row * T, at_last,
            s * rows, tl.minimum((s + 1) * rows, T), T, factor, rate, rows, st, H * D, D, C, EPS, HAS_LAST, BITS,
        )  # fmt: skip
        tl.store(sums + (row * S + s) * D + d, sent)


@triton.jit
def key_backward(
    d_key, key, norm, decay, scale, mean, d_last, sums, d_raw, d_decay, d_scale, d_mean,
    sb, st, sh, T, H, rows, S,
    D: tl.constexpr, P: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, STAGES: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_MEAN: tl.constexpr, HAS_LAST: tl.constexpr, HAS_SUMS: tl.constexpr,
    BITS: tl.constexpr,
):  # fmt: skip
    """The gradient g_t = e_t + decay g_{t+1} of one segment, e_t that of step t through its own key.

    The gradient of the decay is the sum of g_{t+1} . average_t.
    """
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b, h = row // H, row % H
    lam = tl.load(decay + h)
    rate = tl.log2(tl.maximum(lam, TINY))
    factor = tl.load(scale + h) if HAS_SCALE else 1.0
    interval, d = tl.arange(0, P), tl.arange(0, D)
    length = rows // P
    first, stop = s * rows + interval * length, tl.minimum((s + 1) * rows, T)
    d_key += b * sb + h * sh
    key += (b * T * H + h) * D
    d_raw += (b * T * H + h) * D
    norm += row * T
    at_last = tl.load(d_last + row * D + d) if HAS_LAST else d

    reach = decay_horizon(rate, length, BITS)
    near = reach <= length  # then all that enters an interval comes from the next one, in this segment or the next
    reach, skipped, end = tl.minimum(reach, length), tl.where(near, length, 0), tl.where(near, T, stop)
    left = tl.zeros([P, D], tl.float32)
    at_d_key, at_key = first[:, None] * st + d[None, :], first[:, None] * (H * D) + d[None, :]
    for step in tl.range(0, reach, num_stages=STAGES):
        i = skipped + reach - 1 - step
        e, _, _, _ = local_grad(
            d_key + i * st + at_d_key, key + i * (H * D) + at_key, norm + i + first, at_last,
            first + i, end, T, factor, EPS, HAS_LAST,
        )  # fmt: skip
        left = e + lam * left
    gradients = left
    if not near:
        gradient = tl.zeros([D], tl.float32)
        if HAS_SUMS:
            if decay_horizon(rate, rows, BITS) > rows:
                gradient += gather(sums + row * S * D, s, 1, S - 1 - s, rows, rate, D, BITS)
            else:
                gradient += grad_to_previous(
                    d_key, key, norm, at_last, (s + 1) * rows, T, T, factor, rate, rows, st, H * D,
                    D, C, EPS, HAS_LAST, BITS,
                )  # fmt: skip
        for turn in tl.static_range(P):
            here = (interval == P - 1 - turn)[:, None]
            gradients = tl.where(here, gradient[None, :], gradients)
            gradient = tl.sum(tl.where(here, left, 0.0), axis=0) + tl.exp2(length * rate) * gradient

    d_key += at_d_key
    key += at_key
    d_raw += at_key
    norm += first
    to_decay, to_scale = tl.zeros([P], tl.float32), tl.zeros([P], tl.float32)
    for step in tl.range(0, length, num_stages=STAGES):
        i = length - 1 - step
        e, radial, k, n = local_grad(
            d_key + i * st, key + i * (H * D), norm + i, at_last, first + i, stop, T, factor, EPS, HAS_LAST
        )
        to_decay += tl.sum(gradients * k, axis=1) * n
        to_scale += radial
        gradients = e + lam * gradients
        tl.store(d_raw + i * (H * D), gradients.to(d_raw.dtype.element_ty), mask=(first + i < stop)[:, None])

    found = tl.sum(to_decay, axis=0) / factor
    if HAS_MEAN:  # noqa: SIM102 (the compiler must drop the branch, whose pointers are None)
        if s == 0:
            gradient = tl.sum(tl.where((interval == 0)[:, None], gradients, 0.0), axis=0)
            found += tl.sum(gradient * tl.load(mean + row * D + d), axis=0)
            tl.store(d_mean + row * D + d, lam * gradient)
    tl.store(d_decay + (b * S + s) * H + h, found)
    if HAS_SCALE:
        tl.store(d_scale + (b * S + s) * H + h, tl.sum(to_scale, axis=0))
