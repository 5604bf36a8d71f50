"""Hyena: gates, and a convolution as long as the sequence whose filter is a small network of time.

    y = (x_0 . (K * u + D u)) W,   u = v . x_1,   x_0, x_1, v = short convolutions of maps of x       (order 2)

Poli et al. 2023, arXiv:2302.10866; sizes and initial values of RegBench (Akyürek et al. 2024, arXiv:2401.12973).

The filter is not a recurrence: a step needs the past inputs u, as many as the filter is long. A state grows with the
sequence as that of attention does, and a step evaluates the filter at as many times.
"""

import math
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import MixerConfig, PositiveInt, part
from memory_mosaics.mixers.state_space import ShortConvolution, apply_mask
from memory_mosaics.ops.common import at_least_fp32_dtype, full_precision
from memory_mosaics.ops.convolution import last_steps
from memory_mosaics.ops.taps import extend_window
from memory_mosaics.parameters import NO_DECAY
from memory_mosaics.shapes import Float, Int
from memory_mosaics.stores import Inputs, Mask, Outputs, State

BANDS = 2  # cosines and sines of time that are inputs of the filter
FREQUENCY = 10.0  # initial, of its sine activations
FAST, SLOW, TARGET = 0.3, 1.5, 0.01  # channels decay to 0.01 within 0.3 to 1.5 filter lengths


class Filter(nn.Module):
    """K_l = MLP(features of l) exp(-t delta), t = l / (length - 1): smooth in l, decaying faster in later channels.

    The activations of the MLP are sines of trained frequencies, shared by its layers. Its matrices are initialised with
    standard deviation 0.02 at any width.
    """

    param_specs: ClassVar = dict.fromkeys(("weights", "offsets", "out", "frequency"), NO_DECAY)

    def __init__(self, width: int, *, length: int, hidden: int):
        super().__init__()
        self.width, self.length = width, length
        inputs = (1 + 2 * BANDS, hidden, hidden)
        self.weights = nn.ParameterList(torch.empty(hidden, n) for n in inputs)
        self.offsets = nn.ParameterList(torch.empty(hidden) for _ in inputs)
        self.out = nn.Parameter(torch.empty(width, hidden))
        self.frequency = nn.Parameter(torch.empty(hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (*self.weights, self.out):
            nn.init.normal_(weight, std=0.02)
        for offset in self.offsets:
            nn.init.zeros_(offset)
        nn.init.constant_(self.frequency, FREQUENCY)

    def forward(self, time: int, dtype: torch.dtype) -> Float[Tensor, "W L"]:
        """The first `time` values of the filter."""
        frequency, out = self.frequency.to(dtype), self.out.to(dtype)
        l = torch.arange(time, device=out.device, dtype=dtype)[:, None]
        t = l / max(self.length - 1, 1)
        angles = 2 * math.pi * l / self.length * torch.linspace(1e-4, BANDS - 1, BANDS, device=l.device, dtype=dtype)
        z = torch.cat([t, angles.cos(), angles.sin()], dim=-1)
        for weight, offset in zip(self.weights, self.offsets, strict=True):
            z = torch.sin(frequency * F.linear(z, weight.to(dtype), offset.to(dtype)))
        slowest, fastest = (-math.log(TARGET) / share for share in (SLOW, FAST))
        decay = torch.linspace(slowest, fastest, self.width, device=l.device, dtype=dtype)
        return (F.linear(z, out) * torch.exp(-t * decay)).mT


class FixedInputs(NamedTuple):
    """Inputs of the long convolution, with unused capacity behind the first `lengths` of each row."""

    inputs: Float[Tensor, "B C W"]
    lengths: Int[Tensor, " B"]


class Hyena(nn.Module):
    """Order 2. Beyond `length` steps the filter is zero, and a state stops growing.

    State: the last inputs of the short convolution, then those of the long one, (B, N, W) or `FixedInputs`.
    """

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, *, length: int, hidden: int, short: int, bias: bool = False):
        super().__init__()
        self.expand = nn.Linear(width, 3 * width, bias=bias)
        self.short = ShortConvolution(3 * width, short, bias=bias)
        self.filter = Filter(width, length=length, hidden=hidden)
        self.D = nn.Parameter(torch.empty(width))
        self.combine = nn.Linear(width, width, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.D)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        short, inputs = state or (None, None)
        z, short = self.short(apply_mask(self.expand(x), mask), short)
        x_0, x_1, v = z.chunk(3, dim=-1)
        u = apply_mask(v * x_1, mask)  # again: the offset of the short convolution is not zero in padding
        with full_precision(u.device):
            y, inputs = self._fill(u, *inputs) if isinstance(inputs, FixedInputs) else self._append(u, inputs)
            y = (y + self.D * u).to(u.dtype)
        return self.combine(x_0 * y), (short, inputs)

    def _append(self, u: Float[Tensor, "B T W"], past: Float[Tensor, "B N W"] | None) -> tuple[Tensor, Tensor]:
        """K * u for any number of new steps."""
        longest = self.filter.length
        window, past = extend_window(past, u, longest - 1, back=0)
        K = self.filter(min(window.shape[1], longest), at_least_fp32_dtype(u))
        return last_steps(window, K, u.shape[1]), past

    def _fill(
        self, u: Float[Tensor, "B T W"], inputs: Float[Tensor, "B C W"], count: Tensor
    ) -> tuple[Float[Tensor, "B T W"], FixedInputs]:
        """K * u for one new step per row, written in place."""
        if u.shape[1] != 1:
            raise ValueError(f"a state of fixed capacity takes one token at a time, not {u.shape[1]}")
        inputs[torch.arange(len(count), device=count.device), count] = u[:, 0].to(inputs.dtype)
        K = self.filter(min(inputs.shape[1], self.filter.length), at_least_fp32_dtype(u)).mT
        ago = count[:, None] - torch.arange(inputs.shape[1], device=count.device)  # (B, C)
        inside = (ago >= 0) & (ago < len(K))
        weights = K[ago.clamp(0, len(K) - 1)] * inside[..., None]
        return (weights * inputs).sum(1, keepdim=True), FixedInputs(inputs, count + 1)

    def to_fixed_capacity(self, state: State, capacity: int) -> State:
        """The same state with a fixed capacity of inputs, to continue one token at a time."""
        short, past = state
        inputs, count = past if isinstance(past, FixedInputs) else (past, None)
        if inputs.shape[1] > capacity:
            raise ValueError(f"{inputs.shape[1]} inputs exceed a capacity of {capacity}")
        if count is None:
            count = torch.full((len(inputs),), inputs.shape[1], device=inputs.device)
        return short, FixedInputs(F.pad(inputs, (0, 0, 0, capacity - inputs.shape[1])), count)


@part("hyena")
class HyenaConfig(MixerConfig):
    """Hyena with a filter of `length` steps (l_max) by a network of width `hidden`, after `short` taps."""

    length: PositiveInt = 4098
    hidden: PositiveInt = 64
    short: PositiveInt = 3

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> Hyena:
        return Hyena(width, length=self.length, hidden=self.hidden, short=self.short, bias=bias)
