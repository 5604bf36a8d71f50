"""The selective scan against its definition: the op everywhere, its kernels on a GPU or in Triton's interpreter."""

import importlib.util

import pytest
import torch
from test_triton import DEVICE, INTERPRETED, assert_same, run_alone, with_gradients

from memory_mosaics.ops.triton import selective_scan as form

pytestmark = pytest.mark.gpu if DEVICE == "cuda" else []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(INTERPRETED or DEVICE == "cuda", reason="the kernels are tested in this process")
def test_kernels_under_the_interpreter():
    run_alone("TestScan", file=__file__, TRITON_INTERPRET="1")


def problem(time: int, channels: int = 11, states: int = 16, rows: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(0)
    u, B, C, h = (
        torch.randn(rows, *shape, device=DEVICE)
        for shape in ((time, channels), (time, states), (time, states), (channels, states))
    )
    dt, A = torch.rand(rows, time, channels, device=DEVICE), -torch.rand(channels, states, device=DEVICE) * 4
    return [x.requires_grad_() for x in (u, dt, A, B, C, h)]


class TestScan:
    @pytest.mark.parametrize("time", [1, 31, 32, 70])
    @pytest.mark.parametrize("states", [1, 5, 16])
    def test_it_is_the_recurrence(self, time, states):
        inputs = problem(time, states=states)
        weights = torch.randn_like(inputs[0]), torch.randn_like(inputs[5])
        fast, slow = (with_gradients(act, inputs, weights) for act in (form.selective_scan, form.reference))
        assert_same(fast, slow, 1e-5)

    def test_views_of_other_tensors(self):
        u, dt, A, B, C, h = problem(40)
        both = torch.cat([B, C], dim=-1).detach().requires_grad_()
        inputs = [u, dt, A, both, h]

        def split(act):
            return lambda u, dt, A, both, h: act(u, dt, A, *both.chunk(2, dim=-1), h)

        weights = torch.randn_like(u), torch.randn_like(h)
        fast, slow = (with_gradients(split(act), inputs, weights) for act in (form.selective_scan, form.reference))
        assert_same(fast, slow, 1e-5)


@pytest.mark.skipif(INTERPRETED, reason="checks the registration, not the kernels")
def test_the_op_is_well_registered():
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    op = torch.ops.memory_mosaics.selective_scan.default
    torch.library.opcheck(op, problem(9), test_utils=checks)
