"""Trained numbers, one per head, and models folded for inference.

Scale     beta of a memory, the weight of its answers         exp(speed * theta)
Decay     lambda of the leaky average, equation 6             exp(-|10 w|)
Fixed     a number that is not trained
"""

import math
from copy import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.parameters import SENSITIVE
from memory_mosaics.shapes import Float


class Fixed(nn.Module):
    """A number, or one per head, that is not trained. As a sharpness it is called with the number of pairs."""

    depends_on_count: ClassVar = False

    def __init__(self, value: float | Float[Tensor, " H"]):
        super().__init__()
        self.value: float | Tensor = value if isinstance(value, Tensor) else float(value)

    def forward(self, pairs: Tensor | None = None) -> float | Float[Tensor, " H"]:
        return self.value


class Scale(nn.Module):
    """One positive trained number per head, exp(speed * theta), so that steps are relative and far larger than those
    of matrices: under Adam at step size 1e-3, a step changes it by up to speed / 10 per cent.
    """

    LARGEST = 2 * math.log(65535)  # the cap that the authors' nanoMosaics puts on beta
    param_specs: ClassVar = {"theta": SENSITIVE}

    def __init__(self, heads: int, *, initial: float, speed: float = 10.0):
        super().__init__()
        self.initial, self.speed = initial, speed
        self.theta = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.set(torch.full(self.theta.shape, self.initial))

    @torch.no_grad()
    def set(self, scale: Float[Tensor, " H"]) -> None:
        self.theta.copy_(scale.log() / self.speed)

    def forward(self) -> Float[Tensor, " H"]:
        return (self.speed * at_least_fp32(self.theta)).clamp(max=self.LARGEST).exp()

    def fold_for_inference(self) -> Fixed:
        return Fixed(self())


class Decay(nn.Module):
    """The leaky average's lambda, one per head, exp(-|10 w|). Initially spread from 0.61 (long) to 0.007 (short)."""

    param_specs: ClassVar = {"rate": SENSITIVE}

    def __init__(self, heads: int):
        super().__init__()
        self.rate = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.rate.copy_(torch.linspace(0.05, 0.5, len(self.rate)))

    def forward(self) -> Float[Tensor, " H"]:
        return torch.exp(-(10 * at_least_fp32(self.rate)).abs())

    def fold_for_inference(self) -> Fixed:
        return Fixed(self())


@torch.no_grad()
def fold_for_inference(module: Any) -> Any:
    """Return a copy for inference only, in which what depends on parameters alone is computed once.

    Modules with such computations define a method `fold_for_inference`; all others share their parameters.
    """
    return module.fold_for_inference() if hasattr(module, "fold_for_inference") else fold_parts(module)


def fold_parts(module: Any) -> Any:
    """Return a copy of a module whose parts are folded for inference."""
    twin = copy(module)
    twin._modules = {name: child and fold_for_inference(child) for name, child in module._modules.items()}
    return twin
