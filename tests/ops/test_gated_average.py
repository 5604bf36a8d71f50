import torch
from triton_forms import (
    DEVICE,
    TOLERANCE,
    assert_same,
    check_registration,
    dtypes,
    key_problem,
    needs_kernels,
    starts,
    tensor,
    times,
    with_gradients,
)

from memory_mosaics.ops.gated_average import gated_key, reference


class TestTriton:
    @times
    @dtypes
    @starts
    def test_gated_keys(self, time, dtype, start):
        (raw, _, mean, _), weights = key_problem(time, dtype, start=start, batch=1)
        decay, gate = (torch.rand(1, time, 3, device=DEVICE) for _ in range(2))
        decay[:, :, 1:] = 1 - decay[:, :, 1:].square() / 50
        inputs = raw, decay.requires_grad_(), gate.requires_grad_(), mean
        fast, slow = (with_gradients(form, inputs, weights) for form in (gated_key, reference))
        assert_same(fast, slow, 3 * TOLERANCE[dtype])

    @needs_kernels
    def test_registration(self):
        check_registration("gated_key", tensor(2, 9, 3, 16), *torch.rand(2, 2, 9, 3, device=DEVICE), tensor(2, 3, 16))
