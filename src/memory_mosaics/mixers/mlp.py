"""The feed-forward network of GPT-2 (Radford et al. 2019), which persistent memories replace."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import MixerConfig, at_least, part
from memory_mosaics.shapes import Bool, Float
from memory_mosaics.stores import State


class MLP(nn.Module):
    """Two matrices around a GELU in the tanh form that GPT-2 was trained with. It has no state."""

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, *, expansion: int = 4, bias: bool = False):
        super().__init__()
        self.expand = nn.Linear(width, expansion * width, bias=bias)
        self.combine = nn.Linear(expansion * width, width, bias=bias)

    def forward(
        self, x: Float[Tensor, "B T W"], state: State | None = None, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T W"], State]:
        return self.combine(F.gelu(self.expand(x), approximate="tanh")), ()


@part("mlp")
@dataclass(frozen=True, kw_only=True)
class MLPConfig(MixerConfig):
    """A feed-forward network with expansion * width hidden units."""

    expansion: int = 4

    def __post_init__(self) -> None:
        at_least(self, expansion=1)

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> MLP:
        return MLP(width, expansion=self.expansion, bias=bias)
