"""Leaky average over time, equation 6 of the paper:  mean_T = x_T + decay * mean_{T-1}.

`reference` is the definition. `leaky_average` gives the same numbers in time and memory linear in T: by products inside
chunks, which compilers and GPUs like, or on a CPU step by step in all chunks at once, which is a third of the work.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.ops.precision import full_precision, wide
from memory_mosaics.shapes import Float

CHUNK = 16


def leaky_average(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"] | None = None
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """Average of every prefix, and the last one in float32 at least, to continue from. `decay` in [0, 1], per head."""
    B, T, H, D = x.shape
    dtype = wide(x)
    mean = x.new_zeros(B, H, D, dtype=dtype) if mean is None else mean.to(dtype)
    if T == 0:
        return x, mean
    by_steps = x.device.type == "cpu" and T > 1 and not torch.compiler.is_compiling()
    with full_precision(x.device):
        average = cast(Callable[..., Tensor], _BySteps.apply) if by_steps else _in_chunks
        means = average(x.to(dtype), decay.to(dtype), mean)
    return means.to(x.dtype), means[:, -1].clone()  # not a view, which would keep all of means alive


def _in_chunks(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"]
) -> Float[Tensor, "B T H D"]:
    """Inside a chunk of C steps the averages are one product with the C x C matrix decay^(t-s).

    What leaves the chunks is again a leaky average, with decay^C over T/C steps: the function calls itself.
    """
    B, T, H, D = x.shape
    if T == 1:
        return x + (decay[:, None] * mean)[:, None]
    count = (T + CHUNK - 1) // CHUNK
    missing = count * CHUNK - T
    chunks = (F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x).reshape(B, count, CHUNK, H, D)
    t = torch.arange(CHUNK, device=x.device)
    weights = (decay[:, None, None] ** (t[:, None] - t).clamp(min=0)).tril()  # (H, C, C)
    means = torch.einsum("hts,bcshd->bcthd", weights, chunks)

    entering = mean[:, None]
    if T > CHUNK:
        leaving = _in_chunks(means[:, :, -1], decay**CHUNK, mean)
        entering = torch.cat([entering, leaving[:, : count - 1]], dim=1)  # (B, T/C, H, D)
    powers = (decay ** (t + 1)[:, None])[..., None]  # (C, H, 1)
    means = torch.addcmul(means, powers, entering[:, :, None])
    return means.reshape(B, count * CHUNK, H, D)[:, :T]


class _BySteps(torch.autograd.Function):
    """Going back, a gradient is a leaky average from the end."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, decay: Tensor, mean: Tensor) -> Tensor:
        means = _by_steps(x, decay, mean)
        ctx.save_for_backward(means, decay, mean)
        return means

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        means, decay, mean = ctx.saved_tensors
        d_x = _by_steps(gradients[0], decay, torch.zeros_like(mean), back=True)
        first = d_x[:, 0]
        d_decay = torch.linalg.vecdot(d_x[:, 1:], means[:, :-1]).sum((0, 1)) + (first * mean).sum((0, 2))
        return d_x, d_decay, decay[:, None] * first


def _by_steps(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"], *, back: bool = False
) -> Float[Tensor, "B T H D"]:
    """Step by step in about sqrt(T) chunks side by side; then what enters each is added. `back` is from the end."""
    B, T, H, D = x.shape
    size = max(1, round(T**0.5))
    count = -(-T // size)
    missing = count * size - T
    chunks = (F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x).reshape(B, count, size, H, D)
    means, decay = torch.empty_like(chunks), decay[:, None]
    steps = range(size)[::-1] if back else range(size)
    x_t, mean_t = chunks.unbind(dim=2), means.unbind(dim=2)
    mean_t[steps[0]].copy_(x_t[steps[0]])
    for before, t in pairwise(steps):
        torch.addcmul(x_t[t], mean_t[before], decay, out=mean_t[t])

    entering, power = torch.empty_like(mean_t[0]), decay**size
    enters, leaves = entering.unbind(dim=1), mean_t[steps[-1]].unbind(dim=1)
    places = range(count)[::-1] if back else range(count)
    enters[places[0]].copy_(mean)
    for before, i in pairwise(places):
        torch.addcmul(leaves[before], enters[before], power, out=enters[i])
    powers = decay ** torch.tensor([steps.index(t) + 1 for t in range(size)])[:, None, None]  # (C, H, 1)
    return means.addcmul_(powers, entering[:, :, None]).view(B, count * size, H, D)[:, :T]


def reference(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"] | None = None
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """The definition, one step at a time in float32. Every faster form is tested against this one."""
    B, _, H, D = x.shape
    dtype = wide(x)
    mean = x.new_zeros(B, H, D, dtype=dtype) if mean is None else mean
    means = [x.new_zeros(B, 0, H, D)]
    for x_t in x.to(dtype).unbind(dim=1):
        mean = x_t + decay[:, None] * mean
        means.append(mean[:, None])
    return torch.cat(means, dim=1).to(x.dtype), mean
