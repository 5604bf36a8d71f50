"""Leaky average over time, equation 6 of the paper:  mean_T = x_T + decay * mean_{T-1}.

`reference` is the definition. `leaky_average` gives the same numbers in chunks: time and memory linear in T.
"""

import torch
from torch import Tensor

from memory_mosaics.shapes import Float

CHUNK = 32


def leaky_average(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"] | None = None
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """Average of every prefix, and the last one in float32, to continue from. `decay` in [0, 1), one per head.

    Inside a chunk of C steps the averages are one product with the C x C matrix decay^(t-s). What enters a chunk from
    the left is again a leaky average, of the chunks' ends with decay^C: the function calls itself on T/C steps.
    """
    B, T, H, D = x.shape
    with torch.autocast(x.device.type, enabled=False):
        decay = decay.float()
        mean = x.new_zeros(B, H, D, dtype=torch.float32) if mean is None else mean.float()
        if T == 0:
            return x, mean
        C = min(CHUNK, T)
        pad = -T % C
        chunks = torch.nn.functional.pad(x.float(), (0, 0, 0, 0, 0, pad)).view(B, -1, C, H, D)  # (B, T/C, C, H, D)
        means = torch.einsum("hts,bcshd->bcthd", _decay_matrix(decay, C), chunks)

        entering = mean[:, None]
        if chunks.shape[1] > 1:
            earlier, _ = leaky_average(means[:, :-1, -1], decay**C, mean)
            entering = torch.cat([entering, earlier], dim=1)  # (B, T/C, H, D)
        steps = torch.arange(1, C + 1, device=x.device)
        means = means + torch.einsum("ht,bchd->bcthd", decay[:, None] ** steps, entering)
        means = means.reshape(B, T + pad, H, D)[:, :T]
    return means.to(x.dtype), means[:, -1].clone()  # not a view, which would keep all of means alive


def _decay_matrix(decay: Float[Tensor, " H"], steps: int) -> Float[Tensor, "H C C"]:
    t = torch.arange(steps, device=decay.device)
    return (decay[:, None, None] ** (t[:, None] - t).clamp(min=0)).tril()


def reference(
    x: Float[Tensor, "B T H D"], decay: Float[Tensor, " H"], mean: Float[Tensor, "B H D"] | None = None
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """The definition, one step at a time in float32. Every faster form is tested against this one."""
    B, _, H, D = x.shape
    mean = x.new_zeros(B, H, D, dtype=torch.float32) if mean is None else mean
    means = [x.new_zeros(B, 0, H, D)]
    for x_t in x.float().unbind(dim=1):
        mean = x_t + decay[:, None] * mean
        means.append(mean[:, None])
    return torch.cat(means, dim=1).to(x.dtype), mean
