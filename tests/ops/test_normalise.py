import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.ops.normalise import normalise, reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_norm_and_its_gradient(dtype):
    x = torch.randn(3, 7, 5, dtype=dtype).requires_grad_()
    gradient = torch.randn(3, 7, 5, dtype=dtype)
    found, expected = normalise(x), reference(x)
    assert_close(found, expected)
    assert_close(*(torch.autograd.grad(y, x, gradient)[0] for y in (found, expected)))


def test_nothing_stays_nothing():
    x = torch.zeros(2, 4, requires_grad=True)
    y = normalise(x)
    assert y.eq(0).all()
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("length", [torch.tensor([0.5, 3.0, 200.0]), 7.0])
def test_with_a_length(length):
    x = torch.randn(2, 5, 3, 8, requires_grad=True)
    trained = isinstance(length, torch.Tensor)
    length = length.requires_grad_() if trained else length
    inputs, weights = (x, length) if trained else (x,), torch.randn(2, 5, 3, 8)
    found, plain = normalise(x, length), reference(x, length)
    assert_close(found, plain)
    assert_close(*(torch.autograd.grad((y * weights).sum(), inputs) for y in (found, plain)), rtol=1e-4, atol=1e-5)


def test_a_length_is_rounded_once():
    x, length = torch.randn(4, 3, 64).bfloat16(), torch.full((3,), 1.7)
    assert_close(normalise(x, length), reference(x.double(), length).bfloat16(), rtol=0, atol=0)


def test_a_second_derivative_is_refused():
    """The norm counts as a constant in the first one."""
    x = torch.randn(3, 4, requires_grad=True)
    (first,) = torch.autograd.grad(normalise(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
