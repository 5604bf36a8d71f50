"""Triton kernels of the two-tap values. `taps.py` beside this file says what they compute.

Forward a program owns R steps of one head. Steps next to each other are read twice, but from memory only once.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl


@triton.jit
def steps(x, t, st, T, D: tl.constexpr):
    """The steps t of x in float32; zeros before the first and after the last."""
    there = x + t.to(tl.int64)[:, None] * st + tl.arange(0, D)[None, :]
    return tl.load(there, mask=((t >= 0) & (t < T))[:, None], other=0.0).to(tl.float32)


@triton.jit
def norm_gradient(tapped, d_value, EPS: tl.constexpr):
    """Gradient of what lies behind value = tapped / |tapped|."""
    length = tl.sqrt(tl.sum(tapped * tapped, axis=1))
    inverse = 1.0 / tl.maximum(length, EPS)  # one division a row, not one an element
    value = tapped * inverse[:, None]
    radial = tl.where(length > EPS, tl.sum(value * d_value, axis=1), 0.0)
    return (d_value - value * radial[:, None]) * inverse[:, None]


@triton.jit
def value_forward(raw, taps, value, sb, st, sh, T, H, D: tl.constexpr, R: tl.constexpr, EPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, h = row // H, row % H
    c0, c1 = tl.load(taps + 2 * h), tl.load(taps + 2 * h + 1)
    t, d = tl.program_id(1) * R + tl.arange(0, R), tl.arange(0, D)
    raw += b * sb + h * sh
    tapped = c0 * steps(raw, t, st, T, D) + c1 * steps(raw, t + 1, st, T, D)
    inverse = 1.0 / tl.maximum(tl.sqrt(tl.sum(tapped * tapped, axis=1)), EPS)
    there = value + (b * (T - 1) * H + h) * D + t.to(tl.int64)[:, None] * (H * D) + d[None, :]
    tl.store(there, (tapped * inverse[:, None]).to(value.dtype.element_ty), mask=(t < T - 1)[:, None])


@triton.jit
def value_backward(
    d_value, raw, taps, d_raw, d_taps,
    gb, gt, gh, sb, st, sh, T, H, count, length,
    D: tl.constexpr, P: tl.constexpr, EPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Step t of raw was in two values: in its own and, as the step to come, in the one before.

    A program walks P stretches of `length` steps side by side, so that what it found a step ago is still at hand.
    """
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = row // H, row % H
    c0, c1 = tl.load(taps + 2 * h), tl.load(taps + 2 * h + 1)
    first, d = (i * P + tl.arange(0, P)) * length, tl.arange(0, D)
    raw += b * sb + h * sh + first.to(tl.int64)[:, None] * st + d[None, :]
    d_value += b * gb + h * gh + first.to(tl.int64)[:, None] * gt + d[None, :]
    d_raw += ((b * T + first) * H + h)[:, None] * D + d[None, :]
    now = tl.load(raw - st, mask=((first > 0) & (first <= T))[:, None], other=0.0).to(tl.float32)
    before = tl.zeros([P, D], tl.float32)
    to_c0, to_c1 = tl.zeros([P, D], tl.float32), tl.zeros([P, D], tl.float32)
    for step in tl.range(-1, length, num_stages=STAGES):
        t = first + step
        coming = tl.load(raw + (step + 1) * st, mask=(t + 1 < T)[:, None], other=0.0).to(tl.float32)
        dv = tl.load(d_value + step * gt, mask=((t >= 0) & (t < T - 1))[:, None], other=0.0).to(tl.float32)
        own = norm_gradient(c0 * now + c1 * coming, dv, EPS)
        mine = step >= 0
        gradient = c0 * own + c1 * before
        tl.store(d_raw + step * (H * D), gradient.to(d_raw.dtype.element_ty), mask=(mine & (t < T))[:, None])
        counted = tl.where(mine, own, 0.0)
        to_c0 += counted * now
        to_c1 += counted * coming
        now, before = coming, own
    found = d_taps + (row * count + i) * 2
    tl.store(found, tl.sum(tl.sum(to_c0, axis=1), axis=0))
    tl.store(found + 1, tl.sum(tl.sum(to_c1, axis=1), axis=0))
