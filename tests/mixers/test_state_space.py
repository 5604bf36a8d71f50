"""S4D and H3 against their recurrences, step by step, with all states and with matrices, in complex128; Mamba against
its recurrence in float64 and against transformers' with the same weights.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from memory_mosaics.mixers.state_space import H3Config, MambaConfig, S4DConfig, inverse_spectrum
from memory_mosaics.ops.selective_scan import SEGMENT

LENGTHS = [1, 2, 63, 130, 1000]


def both(z):
    """A list of complex numbers (W, N, 2), then their conjugates."""
    z = torch.complex(z[..., 0].double(), z[..., 1].double())
    return torch.cat([z, z.conj()], dim=-1)


def spectrum(ssm):
    return both(torch.stack([-ssm.A_log_real.double().exp(), ssm.A_imag.double()], dim=-1))


def recur(A, B, C, u):
    """h_t = A h_{t-1} + B u_t, y_t = C h_t for A, B, C (W, N) and u (B, T, W)."""
    h, answers = torch.zeros(len(u), *A.shape, dtype=torch.complex128), []
    for u_t in u.unbind(dim=1):
        h = A * h + B * u_t[..., None]
        y = (C * h).sum(-1)
        assert y.imag.abs().max() < 1e-9  # conjugates cancel
        answers.append(y.real)
    return torch.stack(answers, dim=1)


def s4d_by_steps(mixer, x):
    """Zero-order hold."""
    ssm, x = mixer.ssm, x.double()
    A, dt = spectrum(ssm), ssm.log_dt.double().exp()[:, None]
    y = recur(torch.exp(dt * A), (torch.exp(dt * A) - 1) / A, both(ssm.C), x) + ssm.D.double() * x
    return F.gelu(y) @ mixer.combine.weight.double().T


def h3_by_steps(mixer, x):
    """The trapezoid rule; and the shift as a matrix that moves every entry down by one."""
    q, k, v = (x.double() @ map.weight.double().T for map in (mixer.query, mixer.key, mixer.value))
    shift, ssm, taps = mixer.shift, mixer.ssm, mixer.shift.B.shape[1]
    down = torch.eye(taps, dtype=torch.float64).roll(1, dims=0)
    down[0] = 0.0
    s, shifted = torch.zeros(len(x), x.shape[2], taps, dtype=torch.float64), []
    for k_t in k.unbind(dim=1):
        s = s @ down.T + shift.B.double() * k_t[..., None]
        shifted.append((s * shift.C.double()).sum(-1) + shift.D.double() * k_t)
    u = torch.stack(shifted, dim=1) * v
    A, dt = spectrum(ssm), ssm.log_dt.double().exp()[:, None]
    half = dt * A / 2
    y = recur((1 + half) / (1 - half), both(ssm.B) * dt / (1 - half), both(ssm.C), u) + ssm.D.double() * u
    return (q * y) @ mixer.combine.weight.double().T


KINDS = {"s4d": (S4DConfig(), s4d_by_steps), "h3": (H3Config(), h3_by_steps)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("time", LENGTHS)
def test_values_are_those_of_the_recurrence(kind, time):
    config, by_steps = KINDS[kind]
    mixer, x = config.build(8), torch.randn(2, time, 8)
    with torch.no_grad():
        expected = by_steps(mixer, x)
        assert_close(mixer(x)[0].double(), expected, rtol=1e-4, atol=2e-5)
        assert_close(mixer.double()(x.double())[0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_recurrence(kind):
    config, by_steps = KINDS[kind]
    mixer, x = config.build(4).double(), torch.randn(2, 130, 4, dtype=torch.float64, requires_grad=True)
    inputs, weights = [x, *mixer.parameters()], torch.randn(2, 130, 4, dtype=torch.float64)
    found = torch.autograd.grad((mixer(x)[0] * weights).sum(), inputs)
    expected = torch.autograd.grad((by_steps(mixer, x) * weights).sum(), inputs)
    assert_close(found, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_longer_than_a_chunk_go_on_where_the_last_ended(kind):
    mixer, x = KINDS[kind][0].build(8).double(), torch.randn(2, 400, 8, dtype=torch.float64)
    expected, end = mixer(x)
    state, found = None, []
    for piece in x.split([130, 1, 64, 205], dim=1):
        y, state = mixer(piece, state)
        found.append(y)
    assert_close(torch.cat(found, dim=1), expected)
    assert_close(state, end)


@pytest.mark.parametrize("width", [32, 128])
def test_sizes_are_those_of_regbench(width):
    sizes = {S4DConfig(): width**2 + 67 * width + 64, H3Config(): 4 * width**2 + 327 * width}
    for config, size in sizes.items():
        assert sum(p.numel() for p in config.build(width, bias=True).parameters()) == size


def test_initial_values():
    s4d, h3 = S4DConfig().build(500).ssm, H3Config().build(500).ssm
    for ssm in (s4d, h3):
        assert_close(ssm.A_log_real.exp(), torch.full_like(ssm.A_log_real, 0.5))
        dt = ssm.log_dt.exp()
        assert 1e-3 <= dt.min() < 1.2e-3 < 0.08 < dt.max() <= 0.1
    n = torch.arange(32)
    assert_close(s4d.A_imag, 64 / math.pi * (64 / (1 + 2 * n) - 1))
    assert_close(h3.A_imag, (math.pi * n).expand(500, -1))
    assert_close(h3.B, torch.tensor([1.0, 0.0]).expand(500, 32, 2))
    constant = 2 * (torch.view_as_complex(s4d.C.detach()) / inverse_spectrum(32)).real.sum(-1)
    assert abs(constant.var() - 1) < 0.25  # what a constant input is answered with


def test_wrong_sizes_are_named():
    for config in (S4DConfig, H3Config):
        with pytest.raises(ValueError, match="even number, for pairs of conjugates, not 7"):
            config(state_size=7)
    with pytest.raises(ValueError, match="shift must be at least 1, not 0"):
        H3Config(shift=0)


def mamba_by_steps(mixer, x):
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


def amplified_mamba(mixer):
    """Selection that matters: at the beginning dt, B and C hardly depend on the token."""
    for weight in (mixer.select.weight, mixer.dt_map):
        torch.nn.init.normal_(weight, std=0.5)
    return mixer


@pytest.mark.parametrize("time", [*LENGTHS, SEGMENT])
def test_mamba_values_are_those_of_the_recurrence(time):
    mixer, x = amplified_mamba(MambaConfig().build(20)), torch.randn(2, time, 20)
    with torch.no_grad():
        expected = mamba_by_steps(mixer, x)
        assert_close(mixer(x)[0].double(), expected, rtol=1e-4, atol=1e-5)
        assert_close(mixer.double()(x.double())[0], expected, rtol=1e-9, atol=1e-9)


def test_mamba_gradients_are_those_of_the_recurrence():
    mixer = amplified_mamba(MambaConfig(state_size=3, short=2, expansion=3).build(4)).double()
    time = SEGMENT + 9
    x = torch.randn(2, time, 4, dtype=torch.float64, requires_grad=True)
    inputs, weights = [x, *mixer.parameters()], torch.randn(2, time, 4, dtype=torch.float64)
    found = torch.autograd.grad((mixer(x)[0] * weights).sum(), inputs)
    expected = torch.autograd.grad((mamba_by_steps(mixer, x) * weights).sum(), inputs)
    assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_mamba_pieces_longer_than_a_segment_go_on_where_the_last_ended():
    mixer, x = amplified_mamba(MambaConfig().build(8)).double(), torch.randn(2, 400, 8, dtype=torch.float64)
    expected, end = mixer(x)
    state, found = None, []
    for piece in x.split([SEGMENT + 2, 1, 64, 205], dim=1):
        y, state = mixer(piece, state)
        found.append(y)
    assert_close(torch.cat(found, dim=1), expected)
    assert_close(state, end)


def transformers_pair(width, bias):
    """transformers' mixer with amplified_mamba random weights, and ours with the same."""
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
def test_mamba_size_is_that_of_the_library(width):
    size = 6 * width**2 + 110 * width + 4 * width * -(-width // 16)
    assert sum(p.numel() for p in MambaConfig().build(width).parameters()) == size


def test_mamba_initial_values():
    mixer = MambaConfig().build(128)
    assert_close(mixer.A_log.exp(), torch.arange(1.0, 17.0).expand(256, -1))
    assert_close(mixer.D, torch.ones(256))
    dt = F.softplus(mixer.dt_offset)
    assert 1e-3 <= dt.min() * 1.001 < 1.2e-3 < 0.08 < dt.max() <= 0.1001
    assert 0.3 < mixer.dt_map.abs().max() <= 8**-0.5


def test_mamba_wrong_sizes_are_named():
    for name in ("state_size", "short", "expansion"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
            MambaConfig(**{name: 0})
