import pytest
import torch
from torch.testing import assert_close
from triton_forms import (
    DEVICE,
    KERNELS,
    TOLERANCE,
    assert_same,
    check_registration,
    dtypes,
    needs_kernels,
    tensor,
    with_gradients,
)

from memory_mosaics.ops import cross_entropy
from memory_mosaics.ops.cross_entropy import linear_cross_entropy, reference


class TestTriton:
    @pytest.mark.parametrize(("rows", "vocabulary"), [(1, 10), (63, 1000), (300, 777)])
    @dtypes
    def test_loss(self, rows, vocabulary, dtype, monkeypatch):
        monkeypatch.setattr(cross_entropy, "BUFFER", 128 * vocabulary * dtype.itemsize)
        features, weight = (
            tensor(rows, 32, dtype=dtype),
            tensor(vocabulary, 32, dtype=torch.float32 if KERNELS else dtype),
        )
        targets = torch.randint(vocabulary, (rows,), device=DEVICE)
        targets[1::7] = -100
        inputs, weights = (features, weight, targets), (torch.tensor(3.0, device=DEVICE),)
        fast, slow = (with_gradients(form, inputs, weights) for form in (linear_cross_entropy, reference))
        assert_same(fast, slow, 2 * TOLERANCE[dtype])

    def test_loss_without_gradients(self):
        features, weight = tensor(20, 16), tensor(50, 16)
        targets = torch.randint(50, (20,), device=DEVICE)
        with torch.no_grad():
            found = linear_cross_entropy(features, weight, targets)
        assert_close(found, reference(features, weight, targets))

    @needs_kernels
    def test_registration(self):
        targets = torch.arange(9, device=DEVICE)
        check_registration("linear_cross_entropy", tensor(9, 16), tensor(20, 16), targets, True)
