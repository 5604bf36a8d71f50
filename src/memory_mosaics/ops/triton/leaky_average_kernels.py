"""Triton kernels of the leaky average and its norm. `leaky_average.py` beside this file says what they compute.

A program owns one head of one row of the batch and walks its time in chunks of C steps, the running average in
registers. Inside a chunk the steps up to t reach t through one product with the triangular matrix decay^(t-s). Going
back, the product is with decay^(s-t-1), s > t: a gradient itself is added outside, never rounded by the tensor cores.

Where there are too few programs to fill the device, time is cut into segments. What enters a segment is a decayed sum
of what the others leave behind: `sums` finds it first, from those steps alone that decay has not made nothing of.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false
import triton
import triton.language as tl

TINY = tl.constexpr(1e-37)  # a decay of zero, in logarithms
BITS = tl.constexpr(64.0)  # what has decayed by this many halvings is nothing
LOOK = tl.constexpr(16)  # segments looked at together


@triton.jit
def mix(weights, x, total, PRECISION: tl.constexpr):
    """Returns total + weights @ x. For bfloat16 x, two halves of the weights lose nothing that counts."""
    if PRECISION == "split":
        x = x.to(tl.bfloat16)
        high = weights.to(tl.bfloat16)
        low = (weights - high.to(tl.float32)).to(tl.bfloat16)
        return tl.dot(low, x, tl.dot(high, x, total))
    else:
        return tl.dot(weights, x.to(tl.float32), total, input_precision=PRECISION)


@triton.jit
def reaching(rate, limit):
    """How many steps back, at most `limit`, before decay has made nothing of what was there."""
    return tl.minimum(BITS / tl.maximum(-rate, 1e-6), limit * 1.0).to(tl.int32) + 1


@triton.jit
def gather(sums, s, step, count, rows, rate, D: tl.constexpr):
    """Decayed sum of what the segments s + step, s + 2 step, ... leave; `count` of them exist."""
    d, j = tl.arange(0, D), tl.arange(0, LOOK)
    total = tl.zeros([D], tl.float32)
    count = tl.minimum(count, reaching(rate * rows, count))
    for first in range(0, count, LOOK):
        back = first + j
        there = sums + (s + step * (1 + back))[:, None] * D + d[None, :]
        left = tl.load(there, mask=(back < count)[:, None], other=0.0)
        total += tl.sum(tl.exp2(back * rows * rate)[:, None] * left, axis=0)
    return total


@triton.jit
def norm_gradient(key, d_key, norm, scale, EPS: tl.constexpr):
    """Gradient of the average behind key = scale * average / norm, and what reaches the scale from each step."""
    radial = tl.sum(key * d_key, axis=1)
    across = tl.where(norm > EPS, radial, 0.0)
    return (scale / norm)[:, None] * (d_key - key * across[:, None]), radial


@triton.jit
def key_forward_sums(raw, decay, sums, sb, st, sh, H, rows, S, D: tl.constexpr, C: tl.constexpr):
    """What each segment but the last leaves behind, had it begun empty."""
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1)
    h = row % H
    rate = tl.log2(tl.maximum(tl.load(decay + h), TINY))
    t, d = tl.arange(0, C), tl.arange(0, D)
    raw += (row // H) * sb + h * sh
    total = tl.zeros([C, D], tl.float32)
    for i in range(tl.cdiv(tl.minimum(reaching(rate, rows), rows), C)):
        ago = i * C + t
        here = (s + 1) * rows - 1 - ago
        x = tl.load(raw + here.to(tl.int64)[:, None] * st + d[None, :]).to(tl.float32)
        total += tl.exp2(ago * rate)[:, None] * x
    tl.store(sums + (row * S + s) * D + d, tl.sum(total, axis=0))


@triton.jit
def key_forward(
    raw, decay, scale, mean, sums, key, norm, last,
    sb, st, sh, T, H, rows, S,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_MEAN: tl.constexpr, HAS_SUMS: tl.constexpr,
):  # fmt: skip
    """Keys and norms of one segment; the last segment also leaves the last average."""
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b, h = row // H, row % H
    rate = tl.log2(tl.maximum(tl.load(decay + h), TINY))
    t, d = tl.arange(0, C), tl.arange(0, D)
    gap = t[:, None] - t[None, :]
    weights = tl.where(gap >= 0, tl.exp2(tl.maximum(gap, 0) * rate), 0.0)
    entering = tl.exp2((t + 1) * rate)

    average = tl.zeros([D], tl.float32)
    if HAS_MEAN:
        average += tl.exp2(s * rows * rate) * tl.load(mean + row * D + d)
    if HAS_SUMS:
        average += gather(sums + row * S * D, s, -1, s, rows, rate, D)
    factor = tl.load(scale + h) if HAS_SCALE else 1.0

    raw += b * sb + h * sh
    key += (b * T * H + h) * D
    at_raw, at_key = t[:, None] * st + d[None, :], t[:, None] * (H * D) + d[None, :]
    stop = tl.minimum((s + 1) * rows, T)
    for start in range(s * rows, stop, C):
        here = start + t
        inside = here < stop
        x = tl.load(raw + start * st + at_raw, mask=inside[:, None], other=0.0)
        averages = mix(weights, x, entering[:, None] * average[None, :], PRECISION)
        length = tl.maximum(tl.sqrt(tl.sum(averages * averages, axis=1)), EPS)
        unit = averages * (factor / length)[:, None]
        tl.store(key + start * (H * D) + at_key, unit.to(key.dtype.element_ty), mask=inside[:, None])
        tl.store(norm + row * T + here, length, mask=inside)
        final = here == tl.minimum(start + C, stop) - 1
        average = tl.sum(tl.where(final[:, None], averages, 0.0), axis=0)
    if s == S - 1:
        tl.store(last + row * D + d, average)


@triton.jit
def key_backward_sums(
    d_key, key, norm, decay, scale, d_last, sums,
    sb, st, sh, T, H, rows, S,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_LAST: tl.constexpr,
):  # fmt: skip
    """The gradient that each segment but the first sends to the step before it, had none come after it."""
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1) + 1
    b, h = row // H, row % H
    rate = tl.log2(tl.maximum(tl.load(decay + h), TINY))
    factor = tl.load(scale + h) if HAS_SCALE else 1.0
    t, d = tl.arange(0, C), tl.arange(0, D)
    d_key += b * sb + h * sh
    key += (b * T * H + h) * D
    total = tl.zeros([C, D], tl.float32)
    steps = tl.minimum(reaching(rate, rows), tl.minimum(T - s * rows, rows))
    for i in range(tl.cdiv(steps, C)):
        ahead = i * C + t
        here = s * rows + ahead
        inside = (here < T)[:, None]
        far = here.to(tl.int64)[:, None]
        k = tl.load(key + far * (H * D) + d[None, :], mask=inside, other=0.0).to(tl.float32) / factor
        dk = tl.load(d_key + far * st + d[None, :], mask=inside, other=0.0).to(tl.float32)
        n = tl.load(norm + row * T + here, mask=here < T, other=1.0)
        arriving, _ = norm_gradient(k, dk, n, factor, EPS)
        if HAS_LAST:
            arriving += tl.where(here == T - 1, 1.0, 0.0)[:, None] * tl.load(d_last + row * D + d)[None, :]
        total += tl.exp2(ahead * rate)[:, None] * arriving
    tl.store(sums + (row * S + s) * D + d, tl.sum(total, axis=0))


@triton.jit
def key_backward(
    d_key, key, norm, decay, scale, mean, d_last, sums, d_raw, d_decay, d_scale, d_mean,
    sb, st, sh, T, H, rows, S,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_MEAN: tl.constexpr, HAS_LAST: tl.constexpr, HAS_SUMS: tl.constexpr,
):  # fmt: skip
    """The gradient g_t = e_t + decay g_{t+1} of one segment, e_t the gradient that passes the norm.

    The product gives `later` = g_{t+1}, whose dot with the average at t is what step t + 1 tells the decay.
    """
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b, h = row // H, row % H
    lam = tl.load(decay + h)
    rate = tl.log2(tl.maximum(lam, TINY))
    factor = tl.load(scale + h) if HAS_SCALE else 1.0
    t, d = tl.arange(0, C), tl.arange(0, D)
    gap = t[None, :] - t[:, None] - 1
    weights = tl.where(gap >= 0, tl.exp2(tl.maximum(gap, 0) * rate), 0.0)
    entering = tl.exp2((C - 1 - t) * rate)

    gradient = tl.zeros([D], tl.float32)
    if HAS_SUMS:
        gradient += gather(sums + row * S * D, s, 1, S - 1 - s, rows, rate, D)
    to_decay = tl.zeros([C], tl.float32)
    to_scale = tl.zeros([C], tl.float32)

    d_key += b * sb + h * sh
    key += (b * T * H + h) * D
    d_raw += (b * T * H + h) * D
    at_d_key, at_key = t[:, None] * st + d[None, :], t[:, None] * (H * D) + d[None, :]
    stop = tl.minimum((s + 1) * rows, T)
    count = tl.cdiv(stop - s * rows, C)
    for i in range(count):
        start = s * rows + (count - 1 - i) * C
        here = start + t
        inside = (here < stop)[:, None]
        k = tl.load(key + start * (H * D) + at_key, mask=inside, other=0.0).to(tl.float32) / factor
        dk = tl.load(d_key + start * st + at_d_key, mask=inside, other=0.0).to(tl.float32)
        n = tl.load(norm + row * T + here, mask=here < stop, other=1.0)
        arriving, radial = norm_gradient(k, dk, n, factor, EPS)
        if HAS_LAST:
            arriving += tl.where(here == T - 1, 1.0, 0.0)[:, None] * tl.load(d_last + row * D + d)[None, :]
        later = mix(weights, arriving, entering[:, None] * gradient[None, :], PRECISION)
        gradients = arriving + lam * later
        to_decay += tl.sum(later * k, axis=1) * n
        to_scale += radial
        tl.store(d_raw + start * (H * D) + at_key, gradients.to(d_raw.dtype.element_ty), mask=inside)
        gradient = tl.sum(tl.where((t == 0)[:, None], gradients, 0.0), axis=0)

    found = tl.sum(to_decay, axis=0)
    if HAS_MEAN:  # noqa: SIM102 (the compiler drops the branch, with pointers to nothing in it)
        if s == 0:
            found += tl.sum(gradient * tl.load(mean + row * D + d), axis=0)
            tl.store(d_mean + row * D + d, lam * gradient)
    tl.store(d_decay + row * S + s, found)
    if HAS_SCALE:
        tl.store(d_scale + row * S + s, tl.sum(to_scale, axis=0))
