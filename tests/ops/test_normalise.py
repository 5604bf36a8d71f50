import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from memory_mosaics.ops.normalise import normalise


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_norm_and_its_gradient(dtype):
    x = torch.randn(3, 7, 5, dtype=dtype).requires_grad_()
    gradient = torch.randn(3, 7, 5, dtype=dtype)
    found, expected = normalise(x), F.normalize(x.float(), dim=-1).to(dtype)
    assert_close(found, expected)
    assert_close(*(torch.autograd.grad(y, x, gradient)[0] for y in (found, expected)))


def test_nothing_stays_nothing():
    x = torch.zeros(2, 4, requires_grad=True)
    y = normalise(x)
    assert y.eq(0).all()
    assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()
