"""Hyena against its definition: the filter one time after the other, the convolution as a double sum."""

import math

import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.mixers.hyena import HyenaConfig


def filter_at(hyena, l, length):
    """K_l of every channel."""
    angles = [2 * math.pi * frequency * l / length for frequency in (1e-4, 1.0)]
    z = [l / (length - 1), *map(math.cos, angles), *map(math.sin, angles)]
    z = torch.tensor(z, dtype=torch.float64)
    network = hyena.filter
    for weight, offset in zip(network.weights, network.offsets, strict=True):
        z = torch.sin(network.frequency.double() * (weight.double() @ z + offset.double()))
    width = len(network.out)
    channel = torch.arange(width, dtype=torch.float64) / (width - 1)
    slow, fast = math.log(100) / 1.5, math.log(100) / 0.3
    return network.out.double() @ z * torch.exp(-l / (length - 1) * (slow + channel * (fast - slow)))


def short(hyena, z):
    kernel, taps = hyena.short.kernel.double(), hyena.short.kernel.shape[1]
    y = torch.zeros_like(z)
    for t in range(z.shape[1]):
        for j in range(min(taps, t + 1)):
            y[:, t] = y[:, t] + kernel[:, taps - 1 - j] * z[:, t - j]
    return y if hyena.short.offset is None else y + hyena.short.offset.double()


def by_definition(hyena, x, length):
    z = x.double() @ hyena.expand.weight.double().T
    z = z if hyena.expand.bias is None else z + hyena.expand.bias.double()
    x_0, x_1, v = short(hyena, z).chunk(3, dim=-1)
    u, time = v * x_1, x.shape[1]
    K = torch.stack([filter_at(hyena, l, length) for l in range(min(time, length))])
    y = hyena.D.double() * u
    for t in range(time):
        for l in range(min(t + 1, length)):
            y[:, t] = y[:, t] + K[l] * u[:, t - l]
    y = (x_0 * y) @ hyena.combine.weight.double().T
    return y if hyena.combine.bias is None else y + hyena.combine.bias.double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("time", [1, 2, 63, 130])
def test_values_are_those_of_the_definition(time, bias):
    mixer, x = HyenaConfig().build(8, bias=bias), torch.randn(2, time, 8)
    torch.nn.init.normal_(mixer.filter.offsets[1])
    with torch.no_grad():
        expected = by_definition(mixer, x, 4098)
        assert_close(mixer(x)[0].double(), expected, rtol=1e-4, atol=1e-5)
        assert_close(mixer.double()(x.double())[0], expected, rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_the_definition():
    mixer = HyenaConfig(length=70, hidden=5).build(4, bias=True).double()
    x, weights = torch.randn(2, 80, 4, dtype=torch.float64, requires_grad=True), torch.randn(2, 80, 4).double()
    inputs = [x, *mixer.parameters()]
    found = torch.autograd.grad((mixer(x)[0] * weights).sum(), inputs)
    expected = torch.autograd.grad((by_definition(mixer, x, 70) * weights).sum(), inputs)
    assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("size", [1, 7, 45])
def test_what_is_older_than_the_filter_is_long_is_forgotten(size):
    mixer, x = HyenaConfig(length=20).build(8).double(), torch.randn(2, 45, 8, dtype=torch.float64)
    state, found = None, []
    for piece in x.split(size, dim=1):
        y, state = mixer(piece, state)
        found.append(y)
    assert_close(torch.cat(found, dim=1), by_definition(mixer, x, 20))
    assert state[1].shape == (2, 19, 8)


def test_a_fixed_capacity_beyond_the_filter():
    mixer, x = HyenaConfig(length=20).build(8).double(), torch.randn(2, 45, 8, dtype=torch.float64)
    expected, (_, state) = mixer(x)[0], mixer(x[:, :10])
    for t in range(10, 45):
        if t in (10, 30):
            state = mixer.to_fixed_capacity(state, t + 20)
        y, state = mixer(x[:, t : t + 1], state)
        assert_close(y[:, 0], expected[:, t])
    with pytest.raises(ValueError, match="50 inputs exceed a capacity of 49"):
        mixer.to_fixed_capacity(state, 49)
    with pytest.raises(ValueError, match="one token at a time, not 2"):
        mixer(x[:, :2], state)


@pytest.mark.parametrize("width", [32, 128])
def test_size_is_that_of_regbench(width):
    mixer = HyenaConfig().build(width, bias=True)
    assert sum(p.numel() for p in mixer.parameters()) == 4 * width**2 + 81 * width + 8768


def test_a_filter_of_one_step_is_a_number_a_channel():
    mixer, x = HyenaConfig(length=1).build(8), torch.randn(2, 9, 8)
    assert mixer.filter(1, torch.float32).isfinite().all()
    assert_close(mixer(x)[0][:, 3:], mixer(x[:, 1:])[0][:, 2:], rtol=1e-5, atol=1e-6)


def test_wrong_sizes_are_named():
    for name in ("length", "hidden", "short"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
            HyenaConfig(**{name: 0})
