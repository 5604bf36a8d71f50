"""RWKV-4 time mixing (Peng et al. 2023): an average of values whose weights e^k decay with time, per channel.

    wkv_t = (a_{t-1} + e^(u + k_t) v_t) / (b_{t-1} + e^(u + k_t))
    a_t = e^w a_{t-1} + e^k_t v_t,    b_t = e^w b_{t-1} + e^k_t
    y_t = W_o (sigmoid(r_t) wkv_t),    k, v, r = maps of mu x_t + (1 - mu) x_{t-1}

In the paper w = -exp(time_decay), and initial values differ by channel: half-lives from less than a token to a hundred,
inputs from the previous token to the present one. The RegBench baseline (Akyürek et al. 2024) has w = +exp(time_decay),
so that the weight of old tokens grows with every step, and random initial values; `as_published` is that.

a and b overflow. The state is the average a / b and log b, which do not.
"""

from math import log
from typing import ClassVar

import torch
from torch import Tensor, nn

from memory_mosaics.config import MixerConfig, part
from memory_mosaics.mixers.state_space import apply_mask
from memory_mosaics.ops.common import at_least_fp32_dtype
from memory_mosaics.ops.scan import Elements, scan
from memory_mosaics.parameters import SENSITIVE, ParamSpec
from memory_mosaics.shapes import Float
from memory_mosaics.stores import Inputs, Mask, Outputs, State

EMPTY = -1e30  # log b of an empty average: infinity would make its gradients undefined
CHANNELS = ("time_decay", "time_first", "mix_key", "mix_value", "mix_receptance")  # one number per channel


class RWKV(nn.Module):
    """Time mixing without biases. State: the last input, then a / b and log b per channel."""

    init_roles: ClassVar = {"combine": "residual"}

    def __init__(self, width: int, *, as_published: bool = False):
        super().__init__()
        self.as_published = as_published
        self.param_specs = (
            {"time_decay": ParamSpec(keep_fp32=True)} if as_published else dict.fromkeys(CHANNELS, SENSITIVE)
        )
        self.time_decay = nn.Parameter(torch.empty(width))
        self.time_first = nn.Parameter(torch.empty(width))  # u: the present token has weight e^(u + k)
        self.mix_key = nn.Parameter(torch.empty(width))
        self.mix_value = nn.Parameter(torch.empty(width))
        self.mix_receptance = nn.Parameter(torch.empty(width))
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.combine = nn.Linear(width, width, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Random values as published, otherwise those of a first layer."""
        if self.as_published:
            for name in CHANNELS:
                nn.init.normal_(getattr(self, name))
        self.reset_at_depth(0, 1)

    @torch.no_grad()
    def reset_at_depth(self, layer: int, layers: int) -> None:
        """Later layers are initialised with slower decay, and with less of the previous token."""
        if self.as_published:
            return
        channel = torch.arange(len(self.time_decay), device=self.time_decay.device)
        depth, early = layer / max(1, layers - 1), 1 - layer / layers
        share = channel / len(channel)
        self.time_decay.copy_(8 * (channel / max(1, len(channel) - 1)) ** (0.7 + 1.3 * depth) - 5)
        self.time_first.copy_(log(0.3) + 0.5 * ((channel + 1) % 3 - 1))
        self.mix_key.copy_(share**early)
        self.mix_value.copy_(share**early + 0.3 * depth)
        self.mix_receptance.copy_(share ** (0.5 * early))

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        exact = at_least_fp32_dtype(x)
        x = apply_mask(x, mask)
        last, *average = state or (x.new_zeros(len(x), x.shape[2]),)
        inputs = torch.cat([last[:, None].to(x.dtype), x], dim=1)
        shifted = inputs[:, :-1]

        def interpolate(mix: Tensor) -> Tensor:
            return (x * mix + shifted * (1 - mix)).to(x.dtype)  # `mix` may have a wider dtype

        k, v = self.key(interpolate(self.mix_key)).to(exact), self.value(interpolate(self.mix_value)).to(exact)
        k = k if mask is None else k.masked_fill(~mask[..., None], EMPTY)
        rate = self.time_decay.to(exact).exp()
        averages, average = wkv(k, v, self.time_first.to(exact), rate if self.as_published else -rate, *average)
        receptance = torch.sigmoid(self.receptance(interpolate(self.mix_receptance)))
        return self.combine(receptance * averages.to(receptance.dtype)), (inputs[:, -1].clone(), *average)


def wkv(
    k: Float[Tensor, "B T W"],
    v: Float[Tensor, "B T W"],
    u: Float[Tensor, " W"],
    w: Float[Tensor, " W"],
    average: Float[Tensor, "B W"] | None = None,
    weight: Float[Tensor, "B W"] | None = None,
) -> tuple[Float[Tensor, "B T W"], tuple[Float[Tensor, "B W"], Float[Tensor, "B W"]]]:
    """The wkv of every step, then a / b and log b after the last: a scan of averages and their log weights."""
    B, T, W = k.shape
    average = k.new_zeros(B, W) if average is None else average.to(k.dtype)
    weight = k.new_full((B, W), EMPTY) if weight is None else weight.to(k.dtype)
    if T == 0:
        return v, (average, weight)
    before = average[:, None], weight[:, None]
    start = _combine((*before, w), (v[:, :1], k[:, :1], w))[:2]
    averages, weights = (torch.cat([x, y[:, 1:]], dim=1) for x, y in zip(start, (v, k), strict=True))
    after = scan(_combine, (averages, weights, w.expand(1, T, W)))[:2]
    earlier = [torch.cat([x, y[:, :-1]], dim=1) for x, y in zip(before, after, strict=True)]
    now = torch.zeros_like(w)
    found = _combine((*earlier, now), (v, k + u, now))[0]
    return found, (after[0][:, -1].clone(), after[1][:, -1].clone())


def _combine(earlier: Elements, later: Elements) -> Elements:
    """Combine the averages over two intervals: average, log weight, and w times the length of both."""
    (average, weight, w), (later_average, later_weight, later_w) = earlier, later
    weight = weight + later_w
    share = torch.sigmoid(later_weight - weight)
    return torch.lerp(average, later_average, share), torch.logaddexp(weight, later_weight), w + later_w


@part("rwkv")
class RWKVConfig(MixerConfig):
    """RWKV-4 time mixing; `as_published` with the inverted decay of the RegBench baseline."""

    as_published: bool = False

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> RWKV:
        return RWKV(width, as_published=self.as_published)
