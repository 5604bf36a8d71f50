import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from memory_mosaics.extractors import (
    Convolution,
    GatedAverage,
    GatedAverageConfig,
    LeakyAverage,
    Linear,
    MixConfig,
    Taps,
    TapsConfig,
    identity,
)
from memory_mosaics.memory import ContextualMemoryConfig, OutputGateConfig
from memory_mosaics.ops.normalise import normalise
from memory_mosaics.scales import Decay, Scale, ScaleConfig, fold_for_inference

WIDTH, HEADS, HEAD = 6, 3, 4


def mapped(extractor, x):
    """W x, split into heads."""
    return (x @ extractor.map.weight.T).view(*x.shape[:2], -1, HEAD)


@pytest.mark.parametrize("peek", [0, 1, 3])
def test_linear_reads_the_input_peek_steps_ahead(peek):
    extractor, x = Linear(WIDTH, HEADS, head_width=HEAD, peek=peek), torch.randn(2, 8, WIDTH)
    features, _ = extractor(x)
    assert_close(features, mapped(extractor, x)[:, peek:])


def test_leaky_average_is_equation_6():
    extractor, x = LeakyAverage(WIDTH, HEADS, head_width=HEAD), torch.randn(2, 8, WIDTH)
    raw, decay = mapped(extractor, x), extractor.decay()
    keys, _ = extractor(x)
    for t in range(8):
        average = sum(decay[:, None] ** (t - s) * raw[:, s] for s in range(t + 1))
        assert_close(keys[:, t], average / average.norm(dim=-1, keepdim=True))


@pytest.mark.parametrize(("back", "peek"), [(0, 1), (0, 0), (2, 0), (1, 2)])
@pytest.mark.parametrize("norm", [normalise, identity])
def test_taps_and_convolution_are_their_sums(back, peek, norm):
    x = torch.randn(2, 8, WIDTH)
    extent = {"head_width": HEAD, "back": back, "peek": peek, "norm": norm}
    taps, full = Taps(WIDTH, HEADS, **extent), Convolution(WIDTH, HEADS, **extent)
    raw, split = mapped(taps, x), mapped(full, x).view(2, 8, back + 1 + peek, HEADS, HEAD)
    for t in range(8 - peek):
        offsets = [(j, t + j - back) for j in range(back + 1 + peek) if t + j - back >= 0]
        assert_close(taps(x)[0][:, t], norm(sum(taps.taps[:, j, None] * raw[:, s] for j, s in offsets)))
        assert_close(full(x)[0][:, t], norm(sum(split[:, s, j] for j, s in offsets)))
    assert taps(x)[0].shape[1] == full(x)[0].shape[1] == 8 - peek


def test_the_values_of_v2_are_a_mix_times_a_scale():
    config = ContextualMemoryConfig(heads=HEADS, value=MixConfig(), scale=ScaleConfig(initial=1.0, speed=1.0))
    mixer, x = config.build(HEADS * HEAD), torch.randn(2, 8, HEADS * HEAD)
    mix, scale = mixer.value, mixer.combine.scale
    assert (mix.gamma.min() >= 0, mix.gamma.max() <= 1, mix.gamma.unique().numel()) == (True, True, HEADS)
    assert_close(scale(), torch.ones(HEADS))
    with torch.no_grad():
        scale.theta.copy_(torch.tensor([1.0, -1.0, 30.0]))
        mix.gamma[0] = 1.5
    raw, gamma = mapped(mix, x), mix.gamma[:, None]
    mean = gamma * raw[:, :-1] + (1 - gamma) * raw[:, 1:]
    assert_close(mix(x)[0], mean / mean.norm(dim=-1, keepdim=True))
    assert_close(scale(), torch.tensor([1.0, -1.0, 2 * math.log(65535)]).exp())
    assert_close(mix(x, scale=scale())[0], scale()[:, None] * mix(x)[0])


def test_decaying_taps_start_as_leaky_averages():
    config = TapsConfig(back=3, peek=0, initial="decaying")
    taps, average = config.build(WIDTH, HEADS, head_width=HEAD), LeakyAverage(WIDTH, HEADS, head_width=HEAD)
    assert_close(taps.taps, average.decay()[:, None] ** torch.tensor([3, 2, 1, 0]))
    average.map.load_state_dict(taps.map.state_dict())
    x = torch.randn(2, 4, WIDTH)
    assert_close(taps(x)[0], average(x)[0])  # until there is more to average than taps


def test_taps_start_as_a_random_split_of_one():
    torch.manual_seed(0)
    taps = Taps(WIDTH, 1000, head_width=1).taps
    assert_close(taps.sum(dim=1), torch.ones(1000))
    assert (taps >= 0).all()
    assert 0.45 < taps[:, 0].mean() < 0.55
    assert taps[:, 0].std() > 0.25  # uniform: 0.289


def test_norms_are_one():
    assert_close(normalise(torch.randn(5, 7) * 100).norm(dim=-1), torch.ones(5))
    assert (normalise(torch.zeros(2, 3)) == 0).all()


def test_scale_is_positive_bounded_and_settable():
    scale = Scale(4, initial=math.e**2, speed=20.0)
    assert_close(scale(), torch.full((4,), math.e**2))
    wanted = torch.tensor([1e-3, 1.0, 7.0, 65535.0**2])
    scale.set(wanted)
    assert_close(scale(), wanted, rtol=1e-5, atol=0)
    with torch.no_grad():
        scale.theta.fill_(100.0)
    assert scale().isfinite().all()


def test_decay_starts_spread_and_stays_below_one():
    decay = Decay(12)
    assert_close(decay()[[0, -1]], torch.tensor([math.exp(-0.5), math.exp(-5)]))
    with torch.no_grad():
        decay.rate.normal_()
    assert ((decay() > 0) & (decay() <= 1)).all()


def test_gated_average_is_the_recurrence_of_memory_mosaics_v2():
    extractor = GatedAverage(6, 2, head_width=4).double()
    x = torch.randn(3, 40, 6, dtype=torch.float64)
    raw, gate, rate = (z for z in extractor.map(x).split([8, 2, 2], dim=-1))
    average, keys = torch.zeros(3, 2, 4, dtype=torch.float64), []
    for t in range(40):
        new = gate[:, t].exp()[..., None] * raw[:, t].unflatten(-1, (2, 4))
        average = new + (-rate[:, t].abs()).exp()[..., None] * average
        keys.append(torch.nn.functional.normalize(average, dim=-1))
    assert_close(extractor(x)[0], torch.stack(keys, dim=1))
    assert_close(extractor.decays(x), (-rate.abs()).exp())


def test_gates_of_any_size_give_unit_keys():
    """In float32 exp(100) overflows, and exp(-100) times it is nothing; a long text and a second call stay finite."""
    extractor = GatedAverage(6, 2, head_width=4)
    with torch.no_grad():
        extractor.map.weight[8:10] *= 200
        extractor.map.weight[10:] *= 1e-3  # and hardly any decay
    x = torch.randn(1, 3000, 6)
    keys, state = extractor(x)
    assert_close(keys.norm(dim=-1), torch.ones(1, 3000, 2))
    exact, _ = extractor.double()(x.double())
    assert_close(keys, exact.float(), rtol=1e-3, atol=1e-3)
    again, _ = extractor.float()(x, state)
    assert again.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trend", ["rising", "falling", "random"])
def test_gates_at_any_extreme_stay_finite_over_32_768_tokens(trend, dtype):
    """exp(+-10^4) is no number of float32. Where gates fall and nothing decays, the first keys outweigh all others."""
    extractor, x = GatedAverage(4, 2, head_width=4), torch.randn(1, 32_768, 4)
    if trend != "random":
        x[..., 0] = torch.linspace(-1, 1, x.shape[1]) * (1 if trend == "rising" else -1)
    with torch.no_grad():
        extractor.map.weight[8:] = 0
        extractor.map.weight[8:10, 0] = 1e4  # log g
        extractor.map.weight[10, 0], extractor.map.weight[11, 1] = 1e-5, 1e4  # hardly any decay, and nearly all
    extractor, x = extractor.to(dtype), x.to(dtype)
    keys, state = extractor(x)
    assert_close(keys.norm(dim=-1).float(), torch.ones(1, 32_768, 2), rtol=0.01, atol=0.01)
    assert state.isfinite().all()
    assert extractor(x[:, :9], state)[0].isfinite().all()
    (gradient,) = torch.autograd.grad((keys * torch.randn_like(keys)).sum(), extractor.map.weight)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("gate", [None, OutputGateConfig()])
def test_a_folded_memory_is_the_same_and_has_one_map(gate):
    memory = ContextualMemoryConfig(heads=2, key=GatedAverageConfig(), gate=gate).build(8)
    folded, x = fold_for_inference(memory), torch.randn(1, 5, 8)
    assert [type(one) for one in (folded.key.map, folded.value.map)] == [nn.Identity] * 2
    assert_close(folded.decays(x), memory.decays(x))
    assert_close(folded(x)[0], memory(x)[0])
