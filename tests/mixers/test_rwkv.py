"""RWKV-4's time mixing against its recurrence and against transformers."""

import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.language_model import LanguageModel, LanguageModelConfig
from memory_mosaics.mixers.rwkv import RWKVConfig, wkv
from memory_mosaics.parameters import named_param_specs


def recurrence(k, v, u, w):
    """The sums a and b as they are written; float64 holds them for small keys."""
    a = b = torch.zeros_like(k[:, 0])
    steps = []
    for k_t, v_t in zip(k.unbind(1), v.unbind(1), strict=True):
        now = torch.exp(u + k_t)
        steps.append((a + now * v_t) / (b + now))
        a, b = torch.exp(w) * a + k_t.exp() * v_t, torch.exp(w) * b + k_t.exp()
    return torch.stack(steps, dim=1), (a / b, b.log())


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("sign", [-1, 1], ids=["decays", "as published"])
@pytest.mark.parametrize("time", [1, 2, 63, 130, 1000])
def test_the_scan_is_the_recurrence(time, sign):
    k, v, u = doubles(2, time, 6), doubles(2, time, 6), doubles(6)
    w = sign * (doubles(6) - 1.5).exp().clamp(max=0.5)
    inputs = [x.requires_grad_() for x in (k, v, u, w)]
    found, wanted = wkv(*inputs), recurrence(*inputs)
    assert_close(found, wanted, rtol=1e-8, atol=1e-8)
    losses = [y.square().sum() + sum(x.sum() for x in state) for y, state in (found, wanted)]
    assert_close(*(torch.autograd.grad(loss, inputs) for loss in losses), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("as_published", [False, True])
def test_its_equations(as_published):
    mixer, x = RWKVConfig(as_published=as_published).build(16).double(), doubles(2, 30, 16)
    before = torch.cat([torch.zeros(2, 1, 16, dtype=torch.float64), x[:, :-1]], dim=1)

    def mixed(mix):
        return mix * x + (1 - mix) * before

    k, v = mixer.key(mixed(mixer.mix_key)), mixer.value(mixed(mixer.mix_value))
    rate = mixer.time_decay.exp()
    found, _ = recurrence(k, v, mixer.time_first, rate if as_published else -rate)
    receptance = mixer.receptance(mixed(mixer.mix_receptance)).sigmoid()
    assert_close(mixer(x)[0], mixer.combine(receptance * found))


def test_it_is_the_rwkv_of_transformers():
    module = pytest.importorskip("transformers.models.rwkv.modeling_rwkv", reason="transformers is not installed")
    ours, x = RWKVConfig().build(32), 2 * torch.randn(2, 50, 32)
    theirs = module.RwkvSelfAttention(module.RwkvConfig(hidden_size=32, attention_hidden_size=32))
    weights = {f"{name}.weight": getattr(ours, name).weight for name in ("key", "value", "receptance")}
    weights |= {
        f"time_{name}": getattr(ours, name).view(1, 1, -1) for name in ("mix_key", "mix_value", "mix_receptance")
    }
    weights |= {"time_decay": ours.time_decay, "time_first": ours.time_first, "output.weight": ours.combine.weight}
    theirs.load_state_dict(weights)
    wanted, _ = theirs(x)
    y, _ = ours(x)
    assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    assert y.std() > 0.1


def test_initial_values_are_those_of_the_rwkv_of_transformers():
    """But for u, which is 1 there, since `ones_like` drops what it is given; in the code of its paper it is log 0.3."""
    module = pytest.importorskip("transformers.models.rwkv.modeling_rwkv", reason="transformers is not installed")
    model = module.RwkvModel(module.RwkvConfig(hidden_size=32, num_hidden_layers=3, vocab_size=10))
    ours = LanguageModel(LanguageModelConfig(vocabulary=10, width=32, blocks=3, sequence_mixer=RWKVConfig()))
    for own, block in zip(ours.blocks, model.blocks, strict=True):
        mixer = own.sequence_mixer
        assert_close(mixer.time_decay, block.attention.time_decay)
        for name in ("mix_key", "mix_value", "mix_receptance"):
            assert_close(getattr(mixer, name), getattr(block.attention, f"time_{name}").flatten())
        assert_close(mixer.time_first[:3].exp(), 0.3 * torch.tensor([0.0, 0.5, -0.5]).exp())


def test_published_numbers_of_channels_are_random_and_decay():
    mixer, correct = RWKVConfig(as_published=True).build(512), RWKVConfig().build(512)
    for name in ("time_decay", "time_first", "mix_key"):
        assert_close(getattr(mixer, name).std(), torch.tensor(1.0), rtol=0, atol=0.15)
    assert {spec.decay for _, weight, spec in named_param_specs(mixer) if weight.dim() == 1} == {True}
    assert {spec.decay for _, weight, spec in named_param_specs(correct) if weight.dim() == 1} == {False}


def test_old_tokens_fade_or_rule():
    """What the last of 200 tokens hears of the first: nothing, or as published everything."""
    k, v, u = torch.zeros(1, 200, 1), torch.zeros(1, 200, 1), torch.zeros(1)
    v[:, 0] = 1.0
    assert wkv(k, v, u, torch.tensor([-1.0]))[0][0, -1] < 1e-6
    assert_close(wkv(k, v, u, torch.tensor([5.0]))[0][0, -1], torch.tensor([1.0]), rtol=0, atol=0.01)


@pytest.mark.parametrize("rate", [-20.0, -1e-3, 20.0])
def test_large_keys_do_not_overflow(rate):
    """Nor do gradients: e^k and e^(wT) are far out of the range of floats."""
    k, v, u = 200 * torch.randn(2, 1000, 4), torch.randn(2, 1000, 4), torch.randn(4)
    w = torch.full((4,), rate)
    inputs = [x.requires_grad_() for x in (k, v, u, w)]
    found, _ = wkv(*inputs)
    assert found.abs().max() <= v.abs().max() * (1 + 1e-5)
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.square().sum(), inputs))


def test_published_size():
    assert sum(parameter.numel() for parameter in RWKVConfig().build(128).parameters()) == 4 * 128**2 + 5 * 128
