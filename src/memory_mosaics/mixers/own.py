"""Parts around other parts: a mixer with its own dropout and biases, and dropout on what enters the first block.

A model gives all its mixers one dropout and one answer to whether maps have biases. Published baselines differ: those
of RegBench (Akyürek et al. 2024) have dropout on embeddings and on weights of attention, not on what mixers add.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import MixerConfig, part
from memory_mosaics.shapes import Bool, Float
from memory_mosaics.stores import State


@part("own")
@dataclass(frozen=True, kw_only=True)
class OwnConfig(MixerConfig):
    """A mixer with this dropout of weights and these biases, whatever the model's."""

    mixer: MixerConfig
    dropout: float = 0.0
    bias: bool = False

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> nn.Module:
        return self.mixer.build(width, dropout=self.dropout, bias=self.bias)


class DroppedInputs(nn.Module):
    """Dropout on embeddings, after positions if there are any. State: that of the positions."""

    def __init__(self, share: float, positions: nn.Module | None):
        super().__init__()
        self.share, self.positions = share, positions

    @property
    def max_positions(self) -> int | None:
        return getattr(self.positions, "max_positions", None)

    def forward(
        self, x: Float[Tensor, "B T W"], state: State | None = None, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T W"], State]:
        after: State = ()
        if self.positions is not None:
            x, after = self.positions(x, state, mask)
        return F.dropout(x, self.share, self.training), after


@part("dropped_inputs")
@dataclass(frozen=True, kw_only=True)
class DroppedInputsConfig(MixerConfig):
    """For the place of a model's positions: those, or none, and then dropout."""

    share: float
    positions: MixerConfig | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ValueError(f"share must be in [0, 1), not {self.share}")

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> DroppedInputs:
        return DroppedInputs(self.share, self.positions.build(width) if self.positions else None)
