"""Causal convolutions with kernels as long as the text, by the Fourier transform."""

import torch
from torch import Tensor

from memory_mosaics.shapes import Float


def causal_convolution(x: Float[Tensor, "B T W"], kernel: Float[Tensor, "W L"]) -> Float[Tensor, "B T W"]:
    """y_t = sum_l K_l x_{t-l}, by FFT of a length where nothing wraps around."""
    if x.numel() == 0:
        return x
    time = x.shape[1]
    n = time + kernel.shape[1]
    spectrum = torch.fft.rfft(x.mT, n=n) * torch.fft.rfft(kernel, n=n)
    return torch.fft.irfft(spectrum, n=n)[..., :time].mT
