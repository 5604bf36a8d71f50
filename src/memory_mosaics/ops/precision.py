"""Sums over many steps keep their digits."""

from contextlib import nullcontext

import torch
from torch import Tensor


def full_precision(device: torch.device) -> torch.autocast | nullcontext:
    """Within: products as they are given. Autocast would round each of them, and many steps add up."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def at_least_fp32(x: Tensor) -> Tensor:
    """X in single precision, or in double where it has it."""
    return x.to(wide(x))


def wide(x: Tensor) -> torch.dtype:
    """Single precision, or double where x has it."""
    return torch.promote_types(x.dtype, torch.float32)
