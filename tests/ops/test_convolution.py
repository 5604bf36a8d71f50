import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.ops.convolution import causal_convolution, last_steps, reference


@pytest.mark.parametrize(("time", "length"), [(1, 1), (5, 9), (63, 64), (130, 130), (1000, 64)])
def test_a_convolution_is_its_sum(time, length):
    x, kernel = torch.randn(2, time, 3), torch.randn(3, length)
    expected = reference(x.double(), kernel.double())
    assert_close(causal_convolution(x, kernel).double(), expected, rtol=1e-5, atol=1e-4)
    for steps in {1, min(time, 3)}:
        assert_close(last_steps(x, kernel, steps).double(), expected[:, -steps:], rtol=1e-5, atol=1e-4)
    t = time // 2
    assert_close(expected[:, t], sum(kernel[:, l].double() * x[:, t - l] for l in range(min(t + 1, length))))
