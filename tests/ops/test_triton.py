"""The Triton forms against their definitions. Without a CUDA device the kernels run in Triton's interpreter, which must
be asked for before Triton is imported: in a process of its own, so that no other test sees it.
"""

import builtins
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.ops.triton import cross_entropy, gated_average, leaky_average, taps

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CHECKED = hasattr(leaky_average.leaky_key, "__wrapped__")  # shapes are, on every call: no compiler sees through that
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
AWKWARD = [1, 2, 63, 130, 1000]
TOLERANCE = {torch.float32: 1e-5 if DEVICE == "cpu" else 1e-4, torch.bfloat16: 5e-3}  # the second is bfloat16's own


def run_alone(tests: str, *, file: str = __file__, **environment: str) -> None:
    """These tests of a file in a process of their own, without the checks of shapes on every call."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-k", tests, file]
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"} | environment
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(INTERPRETED or DEVICE == "cuda", reason="the kernels are tested in this process")
def test_kernels_under_the_interpreter():
    run_alone("TestForms", TRITON_INTERPRET="1")


@pytest.mark.skipif(not CHECKED, reason="the compiled op is tested in this process")
def test_without_checks_of_shapes():
    run_alone("test_compiled_whole")


def mend_interpreter() -> None:
    """Triton 3.6 interprets bfloat16 loosely, and loops not at all beside numpy 2.4: products take the bits of a
    bfloat16 for an integer, conversions cut off where the device rounds, and an array of one is no longer a number.
    """
    import numpy as np
    from triton.runtime import interpreter

    class Kind(type):
        def __instancecheck__(cls, x):
            return isinstance(x, builtins.int)

    class Int(metaclass=Kind):
        def __new__(cls, x):
            return builtins.int(x.item() if isinstance(x, np.ndarray) else x)

    def convert(data, source, to, rounding):
        if (source.name, to.name) == ("bf16", "fp32"):
            return data.astype(np.uint32) << 16
        if (source.name, to.name) == ("fp32", "bf16"):
            bits = data.view(np.uint32)
            return np.where(np.isnan(data), 0x7FC0, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return original(data, source, to, rounding)

    def dot(self, a, b, total, precision, imprecise):
        a, b = (convert(x.data, x.dtype, F32, None).view(np.float32) if x.dtype == BF16 else x.data for x in (a, b))
        return interpreter.TensorHandle(np.matmul(a, b, dtype=np.float32) + total.data, total.dtype.scalar)

    original, F32, BF16 = interpreter._convert_float, interpreter.tl.float32, interpreter.tl.bfloat16
    interpreter.int, interpreter._convert_float = Int, convert
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter._patch_lang(interpreter.tl.sum.fn)  # once for all, instead of at every call of a function by a kernel
    interpreter.InterpretedFunction.__call__ = lambda self, *given, **named: self.rewrite()(*given, **named)


if INTERPRETED:
    mend_interpreter()


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Memory that no kernel has written holds NaN."""
    with torch.device("cpu"):  # PyTorch lists what makes tensors when it is first asked: before it is another function
        empty = torch.empty
        empty(0)

    def poisoned(*shape, **options):
        memory = empty(*shape, **options)
        return memory.fill_(float("nan")) if memory.is_floating_point() else memory

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def strided(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Every other head of a tensor with more of everything, from its second step on."""
    B, T, H, D = shape
    return torch.randn(B + 1, T + 2, 2 * H, D, device=DEVICE).to(dtype)[1:, 1 : T + 1, ::2].requires_grad_()


def with_gradients(form, inputs, weights) -> list[torch.Tensor]:
    given = [x for x in inputs if x is not None and x.is_floating_point()]
    answers = form(*inputs)
    answers = answers if isinstance(answers, tuple) else (answers,)
    loss = sum((answer.float() * weight).sum() for answer, weight in zip(answers, weights, strict=True))
    return [*answers, *torch.autograd.grad(loss, given)]


def assert_same(fast: list[torch.Tensor], slow: list[torch.Tensor], tolerance: float) -> None:
    """Each within the tolerance of the norm of the largest entries: a sum of many may be nearly zero."""
    for found, expected in zip(fast, slow, strict=True):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        found, expected = found.double(), expected.double()
        assert found.isfinite().all()
        error = (found - expected).norm() / expected.norm().clamp(min=1e-3)
        assert error < tolerance, (found.shape, error)


def key_problem(time, dtype, *, start="given", width=16, batch=2, decays=(0.05, 0.6, 0.999)):
    heads = len(decays)
    raw = strided(batch, time, heads, width, dtype=dtype)
    decay = torch.tensor(decays, device=DEVICE, requires_grad=True)
    mean = tensor(batch, heads, width) if start == "given" else None
    scale = torch.linspace(1, 8, heads, device=DEVICE).requires_grad_() if start == "given" else None
    weights = torch.randn(batch, time, heads, width, device=DEVICE), torch.randn(batch, heads, width, device=DEVICE)
    return (raw, decay, mean, scale), weights


dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
starts = pytest.mark.parametrize("start", ["empty", "given"])
times = pytest.mark.parametrize("time", AWKWARD)


class TestForms:
    """Outside of the interpreter, on a CPU, these are the plain torch forms of the ops."""

    @times
    @dtypes
    @starts
    def test_keys(self, time, dtype, start):
        inputs, weights = key_problem(time, dtype, start=start, batch=2 if start == "given" and time < 1000 else 1)
        fast, slow = (
            with_gradients(form, inputs, weights) for form in (leaky_average.leaky_key, leaky_average.reference)
        )
        # What reaches the decay is a sum of terms of both signs, each as exact as a key.
        assert_close(fast.pop(3), slow.pop(3), rtol=0.05, atol=TOLERANCE[dtype] * 2 * time**0.5)
        assert_same(fast, slow, TOLERANCE[dtype])

    @pytest.mark.parametrize("width", [32, 64, 128])
    def test_keys_of_any_width(self, width):
        inputs, weights = key_problem(70, torch.float32, width=width, batch=1)
        fast, slow = (
            with_gradients(form, inputs, weights) for form in (leaky_average.leaky_key, leaky_average.reference)
        )
        assert_same(fast, slow, 1e-4)

    def test_keys_of_nothing_are_nothing(self):
        (_, decay, *_), _ = key_problem(3, torch.float32)
        raw = torch.zeros(2, 70, 3, 16, device=DEVICE, requires_grad=True)
        key, last = leaky_average.leaky_key(raw, decay)
        (gradient,) = torch.autograd.grad(key.sum(), raw)
        assert key.abs().max() == last.abs().max() == 0
        assert gradient.isfinite().all()

    @pytest.mark.parametrize("decays", [(0.0, 1.0), (1e-30, 0.9999)], ids=str)
    def test_extreme_decays(self, decays):
        inputs, weights = key_problem(600, torch.float32, decays=decays, batch=1)
        fast, slow = (
            with_gradients(form, inputs, weights) for form in (leaky_average.leaky_key, leaky_average.reference)
        )
        assert_same(fast, slow, 1e-4)

    @pytest.mark.skipif(
        not leaky_average.runs_kernels(torch.empty(0, device=DEVICE)), reason="segments are the kernels'"
    )
    @pytest.mark.parametrize("time", [70, 300])
    def test_segments_do_not_show(self, time):
        """What enters a segment or a stretch comes from nothing, a few steps, most of a segment, or all before it."""
        (raw, decay, mean, scale), weights = key_problem(time, torch.float32, decays=(0.0, 0.6, 0.97, 1.0), batch=1)
        d_key, d_last = (x.detach().to(DEVICE) for x in weights)
        given = (raw.detach(), decay.detach(), mean.detach(), scale.detach())
        whole, *cut = (leaky_average.forward_kernels(*given, rows=rows) for rows in (320, 64, 96, 256))
        for parts in cut:
            assert_same(parts, whole, 1e-5)
        key, _, norm = whole
        back = (d_key, d_last, key, norm, given[1], given[2], given[3])
        whole, *cut = (
            [x.sum(0) if x.ndim == 2 else x for x in leaky_average.backward_kernels(*back, rows=rows)]
            for rows in (320, 64, 96, 256)
        )
        for parts in cut:
            assert_same(parts, whole, 1e-4)

    def test_only_the_last_average_is_used(self):
        inputs, _ = key_problem(70, torch.float32)
        fast, slow = (
            torch.autograd.grad(form(*inputs)[1].sum(), inputs[:3])
            for form in (leaky_average.leaky_key, leaky_average.reference)
        )
        assert_same(list(fast), list(slow), 1e-4)

    @times
    @dtypes
    @starts
    def test_gated_keys(self, time, dtype, start):
        (raw, _, mean, _), weights = key_problem(time, dtype, start=start, batch=1)
        decay, gate = (torch.rand(1, time, 3, device=DEVICE) for _ in range(2))
        decay[:, :, 1:] = 1 - decay[:, :, 1:].square() / 50
        inputs = raw, decay.requires_grad_(), gate.requires_grad_(), mean
        forms = gated_average.gated_key, gated_average.reference
        fast, slow = (with_gradients(form, inputs, weights) for form in forms)
        assert_same(fast, slow, 3 * TOLERANCE[dtype])

    @times
    @dtypes
    def test_values(self, time, dtype):
        batch = 2 if time < 1000 else 1
        raw, coefficients = strided(batch, time, 3, 16, dtype=dtype), tensor(3, 2)
        weights = (torch.randn(batch, time - 1, 3, 16, device=DEVICE),)
        fast, slow = (
            with_gradients(form, (raw, coefficients), weights) for form in (taps.tapped_value, taps.reference)
        )
        assert_close(fast.pop(), slow.pop(), rtol=0.05, atol=TOLERANCE[dtype] * 2 * time**0.5)
        assert_same(fast, slow, TOLERANCE[dtype])

    @pytest.mark.parametrize(("rows", "vocabulary"), [(1, 10), (63, 1000), (300, 777)])
    @dtypes
    def test_loss(self, rows, vocabulary, dtype, monkeypatch):
        monkeypatch.setattr(cross_entropy.in_chunks, "__defaults__", (128 * vocabulary * dtype.itemsize,))
        features, weight = tensor(rows, 32, dtype=dtype), tensor(vocabulary, 32)
        targets = torch.randint(vocabulary, (rows,), device=DEVICE)
        targets[1::7] = -100
        forms = cross_entropy.linear_cross_entropy, cross_entropy.reference
        fast, slow = (
            with_gradients(form, (features, weight, targets), (torch.tensor(3.0, device=DEVICE),)) for form in forms
        )
        assert_same(fast, slow, 2 * TOLERANCE[dtype])

    def test_loss_without_gradients(self):
        features, weight = tensor(20, 16), tensor(50, 16)
        targets = torch.randint(50, (20,), device=DEVICE)
        with torch.no_grad():
            found = cross_entropy.linear_cross_entropy(features, weight, targets)
        assert_close(found, cross_entropy.reference(features, weight, targets))


@pytest.mark.skipif(INTERPRETED or CHECKED, reason="neither the interpreter nor checks of shapes compile")
def test_compiled_whole():
    (raw, decay, mean, scale), _ = key_problem(70, torch.float32)
    coefficients, weight = tensor(3, 2), tensor(50, 3 * 16)
    targets = torch.randint(50, (2 * 69,), device=DEVICE)
    inputs = raw, decay, mean, scale, coefficients, weight

    def loss_of(raw, decay, mean, scale, coefficients, weight):
        key, _ = leaky_average.leaky_key(raw, decay, mean, scale)
        value = taps.tapped_value(raw, coefficients)
        return cross_entropy.linear_cross_entropy((key[:, 1:] * value).flatten(0, 1).flatten(1), weight, targets)

    results = []
    for form in (loss_of, torch.compile(loss_of, fullgraph=True, backend="aot_eager")):
        loss = form(*inputs)
        results.append((loss, *torch.autograd.grad(loss, inputs)))
    assert_close(*results)


@pytest.mark.parametrize("op", ["leaky_key", "gated_key", "tapped_value", "linear_cross_entropy"])
@pytest.mark.skipif(INTERPRETED, reason="checks the registration, not the kernels")
def test_ops_are_well_registered(op):
    inputs = {
        "leaky_key": key_problem(20, torch.float32)[0],
        "gated_key": (tensor(2, 9, 3, 16), *torch.rand(2, 2, 9, 3, device=DEVICE), tensor(2, 3, 16)),
        "tapped_value": (tensor(2, 9, 3, 16), tensor(3, 2)),
        "linear_cross_entropy": (tensor(9, 16), tensor(20, 16), torch.arange(9, device=DEVICE), -100, True),
    }[op]
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(getattr(torch.ops.memory_mosaics, op).default, inputs, test_utils=checks)
