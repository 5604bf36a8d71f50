"""The LSTM (Hochreiter and Schmidhuber 1997; with a forget gate, Gers et al. 2000) as a sequence mixer: torch.nn.LSTM.

As published on RegBench (Akyürek et al. 2024, and the paper after them) a stack of LSTMs is in effect one: each layer
reads the embeddings, only the last one's output is used, and there is no norm and no residual. That is a matter of the
model, not of the mixer; here it is part of a block, as any other mixer.
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from memory_mosaics.config import MixerConfig, part
from memory_mosaics.ops.common import full_precision
from memory_mosaics.stores import Inputs, Mask, Outputs, State

CLOSED = -1e4  # added to the logit of a gate: its sigmoid is zero in every precision


class LSTM(nn.Module):
    """One layer, as wide as the model, with the parameters of torch.nn.LSTM, which torch.compile does not support.

    It always has biases: the forget gate is initially open. State: the last output h and the cells c.
    """

    def __init__(self, width: int):
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * width, width))  # gates: input, forget, cell, output
        self.weight_hh = nn.Parameter(torch.empty(4 * width, width))
        self.bias_ih = nn.Parameter(torch.empty(4 * width))
        self.bias_hh = nn.Parameter(torch.empty(4 * width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight_ih)
        nn.init.orthogonal_(self.weight_hh)
        nn.init.zeros_(self.bias_ih)
        nn.init.zeros_(self.bias_hh)
        self.bias_ih.chunk(4)[1].fill_(1.0)

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        dtype = self.weight_hh.dtype
        h, c = state or (x.new_zeros(len(x), x.shape[2], dtype=dtype),) * 2
        if x.shape[1] == 0:
            return x, (h, c)
        weights = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        run = torch.ops.memory_mosaics.lstm if torch.compiler.is_compiling() else _run
        with full_precision(x.device):  # rounding errors of one step propagate to all later ones
            y, h, c = run(x.to(dtype), mask, h.to(dtype), c.to(dtype), *weights)
        return y.to(x.dtype), (h, c)


def _run(
    x: Tensor, mask: Tensor | None, h: Tensor, c: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """All steps, as torch.nn.LSTM runs them, on cuDNN if available: outputs, last h and c.

    Padding closes the input gate, by one more input: empty cells stay empty, and their output is zero.
    """
    if mask is not None:
        closed = torch.zeros_like(w_ih[:, :1])
        closed[: len(closed) // 4] = CLOSED
        x, w_ih = torch.cat([x, ~mask[..., None]], dim=-1), torch.cat([w_ih, closed], dim=-1)
    start, train = (h[None].contiguous(), c[None].contiguous()), torch.is_grad_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights")  # cuDNN packs them at every call: two small copies
        y, h, c = torch.lstm(x, start, (w_ih, w_hh, b_ih, b_hh), True, 1, 0.0, train, False, True)
    return y, h[0], c[0]


# torch.compile refuses an LSTM or unrolls it. For it the whole sequence is one op, recomputed in the backward pass:
# by `torch.library.impl`, since a `custom_op` cannot use autograd inside.
INPUTS = "Tensor x, Tensor? mask, Tensor h, Tensor c, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh"
torch.library.define("memory_mosaics::lstm", f"({INPUTS}) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    "memory_mosaics::lstm_backward",
    f"(Tensor d_y, Tensor d_h, Tensor d_c, {INPUTS}) -> ({', '.join(['Tensor'] * 7)})",
)


@torch.library.impl("memory_mosaics::lstm", "default")
def _forward(*inputs: Any) -> tuple[Tensor, ...]:
    return tuple(x.clone(memory_format=torch.contiguous_format) for x in _run(*inputs))


@torch.library.register_fake("memory_mosaics::lstm")
def _(x, mask, h, c, *weights):
    return x.new_empty(x.shape), h.new_empty(h.shape), c.new_empty(c.shape)


@torch.library.impl("memory_mosaics::lstm_backward", "default")
def _backward(d_y: Tensor, d_h: Tensor, d_c: Tensor, x: Tensor, mask: Tensor | None, *others: Tensor) -> Any:
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in (x, *others)]
        gradients = torch.autograd.grad(_run(leaves[0], mask, *leaves[1:]), leaves, (d_y, d_h, d_c))
    return tuple(gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients)


@torch.library.register_fake("memory_mosaics::lstm_backward")
def _(d_y, d_h, d_c, x, mask, *others):
    return tuple(tensor.new_empty(tensor.shape) for tensor in (x, *others))


def _gradients(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    d_x, *others = torch.ops.memory_mosaics.lstm_backward(*gradients, *ctx.saved_tensors)
    return d_x, None, *others


torch.library.register_autograd(
    "memory_mosaics::lstm",
    _gradients,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


@part("lstm")
class LSTMConfig(MixerConfig):
    """One LSTM layer of the model's width."""

    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> LSTM:
        return LSTM(width)
