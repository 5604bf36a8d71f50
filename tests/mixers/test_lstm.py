"""The LSTM against torch.nn.LSTM and against its equations."""

import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.mixers.lstm import LSTMConfig, _run

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@pytest.mark.parametrize("time", [1, 2, 130])
def test_it_is_torch_nn_lstm(time):
    ours, theirs, x = LSTMConfig().build(24), torch.nn.LSTM(24, 24, batch_first=True), torch.randn(3, time, 24)
    theirs.load_state_dict({f"{name}_l0": getattr(ours, name) for name in WEIGHTS})
    y, (h, c) = ours(x)
    wanted, (wanted_h, wanted_c) = theirs(x)
    assert_close((y, h, c), (wanted, wanted_h[0], wanted_c[0]))
    found = torch.autograd.grad(y.square().sum(), [getattr(ours, name) for name in WEIGHTS])
    assert_close(found, torch.autograd.grad(wanted.square().sum(), list(theirs.parameters())))


def test_its_equations():
    mixer, x = LSTMConfig().build(8).double(), torch.randn(2, 40, 8, dtype=torch.float64)
    h = c = torch.zeros(2, 8, dtype=torch.float64)
    steps = []
    for x_t in x.unbind(dim=1):
        logits = x_t @ mixer.weight_ih.T + h @ mixer.weight_hh.T + mixer.bias_ih + mixer.bias_hh
        i, f, g, o = logits.chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        steps.append(h)
    assert_close(mixer(x), (torch.stack(steps, dim=1), (h, c)))


def test_initial_values():
    mixer = LSTMConfig().build(16)
    assert mixer.bias_ih.unflatten(0, (4, 16))[:, 0].tolist() == [0, 1, 0, 0]
    assert mixer.bias_hh.abs().sum() == 0
    assert_close(mixer.weight_hh.T @ mixer.weight_hh, torch.eye(16), rtol=1e-4, atol=1e-5)
    assert mixer.weight_ih.abs().max() <= (6 / (16 + 64)) ** 0.5
    assert sum(parameter.numel() for parameter in mixer.parameters()) == 8 * 16**2 + 8 * 16


@pytest.mark.parametrize("mask", [None, torch.arange(9) >= torch.tensor([[0], [4]])], ids=["", "padded"])
def test_the_op_for_the_compiler(mask):
    """The same numbers and gradients as what runs without it."""
    sizes = [(2, 9, 6), (2, 6), (2, 6), (24, 6), (24, 6), (24,), (24,)]
    x, *others = inputs = [torch.randn(size, requires_grad=True) for size in sizes]
    found, wanted = torch.ops.memory_mosaics.lstm(x, mask, *others), _run(x, mask, *others)
    assert_close(found, wanted)
    gradients = [torch.autograd.grad(sum(y.square().sum() for y in answer), inputs) for answer in (found, wanted)]
    assert_close(*gradients)
    torch.library.opcheck(torch.ops.memory_mosaics.lstm.default, (x, mask, *others))
