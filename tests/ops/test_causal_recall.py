"""Causal recall that keeps its weights against the definition, and when it is taken."""

import pytest
import torch
from torch.testing import assert_close
from triton_forms import AWKWARD

from memory_mosaics.ops import causal_recall as module
from memory_mosaics.ops.causal_recall import BLOCK, can_keep_weights, causal_recall, reference
from memory_mosaics.ops.contextual_recall import contextual_recall
from memory_mosaics.ops.recall import recall

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
times = pytest.mark.parametrize("time", sorted({*AWKWARD, BLOCK, BLOCK + 1}))


def problem(time: int, *, dtype: torch.dtype = torch.float32, width: int = 5) -> list[torch.Tensor]:
    """Queries, keys, values and beta per head."""
    shapes = [(2, time, 3, width)] * 2 + [(2, time, 3, width + 2), (3,)]
    return [torch.rand(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def with_gradients(answers: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    weights = torch.linspace(-1, 1, answers.numel(), dtype=answers.dtype).view_as(answers)
    return [answers, *torch.autograd.grad(answers, inputs, weights)]


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        scale = 1 + other.abs().max().item()
        assert_close(one / scale, other / scale, rtol=0, atol=TOLERANCE[other.dtype])


@times
@dtypes
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_values_and_gradients_are_those_of_the_definition(time, dtype, ahead):
    q, k, v, beta = inputs = problem(time, dtype=dtype)
    forms = (form(q, k, v, ahead=ahead, scale=beta) for form in (causal_recall, reference))
    assert_same(*(with_gradients(answers, inputs) for answers in forms))


@times
@dtypes
@pytest.mark.parametrize("ahead", [1, 3])
def test_keys_as_queries_have_one_gradient(time, dtype, ahead):
    _, k, v, beta = problem(time, dtype=dtype)
    pairs = max(time - ahead, 0)
    inputs, options = [k, v, beta], {"ahead": ahead, "scale": beta}
    fast = causal_recall(None, k, v[:, :pairs], **options)
    slow = reference(k, k[:, :pairs], v[:, :pairs], **options)
    assert_same(with_gradients(fast, inputs), with_gradients(slow, inputs))


@pytest.mark.parametrize("beta", [2.0, torch.tensor(2.0), torch.full((3,), 2.0)], ids=["number", "scalar", "heads"])
def test_contextual_recall_takes_any_beta(beta):
    _, k, v, _ = problem(70)
    found = contextual_recall(k, v[:, 1:], beta)
    assert found.grad_fn is not None
    assert "KeptWeights" in found.grad_fn.name()
    assert_close(found, reference(k, k[:, :-1], v[:, 1:], ahead=1, scale=2.0))


@pytest.mark.parametrize("causal_offset", [0, 1])
def test_recall_keeps_weights_only_where_they_are_few_and_needed(causal_offset, monkeypatch):
    q, k, v, _ = inputs = problem(130)
    kept = with_gradients(recall(q, k, v, causal_offset=causal_offset), inputs[:3])
    assert can_keep_weights(q, k, v)
    with torch.no_grad():
        assert not can_keep_weights(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not can_keep_weights(q, k, v)
    for limit in ("MAX_TIME", "MAX_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, 100)
            assert not can_keep_weights(q, k, v)
    monkeypatch.setattr(module, "MAX_TIME", 100)
    assert_same(with_gradients(recall(q, k, v, causal_offset=causal_offset), inputs[:3]), kept)


def test_more_queries_than_pairs_see_all_pairs():
    q, k, v, _ = problem(100)
    found = recall(q, k[:, :20], v[:, :20], causal_offset=1)
    assert_close(found[:, 30], recall(q[:, 30:31], k[:, :20], v[:, :20])[:, 0])


def test_gradients_are_those_of_small_differences():
    inputs = problem(7, dtype=torch.float64, width=2)
    assert torch.autograd.gradcheck(lambda q, k, v, beta: causal_recall(q, k, v, ahead=1, scale=beta), inputs)
