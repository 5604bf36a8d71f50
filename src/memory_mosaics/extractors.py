"""Feature extractors: what the keys and values of a sequence are, equations 4, 5 and 6 of the paper.

    Linear          phi_T = W x_{T+peek}                                  the three moons
    LeakyAverage    k_T = Norm(W x_T + lambda W x_{T-1} + ...)            the keys of the language models
    Taps            v_T = Norm(c_0 W x_T + c_1 W x_{T+1})                 their values; any number of taps
    Convolution     phi_T = Norm(sum_j W_j x_{T+j})                       a full matrix for every tap

Values may depend on the next `peek` inputs, so T inputs complete the features of T - peek times: those are what a call
returns, with one tensor of state that holds what the features still to come need. `scale` multiplies them, per head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import ExtractorConfig, at_least, part
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.ops.leaky_average import leaky_key
from memory_mosaics.ops.normalise import HeadScale, normalise
from memory_mosaics.ops.recall import scale_features
from memory_mosaics.ops.taps import apply_taps, tap_values
from memory_mosaics.parameters import SENSITIVE
from memory_mosaics.scales import Decay
from memory_mosaics.shapes import Bool, Float


def identity(x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """No norm: for keys and values whose scale matters."""
    return x


@runtime_checkable
class Extractor(Protocol):
    """What turns inputs into keys (equation 4, peek = 0) or values (equation 5)."""

    peek: int

    def __call__(
        self, x: Tensor, state: Tensor | None = None, mask: Tensor | None = None, scale: HeadScale = None
    ) -> tuple[Tensor, Tensor]: ...


def check_causal(key: Extractor) -> Extractor:
    """The key, if it is one: what is compared now cannot depend on inputs still to come."""
    if key.peek != 0:
        raise ValueError(f"a key cannot wait for inputs that have not come; got peek {key.peek}")
    return key


def split_heads(x: Float[Tensor, "B T W"], heads: int, mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T H D"]:
    """Split into heads; padding counts for nothing."""
    x = x if mask is None else x * mask[..., None]
    return x.unflatten(-1, (heads, -1))


class ComplexMap(nn.Module):
    """W x for complex x and W, where a complex number is two coordinates in a row: it turns and scales each pair.

    A real matrix of the same size would have twice the numbers, and could also shear. With `copies` > 1 it is as many
    matrices, for networks trained side by side: the first rows of a batch go through the first, and so on.
    """

    def __init__(self, width: int, out_width: int, *, copies: int = 1):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(copies, out_width // 2, width // 2, 2) / width**0.5)

    def forward(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "B T V"]:
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()).unflatten(0, (len(self.weight), -1))
        y = torch.einsum("cbti,coi->cbto", z, torch.view_as_complex(self.weight))
        return torch.view_as_real(y.flatten(0, 1)).flatten(-2)


class Linear(nn.Module):
    """phi_T = W x_{T+peek}: enough where one observation says all, as in the three moons. `map` may be another W."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int,
        peek: int = 0,
        bias: bool = False,
        map: nn.Module | None = None,
    ):
        super().__init__()
        self.heads, self.peek = heads, peek
        self.map = nn.Linear(width, heads * head_width, bias=bias) if map is None else map

    def forward(
        self,
        x: Float[Tensor, "B T W"],
        state: Tensor | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
        scale: HeadScale = None,
    ) -> tuple[Float[Tensor, "B N H D"], Tensor]:
        window = _extend(state, split_heads(self.map(x), self.heads, mask), back=0)
        return scale_features(window[:, self.peek :], scale), _keep(window, self.peek)


class LeakyAverage(nn.Module):
    """k_T = Norm(k-_T),  k-_T = W x_T + lambda k-_{T-1}: the keys of equation 6."""

    init_roles: ClassVar = {"map": "normalised"}

    peek = 0

    def __init__(self, width: int, heads: int, *, head_width: int, bias: bool = False):
        super().__init__()
        self.heads = heads
        self.map = nn.Linear(width, heads * head_width, bias=bias)
        self.decay = Decay(heads)

    def forward(
        self,
        x: Float[Tensor, "B T W"],
        state: Tensor | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
        scale: HeadScale = None,
    ) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
        raw = split_heads(self.map(x), self.heads, mask)
        if raw.dtype == torch.float16 and isinstance(scale, Tensor):
            scale = scale.clamp(max=torch.finfo(torch.float16).max)  # a sharp memory may leave its narrow range
        return leaky_key(raw, self.decay(), state, scale)


class Taps(nn.Module):
    """v_T = Norm(sum_j c_j W x_{T+j}),  j from -back to peek, the c_j trained per head.

    With back = 0 and peek = 1 these are the values of equation 6; the two taps start as c and 1 - c, c random.
    """

    init_roles: ClassVar = {"": "taps", "map": "normalised"}
    param_specs: ClassVar = {"taps": SENSITIVE}

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int,
        back: int = 0,
        peek: int = 1,
        norm: Callable[[Tensor], Tensor] = normalise,
        bias: bool = False,
    ):
        super().__init__()
        self.heads, self.back, self.peek, self.norm = heads, back, peek, norm
        self.map = nn.Linear(width, heads * head_width, bias=bias)
        self.taps = nn.Parameter(torch.empty(heads, back + 1 + peek))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A random split of 1: uniform c and 1 - c where there are two taps."""
        cuts = torch.rand(self.taps.shape[0], self.taps.shape[1] - 1).sort(dim=-1).values
        with torch.no_grad():
            self.taps.copy_(F.pad(cuts, (0, 1), value=1.0) - F.pad(cuts, (1, 0)))

    def forward(
        self,
        x: Float[Tensor, "B T W"],
        state: Tensor | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
        scale: HeadScale = None,
    ) -> tuple[Float[Tensor, "B N H D"], Tensor]:
        window = _extend(state, split_heads(self.map(x), self.heads, mask), back=self.back)
        kept = _keep(window, self.taps.shape[1] - 1)
        if self.taps.shape[1] == 2 and self.norm is normalise and scale is None:
            return tap_values(window, self.taps), kept
        return scale_features(self.norm(apply_taps(at_least_fp32(window), self.taps)), scale).to(window.dtype), kept


class Convolution(nn.Module):
    """phi_T = Norm(sum_j W_j x_{T+j}),  j from -back to peek: a full matrix for every tap."""

    init_roles: ClassVar = {"map": "normalised"}

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_width: int,
        back: int = 1,
        peek: int = 0,
        norm: Callable[[Tensor], Tensor] = normalise,
        bias: bool = False,
    ):
        super().__init__()
        self.heads, self.back, self.peek, self.norm = heads, back, peek, norm
        self.map = nn.Linear(width, (back + 1 + peek) * heads * head_width, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "B T W"],
        state: Tensor | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
        scale: HeadScale = None,
    ) -> tuple[Float[Tensor, "B N H D"], Tensor]:
        taps = self.back + 1 + self.peek
        window = _extend(state, split_heads(self.map(x), taps * self.heads, mask), back=self.back)
        complete = max(window.shape[1] - taps + 1, 0)
        terms = [part[:, j : j + complete] for j, part in enumerate(window.chunk(taps, dim=2))]
        return scale_features(self.norm(torch.stack(terms).sum(dim=0)), scale), _keep(window, taps - 1)


def _extend(state: Tensor | None, raw: Float[Tensor, "B T H D"], *, back: int) -> Float[Tensor, "B N H D"]:
    """What was kept, then the new; before the first input there is nothing, that is, `back` zeros."""
    if state is None:
        return F.pad(raw, (0, 0, 0, 0, back, 0)) if back else raw
    return torch.cat([state, raw], dim=1)


def _keep(window: Float[Tensor, "B N H D"], steps: int) -> Float[Tensor, "B K H D"]:
    return window[:, max(window.shape[1] - steps, 0) :].clone()  # not a view: the rest of the window may go


@part("linear")
@dataclass(frozen=True, kw_only=True)
class LinearConfig(ExtractorConfig):
    """W x_{T+peek}."""

    peek: int = 0

    def __post_init__(self) -> None:
        at_least(self, peek=0)

    def build(self, width: int, heads: int, *, head_width: int, bias: bool = False) -> Linear:
        return Linear(width, heads, head_width=head_width, peek=self.peek, bias=bias)


@part("leaky_average")
@dataclass(frozen=True, kw_only=True)
class LeakyAverageConfig(ExtractorConfig):
    """Norm of the leaky average of W x."""

    def build(self, width: int, heads: int, *, head_width: int, bias: bool = False) -> LeakyAverage:
        return LeakyAverage(width, heads, head_width=head_width, bias=bias)


@part("taps")
@dataclass(frozen=True, kw_only=True)
class TapsConfig(ExtractorConfig):
    """Norm of the sum of c_j W x_{T+j}, j from -back to peek."""

    back: int = 0
    peek: int = 1
    norm: bool = True

    def __post_init__(self) -> None:
        at_least(self, back=0, peek=0)

    def build(self, width: int, heads: int, *, head_width: int, bias: bool = False) -> Taps:
        norm = normalise if self.norm else identity
        return Taps(width, heads, head_width=head_width, back=self.back, peek=self.peek, norm=norm, bias=bias)


@part("convolution")
@dataclass(frozen=True, kw_only=True)
class ConvolutionConfig(ExtractorConfig):
    """Norm of the sum of W_j x_{T+j}, j from -back to peek."""

    back: int = 1
    peek: int = 0
    norm: bool = True

    def __post_init__(self) -> None:
        at_least(self, back=0, peek=0)

    def build(self, width: int, heads: int, *, head_width: int, bias: bool = False) -> Convolution:
        norm = normalise if self.norm else identity
        return Convolution(width, heads, head_width=head_width, back=self.back, peek=self.peek, norm=norm, bias=bias)
