"""Forms of the ops for CUDA. Triton is imported where a kernel is launched, never before."""

from importlib.util import find_spec

import torch
from torch import Tensor

WIDTHS = (16, 32, 64, 128)  # of a head: what the kernels take
TRITON = find_spec("triton") is not None


def kernels_take(x: Tensor) -> bool:
    """Whether the kernels are for x (B T H D). One step by itself is better left to what stands around it."""
    return x.is_cuda and x.shape[1] > 1 and x.shape[-1] in WIDTHS and x.dtype != torch.float64 and TRITON
