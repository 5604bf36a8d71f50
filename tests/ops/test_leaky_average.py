import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from memory_mosaics.ops.leaky_average import CHUNK, _in_chunks, leaky_average, reference


def by_products(x, decay, mean=None):
    """The form for compilers and GPUs."""
    means = _in_chunks(x, decay, x.new_zeros(x.shape[0], *x.shape[2:]) if mean is None else mean)
    return means, means[:, -1]


AWKWARD = [1, 2, 63, 130, 1000]


def problem(time: int, *, heads: int = 3, width: int = 5, batch: int = 2) -> tuple[torch.Tensor, ...]:
    x = torch.randn(batch, time, heads, width, requires_grad=True)
    decay = torch.linspace(0.05, 0.999, heads, requires_grad=True)
    mean = torch.randn(batch, heads, width, requires_grad=True)
    return x, decay, mean


@pytest.mark.parametrize("time", AWKWARD)
@pytest.mark.parametrize("start", ["empty", "given"])
def test_values_and_gradients_are_those_of_the_definition(time, start):
    x, decay, mean = problem(time)
    inputs = (x, decay) if start == "empty" else (x, decay, mean)
    weights = torch.randn_like(x)
    results = []
    for form in (leaky_average, by_products, reference):
        means, last = form(*inputs)
        loss = (means * weights).sum() + last.square().sum()
        results.append((means, last, *torch.autograd.grad(loss, inputs)))
    for *fast, slow in zip(*results, strict=True):
        for found in fast:
            assert_close(found, slow, rtol=1e-4, atol=1e-4)


@settings(max_examples=40)
@given(
    time=st.integers(0, 3 * CHUNK + 1),
    batch=st.integers(1, 3),
    heads=st.integers(1, 4),
    width=st.integers(1, 6),
)
def test_any_shape(time, batch, heads, width):
    x, decay, mean = problem(time, heads=heads, width=width, batch=batch)
    assert_close(leaky_average(x, decay, mean), reference(x, decay, mean), rtol=1e-4, atol=1e-4)


@settings(max_examples=20)
@given(cut=st.integers(0, 100))
def test_continuing_from_the_last_average_is_going_on(cut):
    x, decay, _ = problem(100)
    first, middle = leaky_average(x[:, :cut], decay)
    second, last = leaky_average(x[:, cut:], decay, middle)
    whole, end = leaky_average(x, decay)
    assert_close(torch.cat([first, second], dim=1), whole)
    assert_close(last, end)


def test_no_decay_forgets_all_and_decay_one_sums():
    x, _, _ = problem(70, heads=2)
    means, _ = leaky_average(x, torch.tensor([0.0, 1.0]))
    assert_close(means[:, :, 0], x[:, :, 0])
    assert_close(means[:, :, 1], x[:, :, 1].cumsum(dim=1), rtol=1e-4, atol=1e-4)


def test_bfloat16_inputs_are_averaged_in_float32():
    x, decay, _ = problem(300)
    x = x.detach().bfloat16()
    means, last = leaky_average(x, decay)
    exact, _ = reference(x.float(), decay)
    assert means.dtype == torch.bfloat16
    assert last.dtype == torch.float32
    assert_close(means, exact.bfloat16(), rtol=1e-2, atol=1e-2)
    assert_close(last, exact[:, -1], rtol=1e-4, atol=1e-4)


def test_autocast_does_not_reach_the_average():
    x, decay, _ = problem(100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        means, _ = leaky_average(x, decay)
    assert_close(means, reference(x, decay)[0], rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_small_differences():
    x, decay, mean = (tensor.detach().double().requires_grad_() for tensor in problem(40, heads=2, width=2, batch=1))
    assert torch.autograd.gradcheck(leaky_average, (x, decay, mean))
