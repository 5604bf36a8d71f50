import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from triton_forms import (
    AWKWARD,
    DEVICE,
    TOLERANCE,
    assert_same,
    check_registration,
    dtypes,
    key_problem,
    needs_kernels,
    starts,
    times,
    with_gradients,
)

from memory_mosaics.ops import leaky_average as module
from memory_mosaics.ops.leaky_average import CHUNK, _in_chunks, key_reference, leaky_average, leaky_key, reference


def by_products(x, decay, mean=None):
    """The form for compilers and GPUs."""
    means = _in_chunks(x, decay, x.new_zeros(x.shape[0], *x.shape[2:]) if mean is None else mean)
    return means, means[:, -1]


def problem(time: int, *, heads: int = 3, width: int = 5, batch: int = 2) -> tuple[torch.Tensor, ...]:
    x = torch.randn(batch, time, heads, width, requires_grad=True)
    decay = torch.linspace(0.05, 0.999, heads, requires_grad=True)
    mean = torch.randn(batch, heads, width, requires_grad=True)
    return x, decay, mean


@pytest.mark.parametrize("time", AWKWARD)
@pytest.mark.parametrize("start", ["empty", "given"])
def test_values_and_gradients_are_those_of_the_definition(time, start):
    x, decay, mean = problem(time)
    inputs = (x, decay) if start == "empty" else (x, decay, mean)
    weights = torch.randn_like(x)
    results = []
    for form in (leaky_average, by_products, reference):
        means, last = form(*inputs)
        loss = (means * weights).sum() + last.square().sum()
        results.append((means, last, *torch.autograd.grad(loss, inputs)))
    for *fast, slow in zip(*results, strict=True):
        for found in fast:
            assert_close(found, slow, rtol=1e-4, atol=1e-4)


@settings(max_examples=40)
@given(
    time=st.integers(0, 3 * CHUNK + 1),
    batch=st.integers(1, 3),
    heads=st.integers(1, 4),
    width=st.integers(1, 6),
)
def test_any_shape(time, batch, heads, width):
    x, decay, mean = problem(time, heads=heads, width=width, batch=batch)
    assert_close(leaky_average(x, decay, mean), reference(x, decay, mean), rtol=1e-4, atol=1e-4)


@settings(max_examples=20)
@given(cut=st.integers(0, 100))
def test_continuing_from_the_last_average_is_going_on(cut):
    x, decay, _ = problem(100)
    first, middle = leaky_average(x[:, :cut], decay)
    second, last = leaky_average(x[:, cut:], decay, middle)
    whole, end = leaky_average(x, decay)
    assert_close(torch.cat([first, second], dim=1), whole)
    assert_close(last, end)


def test_no_decay_forgets_all_and_decay_one_sums():
    x, _, _ = problem(70, heads=2)
    means, _ = leaky_average(x, torch.tensor([0.0, 1.0]))
    assert_close(means[:, :, 0], x[:, :, 0])
    assert_close(means[:, :, 1], x[:, :, 1].cumsum(dim=1), rtol=1e-4, atol=1e-4)


def test_bfloat16_inputs_are_averaged_in_float32():
    x, decay, _ = problem(300)
    x = x.detach().bfloat16()
    means, last = leaky_average(x, decay)
    exact, _ = reference(x.float(), decay)
    assert means.dtype == torch.bfloat16
    assert last.dtype == torch.float32
    assert_close(means, exact.bfloat16(), rtol=1e-2, atol=1e-2)
    assert_close(last, exact[:, -1], rtol=1e-4, atol=1e-4)


def test_autocast_does_not_reach_the_average():
    x, decay, _ = problem(100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        means, _ = leaky_average(x, decay)
    assert_close(means, reference(x, decay)[0], rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_small_differences():
    x, decay, mean = (tensor.detach().double().requires_grad_() for tensor in problem(40, heads=2, width=2, batch=1))
    assert torch.autograd.gradcheck(leaky_average, (x, decay, mean))


class TestTriton:
    @times
    @dtypes
    @starts
    def test_keys(self, time, dtype, start):
        inputs, weights = key_problem(time, dtype, start=start, batch=2 if start == "given" and time < 1000 else 1)
        fast, slow = (with_gradients(form, inputs, weights) for form in (leaky_key, key_reference))
        # What reaches the decay is a sum of terms of both signs, each as exact as a key.
        assert_close(fast.pop(3), slow.pop(3), rtol=0.05, atol=TOLERANCE[dtype] * 2 * time**0.5)
        assert_same(fast, slow, TOLERANCE[dtype])

    @pytest.mark.parametrize("width", [32, 64, 128])
    def test_keys_of_any_width(self, width):
        inputs, weights = key_problem(70, torch.float32, width=width, batch=1)
        fast, slow = (with_gradients(form, inputs, weights) for form in (leaky_key, key_reference))
        assert_same(fast, slow, 1e-4)

    def test_keys_of_nothing_are_nothing(self):
        (_, decay, *_), _ = key_problem(3, torch.float32)
        raw = torch.zeros(2, 70, 3, 16, device=DEVICE, requires_grad=True)
        key, last = leaky_key(raw, decay)
        (gradient,) = torch.autograd.grad(key.sum(), raw)
        assert key.abs().max() == last.abs().max() == 0
        assert gradient.isfinite().all()

    @pytest.mark.parametrize("decays", [(0.0, 1.0), (1e-30, 0.9999)], ids=str)
    def test_extreme_decays(self, decays):
        inputs, weights = key_problem(600, torch.float32, decays=decays, batch=1)
        fast, slow = (with_gradients(form, inputs, weights) for form in (leaky_key, key_reference))
        assert_same(fast, slow, 1e-4)

    @needs_kernels
    @pytest.mark.parametrize("time", [70, 300])
    def test_segments_do_not_show(self, time, monkeypatch):
        """What enters a segment or a stretch comes from nothing, a few steps, most of a segment, or all before it."""
        inputs, weights = key_problem(time, torch.float32, decays=(0.0, 0.6, 0.97, 1.0), batch=1)

        def found(rows):
            monkeypatch.setattr(module, "segments", lambda *_: (rows, -(-time // rows)))
            return with_gradients(leaky_key, inputs, weights)

        whole, *cut = (found(rows) for rows in (320, 64, 96, 256))
        for parts in cut:
            assert_same(parts[:2], whole[:2], 1e-5)
            assert_same(parts[2:], whole[2:], 1e-4)

    def test_only_the_last_average_is_used(self):
        inputs, _ = key_problem(70, torch.float32)
        fast, slow = (torch.autograd.grad(form(*inputs)[1].sum(), inputs[:3]) for form in (leaky_key, key_reference))
        assert_same(list(fast), list(slow), 1e-4)

    @needs_kernels
    @starts
    def test_registration(self, start):
        check_registration("leaky_key", *key_problem(20, torch.float32, start=start)[0])
