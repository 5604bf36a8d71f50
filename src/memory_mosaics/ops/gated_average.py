"""Leaky average with a decay and a gate for every step, and its norm: the keys of Memory Mosaics v2.

    mean_t = gate_t x_t + decay_t mean_{t-1},    key_t = Norm(mean_t)

On CUDA one pass over memory, as `leaky_key`; but x is saved, since the gradient of the gates needs it.
"""

# pyright: reportInvalidTypeForm=false
import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.ops.common import (
    WIDTHS,
    at_least_fp32,
    can_use_triton,
    contiguous,
    contiguous_rows,
    differentiable_op,
    double_dtype,
    tl,
    triton,
)
from memory_mosaics.ops.leaky_average import empty_gradient, empty_key, mix, norm_gradient, segments
from memory_mosaics.ops.normalise import EPS, normalise
from memory_mosaics.ops.scan import recurrence
from memory_mosaics.shapes import Float

FORWARD = dict(C=32, num_warps=4, num_stages=2)
BACKWARD = dict(C=32, num_warps=4, num_stages=1)
NO_PEAK = -1e30  # the logarithm of a gate that is closed
RESIDENT = 6  # programs per multiprocessor, with several segments


def reference(
    raw: Float[Tensor, "B T H D"],
    decay: Float[Tensor, "B T H"],
    gate: Float[Tensor, "B T H"],
    mean: Float[Tensor, "B H D"] | None = None,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """The definition, one step at a time in float32."""
    average = torch.zeros_like(raw[:, 0], dtype=torch.float32) if mean is None else mean
    averages = []
    for x, decays, gates in zip(raw.float().unbind(1), decay.unbind(1), gate.unbind(1), strict=True):
        average = gates[..., None] * x + decays[..., None] * average
        averages.append(average)
    return F.normalize(torch.stack(averages, dim=1), dim=-1, eps=EPS).to(raw.dtype), average


def gated_key(
    raw: Float[Tensor, "B T H D"],
    decay: Float[Tensor, "B T H"],
    gate: Float[Tensor, "B T H"],
    mean: Float[Tensor, "B H D"] | None = None,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """Keys, and the last average in float32, to continue from. Decays in (0, 1], clamped to at least 1e-12."""
    if raw.shape[1] > 1 and can_use_triton(raw, widths=WIDTHS):
        mean = None if mean is None else mean.float()
        key, last, _ = _gated_key(raw, decay.float(), gate.float(), mean)
        return key, last
    averages = gated_average(raw, decay, gate, mean)
    return normalise(averages).to(raw.dtype), averages[:, -1].clone()


def rescale_gates(
    log_decay: Float[Tensor, "B T H"], log_gate: Float[Tensor, "B T H"], peak: Float[Tensor, "B H"] | None = None
) -> tuple[Float[Tensor, "B T H"], Float[Tensor, "B T H"], Float[Tensor, "B H"]]:
    """Decays and gates of at most 1 that give the same keys, and the last peak, to continue from.

    Gates are exponentials without a bound, and so are the averages. The norm removes any factor that all terms of an
    average share: each is divided by exp(peak_t), where peak_t = max(peak_{t-1} + log decay_t, log gate_t). Less the
    sum of log decays that is a running maximum. No gradient goes through it, since no key depends on it.
    """
    precise = double_dtype(log_gate.device)  # of sums that grow with time
    with torch.no_grad():
        total = log_decay.to(precise).cumsum(dim=1)
        highest = (log_gate.to(precise) - total).cummax(dim=1).values
        peak = torch.full_like(log_gate[:, 0], NO_PEAK) if peak is None else peak
        peaks = torch.maximum(highest, peak.to(precise)[:, None]) + total
        before = torch.cat([peak.to(precise)[:, None], peaks[:, :-1]], dim=1)
        fall, peaks = (before - peaks).to(log_decay.dtype), peaks.to(log_gate.dtype)
    return (log_decay + fall).exp(), (log_gate - peaks).exp(), peaks[:, -1].clone()


def gated_average(
    raw: Float[Tensor, "B T H D"],
    decay: Float[Tensor, "B T H"],
    gate: Float[Tensor, "B T H"],
    mean: Float[Tensor, "B H D"] | None = None,
) -> Float[Tensor, "B T H D"]:
    """The averages in float32, in a number of operations that is logarithmic in T."""
    x = gate[..., None] * at_least_fp32(raw)
    return recurrence(decay[..., None], x, torch.zeros_like(x[:, 0]) if mean is None else mean)


def _forward(raw: Tensor, decay: Tensor, gate: Tensor, mean: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, the last average, and all norms."""
    (raw,), (decay, gate, mean) = contiguous_rows(raw), contiguous(decay, gate, mean)
    (B, T, H, D), (rows, S) = raw.shape, segments(raw, FORWARD["C"], RESIDENT)
    key, last, norm = empty_key(raw)
    sums, totals = (norm.new_empty(B, H, S, D), norm.new_empty(B, H, S)) if S > 1 else (None, None)
    sizes = (*raw.stride()[:3], T, H, rows, S)
    if S > 1:
        gated_key_forward_sums[(B * H, S - 1)](raw, decay, gate, sums, totals, *sizes, D=D, C=FORWARD["C"])
    gated_key_forward[(B * H, S)](
        raw, decay, gate, mean, sums, totals, key, norm, last, *sizes, D=D, EPS=EPS,
        HAS_MEAN=mean is not None, HAS_SUMS=S > 1, PRECISION="split" if raw.dtype == torch.bfloat16 else "tf32x3",
        **FORWARD,
    )  # fmt: skip
    return key, last, norm


def _backward(
    d_key: Tensor,
    d_last: Tensor | None,
    key: Tensor,
    norm: Tensor,
    raw: Tensor,
    decay: Tensor,
    gate: Tensor,
    mean: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of raw, decay, gate and mean (empty for None)."""
    (raw, d_key), (decay, gate, mean, d_last) = contiguous_rows(raw, d_key), contiguous(decay, gate, mean, d_last)
    (B, T, H, D), (rows, S) = key.shape, segments(key, BACKWARD["C"], RESIDENT)
    d_raw, d_decay, d_gate, d_mean = _empty_gradients(d_key, d_last, key, norm, raw, decay, gate, mean)
    sums, totals = (norm.new_empty(B, H, S, D), norm.new_empty(B, H, S)) if S > 1 else (None, None)
    sizes, flags = (T, H, rows, S), dict(D=D, EPS=EPS, HAS_LAST=d_last is not None)
    if S > 1:
        inputs = (d_key, key, norm, decay, d_last, sums, totals, *d_key.stride()[:3], *sizes)
        gated_key_backward_sums[(B * H, S - 1)](*inputs, C=BACKWARD["C"], **flags)
    gated_key_backward[(B * H, S)](
        d_key, key, norm, raw, decay, gate, mean, d_last, sums, totals, d_raw, d_decay, d_gate, d_mean,
        *d_key.stride()[:3], *raw.stride()[:3], *sizes, HAS_MEAN=mean is not None, HAS_SUMS=S > 1,
        PRECISION="tf32" if key.dtype == torch.bfloat16 else "tf32x3", **flags, **BACKWARD,
    )  # fmt: skip
    return d_raw, d_decay, d_gate, d_mean


def _empty_gradients(d_key, d_last, key, norm, raw, decay, gate, mean):
    return torch.empty_like(key), *(empty_gradient(x, key) for x in (decay, gate, mean))


_gated_key = differentiable_op(
    "gated_key",
    _forward,
    _backward,
    fake=empty_key,
    fake_backward=_empty_gradients,
    saved=lambda inputs, outputs: (outputs[0], outputs[2], *inputs),
)


# The kernels: as those of the leaky average, with decay^(t-s) now a product of decays, which is a difference of sums of
# their logarithms.
MIN_DECAY = tl.constexpr(1e-12)  # decays are clamped: sums of logarithms stay small, and so exact


@triton.jit
def logs(decay, t, H, stop):
    """log2 of the decays at the steps t; zero from `stop` on."""
    return tl.log2(tl.maximum(tl.load(decay + t.to(tl.int64) * H, mask=t < stop, other=1.0), MIN_DECAY))


@triton.jit
def gather(sums, totals, s, step, count, D: tl.constexpr):
    """Decayed total of the sums of `count` segments s + step, s + 2 step, ..., and the log2 of their decay."""
    d = tl.arange(0, D)
    total = tl.zeros([D], tl.float32)
    decayed = 0.0
    for i in range(count):
        j = s + step * (1 + i)
        total += tl.exp2(decayed) * tl.load(sums + j * D + d)
        decayed += tl.load(totals + j)
    return total, decayed


@triton.jit
def gated_key_forward_sums(
    raw, decay, gate, sums, totals, sb, st, sh, T, H, rows, S,
    D: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The last average of each segment but the last, from zero, and the log2 of its decay."""
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = row // H, row % H
    t, d = tl.arange(0, C), tl.arange(0, D)
    raw += b * sb + h * sh
    decay += b * T * H + h
    gate += b * T * H + h
    total = tl.zeros([D], tl.float32)
    decayed = 0.0
    for start in range(s * rows, (s + 1) * rows, C):
        here = start + t
        rate = logs(decay, here, H, T)
        within = tl.sum(rate, axis=0)
        weight = tl.exp2(within - tl.cumsum(rate, axis=0)) * tl.load(gate + here.to(tl.int64) * H)
        x = tl.load(raw + here.to(tl.int64)[:, None] * st + d[None, :]).to(tl.float32)
        total = tl.exp2(within) * total + tl.sum(weight[:, None] * x, axis=0)
        decayed += within
    tl.store(sums + (row * S + s) * D + d, total)
    tl.store(totals + row * S + s, decayed)


@triton.jit
def gated_key_forward(
    raw, decay, gate, mean, sums, totals, key, norm, last, sb, st, sh, T, H, rows, S,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr,
    HAS_MEAN: tl.constexpr, HAS_SUMS: tl.constexpr,
):  # fmt: skip
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = row // H, row % H
    t, d = tl.arange(0, C), tl.arange(0, D)
    average = tl.zeros([D], tl.float32)
    decayed = 0.0
    if HAS_SUMS:
        average, decayed = gather(sums + row * S * D, totals + row * S, s, -1, s, D)
    if HAS_MEAN:
        average += tl.exp2(decayed) * tl.load(mean + row * D + d)

    raw += b * sb + h * sh
    decay += b * T * H + h
    gate += b * T * H + h
    key += (b * T * H + h) * D
    stop = tl.minimum((s + 1) * rows, T)
    for start in range(s * rows, stop, C):
        here = start + t
        inside = here < stop
        far = here.to(tl.int64)[:, None]
        rate = logs(decay, here, H, stop)
        opened = tl.load(gate + here.to(tl.int64) * H, mask=inside, other=0.0)
        up_to = tl.cumsum(rate, axis=0)
        gap = tl.where(t[:, None] >= t[None, :], up_to[:, None] - up_to[None, :], float("-inf"))
        x = tl.load(raw + far * st + d[None, :], mask=inside[:, None], other=0.0)
        averages = mix(tl.exp2(gap) * opened[None, :], x, tl.exp2(up_to)[:, None] * average[None, :], PRECISION)
        length = tl.maximum(tl.sqrt(tl.sum(averages * averages, axis=1)), EPS)
        unit = averages / length[:, None]
        tl.store(key + far * (H * D) + d[None, :], unit.to(key.dtype.element_ty), mask=inside[:, None])
        tl.store(norm + row * T + here, length, mask=inside)
        final = here == tl.minimum(start + C, stop) - 1
        average = tl.sum(tl.where(final[:, None], averages, 0.0), axis=0)
    if s == S - 1:
        tl.store(last + row * D + d, average)


@triton.jit
def local_grad(
    d_key, key, norm, d_last, here, stop, st, T, H, D: tl.constexpr, EPS: tl.constexpr, HAS_LAST: tl.constexpr
):
    """Keys at these steps, their norms, and the gradient of the averages through their own keys."""
    d = tl.arange(0, D)
    far, inside = here.to(tl.int64)[:, None], (here < stop)[:, None]
    k = tl.load(key + far * (H * D) + d[None, :], mask=inside, other=0.0).to(tl.float32)
    dk = tl.load(d_key + far * st + d[None, :], mask=inside, other=0.0).to(tl.float32)
    n = tl.load(norm + here, mask=here < stop, other=1.0)
    gradient, _ = norm_gradient(k, dk, n, 1.0, EPS)
    if HAS_LAST:
        gradient += tl.where(here == T - 1, 1.0, 0.0)[:, None] * tl.load(d_last + d)[None, :]
    return k, n, gradient


@triton.jit
def gated_key_backward_sums(
    d_key, key, norm, decay, d_last, sums, totals, gb, gt, gh, T, H, rows, S,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, HAS_LAST: tl.constexpr,
):  # fmt: skip
    """Gradient at the first step of each segment but the first, from that segment, and its decay to the next."""
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1) + 1
    b, h = row // H, row % H
    t, d = tl.arange(0, C), tl.arange(0, D)
    d_key += b * gb + h * gh
    key += (b * T * H + h) * D
    decay += b * T * H + h
    total = tl.zeros([D], tl.float32)
    decayed = 0.0
    for start in range(s * rows, tl.minimum((s + 1) * rows, T), C):
        here = start + t
        _, _, gradient_here = local_grad(
            d_key, key, norm + row * T, d_last + row * D if HAS_LAST else d_last, here, T, gt, T, H, D, EPS, HAS_LAST
        )
        following = logs(decay, here + 1, H, T)
        weight = tl.exp2(decayed + tl.cumsum(following, axis=0) - following)
        total += tl.sum(weight[:, None] * gradient_here, axis=0)
        decayed += tl.sum(following, axis=0)
    tl.store(sums + (row * S + s) * D + d, total)
    tl.store(totals + row * S + s, decayed)


@triton.jit
def gated_key_backward(
    d_key, key, norm, raw, decay, gate, mean, d_last, sums, totals, d_raw, d_decay, d_gate, d_mean,
    gb, gt, gh, sb, st, sh, T, H, rows, S,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr,
    HAS_MEAN: tl.constexpr, HAS_LAST: tl.constexpr, HAS_SUMS: tl.constexpr,
):  # fmt: skip
    """The gradient g_t = e_t + decay_{t+1} g_{t+1} of one segment; `later` = g_{t+1}, as without gates."""
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = row // H, row % H
    t, d = tl.arange(0, C), tl.arange(0, D)
    gradient = tl.zeros([D], tl.float32)
    if HAS_SUMS:
        gradient, _ = gather(sums + row * S * D, totals + row * S, s, 1, S - 1 - s, D)

    d_key += b * gb + h * gh
    raw += b * sb + h * sh
    key += (b * T * H + h) * D
    d_raw += (b * T * H + h) * D
    decay += b * T * H + h
    gate += b * T * H + h
    stop = tl.minimum((s + 1) * rows, T)
    count = tl.cdiv(stop - s * rows, C)
    for i in range(count):
        here = s * rows + (count - 1 - i) * C + t
        inside = here < stop
        far = here.to(tl.int64)
        k, n, gradient_here = local_grad(
            d_key, key, norm + row * T, d_last + row * D if HAS_LAST else d_last, here, stop, gt, T, H, D, EPS, HAS_LAST
        )
        following = logs(decay, here + 1, H, T)
        up_to_next = tl.cumsum(following, axis=0)
        before = up_to_next - following
        gap = tl.where(t[None, :] > t[:, None], before[None, :] - up_to_next[:, None], float("-inf"))
        rest = tl.exp2(tl.sum(following, axis=0) - up_to_next)
        later = mix(tl.exp2(gap), gradient_here, rest[:, None] * gradient[None, :], PRECISION)
        gradients = gradient_here + tl.exp2(following)[:, None] * later
        opened = tl.load(gate + far * H, mask=inside, other=0.0)
        x = tl.load(raw + far[:, None] * st + tl.arange(0, D)[None, :], mask=inside[:, None], other=0.0)
        there = b * T * H + far * H + h
        tl.store(d_gate + there, tl.sum(gradients * x.to(tl.float32), axis=1), mask=inside)
        tl.store(d_decay + there + H, tl.sum(later * k, axis=1) * n, mask=inside & (here + 1 < T))
        out = (opened[:, None] * gradients).to(d_raw.dtype.element_ty)
        tl.store(d_raw + far[:, None] * (H * D) + d[None, :], out, mask=inside[:, None])
        gradient = tl.sum(tl.where((t == 0)[:, None], gradients, 0.0), axis=0)

    if s == 0:
        first = 0.0
        if HAS_MEAN:
            first = tl.sum(gradient * tl.load(mean + row * D + d), axis=0)
            tl.store(d_mean + row * D + d, tl.load(decay) * gradient)
        tl.store(d_decay + b * T * H + h, first)
