"""Trained numbers, one per head: sharpness, scales and decays; and models folded for inference.

Scale                the weight of a memory's answers                         exp(speed * theta)
Decay                lambda of the leaky average, equation 6                  exp(-|10 w|)
Fixed                a number that is not trained

The sharpness beta is a function of the number n of pairs that a query sees:

ConstantSharpness    one number, whatever n
AdaptiveSharpness    beta(n) = b_1 n^alpha + b_0                              Memory Mosaics v2
"""

from copy import copy
from math import e, log
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from memory_mosaics.config import Part, PositiveFloat, SharpnessConfig, part
from memory_mosaics.errors import check_range
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.parameters import SENSITIVE
from memory_mosaics.shapes import Float

MAX_SCALE = e**10  # of b_0 and b_1 in adaptive sharpness


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

    LARGEST = 2 * log(65535)  # the logarithm of the cap that the authors' nanoMosaics puts on beta
    param_specs: ClassVar = {"theta": SENSITIVE}

    def __init__(self, heads: int, *, initial: float, speed: float = 10.0, largest: float = LARGEST):
        super().__init__()
        self.initial, self.speed, self.largest = initial, speed, largest
        self.theta = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.set(torch.full(self.theta.shape, self.initial))

    @torch.no_grad()
    def set(self, scale: Float[Tensor, " H"]) -> None:
        self.theta.copy_(scale.log() / self.speed)

    def forward(self) -> Float[Tensor, " H"]:
        return (self.speed * at_least_fp32(self.theta)).clamp(max=self.largest).exp()

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


class ConstantSharpness(Scale):
    """Beta, one trained number per head, whatever the number of pairs."""

    depends_on_count: ClassVar = False
    init_roles: ClassVar = {"": "sharpness"}

    def forward(self, pairs: Tensor | None = None) -> Float[Tensor, " H"]:
        return super().forward()


class AdaptiveSharpness(nn.Module):
    """beta(n) = b_1 n^alpha + b_0, each trained per head: the more pairs, the more sharply they are distinguished.

    The bandwidth at which kernel smoothing errs least shrinks as pairs are stored. Caps and initial values are those of
    Memory Mosaics v2: b_0 and b_1 at most e^10, alpha in [0, 1].
    """

    depends_on_count: ClassVar = True
    param_specs: ClassVar = {"alpha": SENSITIVE}

    def __init__(
        self, heads: int, *, b_0: float = e**1.5, b_1: float = e**1.5, alpha: float = 1 / 3, speed: float = 10.0
    ):
        super().__init__()
        self.b_0, self.b_1 = Scale(heads, initial=b_0, speed=speed), Scale(heads, initial=b_1, speed=speed)
        self.alpha = nn.Parameter(torch.full((heads,), alpha))

    def forward(self, pairs: Float[Tensor, "... #H"]) -> Float[Tensor, "... H"]:
        n = pairs.clamp(min=1)  # whatever beta, an empty memory answers zero
        growth = n ** at_least_fp32(self.alpha).abs().clamp(max=1)
        return self.b_1().clamp(max=MAX_SCALE) * growth + self.b_0().clamp(max=MAX_SCALE)


def depends_on_count(sharpness: Any) -> bool:
    """Whether beta depends on the number of pairs; any function without the attribute is called with it."""
    return getattr(sharpness, "depends_on_count", True)


@part("constant_sharpness")
class ConstantSharpnessConfig(SharpnessConfig):
    """One trained beta per head; its initial value distinguishes random keys, unless `initial` is given."""

    initial: PositiveFloat | None = None

    def build(self, heads: int, *, initial: float) -> ConstantSharpness:
        return ConstantSharpness(heads, initial=initial if self.initial is None else self.initial, speed=20.0)


@part("adaptive_sharpness")
class AdaptiveSharpnessConfig(SharpnessConfig):
    """b_1 n^alpha + b_0, from these initial values."""

    b_0: PositiveFloat = e**1.5
    b_1: PositiveFloat = e**1.5
    alpha: float = 1 / 3
    speed: PositiveFloat = 10.0  # of b_0 and b_1, exp(speed * theta); 1 in Memory Mosaics v2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(0, MAX_SCALE, b_0=self.b_0, b_1=self.b_1)
        check_range(0, 1, alpha=self.alpha)

    def build(self, heads: int, *, initial: float) -> AdaptiveSharpness:
        return AdaptiveSharpness(heads, b_0=self.b_0, b_1=self.b_1, alpha=self.alpha, speed=self.speed)


@part("scale")
class ScaleConfig(Part):
    """Trained scales of the answers, or of the values, which is the same: exp(speed * theta), at most `largest`."""

    initial: PositiveFloat = e**-0.5
    speed: PositiveFloat = 10.0
    largest: PositiveFloat = 65535.0**2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(0, self.largest, initial=self.initial)

    def build(self, heads: int) -> Scale:
        return Scale(heads, initial=self.initial, speed=self.speed, largest=log(self.largest))


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
