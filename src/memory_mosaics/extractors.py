"""Key and value extractors: what the keys and values of a sequence are (equations 4, 5 and 6).

    Linear          phi_T = W x_{T+peek}                                  the three moons
    LeakyAverage    k_T = Norm(W x_T + lambda W x_{T-1} + ...)            the keys of the language models
    GatedAverage    k_T = Norm(g_T W x_T + lambda_T g_{T-1} W x_{T-1} + ...)  those of Memory Mosaics v2
    Mix             v_T = Norm(gamma W x_T + (1 - gamma) W x_{T+1})       the values of Memory Mosaics v2
    Convolution     phi_T = Norm(sum_j W_j x_{T+j})                       a full matrix for every tap
    Taps            v_T = Norm(c_0 W x_T + c_1 W x_{T+1})                 their values; any number of taps

Letters in shapes: B batch, T time, N complete features, H heads, D head width, W model width.
"""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import ExtractorConfig, NonNegativeInt, check_choices, part
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.ops.gated_average import NO_PEAK, gated_key, rescale_gates
from memory_mosaics.ops.leaky_average import leaky_key
from memory_mosaics.ops.normalise import HeadScale, normalise
from memory_mosaics.ops.recall import scale_features
from memory_mosaics.ops.taps import apply_taps, extend_window, tap_values
from memory_mosaics.parameters import SENSITIVE
from memory_mosaics.scales import Decay
from memory_mosaics.shapes import Bool, Float
from memory_mosaics.stores import Inputs, Mask

Features = tuple[Float[Tensor, "B N H D"], Tensor]  # and the state of the extractor
Norm = Callable[[Tensor], Tensor]


class Extractor(nn.Module):
    """Turns inputs into keys (equation 4, peek = 0) or values (equation 5): `features, state = extractor(x)`.

    Values may depend on the next `peek` inputs, so that T inputs complete the features of T - peek times: those are
    returned, with one tensor of state for the features still to come. `scale` multiplies them, per head.
    Features depend on `map(x)` only, so that the maps of key and value can be computed as one product.
    """

    peek: int = 0

    def __init__(self, heads: int, map: nn.Module):
        super().__init__()
        self.heads, self.map = heads, map

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        raise NotImplementedError

    def decays(self, x: Inputs | None = None) -> Tensor | None:
        """Lambda where the features are an average over time: (H), or (B T H) where it depends on x."""
        return None


def check_causal(key: Extractor) -> Extractor:
    """Return the key extractor, or refuse it: a key cannot depend on inputs still to come."""
    if key.peek != 0:
        raise ValueError(f"a key cannot depend on inputs still to come; got peek {key.peek}")
    return key


def identity(x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
    """No norm: for keys and values whose norm matters."""
    return x


def head_width(width: int, heads: int) -> int:
    """Width of one of `heads` equal heads."""
    if heads < 1 or width % heads:
        raise ValueError(f"width {width} does not split into {heads} heads")
    return width // heads


def split_heads(x: Float[Tensor, "B T W"], heads: int, mask: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T H D"]:
    """Split into heads, with zeros where there is padding."""
    x = x if mask is None else x * mask[..., None]
    return x.unflatten(-1, (heads, -1))


class Linear(Extractor):
    """phi_T = W x_{T+peek}: enough where one observation determines the next, as in the three moons.

    `map` may be another W.
    """

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
        super().__init__(heads, nn.Linear(width, heads * head_width, bias=bias) if map is None else map)
        self.peek = peek

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        window, state = extend_window(state, split_heads(self.map(x), self.heads, mask), self.peek, back=0)
        return scale_features(window[:, self.peek :], scale), state


@part("linear")
class LinearConfig(ExtractorConfig):
    """W x_{T+peek}."""

    extractor: ClassVar = Linear
    peek: NonNegativeInt = 0


class LeakyAverage(Extractor):
    """k_T = Norm(k-_T),  k-_T = W x_T + lambda k-_{T-1}: the keys of equation 6."""

    init_roles: ClassVar = {"map": "normalised"}

    def __init__(self, width: int, heads: int, *, head_width: int, bias: bool = False):
        super().__init__(heads, nn.Linear(width, heads * head_width, bias=bias))
        self.decay = Decay(heads)

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        raw = split_heads(self.map(x), self.heads, mask)
        if raw.dtype == torch.float16 and isinstance(scale, Tensor):
            scale = scale.clamp(max=torch.finfo(torch.float16).max)  # a sharp memory may leave its narrow range
        return leaky_key(raw, self.decay(), state, scale)

    def decays(self, x: Inputs | None = None) -> Tensor | None:
        return self.decay()


@part("leaky_average")
class LeakyAverageConfig(ExtractorConfig):
    """Norm of the leaky average of W x."""

    extractor: ClassVar = LeakyAverage


class GatedAverage(Extractor):
    """k_T = Norm(k-_T),  k-_T = g_T W x_T + lambda_T k-_{T-1}: what is averaged, and how long, depends on the input.

    Per head, g_T = exp(w.x_T) and lambda_T = exp(-|u.x_T|). State: the average, and the logarithm of its scale.
    """

    init_roles: ClassVar = {"map": "normalised"}

    def __init__(self, width: int, heads: int, *, head_width: int, bias: bool = False):
        columns = heads * (head_width + 2)  # W, then the w and the u of all heads
        super().__init__(heads, nn.Linear(width, columns, bias=bias))

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        raw, log_gate, rate = self._split(self.map(x))
        raw = split_heads(raw, self.heads, mask)
        log_gate, log_decay = at_least_fp32(log_gate), -at_least_fp32(rate).abs()
        if mask is not None:  # padding adds nothing and lets nothing decay
            log_gate = log_gate.masked_fill(~mask[..., None], NO_PEAK)
            log_decay = log_decay.masked_fill(~mask[..., None], 0.0)
        if state is None:
            state = F.pad(torch.zeros_like(raw[:, :1].sum(dim=1), dtype=log_gate.dtype), (0, 1), value=NO_PEAK)
        if x.shape[1] == 0:
            return raw, state
        decay, gate, peak = rescale_gates(log_decay, log_gate, state[..., -1])
        keys, average = gated_key(raw, decay, gate, state[..., :-1])
        return scale_features(keys, scale), torch.cat([average, peak[..., None]], dim=-1)

    def decays(self, x: Inputs | None = None) -> Tensor | None:
        return None if x is None else (-at_least_fp32(self._split(self.map(x))[2]).abs()).exp()

    def _split(self, mapped: Float[Tensor, "B T _"]) -> tuple[Tensor, ...]:
        return mapped.split([mapped.shape[-1] - 2 * self.heads, self.heads, self.heads], dim=-1)


@part("gated_average")
class GatedAverageConfig(ExtractorConfig):
    """Norm of the gated average of W x."""

    extractor: ClassVar = GatedAverage


class Mix(Extractor):
    """v_T = Norm(gamma W x_T + (1 - gamma) W x_{T+1}), gamma trained per head and initially uniform."""

    peek = 1
    init_roles: ClassVar = {"": "taps", "map": "normalised"}
    param_specs: ClassVar = {"gamma": SENSITIVE}

    def __init__(self, width: int, heads: int, *, head_width: int, bias: bool = False):
        super().__init__(heads, nn.Linear(width, heads * head_width, bias=bias))
        self.gamma = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.gamma)

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        window, state = extend_window(state, split_heads(self.map(x), self.heads, mask), 1, back=0)
        return scale_features(tap_values(window, torch.stack([self.gamma, 1 - self.gamma], dim=-1)), scale), state


@part("mix")
class MixConfig(ExtractorConfig):
    """Norm of gamma W x_T + (1 - gamma) W x_{T+1}."""

    extractor: ClassVar = Mix


class Convolution(Extractor):
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
        norm: Norm = normalise,
        bias: bool = False,
    ):
        super().__init__(heads, nn.Linear(width, (back + 1 + peek) * heads * head_width, bias=bias))
        self.back, self.peek, self.norm = back, peek, norm

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        taps = self.back + 1 + self.peek
        raw = split_heads(self.map(x), taps * self.heads, mask)
        window, state = extend_window(state, raw, taps - 1, back=self.back)
        complete = max(window.shape[1] - taps + 1, 0)
        terms = [part[:, j : j + complete] for j, part in enumerate(window.chunk(taps, dim=2))]
        return scale_features(self.norm(torch.stack(terms).sum(dim=0)), scale), state


@part("convolution")
class ConvolutionConfig(ExtractorConfig):
    """Norm of the sum of W_j x_{T+j}, j from -back to peek."""

    extractor: ClassVar = Convolution
    back: NonNegativeInt = 1
    peek: NonNegativeInt = 0
    norm: bool = True

    def build(self, width: int, heads: int, *, head_width: int, bias: bool = False) -> Extractor:
        options = vars(self) | {"norm": normalise if self.norm else identity}
        return self.extractor(width, heads, head_width=head_width, bias=bias, **options)


class Taps(Extractor):
    """v_T = Norm(sum_j c_j W x_{T+j}),  j from -back to peek, the c_j trained per head.

    With back = 0 and peek = 1 these are the values of equation 6: two taps, initialised to c and 1 - c with uniform c.
    With back > 0 and peek = 0 they are keys; `initial` "decaying" then makes them leaky averages of a few steps.
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
        norm: Norm = normalise,
        initial: str = "uniform",
        bias: bool = False,
    ):
        super().__init__(heads, nn.Linear(width, heads * head_width, bias=bias))
        self.back, self.peek, self.norm, self.initial = back, peek, norm, initial
        self.taps = nn.Parameter(torch.empty(heads, back + 1 + peek))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A random split of 1: uniform c and 1 - c where there are two taps. Or "decaying", c_j = lambda^|j|, with the
        lambdas of a leaky average: the current input outweighs its neighbours.
        """
        if self.initial == "decaying":
            lags = torch.arange(-self.back, self.peek + 1).abs()
            with torch.no_grad():
                self.taps.copy_(Decay(len(self.taps))()[:, None] ** lags)
            return
        cuts = torch.rand(self.taps.shape[0], self.taps.shape[1] - 1).sort(dim=-1).values
        with torch.no_grad():
            self.taps.copy_(F.pad(cuts, (0, 1), value=1.0) - F.pad(cuts, (1, 0)))

    def forward(self, x: Inputs, state: Tensor | None = None, mask: Mask = None, scale: HeadScale = None) -> Features:
        raw = split_heads(self.map(x), self.heads, mask)
        window, state = extend_window(state, raw, self.back + self.peek, back=self.back)
        if self.taps.shape[1] == 2 and self.norm is normalise and scale is None:
            return tap_values(window, self.taps), state
        return scale_features(self.norm(apply_taps(at_least_fp32(window), self.taps)), scale).to(window.dtype), state


@part("taps")
class TapsConfig(ConvolutionConfig):
    """Norm of the sum of c_j W x_{T+j}, j from -back to peek."""

    extractor: ClassVar = Taps
    back: NonNegativeInt = 0
    peek: NonNegativeInt = 1
    initial: Literal["uniform", "decaying"] = "uniform"  # a random split of 1, or lambda^|j|: for keys

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
