"""Mamba: a state space whose step, input and output maps depend on the token.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,   y_t = (C_t . h_t + D u_t) silu(z_t),   dt, B, C maps of u

Gu and Dao 2023, arXiv:2312.00752; Mamba-1 with the initial values of the authors' library, mamba_ssm. Maps have biases
if the model has (theirs have none); the short convolution and dt always have. Letters: E inner width, N states, R rank.

RegBench as published (Akyürek et al. 2024) ran one such mixer alone, without norm, residual or channel mixer, at any
depth: a property of the model, not of this mixer.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import MixerConfig, at_least, part
from memory_mosaics.mixers.hyena import ShortConvolution
from memory_mosaics.mixers.state_space import apply_mask, log_uniform_steps
from memory_mosaics.ops.common import at_least_fp32_dtype, full_precision
from memory_mosaics.ops.selective_scan import selective_scan
from memory_mosaics.parameters import NO_DECAY, SENSITIVE, ParamSpec
from memory_mosaics.shapes import Bool, Float
from memory_mosaics.stores import State


class Mamba(nn.Module):
    """State: the last inputs of the short convolution, then h."""

    init_roles: ClassVar = {"combine": "residual"}
    param_specs: ClassVar = {"A_log": SENSITIVE, "D": NO_DECAY, "dt_offset": ParamSpec(keep_fp32=True)}

    def __init__(self, width: int, *, states: int, taps: int, expansion: int, bias: bool = False):
        super().__init__()
        inner, self.rank, self.states = expansion * width, math.ceil(width / 16), states
        self.expand = nn.Linear(width, 2 * inner, bias=bias)
        self.short = ShortConvolution(inner, taps, bias=True)
        self.select = nn.Linear(inner, self.rank + 2 * states, bias=False)
        self.dt_map = nn.Parameter(torch.empty(inner, self.rank))
        self.dt_offset = nn.Parameter(torch.empty(inner))
        self.A_log = nn.Parameter(torch.empty(inner, states))
        self.D = nn.Parameter(torch.empty(inner))
        self.combine = nn.Linear(inner, width, bias=bias)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """A is -1, -2, ... in each channel, and softplus(dt_offset) log-uniform."""
        nn.init.uniform_(self.dt_map, -(self.rank**-0.5), self.rank**-0.5)
        dt = log_uniform_steps(self.dt_offset)
        self.dt_offset.copy_(dt + torch.log(-torch.expm1(-dt)))
        self.A_log.copy_(torch.arange(1, self.states + 1).log())
        nn.init.ones_(self.D)

    def forward(
        self, x: Float[Tensor, "B T W"], state: State | None = None, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T W"], State]:
        short, h = state or (None, None)
        u, z = self.expand(x).chunk(2, dim=-1)
        u, short = self.short(apply_mask(u, mask), short)
        u = apply_mask(F.silu(u), mask)  # again: the offset of the short convolution is not zero in padding
        dt, B, C = self.select(u).split([self.rank, self.states, self.states], dim=-1)
        with full_precision(u.device):
            dtype = at_least_fp32_dtype(u)
            dt, B, C, wide_u = (part.to(dtype) for part in (dt, B, C, u))
            dt = F.softplus(F.linear(dt, self.dt_map.to(dtype), self.dt_offset.to(dtype)))
            h = dt.new_zeros(*u.shape[::2], self.states) if h is None else h.to(dtype)
            y, h = selective_scan(wide_u, dt, -self.A_log.to(dtype).exp(), B, C, h)
            y = (y + self.D * wide_u).to(u.dtype)
        return self.combine(y * F.silu(z)), (short, h)


@part("mamba")
@dataclass(frozen=True, kw_only=True)
class MambaConfig(MixerConfig):
    """Mamba-1: `state_size` numbers per channel, `short` taps before, expansion * width channels."""

    state_size: int = 16
    short: int = 4
    expansion: int = 2
    bias: bool | None = None  # of the maps; None: as the model

    def __post_init__(self) -> None:
        at_least(self, state_size=1, short=1, expansion=1)

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> Mamba:
        bias = bias if self.bias is None else self.bias
        return Mamba(width, states=self.state_size, taps=self.short, expansion=self.expansion, bias=bias)
