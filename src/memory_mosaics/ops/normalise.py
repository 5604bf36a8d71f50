"""Norm(x) = x / |x|, the norm of keys and values in equation 6, times a scale."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.shapes import Float

HeadScale = float | Float[Tensor, " H"] | None  # of what is normalised, one for all or one per head; None is 1
EPS = 1e-12


def reference(x: Float[Tensor, "*B D"], scale: HeadScale = None) -> Float[Tensor, "*B D"]:
    """The definition."""
    wanted = 1.0 if scale is None else scale[:, None] if isinstance(scale, Tensor) else scale
    return (wanted * F.normalize(at_least_fp32(x), dim=-1, eps=EPS)).to(x.dtype)


def normalise(x: Float[Tensor, "*B D"], scale: HeadScale = None) -> Float[Tensor, "*B D"]:
    """Norm(x) times `scale`, in float32 or better and rounded once. With a scale for each head x is (..., H, D)."""
    wanted = scale[:, None] if isinstance(scale, Tensor) else scale
    if not torch.is_grad_enabled():
        return _forward(at_least_fp32(x), wanted)[0].to(x.dtype)
    return cast(Tensor, _Normalise.apply(at_least_fp32(x), wanted)).to(x.dtype)


def _forward(x: Tensor, scale: Tensor | float | None) -> tuple[Tensor, Tensor]:
    """Norm(x) times `scale`, and the norm of x."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_(min=EPS)
    return x / norm if scale is None else x * (scale / norm), norm


class _Normalise(torch.autograd.Function):
    """The gradient in three passes, that of the scale included; that of F.normalize takes a dozen.

    With y = l u and |u| = 1:  dx = l / |x| (dy - u u.dy),  dl = u.dy.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor | float | None) -> Tensor:
        y, norm = _forward(x, scale)
        trained = scale if isinstance(scale, Tensor) else None
        ctx.save_for_backward(y, norm, trained)
        ctx.scale = 1.0 if scale is None or trained is not None else scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (gradient,), (y, norm, trained) = gradients, ctx.saved_tensors
        scale = ctx.scale if trained is None else trained
        along = torch.linalg.vecdot(y, gradient)[..., None] / scale
        d_x = torch.addcmul(gradient, y, along / scale, value=-1).mul_(scale / norm)
        return d_x, None if trained is None else along.sum_to_size(trained.shape)
