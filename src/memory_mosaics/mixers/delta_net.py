"""Delta networks: linear attention whose memory replaces what it has stored under a key, where others only add.

    S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,    y_t = S_t q_t

    DeltaNet         alpha = 1                           Schlag et al. 2021; Yang et al. 2024, arXiv:2406.06484
    GatedDeltaNet    alpha_t and an output gate of x_t   Yang et al. 2025, arXiv:2412.06464

The layers around it are those of flash-linear-attention, by authors of both papers: queries, keys and values go through
a short convolution and SiLU, queries and keys have norm one, beta = sigmoid(W x), each head's output is normalised.
Their models have RMSNorm and SwiGLU in every block, and heads of 128 (DeltaNet) or 256 (Gated DeltaNet).

Letters in shapes: B batch, T time, H heads, D key width, V value width, W model width.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import MixerConfig, PositiveFloat, PositiveInt, part
from memory_mosaics.extractors import split_heads
from memory_mosaics.mixers.state_space import ShortConvolution, apply_mask, inverse_softplus, log_uniform_steps
from memory_mosaics.norms import RMSNorm
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.ops.delta_rule import delta_rule
from memory_mosaics.parameters import SENSITIVE
from memory_mosaics.shapes import Bool, Float
from memory_mosaics.stores import Inputs, Mask, Outputs, State

EPS = 1e-6  # of norms
FASTEST_DECAY = 16.0  # of initial values


class DeltaNet(nn.Module):
    """The delta rule without decay. Maps have no biases, whatever the model's.

    State: the last inputs of the short convolutions of queries, keys and values, then S.
    """

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, heads: int, *, key_width: int, value_width: int, taps: int):
        super().__init__()
        self.heads = heads
        keys, values = heads * key_width, heads * value_width
        self.query = nn.Linear(width, keys, bias=False)
        self.key = nn.Linear(width, keys, bias=False)
        self.value = nn.Linear(width, values, bias=False)
        self.beta = nn.Linear(width, heads, bias=False)
        self.short_query = ShortConvolution(keys, taps, bias=False)
        self.short_key = ShortConvolution(keys, taps, bias=False)
        self.short_value = ShortConvolution(values, taps, bias=False)
        self.norm = RMSNorm(value_width, eps=EPS)
        self.combine = nn.Linear(values, width, bias=False)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        *pasts, memory = state or (None,) * 4
        maps = (self.query, self.short_query), (self.key, self.short_key), (self.value, self.short_value)
        features, short_states = [], []
        for (map, short), past in zip(maps, pasts, strict=True):
            feature, past = short(apply_mask(map(x), mask), past)
            features.append(split_heads(F.silu(feature), self.heads, None))
            short_states.append(past)
        q, k, v = features
        q, k = unit_norm(q) * q.shape[-1] ** -0.5, unit_norm(k)
        beta = apply_mask(torch.sigmoid(at_least_fp32(self.beta(x))), mask)  # padding changes nothing
        outputs, memory = delta_rule(q, k, v, beta, self.log_alpha(x, mask), memory)
        return self.combine(self.gate_outputs(self.norm(outputs), x)), (*short_states, memory)

    def log_alpha(self, x: Float[Tensor, "B T W"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T H"] | None:
        """The logarithm of the decay, or None without one."""
        return None

    def gate_outputs(self, outputs: Float[Tensor, "B T H V"], x: Float[Tensor, "B T W"]) -> Float[Tensor, "B T E"]:
        """What is combined, from the normalised outputs of all heads."""
        return outputs.flatten(2)


class GatedDeltaNet(DeltaNet):
    """The delta rule with decay alpha = exp(-exp(A_log) softplus(W x + dt_offset)), as in Mamba-2, and a gate."""

    param_specs: ClassVar = {"A_log": SENSITIVE, "dt_offset": SENSITIVE}

    def __init__(self, width: int, heads: int, *, key_width: int, value_width: int, taps: int):
        super().__init__(width, heads, key_width=key_width, value_width=value_width, taps=taps)
        self.decay = nn.Linear(width, heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_offset = nn.Parameter(torch.empty(heads))
        self.gate = nn.Linear(width, heads * value_width, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """A is uniform, and softplus(dt_offset) log-uniform."""
        self.A_log.uniform_(0, FASTEST_DECAY).log_()
        self.dt_offset.copy_(inverse_softplus(log_uniform_steps(self.dt_offset)))

    def log_alpha(self, x: Float[Tensor, "B T W"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T H"]:
        raw = at_least_fp32(self.decay(x)) + self.dt_offset
        # softplus(raw): torch.compile assumes other strides for the gradient of F.softplus than it has, torch 2.13.
        dt = torch.logaddexp(raw, torch.zeros_like(raw))
        return apply_mask(-at_least_fp32(self.A_log).exp() * dt, mask)

    def gate_outputs(self, outputs: Float[Tensor, "B T H V"], x: Float[Tensor, "B T W"]) -> Float[Tensor, "B T E"]:
        return outputs.flatten(2) * F.silu(self.gate(x))


def unit_norm(x: Float[Tensor, "B T H D"]) -> Float[Tensor, "B T H D"]:
    """Return x / sqrt(|x|^2 + eps), computed in float32 and rounded once."""
    wide = at_least_fp32(x)
    return (wide * torch.rsqrt(wide.square().sum(dim=-1, keepdim=True) + EPS)).to(x.dtype)


@part("delta_net")
class DeltaNetConfig(MixerConfig):
    """DeltaNet, with `short` taps, and heads of expand * width / heads, rounded."""

    mixer: ClassVar = DeltaNet
    heads: PositiveInt
    short: PositiveInt = 4
    expand_key: PositiveFloat = 1.0
    expand_value: PositiveFloat = 1.0

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> DeltaNet:
        key_width, value_width = (
            max(1, round(expand * width / self.heads)) for expand in (self.expand_key, self.expand_value)
        )
        return self.mixer(width, self.heads, key_width=key_width, value_width=value_width, taps=self.short)


@part("gated_delta_net")
class GatedDeltaNetConfig(DeltaNetConfig):
    """Gated DeltaNet, with the published shares of keys and values: 6 width^2 parameters with its gate."""

    mixer: ClassVar = GatedDeltaNet
    expand_key: PositiveFloat = 0.75
    expand_value: PositiveFloat = 1.5
