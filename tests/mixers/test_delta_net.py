"""DeltaNet and Gated DeltaNet against the published layers, written step by step in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from memory_mosaics.language_model import LanguageModel, weight_count
from memory_mosaics.mixers.delta_net import DeltaNetConfig, GatedDeltaNetConfig
from memory_mosaics.models import ARCHITECTURES, architecture_name, preset

CONFIGS = {"delta net": DeltaNetConfig(heads=4), "gated delta net": GatedDeltaNetConfig(heads=4)}
both = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def layer(mixer, x):
    """Map, convolution, SiLU; norms; the rule; norm and gate; map."""

    def feature(map, short):
        y = F.pad((x @ map.weight.T).mT, (3, 0))
        return F.silu(F.conv1d(y, short.kernel[:, None], groups=len(short.kernel)).mT).unflatten(-1, (4, -1))

    q, k, v = (feature(getattr(mixer, name), getattr(mixer, f"short_{name}")) for name in ("query", "key", "value"))
    q, k = (z / (z.square().sum(-1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    beta, alpha = torch.sigmoid(x @ mixer.beta.weight.T), torch.ones(2, x.shape[1], 4).double()
    if hasattr(mixer, "decay"):
        dt = F.softplus(x @ mixer.decay.weight.T + mixer.dt_offset)
        alpha = torch.exp(-mixer.A_log.exp() * dt)
    S, outputs = torch.zeros(2, 4, v.shape[-1], k.shape[-1]).double(), []
    for t in range(x.shape[1]):
        b, kk = beta[:, t, :, None, None], k[:, t, :, :, None] * k[:, t, :, None]
        S = alpha[:, t, :, None, None] * S @ (torch.eye(k.shape[-1]).double() - b * kk)
        S = S + b * v[:, t, :, :, None] * k[:, t, :, None]
        outputs.append((S @ q[:, t, :, :, None])[..., 0] * k.shape[-1] ** -0.5)
    y = torch.stack(outputs, dim=1)
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm.weight
    gate = F.silu(x @ mixer.gate.weight.T) if hasattr(mixer, "gate") else 1.0
    return (y.flatten(2) * gate) @ mixer.combine.weight.T


@both
@pytest.mark.parametrize("time", [1, 3, 70])
def test_the_layer_is_the_published_one(config, time):
    mixer, x = config.build(32).double(), torch.randn(2, time, 32, dtype=torch.float64, requires_grad=True)
    torch.nn.init.normal_(mixer.norm.weight)
    found, wanted = mixer(x)[0], layer(mixer, x)
    assert_close(found, wanted)
    inputs = [x, *mixer.parameters()]
    assert_close(*(torch.autograd.grad(y.square().sum(), inputs) for y in (found, wanted)))


@pytest.mark.parametrize(("config", "squares"), [(DeltaNetConfig(heads=2), 4), (GatedDeltaNetConfig(heads=2), 6)])
def test_published_sizes(config, squares):
    mixer = config.build(128)
    matrices = ("query", "key", "value", "gate", "combine")
    assert sum(getattr(mixer, name).weight.numel() for name in matrices if hasattr(mixer, name)) == squares * 128**2


def test_initial_decays_are_those_of_mamba_2():
    model = LanguageModel(preset("gated-delta-net-tiny", width=512, heads=128, blocks=2, vocabulary=9))
    for block in model.blocks:
        A, dt = block.sequence_mixer.A_log.exp(), F.softplus(block.sequence_mixer.dt_offset)
        assert 0 <= A.min() < 2 < 14 < A.max() <= 16
        assert 1e-3 * 0.999 <= dt.min() < 2e-3 < 5e-2 < dt.max() <= 0.1001
        assert dt.log().mean().item() == pytest.approx(-4.6, abs=0.4)


@pytest.mark.parametrize("name", ["delta-net", "gated-delta-net"])
@pytest.mark.parametrize("size", ["tiny", "small", "12"])
def test_presets_are_twins_of_the_transformer(name, size):
    config = preset(f"{name}-{size}")
    assert architecture_name(config) == name
    assert abs(weight_count(config) / weight_count(preset(f"transformer-{size}")) - 1) < 0.01


@pytest.mark.parametrize("name", ["delta-net", "gated-delta-net"])
@pytest.mark.parametrize(("width", "heads", "blocks"), [(30, 5, 3), (50, 7, 1), (96, 4, 10)])
def test_twins_at_odd_sizes(name, width, heads, blocks):
    sizes = {"width": width, "blocks": blocks, "vocabulary": 100, "context": 64}
    twin = weight_count(ARCHITECTURES["transformer"].config(**sizes, heads=1))
    assert abs(weight_count(ARCHITECTURES[name].config(**sizes, heads=heads)) / twin - 1) < 0.01


@pytest.mark.parametrize("config", [DeltaNetConfig, GatedDeltaNetConfig])
def test_wrong_sizes_are_named(config):
    with pytest.raises(ValueError, match="heads must be at least 1, not 0"):
        config(heads=0)
    with pytest.raises(ValueError, match="expand_key must be positive, not 0"):
        config(heads=1, expand_key=0.0)
