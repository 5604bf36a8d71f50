"""Causal convolution with a kernel as long as the sequence:  y_t = sum_l K_l x_{t-l}."""

import torch
from torch import Tensor

from memory_mosaics.shapes import Float


def reference(x: Float[Tensor, "B T W"], kernel: Float[Tensor, "W L"]) -> Float[Tensor, "B T W"]:
    """The definition, one term at a time."""
    y = torch.zeros_like(x)
    for l, weight in enumerate(kernel.unbind(dim=1)[: x.shape[1]]):
        y[:, l:] += weight * x[:, : x.shape[1] - l]
    return y


def last_steps(x: Float[Tensor, "B N W"], kernel: Float[Tensor, "W L"], time: int) -> Float[Tensor, "B T W"]:
    """The last `time` steps of `causal_convolution`: a single one as a weighted sum of the last L inputs."""
    x = x.to(kernel.dtype)
    if time == 1:
        kernel = kernel[:, : x.shape[1]]
        return (x[:, -kernel.shape[1] :] * kernel.flip(1).mT).sum(1, keepdim=True)
    return causal_convolution(x, kernel)[:, x.shape[1] - time :]


def causal_convolution(x: Float[Tensor, "B T W"], kernel: Float[Tensor, "W L"]) -> Float[Tensor, "B T W"]:
    """By FFT, padded so that nothing wraps around."""
    if x.numel() == 0:
        return x
    time = x.shape[1]
    n = time + kernel.shape[1]
    spectrum = torch.fft.rfft(x.mT, n=n) * torch.fft.rfft(kernel, n=n)
    return torch.fft.irfft(spectrum, n=n)[..., :time].mT
