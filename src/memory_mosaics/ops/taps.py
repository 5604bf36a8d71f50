"""Weighted sums of neighbours in time, and the values of the language models, which are their norm: equation 6.

    y_t = sum_j c_j x_{t+j},    value_t = Norm(c_0 x_t + c_1 x_{t+1})

T steps complete T - K + 1 sums of K taps. Their gradient takes two passes per tap; autograd of slices would fill a
tensor of zeros for each tap, copy into it, and add them up. On CUDA `tap_values` is one pass over memory. Its gradient
needs x (the gradient of a tap is a dot product with it), so x is saved and the norms are recomputed.
"""

# pyright: reportInvalidTypeForm=false
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.ops.common import (
    WIDTHS,
    at_least_fp32,
    can_use_triton,
    contiguous_rows,
    differentiable_op,
    tl,
    triton,
)
from memory_mosaics.ops.normalise import EPS, normalise
from memory_mosaics.shapes import Float

FORWARD = dict(R=128, num_warps=8)
BACKWARD = dict(P=4, num_warps=1, STAGES=4)
LENGTH = 32  # largest number of steps of an interval


def reference(x: Float[Tensor, "B T H D"], taps: Float[Tensor, "H K"]) -> Float[Tensor, "B N H D"]:
    """The definition of `apply_taps`."""
    complete = max(x.shape[1] - taps.shape[1] + 1, 0)
    return torch.stack([c[:, None] * x[:, j : j + complete] for j, c in enumerate(taps.unbind(1))]).sum(0)


def value_reference(raw: Float[Tensor, "B T H D"], taps: Float[Tensor, "H 2"]) -> Float[Tensor, "B N H D"]:
    """The definition of `tap_values`, in float32."""
    return F.normalize(reference(raw.float(), taps), dim=-1, eps=EPS).to(raw.dtype)


def tap_values(raw: Float[Tensor, "B T H D"], taps: Float[Tensor, "H 2"]) -> Float[Tensor, "B N H D"]:
    """The values that T steps complete: N = T - 1 of them."""
    if raw.shape[1] > 2 and can_use_triton(raw, widths=WIDTHS):
        return _tap_values(raw, taps.float())
    return normalise(apply_taps(at_least_fp32(raw), taps)).to(raw.dtype)


def apply_taps(x: Float[Tensor, "B T H D"], taps: Float[Tensor, "H K"]) -> Float[Tensor, "B N H D"]:
    """The sums that T steps complete, with one weight per tap and head."""
    x = x.to(torch.promote_types(x.dtype, taps.dtype))
    direct = torch.compiler.is_compiling() or not torch.is_grad_enabled()
    return _sums(x, taps) if direct else cast(Tensor, _Taps.apply(x, taps))


def extend_window(
    past: Float[Tensor, "B P *F"] | None, x: Float[Tensor, "B T *F"], keep: int, *, back: int | None = None
) -> tuple[Float[Tensor, "B N *F"], Float[Tensor, "B K *F"]]:
    """Past inputs followed by x, and the last `keep` of both, for the next call.

    Before the first input there are zeros: `back` of them, by default `keep`.
    """
    if past is None:
        back = keep if back is None else back
        window = F.pad(x, (0, 0) * (x.ndim - 2) + (back, 0)) if back else x
    else:
        window = torch.cat([past.to(x.dtype), x], dim=1)
    return window, window[:, max(window.shape[1] - keep, 0) :].clone()  # not a view, which would keep the window alive


def _sums(x: Tensor, taps: Tensor) -> Tensor:
    complete = max(x.shape[1] - taps.shape[1] + 1, 0)
    first, *others = taps.unbind(dim=1)
    total = first[:, None] * x[:, :complete]
    for j, c in enumerate(others, start=1):
        total = torch.addcmul(total, x[:, j : j + complete], c[:, None])
    return total


class _Taps(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor) -> Tensor:
        ctx.save_for_backward(x, taps)
        return _sums(x, taps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,), (x, taps) = gradients, ctx.saved_tensors
        complete, d_x, d_taps = gradient.shape[1], torch.zeros_like(x), []
        for j, c in enumerate(taps.unbind(dim=1)):
            part = slice(j, j + complete)
            d_x[:, part].addcmul_(gradient, c[:, None])
            d_taps.append(torch.linalg.vecdot(gradient, x[:, part]).sum((0, 1)))
        return d_x, torch.stack(d_taps, dim=1)


def _forward(raw: Tensor, taps: Tensor) -> Tensor:
    (raw,), taps = contiguous_rows(raw), taps.contiguous()
    B, T, H, D = raw.shape
    value = torch.empty(B, T - 1, H, D, dtype=raw.dtype, device=raw.device)
    grid = (B * H, -(-(T - 1) // FORWARD["R"]))
    value_forward[grid](raw, taps, value, *raw.stride()[:3], T, H, D=D, EPS=EPS, **FORWARD)
    return value


def _backward(d_value: Tensor, raw: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    (d_value, raw), taps = contiguous_rows(d_value, raw), taps.contiguous()
    B, T, H, D = raw.shape
    length = min(LENGTH, -(-T // BACKWARD["P"]))
    count = -(-T // (BACKWARD["P"] * length))
    d_raw = torch.empty(B, T, H, D, dtype=raw.dtype, device=raw.device)
    d_taps = torch.empty(B, H, count, 2, dtype=torch.float32, device=raw.device)
    value_backward[(B * H, count)](
        d_value, raw, taps, d_raw, d_taps, *d_value.stride()[:3], *raw.stride()[:3], T, H, count, length,
        D=D, EPS=EPS, **BACKWARD,
    )  # fmt: skip
    return d_raw, d_taps.sum((0, 2))


_tap_values = differentiable_op(
    "tap_values",
    _forward,
    _backward,
    fake=lambda raw, taps: raw.new_empty(raw[:, 1:].shape),
    fake_backward=lambda d_value, raw, taps: (raw.new_empty(raw.shape), taps.new_empty(taps.shape)),
    saved=lambda inputs, outputs: inputs,
)


# The kernels. Forward a program has R steps of one head. Neighbouring steps are read twice, but from memory only once.
@triton.jit
def steps(x, t, st, T, D: tl.constexpr):
    """Load the steps t of x in float32; zeros before the first and after the last."""
    there = x + t.to(tl.int64)[:, None] * st + tl.arange(0, D)[None, :]
    return tl.load(there, mask=((t >= 0) & (t < T))[:, None], other=0.0).to(tl.float32)


@triton.jit
def norm_gradient(x, d_value, EPS: tl.constexpr):
    """Gradient of x for value = x / |x|."""
    length = tl.sqrt(tl.sum(x * x, axis=1))
    inverse = 1.0 / tl.maximum(length, EPS)  # one division per row, not per element
    value = x * inverse[:, None]
    radial = tl.where(length > EPS, tl.sum(value * d_value, axis=1), 0.0)
    return (d_value - value * radial[:, None]) * inverse[:, None]


@triton.jit
def value_forward(raw, taps, value, sb, st, sh, T, H, D: tl.constexpr, R: tl.constexpr, EPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    b, h = row // H, row % H
    c0, c1 = tl.load(taps + 2 * h), tl.load(taps + 2 * h + 1)
    t, d = tl.program_id(1) * R + tl.arange(0, R), tl.arange(0, D)
    raw += b * sb + h * sh
    x = c0 * steps(raw, t, st, T, D) + c1 * steps(raw, t + 1, st, T, D)
    inverse = 1.0 / tl.maximum(tl.sqrt(tl.sum(x * x, axis=1)), EPS)
    there = value + (b * (T - 1) * H + h) * D + t.to(tl.int64)[:, None] * (H * D) + d[None, :]
    tl.store(there, (x * inverse[:, None]).to(value.dtype.element_ty), mask=(t < T - 1)[:, None])


@triton.jit
def value_backward(
    d_value, raw, taps, d_raw, d_taps,
    gb, gt, gh, sb, st, sh, T, H, count, length,
    D: tl.constexpr, P: tl.constexpr, EPS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Step t of raw is in two values: in its own and, as the next step, in the previous one.

    A program iterates over P intervals of `length` steps in parallel; results of the last step stay in registers.
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
