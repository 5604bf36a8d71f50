"""How Triton forms are tested: in classes called TestTriton, against the definition of their op.

Their kernels run on a CUDA device or, in a process of its own, in Triton's interpreter, which must be enabled before
Triton is imported: test_common.py starts these processes. Anywhere else the same tests run the PyTorch forms.
"""

import builtins
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from memory_mosaics.ops import common

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNELS = common.TRITON and (DEVICE == "cuda" or common.INTERPRETED)  # they run in this process
AWKWARD = [1, 2, 63, 130, 1000]
TOLERANCE = {torch.float32: 1e-5 if DEVICE == "cpu" else 1e-4, torch.bfloat16: 5e-3}  # the second is bfloat16's own

needs_kernels = pytest.mark.skipif(not KERNELS, reason="needs CUDA or Triton's interpreter")
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
starts = pytest.mark.parametrize("start", ["empty", "given"])
times = pytest.mark.parametrize("time", AWKWARD)


def run_alone(tests: str, file: str, **environment: str) -> None:
    """These tests of a file in a process of their own, without the checks of shapes on every call."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-k", tests, file]
    environment = os.environ | {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"} | environment
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


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


def check_registration(op: str, *inputs: object) -> None:
    """Schema, fake form and gradient of a custom op fit to what it does."""
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(getattr(torch.ops.memory_mosaics, op).default, inputs, test_utils=checks)


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
