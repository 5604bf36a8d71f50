"""Norm(x) = x / |x|: what keys and values of equation 6 go through."""

from typing import Any, cast

import torch
from torch import Tensor

from memory_mosaics.shapes import Float


def normalise(x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """Norm(x) = x / |x|, computed in float32."""
    return cast(Tensor, _Normalise.apply(x.float())).to(x.dtype)


class _Normalise(torch.autograd.Function):
    """x / |x|. Its gradient in three passes; from what PyTorch records of F.normalize it takes a dozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=1e-12)
        unit = x / length
        ctx.save_for_backward(unit, length)
        return unit

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,), (unit, length) = gradients, ctx.saved_tensors
        return torch.addcmul(gradient, unit, torch.linalg.vecdot(unit, gradient)[..., None], value=-1) / length
