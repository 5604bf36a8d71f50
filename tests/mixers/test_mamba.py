"""Mamba against its recurrence, step by step in float64, and against transformers' with the same weights."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from memory_mosaics.mixers.mamba import MambaConfig
from memory_mosaics.ops.selective_scan import SEGMENT

LENGTHS = [1, 2, 63, 130, SEGMENT, 1000]


def by_steps(mixer, x):
    """The equations of the paper, one token after the other."""
    x, (kernel, offset) = x.double(), (mixer.short.kernel.double(), mixer.short.offset.double())
    (rank, states), taps = (mixer.rank, mixer.states), kernel.shape[1]
    inner, z = (x @ mixer.expand.weight.double().T).chunk(2, dim=-1)
    A, h, answers = -mixer.A_log.double().exp(), 0.0, []
    for t in range(x.shape[1]):
        before = [kernel[:, taps - 1 - j] * inner[:, t - j] for j in range(min(taps, t + 1))]
        u = F.silu(sum(before) + offset)
        dt, B, C = (u @ mixer.select.weight.double().T).split([rank, states, states], dim=-1)
        dt = torch.log1p(torch.exp(dt @ mixer.dt_map.double().T + mixer.dt_offset.double()))
        h = torch.exp(dt[:, :, None] * A) * h + dt[:, :, None] * B[:, None, :] * u[:, :, None]
        y = (h * C[:, None, :]).sum(-1) + mixer.D.double() * u
        answers.append(y * F.silu(z[:, t]))
    return torch.stack(answers, dim=1) @ mixer.combine.weight.double().T


def loud(mixer):
    """Selection that matters: at the beginning dt, B and C hardly depend on the token."""
    for weight in (mixer.select.weight, mixer.dt_map):
        torch.nn.init.normal_(weight, std=0.5)
    return mixer


@pytest.mark.parametrize("time", LENGTHS)
def test_values_are_those_of_the_recurrence(time):
    mixer, x = loud(MambaConfig().build(20)), torch.randn(2, time, 20)
    with torch.no_grad():
        expected = by_steps(mixer, x)
        assert_close(mixer(x)[0].double(), expected, rtol=1e-4, atol=1e-5)
        assert_close(mixer.double()(x.double())[0], expected, rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_the_recurrence():
    mixer = loud(MambaConfig(state_size=3, short=2, expansion=3).build(4)).double()
    time = SEGMENT + 9
    x = torch.randn(2, time, 4, dtype=torch.float64, requires_grad=True)
    inputs, weights = [x, *mixer.parameters()], torch.randn(2, time, 4, dtype=torch.float64)
    found = torch.autograd.grad((mixer(x)[0] * weights).sum(), inputs)
    expected = torch.autograd.grad((by_steps(mixer, x) * weights).sum(), inputs)
    assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_pieces_longer_than_a_segment_go_on_where_the_last_ended():
    mixer, x = loud(MambaConfig().build(8)).double(), torch.randn(2, 400, 8, dtype=torch.float64)
    expected, end = mixer(x)
    state, found = None, []
    for piece in x.split([SEGMENT + 2, 1, 64, 205], dim=1):
        y, state = mixer(piece, state)
        found.append(y)
    assert_close(torch.cat(found, dim=1), expected)
    assert_close(state, end)


def transformers_pair(width, bias):
    """transformers' mixer with loud random weights, and ours with the same."""
    transformers = pytest.importorskip("transformers", reason="transformers has the Mamba to compare with")
    from transformers.models.mamba.modeling_mamba import MambaMixer

    config = transformers.MambaConfig(hidden_size=width, num_hidden_layers=1, use_bias=bias)
    theirs = MambaMixer(config, layer_idx=0).eval()
    ours = MambaConfig().build(width, bias=bias).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name not in ("A_log", "dt_proj.bias"):
                parameter.normal_(std=0.25)
    names = {
        "in_proj": "expand",
        "conv1d.weight": "short.kernel",
        "conv1d.bias": "short.offset",
        "x_proj": "select",
        "dt_proj.weight": "dt_map",
        "dt_proj.bias": "dt_offset",
        "out_proj": "combine",
    }
    weights = {}
    for name, tensor in theirs.state_dict().items():
        for theirs_name, ours_name in names.items():
            name = name.replace(theirs_name, ours_name)
        weights[name] = tensor.squeeze(1) if tensor.dim() == 3 else tensor
    ours.load_state_dict(weights)
    return ours, theirs


@pytest.mark.parametrize("bias", [False, True])
def test_our_mamba_is_mamba(bias):
    ours, theirs = transformers_pair(40, bias)
    x = torch.randn(2, 150, 40, requires_grad=True)
    found, expected = ours(x)[0], theirs(x)
    assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found.std() > 0.1
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
    assert_close(*gradients, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("width", [32, 128, 40])
def test_size_is_that_of_the_library(width):
    size = 6 * width**2 + 110 * width + 4 * width * -(-width // 16)
    assert sum(p.numel() for p in MambaConfig().build(width).parameters()) == size


def test_initial_values():
    mixer = MambaConfig().build(128)
    assert_close(mixer.A_log.exp(), torch.arange(1.0, 17.0).expand(256, -1))
    assert_close(mixer.D, torch.ones(256))
    dt = F.softplus(mixer.dt_offset)
    assert 1e-3 <= dt.min() * 1.001 < 1.2e-3 < 0.08 < dt.max() <= 0.1001
    assert 0.3 < mixer.dt_map.abs().max() <= 8**-0.5


def test_wrong_sizes_are_named():
    for name in ("state_size", "short", "expansion"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
            MambaConfig(**{name: 0})
