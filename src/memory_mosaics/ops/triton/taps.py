"""Values of equation 6 in one pass over memory:  v_t = Norm(c_0 x_t + c_1 x_{t+1}),  two taps per head.

`tapped_value` is the op; `reference` its definition. T steps complete T - 1 values. The gradient needs x itself (what
reaches a tap is a dot with it), so it is x that is kept, and the norms are found again.
"""

# pyright: reportIndexIssue=false, reportCallIssue=false, reportArgumentType=false
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.ops.normalise import EPS
from memory_mosaics.ops.triton import WIDTHS
from memory_mosaics.ops.triton.leaky_average import packed, runs_kernels
from memory_mosaics.shapes import Float

FORWARD = dict(R=128, num_warps=8)
BACKWARD = dict(P=4, num_warps=1, STAGES=4)
LENGTH = 32  # steps of a stretch, at most


def tapped_value(raw: Float[Tensor, "B T H D"], taps: Float[Tensor, "H 2"]) -> Float[Tensor, "B N H D"]:
    """The values that T steps complete: N = T - 1 of them."""
    return torch.ops.memory_mosaics.tapped_value(raw, taps.float())


def reference(raw: Float[Tensor, "B T H D"], taps: Float[Tensor, "H 2"]) -> Float[Tensor, "B N H D"]:
    """The definition, in float32."""
    c0, c1 = taps[:, :1], taps[:, 1:]
    x = raw.float()
    return F.normalize(c0 * x[:, :-1] + c1 * x[:, 1:], dim=-1, eps=EPS).to(raw.dtype)


def forward_kernels(raw: Tensor, taps: Tensor, **options: Any) -> Tensor:
    from memory_mosaics.ops.triton import taps_kernels as kernels

    raw, taps = packed(raw), taps.contiguous()
    B, T, H, D = raw.shape
    options = FORWARD | options
    value = torch.empty(B, T - 1, H, D, dtype=raw.dtype, device=raw.device)
    grid = (B * H, -(-(T - 1) // options["R"]))
    kernels.value_forward[grid](raw, taps, value, *raw.stride()[:3], T, H, D=D, EPS=EPS, **options)
    return value


def backward_kernels(d_value: Tensor, raw: Tensor, taps: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    from memory_mosaics.ops.triton import taps_kernels as kernels

    d_value, raw, taps = packed(d_value), packed(raw), taps.contiguous()
    B, T, H, D = raw.shape
    length = options.pop("length", LENGTH)
    options = BACKWARD | options
    length = min(length, -(-T // options["P"]))
    count = -(-T // (options["P"] * length))
    d_raw = torch.empty(B, T, H, D, dtype=raw.dtype, device=raw.device)
    d_taps = torch.empty(B, H, count, 2, dtype=torch.float32, device=raw.device)
    kernels.value_backward[(B * H, count)](
        d_value, raw, taps, d_raw, d_taps, *d_value.stride()[:3], *raw.stride()[:3], T, H, count, length,
        D=D, EPS=EPS, **options,
    )  # fmt: skip
    return d_raw, d_taps.sum((0, 2))


@torch.library.custom_op("memory_mosaics::tapped_value", mutates_args=(), schema="(Tensor raw, Tensor taps) -> Tensor")
def _forward(raw, taps):
    if raw.is_cuda and raw.shape[-1] not in WIDTHS:
        raise ValueError(f"the kernel takes heads of width {WIDTHS}; got {raw.shape[-1]}")
    if runs_kernels(raw) and raw[:, 1:].numel():
        return forward_kernels(raw, taps)
    return reference(raw, taps).contiguous()


@_forward.register_fake
def _(raw, taps):
    B, T, H, D = raw.shape
    return raw.new_empty(B, max(T - 1, 0), H, D)


BACKWARD_SCHEMA = "(Tensor d_value, Tensor raw, Tensor taps) -> (Tensor, Tensor)"


@torch.library.custom_op("memory_mosaics::tapped_value_backward", mutates_args=(), schema=BACKWARD_SCHEMA)
def _backward(d_value, raw, taps):
    if runs_kernels(raw) and d_value.numel():
        return backward_kernels(d_value, raw, taps)
    return _backward_in_torch(d_value, raw, taps)


def _backward_in_torch(d_value: Tensor, raw: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    c0, c1 = taps[:, :1], taps[:, 1:]
    now, then, d_value = raw[:, :-1].float(), raw[:, 1:].float(), d_value.float()
    tapped = c0 * now + c1 * then
    norm = tapped.norm(dim=-1, keepdim=True)
    value = tapped / norm.clamp(min=EPS)
    radial = (value * d_value).sum(-1, keepdim=True).where(norm > EPS, 0.0)
    gradient = (d_value - value * radial) / norm.clamp(min=EPS)
    d_raw = F.pad(c0 * gradient, (0, 0, 0, 0, 0, 1)) + F.pad(c1 * gradient, (0, 0, 0, 0, 1, 0))
    d_taps = torch.stack([(gradient * x).sum((0, 1, 3)) for x in (now, then)], dim=-1)
    return d_raw.to(raw.dtype), d_taps


@_backward.register_fake
def _(d_value, raw, taps):
    return raw.new_empty(raw.shape), taps.new_empty(taps.shape)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gradients(ctx, d_value):
    return torch.ops.memory_mosaics.tapped_value_backward(d_value, *ctx.saved_tensors)


_forward.register_autograd(_gradients, setup_context=_save)
