import pytest
import torch
from torch.testing import assert_close
from triton_forms import (
    DEVICE,
    TOLERANCE,
    assert_same,
    check_registration,
    dtypes,
    needs_kernels,
    strided,
    tensor,
    times,
    with_gradients,
)

from memory_mosaics.ops.taps import _sums, apply_taps, reference, tap_values, value_reference


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("time", [1, 4, 9])
def test_sums_and_gradients_are_those_of_the_definition(taps, time):
    x = torch.randn(2, time, 3, 5, dtype=torch.float64, requires_grad=True)
    c = torch.randn(3, taps, dtype=torch.float64, requires_grad=True)
    found = apply_taps(x, c)
    assert found.shape == (2, max(time - taps + 1, 0), 3, 5)
    for t in range(found.shape[1]):
        assert_close(found[:, t], sum(c[:, j, None] * x[:, t + j] for j in range(taps)))
    assert_close(found, reference(x, c))
    assert_close(_sums(x, c), found)
    assert torch.autograd.gradcheck(apply_taps, (x, c))


def test_precise_taps_make_precise_sums():
    x, c = torch.randn(1, 5, 2, 3, requires_grad=True), torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    found = apply_taps(x, c)
    assert found.dtype == torch.float64
    found.sum().backward()
    assert x.grad is not None
    assert c.grad is not None


class TestTriton:
    @times
    @dtypes
    def test_values(self, time, dtype):
        batch = 2 if time < 1000 else 1
        inputs = strided(batch, time, 3, 16, dtype=dtype), tensor(3, 2)
        weights = (torch.randn(batch, time - 1, 3, 16, device=DEVICE),)
        fast, slow = (with_gradients(form, inputs, weights) for form in (tap_values, value_reference))
        assert_close(fast.pop(), slow.pop(), rtol=0.05, atol=TOLERANCE[dtype] * 2 * time**0.5)
        assert_same(fast, slow, TOLERANCE[dtype])

    @needs_kernels
    def test_registration(self):
        check_registration("tap_values", tensor(2, 9, 3, 16), tensor(3, 2))
