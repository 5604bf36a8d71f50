import pytest
import torch
from triton_forms import DEVICE, assert_same, check_registration, needs_kernels, with_gradients

from memory_mosaics.ops.selective_scan import reference, selective_scan


def problem(time: int, channels: int = 11, states: int = 16, rows: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(0)
    u, B, C, h = (
        torch.randn(rows, *shape, device=DEVICE)
        for shape in ((time, channels), (time, states), (time, states), (channels, states))
    )
    dt, A = torch.rand(rows, time, channels, device=DEVICE), -torch.rand(channels, states, device=DEVICE) * 4
    return [x.requires_grad_() for x in (u, dt, A, B, C, h)]


class TestTriton:
    @pytest.mark.parametrize("time", [1, 31, 32, 70])
    @pytest.mark.parametrize("states", [1, 5, 16])
    def test_it_is_the_recurrence(self, time, states):
        inputs = problem(time, states=states)
        weights = torch.randn_like(inputs[0]), torch.randn_like(inputs[5])
        fast, slow = (with_gradients(act, inputs, weights) for act in (selective_scan, reference))
        assert_same(fast, slow, 1e-5)

    def test_views_of_other_tensors(self):
        u, dt, A, B, C, h = problem(40)
        both = torch.cat([B, C], dim=-1).detach().requires_grad_()
        inputs = [u, dt, A, both, h]

        def split(act):
            return lambda u, dt, A, both, h: act(u, dt, A, *both.chunk(2, dim=-1), h)

        weights = torch.randn_like(u), torch.randn_like(h)
        fast, slow = (with_gradients(split(act), inputs, weights) for act in (selective_scan, reference))
        assert_same(fast, slow, 1e-5)

    @needs_kernels
    def test_registration(self):
        check_registration("selective_scan", *problem(9))
