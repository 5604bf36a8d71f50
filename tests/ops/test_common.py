"""The way to Triton that all ops share, and the processes in which their kernels are interpreted (triton_forms.py)."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from triton_forms import DEVICE, key_problem, run_alone, tensor

from memory_mosaics import ContextualMemoryConfig, LanguageModel, LanguageModelConfig, PersistentMemoryConfig
from memory_mosaics.ops import common
from memory_mosaics.ops.cross_entropy import linear_cross_entropy
from memory_mosaics.ops.leaky_average import leaky_key
from memory_mosaics.ops.taps import tap_values

CHECKED = hasattr(leaky_key, "__wrapped__")  # shapes are, on every call: no compiler sees through that
FILES = [path for path in sorted(Path(__file__).parent.glob("test_*.py")) if "\nclass TestTriton" in path.read_text()]


@pytest.mark.slow
@pytest.mark.skipif(not common.TRITON, reason="triton is not installed")
@pytest.mark.skipif(common.INTERPRETED or DEVICE == "cuda", reason="the kernels are tested in this process")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem.removeprefix("test_"))
def test_triton_kernels_under_the_interpreter(file):
    run_alone("TestTriton", str(file), TRITON_INTERPRET="1")


@pytest.mark.slow
@pytest.mark.skipif(not CHECKED, reason="the compiled op is tested in this process")
def test_triton_without_checks_of_shapes():
    run_alone("compiled_whole", __file__, TRITON_INTERPRET="1")


@pytest.mark.skipif(CHECKED, reason="no compiler sees through checks of shapes")
def test_triton_compiled_whole():
    (raw, decay, mean, scale), _ = key_problem(70, torch.float32)
    coefficients, weight = tensor(3, 2), tensor(50, 3 * 16)
    targets = torch.randint(50, (2 * 69,), device=DEVICE)
    inputs = raw, decay, mean, scale, coefficients, weight

    def loss_of(raw, decay, mean, scale, coefficients, weight):
        key, _ = leaky_key(raw, decay, mean, scale)
        value = tap_values(raw, coefficients)
        return linear_cross_entropy((key[:, 1:] * value).flatten(0, 1).flatten(1), weight, targets)

    results = []
    for form in (loss_of, torch.compile(loss_of, fullgraph=True, backend="aot_eager")):
        loss = form(*inputs)
        results.append((loss, *torch.autograd.grad(loss, inputs)))
    assert_close(*results)


class Calls(TorchDispatchMode):
    """The ops of ours that are called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "memory_mosaics":
            self.names.add(func.name().removeprefix("memory_mosaics::"))
        return func(*args, **kwargs or {})


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize("triton", [True, False], ids=["with Triton", "without Triton"])
def test_cuda_trains_with_triton_and_without(triton, monkeypatch):
    monkeypatch.setattr(common, "TRITON", triton)
    memories = dict(
        sequence_mixer=ContextualMemoryConfig(heads=2), channel_mixer=PersistentMemoryConfig(heads=2, slots=8)
    )
    config = LanguageModelConfig(width=32, blocks=1, context=16, vocabulary=20, **memories)
    model, tokens = LanguageModel(config).to("cuda", torch.bfloat16), torch.randint(20, (2, 17), device="cuda")
    with Calls() as calls:
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    assert all(weight.grad is not None for weight in model.parameters())
    forward = {"leaky_key", "tap_values", "contextual_recall", "linear_cross_entropy"} if triton else set()
    assert calls.names == forward | {f"{name}_backward" for name in forward - {"linear_cross_entropy"}}


def test_what_triton_can_use(monkeypatch):
    monkeypatch.setattr(common, "TRITON", True)
    monkeypatch.setattr(common, "INTERPRETED", True)
    x = torch.empty(2, 3, 16)
    assert common.can_use_triton(x)
    assert common.can_use_triton(x, x, widths=(16, 32), dtypes=(torch.float32,))
    assert not common.can_use_triton(x, widths=(32,))
    assert not common.can_use_triton(x, dtypes=(torch.float16,))
    assert not common.can_use_triton(x, x.bfloat16())
    assert not common.can_use_triton(x.double())
    assert not common.can_use_triton(x, x[:0])
    monkeypatch.setattr(common, "INTERPRETED", False)
    assert not common.can_use_triton(x)


@pytest.mark.parametrize(("counts", "expected"), [([3, 3], 3), ([3, 4], None), ([], None)], ids=str)
def test_a_count_that_all_rows_share_is_read_on_the_host(counts, expected):
    assert common.host_count(torch.tensor(counts, dtype=torch.long)) == expected
