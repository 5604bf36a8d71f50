"""Linear state spaces, one or more per channel, and the causal convolutions that they are.

    S4D    y = GELU(K * x + D x) W                        Gu, Gupta, Goel and Re 2022, arXiv:2206.11893
    H3     y = (q . SSM(shift(k) . v)) W                  Fu, Dao et al. 2023, arXiv:2212.14052
    Mamba  y = (SSM_x(u) . silu(z)) W                     Gu and Dao 2023, arXiv:2312.00752

S4D and H3 rest on a diagonal state space h_t = A h_{t-1} + B u_t, y_t = 2 Re(C h_t) + D u_t with complex A, B, C,
discretised by a trained step dt. A whole sequence is one convolution with the kernel K_l = 2 Re(C A^l B), by FFT; one
token at a time is the recurrence. Letters in shapes: N complex states per channel, L length of a kernel.

Their initial values and sizes are those of RegBench (Akyürek et al. 2024, arXiv:2401.12973). Mamba's step, input and
output maps depend on the token, so that it has only the recurrence:

    h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,   y_t = (C_t . h_t + D u_t) silu(z_t),   dt, B, C maps of u
"""

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import MixerConfig, PositiveInt, part
from memory_mosaics.errors import UserError
from memory_mosaics.ops.common import at_least_fp32_dtype, full_precision
from memory_mosaics.ops.convolution import causal_convolution, last_steps
from memory_mosaics.ops.selective_scan import selective_scan
from memory_mosaics.ops.taps import apply_taps, extend_window
from memory_mosaics.parameters import NO_DECAY, SENSITIVE, SLOW, ParamSpec
from memory_mosaics.shapes import Bool, Float
from memory_mosaics.stores import Inputs, Mask, Outputs, State

CHUNK = 64  # A^(i CHUNK + j) = A^(i CHUNK) A^j
MIN_STEP, MAX_STEP = 1e-3, 0.1  # range of initial dt

Spectrum = Callable[[int], Tensor]
Discretise = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def apply_mask(x: Float[Tensor, "B T W"], mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T W"]:
    """Set padding to zero."""
    return x if mask is None else x * mask[..., None]


def log_uniform_steps(steps: Float[Tensor, " W"]) -> Float[Tensor, " W"]:
    """Draw log-uniform initial dt, in the shape of `steps`."""
    return torch.empty_like(steps, dtype=torch.float32).uniform_(math.log(MIN_STEP), math.log(MAX_STEP)).exp()


def inverse_softplus(y: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """The x whose softplus, log(1 + e^x), is y."""
    return y + torch.log(-torch.expm1(-y))


class ShortConvolution(nn.Module):
    """y_t = sum_{l < taps} K_l x_{t-l} + c, channel by channel, initialised as torch.nn.Conv1d.

    State: the last taps - 1 inputs.
    """

    def __init__(self, width: int, taps: int, *, bias: bool):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(width, taps))  # oldest first
        self.offset = nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.kernel.shape[1] ** -0.5
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)

    def forward(
        self, x: Float[Tensor, "B T W"], past: Float[Tensor, "B K W"] | None = None
    ) -> tuple[Float[Tensor, "B T W"], Float[Tensor, "B K W"]]:
        window, past = extend_window(past, x, self.kernel.shape[1] - 1)
        y = apply_taps(window[..., None].to(at_least_fp32_dtype(x)), self.kernel.to(at_least_fp32_dtype(x)))[..., 0]
        return (y if self.offset is None else y + self.offset).to(x.dtype), past


def inverse_spectrum(pairs: int) -> Tensor:
    """S4D-Inv: -1/2 + i (N/pi) (N/(2n+1) - 1), N twice the pairs."""
    N, n = 2 * pairs, torch.arange(pairs, dtype=torch.float32)
    return torch.complex(torch.full_like(n, -0.5), N / math.pi * (N / (2 * n + 1) - 1))


def linear_spectrum(pairs: int) -> Tensor:
    """S4D-Lin: -1/2 + i pi n."""
    n = torch.arange(pairs, dtype=torch.float32)
    return torch.complex(torch.full_like(n, -0.5), math.pi * n)


def zero_order_hold(A: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Return log A and B of A = e^(dt A), B = (e^(dt A) - 1)/A."""
    return dt * A, torch.expm1(dt * A) / A


def bilinear(A: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """Return log A and B of A = (1 + dt A/2)/(1 - dt A/2) = e^(2 artanh(dt A/2)), B = dt/(1 - dt A/2)."""
    return 2 * torch.atanh(dt * A / 2), dt / (1 - dt * A / 2)


class DiagonalSSM(nn.Module):
    """h_t = A h_{t-1} + B u_t, y_t = 2 Re(C h_t) + D u_t, with one state of each conjugate pair.

    `shared`: all channels share A, and B is part of C (S4D). Otherwise each has its own (H3). State: h as pairs of real
    numbers.
    """

    param_specs: ClassVar = {"A_log_real": SLOW, "A_imag": SLOW, "log_dt": SLOW, "B": NO_DECAY}

    def __init__(self, width: int, pairs: int, *, spectrum: Spectrum, discretise: Discretise, shared: bool):
        super().__init__()
        self.spectrum, self.discretise = spectrum, discretise
        shape = (pairs,) if shared else (width, pairs)
        self.A_log_real = nn.Parameter(torch.empty(shape))  # A = -exp(A_log_real) + i A_imag
        self.A_imag = nn.Parameter(torch.empty(shape))
        self.B = None if shared else nn.Parameter(torch.empty(width, pairs, 2))
        self.C = nn.Parameter(torch.empty(width, pairs, 2))
        self.D = nn.Parameter(torch.empty(width))
        self.log_dt = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        width, pairs, _ = self.C.shape
        A, C = self.spectrum(pairs), torch.randn(width, pairs, dtype=torch.complex64)
        if self.B is None:
            B = torch.randn(pairs, dtype=torch.complex64)
            C = C * B / (2 * (B / A).abs().square().sum()).sqrt()  # the response to a constant input has variance 1
        else:
            self.B.copy_(torch.tensor([1.0, 0.0]))
        self.A_log_real.copy_(A.real.neg().log())
        self.A_imag.copy_(A.imag)
        self.C.copy_(torch.view_as_real(C))
        self.D.normal_()
        self.log_dt.copy_(log_uniform_steps(self.log_dt).log())

    def discrete(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return log A, B and C of the recurrence, complex (W, N)."""
        A = torch.complex(-self.A_log_real.to(dtype).exp(), self.A_imag.to(dtype))
        log_A, B = self.discretise(A, self.log_dt.to(dtype).exp()[:, None])
        B = B if self.B is None else B * torch.view_as_complex(self.B.to(dtype))
        return log_A, B, torch.view_as_complex(self.C.to(dtype))

    def forward(
        self, u: Float[Tensor, "B T W"], state: Float[Tensor, "B W N 2"] | None = None
    ) -> tuple[Float[Tensor, "B T W"], Float[Tensor, "B W N 2"]]:
        dtype, time = u.dtype, u.shape[1]
        with full_precision(u.device):
            u = u.to(at_least_fp32_dtype(u))
            log_A, B, C = self.discrete(u.dtype)
            h = B.new_zeros(len(u), *B.shape) if state is None else torch.view_as_complex(state.to(u.dtype))
            if time == 0:
                y = u
            elif time == 1:
                h = log_A.exp() * h + B * u[:, 0, :, None]
                y = 2 * (C * h).real.sum(-1)[:, None]
            else:
                y = causal_convolution(u, impulse_responses(log_A, (C * B)[:, None], time)[:, 0])
                if state is not None:
                    y = y + impulse_responses(log_A, (C * log_A.exp() * h).transpose(0, 1), time).permute(1, 2, 0)
                h = (log_A * time).exp() * h + B * weighted_sum(log_A, u)
            y = y + self.D * u
            return y.to(dtype), torch.stack([h.real, h.imag], dim=-1)


def impulse_responses(log_A: Tensor, start: Tensor, time: int) -> Float[Tensor, "W M T"]:
    """2 Re(sum_n start_n A_n^t) for t = 0, 1, ..., from complex log A (W, N) and start (W, M, N).

    With t = i CHUNK + j, powers of A are computed for every i and every j, not for every t.
    """
    chunks, inside = powers(log_A, time)
    scaled = (start[:, :, None] * chunks[:, None]).flatten(1, 2)  # (W, M I, N)
    y = 2 * (scaled.real @ inside.real.mT - scaled.imag @ inside.imag.mT)
    return y.reshape(*start.shape[:2], chunks.shape[1] * CHUNK)[..., :time]


def weighted_sum(log_A: Tensor, u: Float[Tensor, "B T W"]) -> Tensor:
    """sum_t A^(T-1-t) u_t, complex (B, W, N)."""
    chunks, inside = powers(log_A, u.shape[1])
    count = chunks.shape[1]
    backwards = F.pad(u.flip(1), (0, 0, 0, count * CHUNK - u.shape[1]))
    pieces = backwards.permute(2, 0, 1).reshape(u.shape[2], len(u) * count, CHUNK)
    sums = torch.complex(pieces @ inside.real, pieces @ inside.imag)  # (W, B I, N)
    return (sums.unflatten(1, (len(u), count)) * chunks[:, None]).sum(2).transpose(0, 1)


def powers(log_A: Tensor, time: int) -> tuple[Tensor, Tensor]:
    """A^(i CHUNK), complex (W, I, N), and A^j, complex (W, CHUNK, N): their products are the powers below `time`."""
    i, j = (torch.arange(n, device=log_A.device)[:, None] for n in ((time + CHUNK - 1) // CHUNK, CHUNK))
    return (log_A[:, None] * (i * CHUNK)).exp(), (log_A[:, None] * j).exp()


class ShiftSSM(nn.Module):
    """The state space whose A is a shift, plus D u_t: a convolution with K_l = sum_m B_m C_{m+l} of L taps.

    B is initialised to the first unit vector, so that K is C. State: the last L - 1 inputs.
    """

    param_specs: ClassVar = {"B": NO_DECAY}

    def __init__(self, width: int, taps: int):
        super().__init__()
        self.B = nn.Parameter(torch.empty(width, taps))
        self.C = nn.Parameter(torch.empty(width, taps))
        self.D = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        taps = self.B.shape[1]
        self.B.copy_(torch.eye(1, taps))
        self.C.uniform_(-(taps**-0.5), taps**-0.5)
        self.D.normal_()

    def forward(
        self, u: Float[Tensor, "B T W"], past: Float[Tensor, "B K W"] | None = None
    ) -> tuple[Float[Tensor, "B T W"], Float[Tensor, "B K W"]]:
        dtype, time, taps = u.dtype, u.shape[1], self.B.shape[1]
        window, new_past = extend_window(past, u, taps - 1)
        with full_precision(u.device):
            u, B, C = (z.to(at_least_fp32_dtype(u)) for z in (u, self.B, self.C))
            kernel = (F.pad(C, (0, taps - 1)).unfold(1, taps, 1) * B[:, None]).sum(-1)  # (W, L)
            return (last_steps(window, kernel, time) + self.D * u).to(dtype), new_past


class S4D(nn.Module):
    """A diagonal state space per channel, a GELU, a matrix. State: h."""

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, pairs: int, *, bias: bool = False):
        super().__init__()
        self.ssm = DiagonalSSM(width, pairs, spectrum=inverse_spectrum, discretise=zero_order_hold, shared=True)
        self.combine = nn.Linear(width, width, bias=bias)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        y, h = self.ssm(apply_mask(x, mask), *(state or ()))
        return self.combine(F.gelu(y)), (h,)


class H3(nn.Module):
    """Shifted keys times values, through a diagonal state space, times queries.

    State: the last inputs of the shift, then h.
    """

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, pairs: int, *, shift: int, bias: bool = False):
        super().__init__()
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.shift = ShiftSSM(width, shift)
        self.ssm = DiagonalSSM(width, pairs, spectrum=linear_spectrum, discretise=bilinear, shared=False)
        self.combine = nn.Linear(width, width, bias=bias)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        past, h = state or (None, None)
        keys, past = self.shift(apply_mask(self.key(x), mask), past)
        y, h = self.ssm(keys * apply_mask(self.value(x), mask), h)
        return self.combine(self.query(x) * y), (past, h)


class Mamba(nn.Module):
    """Mamba-1 with the initial values of the authors' library, mamba_ssm. Maps have biases if the model has (theirs do
    not); the short convolution and dt always have. Letters: E inner width, N states, R rank.

    RegBench as published (Akyürek et al. 2024) ran one such mixer alone, without norm, residual or channel mixer: a
    property of the model, not of this mixer. State: the last inputs of the short convolution, then h.
    """

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
        self.dt_offset.copy_(inverse_softplus(log_uniform_steps(self.dt_offset)))
        self.A_log.copy_(torch.arange(1, self.states + 1).log())
        nn.init.ones_(self.D)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
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


@part("s4d")
class S4DConfig(MixerConfig):
    """S4D with `state_size` numbers per channel, as conjugate pairs."""

    state_size: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state_size < 2 or self.state_size % 2:
            what = "a positive even number, for pairs of conjugates"
            raise UserError(f"state_size must be {what}, not {self.state_size}")

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> S4D | H3:
        return S4D(width, self.state_size // 2, bias=bias)


@part("h3")
class H3Config(S4DConfig):
    """H3 with heads of width 1: a shift of `shift` steps, and `state_size` numbers per channel, as conjugate pairs."""

    shift: PositiveInt = 64

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> H3:
        return H3(width, self.state_size // 2, shift=self.shift, bias=bias)


@part("mamba")
class MambaConfig(MixerConfig):
    """Mamba-1: `state_size` numbers per channel, `short` taps before, expansion * width channels."""

    state_size: PositiveInt = 16
    short: PositiveInt = 4
    expansion: PositiveInt = 2
    bias: bool | None = None  # of the maps; None: as the model

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> Mamba:
        bias = bias if self.bias is None else self.bias
        return Mamba(width, states=self.state_size, taps=self.short, expansion=self.expansion, bias=bias)
