"""Mamba: a state space whose step, input and output maps depend on the token, so that it selects what to keep.

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,   y_t = (C_t . h_t + D u_t) silu(z_t),   dt, B, C maps of u

Gu and Dao 2023, arXiv:2312.00752; Mamba-1 with the initial values of the authors' library, mamba_ssm. Maps have biases
if the model has (theirs have none); the short convolution and dt always do. Letters: E inner width, N states, R rank.

RegBench as published (Akyürek et al. 2024) ran one such mixer alone, without norm, residual or channel mixer, whatever
the depth asked for: a matter of the whole model. This is the mixer, the same in both.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memory_mosaics.config import MixerConfig, at_least, part
from memory_mosaics.mixers.hyena import ShortConvolution
from memory_mosaics.mixers.state_space import masked, random_steps
from memory_mosaics.ops.precision import full_precision, wide
from memory_mosaics.ops.scan import recurrence
from memory_mosaics.ops.triton import TRITON
from memory_mosaics.ops.triton.selective_scan import selective_scan as fused_scan
from memory_mosaics.parameters import SENSITIVE, UNDECAYED, Rule
from memory_mosaics.shapes import Bool, Float
from memory_mosaics.storage import State

SEGMENT = 128  # steps whose states h, N times as large as their inputs, exist at the same time


def selective_scan(
    u: Float[Tensor, "B T E"],
    dt: Float[Tensor, "B T E"],
    A: Float[Tensor, "E N"],
    B: Float[Tensor, "B T N"],
    C: Float[Tensor, "B T N"],
    h: Float[Tensor, "B E N"],
) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B E N"]]:
    """C_t . h_t at every time and the last h, segment by segment. Going back, the states are computed anew."""
    if u.is_cuda and TRITON and u.dtype == torch.float32 and u.shape[1] > 1:
        return fused_scan(u, dt, A, B, C, h)
    segments = [u.new_zeros(len(u), 0, u.shape[2])]
    for inputs in zip(*(z.split(SEGMENT, dim=1) for z in (u, dt, B, C)), strict=True):
        if inputs[0].shape[1] > 0:
            found = checkpoint(_segment, *inputs, A, h, use_reentrant=False, preserve_rng_state=False)
            y, h = cast(tuple[Tensor, Tensor], found)
            segments.append(y)
    return torch.cat(segments, dim=1), h


def _segment(u: Tensor, dt: Tensor, B: Tensor, C: Tensor, A: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    states = recurrence(torch.exp(dt[..., None] * A), (dt * u)[..., None] * B[:, :, None], h)
    return (states @ C[..., None])[..., 0], states[:, -1].clone()


class Mamba(nn.Module):
    """State: the last inputs of the short convolution, then h."""

    rules: ClassVar = {"A_log": SENSITIVE, "D": UNDECAYED, "dt_offset": Rule(exact=True)}

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
        """Its own; the parts have theirs. A is -1, -2, ... in each channel, and softplus(dt_offset) log-uniform."""
        nn.init.uniform_(self.dt_map, -(self.rank**-0.5), self.rank**-0.5)
        dt = random_steps(self.dt_offset)
        self.dt_offset.copy_(dt + torch.log(-torch.expm1(-dt)))
        self.A_log.copy_(torch.arange(1, self.states + 1).log())
        nn.init.ones_(self.D)

    def forward(
        self, x: Float[Tensor, "B T W"], state: State | None = None, mask: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "B T W"], State]:
        short, h = state or (None, None)
        u, z = self.expand(x).chunk(2, dim=-1)
        u, short = self.short(masked(u, mask), short)
        u = masked(F.silu(u), mask)  # again: a short convolution of nothing is its offset
        dt, B, C = self.select(u).split([self.rank, self.states, self.states], dim=-1)
        with full_precision(u.device):
            dtype = wide(u)
            dt, B, C, wide_u = (part.to(dtype) for part in (dt, B, C, u))
            dt = F.softplus(F.linear(dt, self.dt_map.to(dtype), self.dt_offset.to(dtype)))
            h = dt.new_zeros(*u.shape[::2], self.states) if h is None else h.to(dtype)
            y, h = selective_scan(wide_u, dt, -self.A_log.to(dtype).exp(), B, C, h)
            y = (y + self.D * wide_u).to(u.dtype)
        return self.combine(y * F.silu(z)), (short, h)


@part("mamba")
@dataclass(frozen=True, kw_only=True)
class MambaConfig(MixerConfig):
    """Mamba-1: `state_size` numbers a channel, `short` taps before, expansion * width channels."""

    state_size: int = 16
    short: int = 4
    expansion: int = 2

    def __post_init__(self) -> None:
        at_least(self, state_size=1, short=1, expansion=1)

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> Mamba:
        return Mamba(width, states=self.state_size, taps=self.short, expansion=self.expansion, bias=bias)
