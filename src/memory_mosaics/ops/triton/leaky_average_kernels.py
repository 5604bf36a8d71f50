"""Triton kernels of the leaky average and its norm. `leaky_average.py` beside this file says what they compute.

A program owns one head of one row of the batch. Forward it walks time in chunks of C steps, the running average in
registers: inside a chunk the steps up to t reach t through one product with the triangular matrix decay^(t-s).

Backward there is more to do at a step than the products would save. A program cuts its time into P stretches and walks
them side by side, a step of each at once: a tile is P steps that lie far apart, and nothing in it waits for anything
else in it. What enters each stretch is found first, by the same walk over the beginning of the stretch after it, as
far as decay has not made nothing of it.

Where there are too few programs to fill the device, time is cut into segments of a program each. What enters one comes
from the steps just outside it, or, where they reach farther than a segment, from what `sums` found of all segments.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

TINY = tl.constexpr(1e-37)  # a decay of zero, in logarithms
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
def reaching(rate, limit, BITS: tl.constexpr):
    """How many steps back, at most `limit`, before decay has halved BITS times, and made nothing, of what was there."""
    return tl.minimum(BITS / tl.maximum(-rate, 1e-6), limit * 1.0).to(tl.int32) + 1


@triton.jit
def gather(sums, s, step, count, rows, rate, D: tl.constexpr, BITS: tl.constexpr):
    """Decayed sum of what the segments s + step, s + 2 step, ... leave; `count` of them exist."""
    d, j = tl.arange(0, D), tl.arange(0, LOOK)
    total = tl.zeros([D], tl.float32)
    count = tl.minimum(count, reaching(rate * rows, count, BITS))
    for first in range(0, count, LOOK):
        back = first + j
        there = sums + (s + step * (1 + back))[:, None] * D + d[None, :]
        left = tl.load(there, mask=(back < count)[:, None], other=0.0)
        total += tl.sum(tl.exp2(back * rows * rate)[:, None] * left, axis=0)
    return total


@triton.jit
def norm_gradient(key, d_key, norm, scale, EPS: tl.constexpr):
    """Gradient of the average behind key = scale * average / norm, and what reaches the scale from each step."""
    radial, inverse = tl.sum(key * d_key, axis=1) * (1.0 / scale), 1.0 / norm
    across = tl.where(norm > EPS, radial, 0.0)
    return (scale * inverse)[:, None] * d_key - (across * inverse)[:, None] * key, radial


@triton.jit
def key_forward_sums(raw, decay, sums, sb, st, sh, H, rows, S, D: tl.constexpr, C: tl.constexpr, BITS: tl.constexpr):
    """What each segment but the last leaves behind, had it begun empty; where it reaches farther than the next one."""
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1)
    h = row % H
    rate = tl.log2(tl.maximum(tl.load(decay + h), TINY))
    if reaching(rate, rows, BITS) > rows:
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
    """Keys and norms of one segment; the last segment also leaves the last average.

    The walk begins before the segment, where that is all that reaches into it.
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
        reach = reaching(rate, rows, BITS)
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
def arriving(d_key, key, norm, d_last, t, stop, T, factor, EPS: tl.constexpr, HAS_LAST: tl.constexpr):
    """What reaches the averages at steps t by themselves: its gradient, what reaches the scale, keys and norms."""
    inside = t < stop
    k = tl.load(key, mask=inside[:, None], other=0.0).to(tl.float32)
    dk = tl.load(d_key, mask=inside[:, None], other=0.0).to(tl.float32)
    n = tl.load(norm, mask=inside, other=1.0)
    gradient, radial = norm_gradient(k, dk, n, factor, EPS)
    if HAS_LAST:
        gradient += tl.where(t == T - 1, 1.0, 0.0)[:, None] * d_last[None, :]
    return gradient, radial, k, n


@triton.jit
def sent_back(
    d_key, key, norm, d_last, first, stop, T, factor, rate, limit, st, step,
    D: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr, HAS_LAST: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """The gradient that the steps from `first` to `stop` send to the step before, the first `limit` of them at most."""
    t, d = tl.arange(0, C), tl.arange(0, D)
    total = tl.zeros([C, D], tl.float32)
    for i in range(tl.cdiv(tl.minimum(reaching(rate, limit, BITS), limit), C)):
        ahead = i * C + t
        here = first + ahead
        far = here.to(tl.int64)[:, None]
        e, _, _, _ = arriving(
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
    """What each segment but the first sends back, had none come after it; where it reaches beyond the one before."""
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1) + 1
    b, h = row // H, row % H
    rate = tl.log2(tl.maximum(tl.load(decay + h), TINY))
    if reaching(rate, rows, BITS) > rows:
        factor = tl.load(scale + h) if HAS_SCALE else 1.0
        d = tl.arange(0, D)
        at_last = tl.load(d_last + row * D + d) if HAS_LAST else d
        sent = sent_back(
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
    """The gradient g_t = e_t + decay g_{t+1} of one segment, e_t what arrives at step t through the norm.

    What g_{t+1} and the average at t have in common is what step t + 1 tells the decay.
    """
    row, s = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b, h = row // H, row % H
    lam = tl.load(decay + h)
    rate = tl.log2(tl.maximum(lam, TINY))
    factor = tl.load(scale + h) if HAS_SCALE else 1.0
    stretch, d = tl.arange(0, P), tl.arange(0, D)
    length = rows // P
    first, stop = s * rows + stretch * length, tl.minimum((s + 1) * rows, T)
    d_key += b * sb + h * sh
    key += (b * T * H + h) * D
    d_raw += (b * T * H + h) * D
    norm += row * T
    at_last = tl.load(d_last + row * D + d) if HAS_LAST else d

    reach = reaching(rate, length, BITS)
    near = reach <= length  # then all that enters a stretch comes from the one after it, in this segment or the next
    reach, skipped, end = tl.minimum(reach, length), tl.where(near, length, 0), tl.where(near, T, stop)
    left = tl.zeros([P, D], tl.float32)
    at_d_key, at_key = first[:, None] * st + d[None, :], first[:, None] * (H * D) + d[None, :]
    for step in tl.range(0, reach, num_stages=STAGES):
        i = skipped + reach - 1 - step
        e, _, _, _ = arriving(
            d_key + i * st + at_d_key, key + i * (H * D) + at_key, norm + i + first, at_last,
            first + i, end, T, factor, EPS, HAS_LAST,
        )  # fmt: skip
        left = e + lam * left
    gradients = left
    if not near:
        gradient = tl.zeros([D], tl.float32)
        if HAS_SUMS:
            if reaching(rate, rows, BITS) > rows:
                gradient += gather(sums + row * S * D, s, 1, S - 1 - s, rows, rate, D, BITS)
            else:
                gradient += sent_back(
                    d_key, key, norm, at_last, (s + 1) * rows, T, T, factor, rate, rows, st, H * D,
                    D, C, EPS, HAS_LAST, BITS,
                )  # fmt: skip
        for turn in tl.static_range(P):
            here = (stretch == P - 1 - turn)[:, None]
            gradients = tl.where(here, gradient[None, :], gradients)
            gradient = tl.sum(tl.where(here, left, 0.0), axis=0) + tl.exp2(length * rate) * gradient

    d_key += at_d_key
    key += at_key
    d_raw += at_key
    norm += first
    to_decay, to_scale = tl.zeros([P], tl.float32), tl.zeros([P], tl.float32)
    for step in tl.range(0, length, num_stages=STAGES):
        i = length - 1 - step
        e, radial, k, n = arriving(
            d_key + i * st, key + i * (H * D), norm + i, at_last, first + i, stop, T, factor, EPS, HAS_LAST
        )
        to_decay += tl.sum(gradients * k, axis=1) * n
        to_scale += radial
        gradients = e + lam * gradients
        tl.store(d_raw + i * (H * D), gradients.to(d_raw.dtype.element_ty), mask=(first + i < stop)[:, None])

    found = tl.sum(to_decay, axis=0) / factor
    if HAS_MEAN:  # noqa: SIM102 (the compiler drops the branch, with pointers to nothing in it)
        if s == 0:
            gradient = tl.sum(tl.where((stretch == 0)[:, None], gradients, 0.0), axis=0)
            found += tl.sum(gradient * tl.load(mean + row * D + d), axis=0)
            tl.store(d_mean + row * D + d, lam * gradient)
    tl.store(d_decay + (b * S + s) * H + h, found)
    if HAS_SCALE:
        tl.store(d_scale + (b * S + s) * H + h, tl.sum(to_scale, axis=0))
