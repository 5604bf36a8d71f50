"""Linear transformer, RetNet and GLA against their definitions: dense matrices or one step at a time, in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from memory_mosaics.mixers.linear_attention import (
    GLAConfig,
    LinearTransformerConfig,
    RetNetConfig,
    _attention_with_dropout,
    linear_attention,
    uniform,
)

TIMES = [1, 2, 63, 130, 1000]


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def recurrence(queries, keys, values, log_decay, memory):
    """S_t = diag(a_t) S_{t-1} + k_t^T v_t, o_t = q_t S_t."""
    found, log_decay = [], log_decay.expand_as(keys)
    for q, k, v, g in zip(*(x.unbind(1) for x in (queries, keys, values, log_decay)), strict=True):
        memory = g.exp()[..., None] * memory + k[..., None] * v[..., None, :]
        found.append((q[..., None] * memory).sum(-2))
    return torch.stack(found, dim=1), memory


@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 3, 1)], ids=["gates", "decays"])
@pytest.mark.parametrize("time", TIMES)
def test_chunks_equal_steps(time, shape):
    q, k, v, memory = doubles(2, time, 3, 4), doubles(2, time, 3, 4), doubles(2, time, 3, 5), doubles(2, 3, 4, 5)
    rows, heads, width = shape
    g = (-3 * torch.rand(rows, time, heads, width, dtype=torch.float64)).requires_grad_()
    inputs = q, k, v, g, memory
    found, wanted = linear_attention(*inputs), recurrence(*inputs)
    assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(wanted[0])
    gradients = [torch.autograd.grad((y * weight).sum() + s.sum(), inputs) for y, s in (found, wanted)]
    assert_close(*gradients, rtol=1e-8, atol=1e-8)


def test_the_fastest_gates_do_not_overflow():
    q, k, v = (torch.randn(1, 100, 2, 8) for _ in range(3))
    g, memory = torch.full((1, 100, 2, 8), -3.0), torch.zeros(1, 2, 8, 8)
    found, wanted = linear_attention(q, k, v, g), recurrence(*(x.double() for x in (q, k, v, g, memory)))
    assert_close(found, tuple(x.float() for x in wanted), rtol=1e-4, atol=1e-5)


def maps(mixer, x, *names):
    """Maps of the mixer in float64, with heads before time: (B, H, T, D)."""
    return [getattr(mixer.double(), name)(x).unflatten(-1, (mixer.heads, -1)).transpose(1, 2) for name in names]


@pytest.mark.parametrize("bias", [False, True])
def test_linear_transformer_is_attention_without_a_softmax(bias):
    mixer, x = LinearTransformerConfig(heads=4).build(32, bias=bias), doubles(2, 37, 32)
    q, k, v = maps(mixer, x, "query", "key", "value")
    answers = (q @ k.transpose(-1, -2) / math.sqrt(8)).tril() @ v
    assert_close(mixer(x)[0], mixer.combine(answers.transpose(1, 2).flatten(2)))


def test_dropout_drops_scores():
    q, k, v = (torch.randn(1, 300, 2, 4) for _ in range(3))
    exact, _ = linear_attention(q, k, v, torch.zeros(1, 300, 2, 1))
    assert_close(_attention_with_dropout(q, k, v, 0.0), exact, rtol=1e-4, atol=1e-4)
    # With a value of its own for each token, what comes out are the scores themselves.
    q, k, v = torch.ones(1, 300, 1, 1), torch.ones(1, 300, 1, 1), torch.eye(300)[None, :, None]
    scores = _attention_with_dropout(q, k, v, 0.25)[0, :, 0]
    assert scores.triu(1).abs().sum() == 0
    kept = scores[torch.ones(300, 300).tril().bool()]
    assert set(kept.unique().tolist()) == {0.0, F.dropout(torch.ones(100), 0.25).max().item()}
    assert abs((kept > 0).float().mean() - 0.75) < 0.01


def test_dropout_leaves_the_state_alone():
    mixer, x = LinearTransformerConfig(heads=4).build(32, dropout=0.5).train(), torch.randn(2, 20, 32)
    _, state = mixer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # rounds maps, but not what is summed over time
        rounded = mixer(x)[1], mixer.eval()(x)[1]
    assert_close(*rounded, rtol=1e-5, atol=1e-5)
    assert_close(state, mixer.eval()(x)[1])
    y = mixer.train()(torch.cat([x, x], dim=1)[:, 20:], state)[0]
    assert y.isfinite().all()
    assert y.shape == x.shape


def retention(mixer, x):
    """Section by section as it is written: rotation, decays, two normalisations, norm, gate."""
    _, T, W = x.shape
    H, D = mixer.heads, W // mixer.heads
    q, k, v = maps(mixer, x, "query", "key", "value")
    t = torch.arange(T, dtype=torch.float64)
    angle = t[:, None] * 10000 ** -torch.linspace(0, 1, D // 2, dtype=torch.float64)
    turn = torch.polar(torch.ones_like(angle), angle)
    q, k = (torch.view_as_complex(z.unflatten(-1, (-1, 2)).contiguous()) * turn for z in (q, k / math.sqrt(D)))
    gamma = 1 - 2.0 ** (-5 - torch.arange(H, dtype=torch.float64))
    decay = (gamma[:, None, None] ** (t[:, None] - t).clamp(min=0)).tril()
    decay = decay / decay.sum(dim=-1, keepdim=True).sqrt()
    weights = (q @ k.mH).real * decay
    weights = weights / weights.sum(dim=-1, keepdim=True).abs().clamp(min=1).detach()
    answers = F.layer_norm(weights @ v, (2 * D,)).transpose(1, 2).flatten(2)
    return mixer.combine(F.silu(mixer.gate(x)) * answers)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("time", [1, 2, 63, 300])
def test_retnet_is_retention(time, bias):
    mixer, x = RetNetConfig(heads=4).build(32, bias=bias), doubles(2, time, 32)
    with torch.no_grad():
        mixer.query.weight.mul_(10)  # so that many row sums exceed one
    found, wanted = mixer.double()(x)[0], retention(mixer, x)
    assert_close(found, wanted)
    inputs = [x, *mixer.parameters()]
    assert_close(*(torch.autograd.grad(y.square().sum(), inputs) for y in (found, wanted)))


@pytest.mark.parametrize("heads", [1, 4])
def test_gla_is_its_recurrence(heads):
    mixer, x = GLAConfig(heads=heads).build(32), doubles(2, 70, 32)
    with torch.no_grad():
        mixer.decay[1].bias.copy_(torch.linspace(-60, 5, 16))  # some gates at their floor, some open
    q, k, v, gate = (z.transpose(1, 2) for z in maps(mixer, x, "query", "key", "value", "decay"))
    g = (torch.log(torch.sigmoid(gate)) / 16).clamp(min=-3)
    memory = torch.zeros(2, heads, 16 // heads, 32 // heads, dtype=torch.float64)
    answers, memory = recurrence(q, k / math.sqrt(32 / heads), v, g, memory)
    wanted = mixer.combine(F.silu(mixer.gate(x)) * F.layer_norm(answers, (32 // heads,)).flatten(2))
    found, state = mixer(x)
    assert_close((found, *state), (wanted, memory))
    inputs = [x, *mixer.parameters()]
    assert_close(*(torch.autograd.grad(y.square().sum(), inputs) for y in (found, wanted)))


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (LinearTransformerConfig(heads=4), lambda d: 4 * d**2 + 4 * d),
        (RetNetConfig(heads=4), lambda d: 8 * d**2 + 7 * d),
        (GLAConfig(), lambda d: 4 * d**2 + 25.5 * d),
    ],
    ids=["linear transformer", "retnet", "gla"],
)
def test_published_sizes(config, count):
    mixer = config.build(128, bias=True)
    assert sum(parameter.numel() for parameter in mixer.parameters()) == count(128)


@pytest.mark.parametrize("config", [LinearTransformerConfig, RetNetConfig, GLAConfig])
def test_wrong_sizes_are_named(config):
    with pytest.raises(ValueError, match="heads must be at least 1, not 0"):
        config(heads=0)
    with pytest.raises(ValueError, match="width 32 does not split into 5 heads"):
        config(heads=5).build(32)
    if config is not LinearTransformerConfig:
        with pytest.raises(ValueError, match="a head is 3 wide"):
            config(heads=2).build(6)


def test_uniform_numbers_are_uniform_and_a_function_of_their_seed():
    shape = torch.Size((4, 2, 50, 60))
    first, again, other = (uniform(torch.tensor(seed), shape) for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not (first == other).any()
    assert (torch.histc(first, 10, 0, 1) / shape.numel() - 0.1).abs().max() < 0.01
    assert torch.corrcoef(torch.stack([first.flatten(), other.flatten()]))[0, 1].abs() < 0.02
