"""The chunked delta rule against its recurrence, in values and gradients."""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from memory_mosaics.ops.common import flash_kernel
from memory_mosaics.ops.delta_rule import FLASH_KERNELS, _chunked, _invert, delta_rule, reference, triton_miscompiles
from on_cuda import ON_CUDA

TIMES = [1, 2, 63, 130, 1000]


def problem(time, *, dtype=torch.float64, decays=True, memory=True):
    """Queries, keys of norm one, values, beta, log alpha from almost none to e^-6 per step, and a state."""
    q, k, v = (torch.randn(2, time, 3, width, dtype=dtype) for width in (4, 4, 5))
    beta = torch.rand(2, time, 3, dtype=dtype)
    log_alpha = -6 * torch.rand(2, time, 3, dtype=dtype) ** 4 if decays else None
    S = torch.randn(2, 3, 5, 4, dtype=dtype) if memory else None
    return [x if x is None else x.requires_grad_() for x in (q, F.normalize(k, dim=-1), v, beta, log_alpha, S)]


@pytest.mark.parametrize(
    ("version", "capability", "wrong"),
    [("3.3.1", 9, False), ("3.4.0", 9, True), ("3.7.0+git1", 9, True), ("3.7.1", 9, False), ("3.6.0", 8, False)],
)
def test_kernels_that_triton_miscompiles_are_not_used(monkeypatch, version, capability, wrong):
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=version))
    assert triton_miscompiles((capability, 0)) is wrong


@pytest.mark.parametrize("memory", [True, False], ids=["state", "no state"])
@pytest.mark.parametrize("decays", [True, False], ids=["decays", "no decay"])
@pytest.mark.parametrize("time", TIMES)
def test_chunks_are_the_recurrence(time, decays, memory):
    inputs = problem(time, decays=decays, memory=memory)
    found, wanted = delta_rule(*inputs), reference(*inputs)
    assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    weight, trained = torch.randn_like(wanted[0]), [x for x in inputs if x is not None]
    gradients = [torch.autograd.grad((y * weight).sum() + S.sin().sum(), trained) for y, S in (found, wanted)]
    assert_close(*gradients, rtol=1e-8, atol=1e-8)


def test_one_step_is_the_formula():
    *inputs, memory = problem(1)
    (q, k, v, beta, log_alpha), S = (x[0, 0, 0] for x in inputs), memory[0, 0]
    new = log_alpha.exp() * S @ (torch.eye(4) - beta * torch.outer(k, k)) + beta * torch.outer(v, k)
    y, found = delta_rule(*(x[None, None, None] for x in (q, k, v, beta, log_alpha)), S[None, None])
    assert_close(found[0, 0], new)
    assert_close(y[0, 0, 0], new @ q)


def test_a_key_holds_its_last_value():
    """With beta 1 and orthogonal keys the memory is a table, whose entries are replaced."""
    k = torch.eye(4)[[0, 1, 2, 0, 1]][None, :, None]
    v = torch.arange(5.0)[None, :, None, None]
    y, S = delta_rule(k, k, v, torch.ones(1, 5, 1))
    assert_close(y, v)
    assert_close(S[0, 0, 0], torch.tensor([3.0, 4.0, 2.0, 0.0]))


@pytest.mark.parametrize("beta", [0.999, 1.0])
@pytest.mark.parametrize("log_alpha", [0.0, -1e-3, -100.0])
def test_the_same_key_again_and_again_is_exact_in_float32(log_alpha, beta):
    """The worst case of the triangular system: its inverse by powers of the matrix would have terms of 1e17."""
    q, v, beta = torch.randn(1, 300, 2, 8), torch.randn(1, 300, 2, 8), torch.full((1, 300, 2), beta)
    k = F.normalize(torch.randn(1, 1, 2, 8), dim=-1).expand(-1, 300, -1, -1)
    inputs = q, k, v, beta, torch.full((1, 300, 2), log_alpha)
    wanted = reference(*(x.double() for x in inputs))
    assert_close(delta_rule(*inputs), tuple(x.float() for x in wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_stay_exact_where_the_same_keys_return(dtype):
    """With beta 1, two keys and their negatives: in float32 as close to the definition as its own steps are."""
    k = F.normalize(torch.randn(1, 4, 2, 8, dtype=torch.float64), dim=-1)[:, torch.randint(4, (192,)) // 2]
    k = k * torch.randn(1, 192, 2, 1).sign()
    q, v = torch.randn(2, 1, 192, 2, 8, dtype=torch.float64)
    log_alpha = -0.05 * torch.rand(1, 192, 2, dtype=torch.float64)
    inputs = q, k, v, torch.ones_like(log_alpha), log_alpha

    def gradients(form, dtype):
        given = [x.to(dtype).requires_grad_() for x in inputs]
        y, S = form(*given)
        return [x.double() for x in torch.autograd.grad(y.sin().sum() + S.sin().sum(), given)]

    for found, wanted in zip(gradients(delta_rule, dtype), gradients(reference, torch.float64), strict=True):
        error = (found - wanted).abs().max() / wanted.abs().max()
        assert error < (1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("length", [2, 4, 16, 64])
def test_triangular_systems_are_inverted_in_place(length):
    """Of one matrix with random entries, and of one whose powers have terms of 1e17 and whose inverse is -1, 0 or 1."""
    below = torch.stack([torch.randn(length, length), -torch.ones(length, length)]).double().tril(-1)
    padded = torch.full((2, length + 1, length), float("nan"), dtype=torch.float64)
    padded[:, :length] = below
    _invert(padded)
    identity = torch.eye(length, dtype=torch.float64)
    assert_close(padded[:, :length] @ (identity - below), identity.expand(2, -1, -1), rtol=0, atol=1e-6)
    assert_close(padded[1, :length], identity - identity.roll(1, 0).tril(), rtol=0, atol=0)


def test_compiles_with_dynamic_lengths():
    """The registered schema and fake form fit the op, also where the shapes are symbolic."""

    def form(*inputs):
        return _chunked(*inputs)[:2]

    compiled = torch.compile(form, fullgraph=True, backend="aot_eager", dynamic=True)
    for time in (130, 200):
        inputs = problem(time)
        torch.library.opcheck(_chunked, inputs, test_utils=("test_schema", "test_faketensor"))
        found, wanted = (
            (y, S, *torch.autograd.grad(y.square().sum() + S.sin().sum(), inputs))
            for y, S in (compiled(*inputs), delta_rule(*inputs))
        )
        assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_inputs_of_several_dtypes_keep_the_precision_of_each():
    q, k, v, beta, log_alpha, S = problem(70, dtype=torch.float32)
    inputs = q, k, v.detach().bfloat16(), beta.detach().bfloat16().requires_grad_(), log_alpha, S
    given = [x.detach().clone().requires_grad_() for x in inputs]
    found, wanted = (
        torch.autograd.grad(y.float().sum() + S.sum(), given) for y, S in (delta_rule(*given), reference(*given))
    )
    assert_close(found, wanted, rtol=1e-2, atol=1e-3)


def test_autocast_rounds_nothing():
    inputs = problem(70, dtype=torch.float32)
    wanted = torch.autograd.grad(delta_rule(*inputs)[0].square().sum(), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(delta_rule(*inputs)[0].square().sum(), inputs)
    assert_close(found, wanted, rtol=0, atol=0)


def test_second_derivatives_are_refused():
    inputs = problem(5)
    gradients = torch.autograd.grad(delta_rule(*inputs)[0].square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="delta_rule_backward"):
        gradients[0].square().sum().backward()


def test_states_carry_over_at_any_cut():
    q, k, v, beta, log_alpha, S = problem(200)
    y, last = delta_rule(q, k, v, beta, log_alpha, S)
    outputs = []
    for q_t, k_t, v_t, b_t, a_t in zip(
        *(x.split([1, 64, 7, 127, 1], dim=1) for x in (q, k, v, beta, log_alpha)), strict=True
    ):
        y_t, S = delta_rule(q_t, k_t, v_t, b_t, a_t, S)
        outputs.append(y_t)
    assert_close((torch.cat(outputs, dim=1), S), (y, last), rtol=1e-9, atol=1e-9)


def test_half_precision_is_rounded_once():
    inputs = [x if x is None else x.detach().bfloat16() for x in problem(130)]
    y, S = delta_rule(*inputs)
    wanted, last = reference(*(x.float() for x in inputs))
    assert (y.dtype, S.dtype) == (torch.bfloat16, torch.float32)
    assert_close(y, wanted.bfloat16())
    assert_close(S, last, rtol=1e-4, atol=1e-4)


class TestOnCuda:
    pytestmark = ON_CUDA

    @pytest.mark.parametrize("decays", [True, False], ids=["decays", "no decay"])
    @pytest.mark.parametrize("time", TIMES)
    def test_cuda_gives_the_numbers_of_the_cpu(self, time, decays):
        inputs = problem(time, dtype=torch.float32, decays=decays)
        found = delta_rule(*(x if x is None else x.cuda() for x in inputs))
        assert_close([x.cpu() for x in found], list(reference(*inputs)), rtol=1e-3, atol=1e-3)

    def test_a_step_of_training_can_be_captured(self):
        inputs = [x.detach().cuda().requires_grad_() for x in problem(130, dtype=torch.float32)]

        def step():
            return torch.autograd.grad(delta_rule(*inputs)[0].square().sum(), inputs)

        wanted, graph = step(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
        graph.replay()
        assert_close(found, wanted)

    @pytest.mark.skipif(flash_kernel(*FLASH_KERNELS[0]) is None, reason="flash-linear-attention is not installed")
    @pytest.mark.parametrize("decays", [True, False], ids=["decays", "no decay"])
    @pytest.mark.parametrize("time", [2, 63, 130, 1000])
    def test_flash_linear_attention_gives_the_same(self, time, decays):
        q, k, v = (torch.randn(2, time, 3, 32, device="cuda") for _ in range(3))
        beta, S = torch.rand(2, time, 3, device="cuda"), torch.randn(2, 3, 32, 32, device="cuda")
        log_alpha = -torch.rand(2, time, 3, device="cuda") if decays else None
        inputs = (q / 32**0.5).bfloat16(), F.normalize(k, dim=-1).bfloat16(), v.bfloat16(), beta, log_alpha, S
        trained = [x.requires_grad_() for x in inputs if x is not None]
        found, wanted = (
            (y, S, *torch.autograd.grad(y.float().square().sum() + S.sin().sum(), trained))
            for y, S in (form(*inputs) for form in (delta_rule, reference))
        )
        for one, other in zip(found, wanted, strict=True):
            assert (one - other).float().norm() < 0.03 * other.float().norm()
