import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.ops.taps import _sums, tapped


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("time", [1, 4, 9])
def test_sums_and_gradients_are_those_of_the_definition(taps, time):
    x = torch.randn(2, time, 3, 5, dtype=torch.float64, requires_grad=True)
    c = torch.randn(3, taps, dtype=torch.float64, requires_grad=True)
    expected = [sum(c[:, j, None] * x[:, t + j] for j in range(taps)) for t in range(time - taps + 1)] or [
        x[:, 0] * c[:, :1]
    ][:0]
    found = tapped(x, c)
    assert found.shape == (2, max(time - taps + 1, 0), 3, 5)
    if expected:
        assert_close(found, torch.stack(expected, dim=1))
        assert torch.autograd.gradcheck(tapped, (x, c))
        assert_close(_sums(x, c), found)


def test_precise_taps_make_precise_sums():
    x, c = torch.randn(1, 5, 2, 3, requires_grad=True), torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    found = tapped(x, c)
    assert found.dtype == torch.float64
    found.sum().backward()
    assert x.grad is not None
    assert c.grad is not None
