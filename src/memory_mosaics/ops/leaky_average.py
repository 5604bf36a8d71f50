"""Leaky average over time, equation 6 of the paper:  mean_T = x_T + decay * mean_{T-1}.

`reference` is the definition. `leaky_average` gives the same numbers in chunks: time and memory linear in T.
"""

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.shapes import Float

CHUNK = 16


def leaky_average(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"] | None = None
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """Average of every prefix, and the last one in float32, to continue from. `decay` in [0, 1], one per head."""
    B, T, H, D = x.shape
    dtype = torch.promote_types(x.dtype, torch.float32)
    mean = x.new_zeros(B, H, D, dtype=dtype) if mean is None else mean.to(dtype)
    if T == 0:
        return x, mean
    with _full_precision(x.device):
        means = _in_chunks(x.to(dtype), decay.to(dtype), mean)
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


def _full_precision(device: torch.device) -> torch.autocast | nullcontext:
    """Averages add up many steps; autocast would round each product."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def reference(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"] | None = None
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """The definition, one step at a time in float32. Every faster form is tested against this one."""
    B, _, H, D = x.shape
    dtype = torch.promote_types(x.dtype, torch.float32)
    mean = x.new_zeros(B, H, D, dtype=dtype) if mean is None else mean
    means = [x.new_zeros(B, 0, H, D)]
    for x_t in x.to(dtype).unbind(dim=1):
        mean = x_t + decay[:, None] * mean
        means.append(mean[:, None])
    return torch.cat(means, dim=1).to(x.dtype), mean
