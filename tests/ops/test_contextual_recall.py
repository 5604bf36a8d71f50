from math import log

import pytest
import torch
from triton_forms import DEVICE, KERNELS, assert_same, check_registration, needs_kernels, with_gradients

from memory_mosaics.memory import ContextualMemoryConfig
from memory_mosaics.ops import contextual_recall as module
from memory_mosaics.ops.contextual_recall import contextual_recall, reference
from memory_mosaics.ops.recall import recall
from memory_mosaics.ops.recall import reference as recall_reference

DTYPE = torch.bfloat16 if KERNELS else torch.float32
H = 2
SUM = (
    0.1  # of the gradient of one beta per head: a sum over rows and times that cancels; PyTorch's own kernel has 0.054
)


def problem(
    time: int, *, width: int = 16, dtype: torch.dtype = DTYPE, rows: int = 2, betas: tuple[int, ...] = (H,)
) -> list[torch.Tensor]:
    """Unit keys, values, and a beta of shape (H), (T H) or (B T H): a flat memory, and a sharp one."""
    torch.manual_seed(time)
    keys, values = (torch.randn(rows, steps, H, width, device=DEVICE) for steps in (time, time - 1))
    keys = torch.nn.functional.normalize(keys, dim=-1)
    beta = torch.tensor([1.0, 25.0], device=DEVICE) * (0.5 + torch.rand(betas, device=DEVICE) if len(betas) > 1 else 1)
    return [x.to(dtype).requires_grad_() for x in (keys, values)] + [beta.requires_grad_()]


def exact(keys: torch.Tensor, values: torch.Tensor, sharpness: torch.Tensor) -> torch.Tensor:
    return reference(keys.float(), values.float(), sharpness).to(keys.dtype)


class TestTriton:
    @pytest.mark.parametrize("time", [2, 3, 63, 64, 65, 130, 192])
    @pytest.mark.parametrize("width", [16, 32, 64])
    def test_it_is_the_definition(self, time, width):
        inputs = problem(time, width=width)
        weight = torch.randn_like(inputs[0])
        fast, slow = (with_gradients(act, inputs, (weight,)) for act in (contextual_recall, exact))
        answers, d_keys, d_values, d_sharpness = zip(fast, slow, strict=True)
        assert_same(*([x] for x in answers), 3e-3)
        assert_same(*([x] for x in d_values), 4e-3)
        assert_same(*([x] for x in d_keys), 8e-3 if time > 3 else 0.1)  # of one pair all but rounding cancels
        assert_same(*([x] for x in d_sharpness), SUM)

    @pytest.mark.parametrize("time", [2, 64, 130])
    @pytest.mark.parametrize("rows", [0, 2])
    def test_beta_may_depend_on_time(self, time, rows):
        inputs = problem(time, betas=(rows, time, H) if rows else (time, H))
        weight = torch.randn_like(inputs[0])
        fast, slow = (with_gradients(act, inputs, (weight,)) for act in (contextual_recall, exact))
        assert_same(fast[:3], slow[:3], 8e-3 if time > 3 else 0.1)
        assert_same(fast[3:], slow[3:], (2.5e-2 if rows else SUM) if time > 3 else SUM)

    @needs_kernels
    def test_total_weights(self):
        keys, values, beta = problem(70)
        _, lse = torch.ops.memory_mosaics.contextual_recall(keys, values, beta)
        _, expected = recall_reference(keys.float(), keys[:, :-1].float(), values.float(), beta, causal_offset=0)
        torch.testing.assert_close(lse[:, :, 1:] * log(2), expected.transpose(1, 2)[:, :, 1:], rtol=1e-4, atol=1e-4)
        assert (lse[:, :, 0] == 0).all()

    def test_gradients_in_float16(self):
        inputs = problem(130, width=32, dtype=torch.float16)
        weight = torch.randn_like(inputs[0])
        fast, slow = (with_gradients(act, inputs, (weight,)) for act in (contextual_recall, exact))
        assert_same(fast[:3], slow[:3], 2e-3)
        assert_same(fast[3:], slow[3:], SUM / 8)  # eight times as precise

    def test_the_first_answer_is_nothing(self):
        assert (contextual_recall(*problem(70))[:, 0] == 0).all()

    def test_a_memory_that_is_very_sharp(self):
        """Scores far apart: nothing overflows, and the nearest key answers."""
        keys, values, beta = problem(80, dtype=torch.float16)
        beta = (beta.detach() * 400).requires_grad_()
        answers = contextual_recall(keys, values, beta)
        answers.float().square().sum().backward()
        assert answers.isfinite().all()
        assert keys.grad.isfinite().all()
        assert beta.grad.isfinite().all()
        assert_same((answers,), (exact(keys, values, beta),), 2e-3)

    def test_views_of_other_tensors(self):
        keys, values, beta = problem(70)
        around = torch.full((3, 80, 2 * H, 40), torch.nan, device=DEVICE, dtype=keys.dtype)
        inside = around[1:, 5:75, ::2, 8:24]
        inside.copy_(keys)
        strided = inside.requires_grad_()
        weight = torch.randn(2, 70, 16, H, device=DEVICE, dtype=keys.dtype).transpose(2, 3)  # a gradient as awkward
        fast, slow = (with_gradients(contextual_recall, [k, values, beta], (weight,)) for k in (strided, keys))
        assert_same(fast, slow, 1e-6)

    @needs_kernels
    def test_registration(self):
        check_registration("contextual_recall", *problem(9))

    @pytest.mark.parametrize("ahead", [1, 2, 3])
    def test_gradients_are_those_of_small_differences(self, ahead):
        keys, values, beta = (x.detach().cpu().double().requires_grad_() for x in problem(7))
        assert torch.autograd.gradcheck(contextual_recall, (keys, values[:, ahead - 1 :], beta))

    def test_what_the_kernels_are_for(self, monkeypatch):
        def takes(keys, values):
            called = []
            monkeypatch.setattr(module, "_contextual_recall", lambda *inputs: called.append(inputs) or [keys])
            contextual_recall(keys, values)
            return bool(called)

        keys, values, _ = problem(70)
        assert takes(keys, values) == KERNELS
        assert not takes(keys.float(), values.float())
        assert not takes(keys, values[:, 1:])
        assert not takes(keys[:, :1], values[:, :0])
        for step, fits in ((2**24, True), (2**25, False)):
            far = torch.empty_strided((1, 70, H, 16), (1, step, 16, 1), dtype=torch.bfloat16, device="meta")
            assert module._fits(far, far[:, 1:]) == fits


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="wants a CUDA device")
@pytest.mark.parametrize(("time", "rows"), [(1000, 80), (4096, 2)])
def test_many_tiles_and_heads(time, rows):
    inputs = problem(time, width=64, rows=rows)
    weight = torch.randn_like(inputs[0])

    def plain(keys, values, sharpness):
        return recall(keys, keys[:, :-1], values, sharpness, causal_offset=0)

    fast, slow = (with_gradients(act, inputs, (weight,)) for act in (contextual_recall, plain))
    assert_same(fast[:3], slow[:3], 8e-3)
    assert_same(fast[3:], slow[3:], SUM)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="wants a CUDA device")
def test_a_layer_answers_the_same_by_either_kernel(monkeypatch):
    torch.manual_seed(0)
    layer = ContextualMemoryConfig(heads=4).build(256).to(DEVICE, torch.bfloat16)
    x = torch.randn(2, 100, 256, device=DEVICE, dtype=torch.bfloat16)
    with_op = layer(x)[0]
    monkeypatch.setattr(module, "can_use_triton", lambda *_, **__: False)
    torch.testing.assert_close(with_op, layer(x)[0], atol=2e-2, rtol=2e-2)
