"""Triton kernels of the two-tap values. `taps.py` beside this file says what they compute.

A program owns R steps of one head. Steps next to each other are read more than once, but from memory only once.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false
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
    norm = tl.maximum(length, EPS)
    value = tapped / norm[:, None]
    radial = tl.where(length > EPS, tl.sum(value * d_value, axis=1), 0.0)
    return (d_value - value * radial[:, None]) / norm[:, None]


@triton.jit
def value_forward(raw, taps, value, sb, st, sh, T, H, D: tl.constexpr, R: tl.constexpr, EPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, h = row // H, row % H
    c0, c1 = tl.load(taps + 2 * h), tl.load(taps + 2 * h + 1)
    t, d = tl.program_id(1) * R + tl.arange(0, R), tl.arange(0, D)
    raw += b * sb + h * sh
    tapped = c0 * steps(raw, t, st, T, D) + c1 * steps(raw, t + 1, st, T, D)
    norm = tl.maximum(tl.sqrt(tl.sum(tapped * tapped, axis=1)), EPS)
    there = value + (b * (T - 1) * H + h) * D + t.to(tl.int64)[:, None] * (H * D) + d[None, :]
    tl.store(there, (tapped / norm[:, None]).to(value.dtype.element_ty), mask=(t < T - 1)[:, None])


@triton.jit
def value_backward(
    d_value, raw, taps, d_raw, d_taps,
    gb, gt, gh, sb, st, sh, T, H, count,
    D: tl.constexpr, R: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """Step t of raw was in two values: in its own and, as the step to come, in the one before."""
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = row // H, row % H
    c0, c1 = tl.load(taps + 2 * h), tl.load(taps + 2 * h + 1)
    t, d = i * R + tl.arange(0, R), tl.arange(0, D)
    raw += b * sb + h * sh
    d_value += b * gb + h * gh
    now, then = steps(raw, t, st, T, D), steps(raw, t + 1, st, T, D)
    own = norm_gradient(c0 * now + c1 * then, steps(d_value, t, gt, T - 1, D), EPS)
    before = c0 * steps(raw, t - 1, st, T, D) + c1 * now
    gradient = c0 * own + c1 * norm_gradient(before, steps(d_value, t - 1, gt, T - 1, D), EPS)
    there = d_raw + (b * T * H + h) * D + t.to(tl.int64)[:, None] * (H * D) + d[None, :]
    tl.store(there, gradient.to(d_raw.dtype.element_ty), mask=(t < T)[:, None])
    found = d_taps + (row * count + i) * 2
    tl.store(found, tl.sum(tl.sum(own * now, axis=1), axis=0))
    tl.store(found + 1, tl.sum(tl.sum(own * then, axis=1), axis=0))
