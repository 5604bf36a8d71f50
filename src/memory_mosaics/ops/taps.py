"""Weighted sums of neighbours in time, the values of equation 6 before their norm:  y_t = sum_j c_j x_{t+j}.

T steps complete T - K + 1 sums of K taps. The gradient is written where it belongs, in two passes a tap; from slices,
PyTorch would fill a tensor of zeros for each tap, copy into it, and add them up.
"""

from typing import Any, cast

import torch
from torch import Tensor

from memory_mosaics.shapes import Float


def tapped(x: Float[Tensor, "B T H D"], taps: Float[Tensor, "H K"]) -> Float[Tensor, "B N H D"]:
    """The sums that T steps complete, with one weight a tap and head."""
    x = x.to(torch.promote_types(x.dtype, taps.dtype))
    return _sums(x, taps) if torch.compiler.is_compiling() else cast(Tensor, _Taps.apply(x, taps))


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
