"""RegBench on a CUDA device: captured steps learn what eager ones learn, for every architecture. `make test-gpu`."""

import pytest
import torch
from torch.testing import assert_close

from experiments.conftest import SETTINGS, train_regbench
from memory_mosaics.experiments.regbench import make_task
from memory_mosaics.experiments.regbench_models import ARCHITECTURES
from memory_mosaics.mixers import linear_attention as linear
from memory_mosaics.runtime import Runtime
from memory_mosaics.tasks.regbench import RegBench, metrics
from on_cuda import ON_CUDA

pytestmark = ON_CUDA
SIZES = {"environments": 70, "blocks": 2, "width": 64, "learning_rate": 1e-3, "epochs": 4, "held_out": 20}


def losses(name, folder, **runtime):
    settings = SETTINGS | SIZES | {"architecture": name, "heads": 2 if ARCHITECTURES[name].heads else None}
    outcome = train_regbench(settings, folder, precision="float32", **runtime)
    assert outcome is not None
    return outcome["curve"]["train_loss"], outcome["curve"]["valid_loss"]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_captured_steps_learn_what_the_cpu_learns(name, compiled, tmp_path):
    train, valid = losses(name, tmp_path / "cuda", device="cuda", compile=compiled)
    assert train[-1] < train[0]
    if not compiled:
        _, expected = losses(name, tmp_path / "cpu", device="cpu")
        assert valid == pytest.approx(expected, rel=2e-2)  # other units drop out


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_captured_validation_uses_the_current_weights(precision):
    here = Runtime(torch.device("cuda"), precision=precision)
    task = RegBench(make_task(SETTINGS | SIZES), device=here.device)
    model = ARCHITECTURES["memory-mosaic"].config(blocks=2, heads=2, width=64).build().cuda().eval()
    for _ in range(4):
        found, expected = task.evaluate(model, here), metrics(task.sums(model, "validation", here))
        assert found.pop("valid_loss") == pytest.approx(expected.pop("loss"), rel=1e-5)
        assert found == pytest.approx(expected, rel=1e-5)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.1 * torch.randn_like(weight)


@pytest.mark.skipif(linear.flash_kernel("gla", "chunk_gla") is None, reason="flash-linear-attention is not installed")
@pytest.mark.parametrize(("decay", "width"), [((1, 300, 2, 1), 32), ((3, 300, 2, 16), 33)], ids=["retnet", "gla"])
def test_flash_linear_attention_gives_the_same(decay, width, monkeypatch):
    inputs = [torch.randn(3, 300, 2, size, device="cuda", requires_grad=True) for size in (16, 16, width)]
    log_decay, memory = -torch.rand(decay, device="cuda"), torch.randn(3, 2, 16, width, device="cuda")

    def answers():
        found = linear.linear_attention(*inputs, log_decay, memory)
        return [*found, *torch.autograd.grad(found[0].square().sum(), inputs)]

    flash = answers()
    monkeypatch.setattr(linear, "flash_kernel", lambda *_: None)
    assert_close(flash, answers(), rtol=2e-2, atol=2e-2)
