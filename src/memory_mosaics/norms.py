"""The norms of a model, as parts that a config names: of its blocks, of its output, and of queries and keys.

LayerNorm     (x - mean) / standard deviation, times a trained gain    Ba et al. 2016
RMSNorm       x / root mean square, times a trained gain               Zhang and Sennrich 2019
ScaledNorm    layer norm divided by sqrt(width), for small initial logits
"""

import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import NonNegativeFloat, NormConfig, part
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.shapes import Float


class RMSNorm(nn.RMSNorm):
    """Computed in float32 at least, whatever the dtypes of x and of the gain."""

    def forward(self, x: Float[Tensor, "*B W"]) -> Float[Tensor, "*B W"]:
        return F.rms_norm(at_least_fp32(x), x.shape[-1:], at_least_fp32(self.weight), self.eps).to(x.dtype)


class ScaledNorm(nn.LayerNorm):
    """Layer norm divided by sqrt(width), for small initial logits."""

    def forward(self, input: Float[Tensor, "*B W"]) -> Float[Tensor, "*B W"]:
        return super().forward(input) / input.shape[-1] ** 0.5

    @property
    def gain(self) -> Float[Tensor, " W"]:
        """The factor of each feature."""
        return self.weight / self.weight.shape[0] ** 0.5


@part("layer_norm")
class LayerNormConfig(NormConfig):
    """Layer norm, with a bias if the model has biases."""

    eps: NonNegativeFloat = 1e-5

    def build(self, width: int, *, bias: bool = False) -> nn.LayerNorm:
        return nn.LayerNorm(width, eps=self.eps, bias=bias)


@part("rms_norm")
class RMSNormConfig(NormConfig):
    """RMSNorm, which never has a bias."""

    eps: NonNegativeFloat = 1e-6

    def build(self, width: int, *, bias: bool = False) -> RMSNorm:
        return RMSNorm(width, eps=self.eps)


@part("scaled_norm")
class ScaledNormConfig(NormConfig):
    """Layer norm divided by sqrt(width)."""

    def build(self, width: int, *, bias: bool = False) -> ScaledNorm:
        return ScaledNorm(width, bias=bias)


@part("no_norm")
class NoNormConfig(NormConfig):
    """The identity."""

    def build(self, width: int, *, bias: bool = False) -> nn.Identity:
        return nn.Identity()
