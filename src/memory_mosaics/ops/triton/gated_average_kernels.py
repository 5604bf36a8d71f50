"""Triton kernels of the leaky average with a decay and a gate for every step: `gated_average.py` says what.

As in `leaky_average_kernels.py`, with decay^(t-s) now a product of decays: a difference of sums of their logarithms.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

from memory_mosaics.ops.triton.leaky_average_kernels import mix, norm_gradient

LEAST = tl.constexpr(1e-12)  # decays below are taken for it: sums of logarithms stay small, and so exact


@triton.jit
def logs(decay, t, H, stop):
    """log2 of the decays at the steps t; past the stop, of one."""
    return tl.log2(tl.maximum(tl.load(decay + t.to(tl.int64) * H, mask=t < stop, other=1.0), LEAST))


@triton.jit
def gather(sums, totals, s, step, count, D: tl.constexpr):
    """Decayed sum of what the `count` segments s + step, s + 2 step, ... leave; the logarithm of all decay there."""
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
    """What each segment but the last leaves behind, had it begun empty, and the logarithm of its decay."""
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
def passed(d_key, key, norm, d_last, here, stop, st, T, H, D: tl.constexpr, EPS: tl.constexpr, HAS_LAST: tl.constexpr):
    """The keys at these steps, their norms, and the gradient that passes the norm."""
    d = tl.arange(0, D)
    far, inside = here.to(tl.int64)[:, None], (here < stop)[:, None]
    k = tl.load(key + far * (H * D) + d[None, :], mask=inside, other=0.0).to(tl.float32)
    dk = tl.load(d_key + far * st + d[None, :], mask=inside, other=0.0).to(tl.float32)
    n = tl.load(norm + here, mask=here < stop, other=1.0)
    arriving, _ = norm_gradient(k, dk, n, 1.0, EPS)
    if HAS_LAST:
        arriving += tl.where(here == T - 1, 1.0, 0.0)[:, None] * tl.load(d_last + d)[None, :]
    return k, n, arriving


@triton.jit
def gated_key_backward_sums(
    d_key, key, norm, decay, d_last, sums, totals, gb, gt, gh, T, H, rows, S,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, HAS_LAST: tl.constexpr,
):  # fmt: skip
    """The gradient at the first step of each segment but the first, had none come after; the decay up to the next."""
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
        _, _, arriving = passed(
            d_key, key, norm + row * T, d_last + row * D if HAS_LAST else d_last, here, T, gt, T, H, D, EPS, HAS_LAST
        )
        following = logs(decay, here + 1, H, T)
        weight = tl.exp2(decayed + tl.cumsum(following, axis=0) - following)
        total += tl.sum(weight[:, None] * arriving, axis=0)
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
        k, n, arriving = passed(
            d_key, key, norm + row * T, d_last + row * D if HAS_LAST else d_last, here, stop, gt, T, H, D, EPS, HAS_LAST
        )
        following = logs(decay, here + 1, H, T)
        up_to_next = tl.cumsum(following, axis=0)
        before = up_to_next - following
        gap = tl.where(t[None, :] > t[:, None], before[None, :] - up_to_next[:, None], float("-inf"))
        rest = tl.exp2(tl.sum(following, axis=0) - up_to_next)
        later = mix(tl.exp2(gap), arriving, rest[:, None] * gradient[None, :], PRECISION)
        gradients = arriving + tl.exp2(following)[:, None] * later
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
