"""On a CUDA device: events, peak memory, kernels and compiled steps, at sizes that take no time."""

import time

import pytest
import torch

from benchmarks.conftest import CEILINGS, LENGTHS, SIZE, TASK
from memory_mosaics import runtime
from memory_mosaics.benchmarks import decode, kernels, kinds, memory, profile, train
from memory_mosaics.benchmarks.clock import Clock, ceilings
from memory_mosaics.runtime import RuntimeConfig
from on_cuda import ON_CUDA

pytestmark = ON_CUDA


@pytest.fixture
def clock():
    with runtime.start(RuntimeConfig(device="cuda")) as world:  # as the command has it: what stays in float32 uses TF32
        yield Clock(world.device)


def test_ceilings(clock):
    limits = ceilings(clock, repeats=3)
    assert limits["product_tflops"] > 1
    assert limits["copy_gbs"] > 50


def test_events_see_the_device(clock):
    x = torch.randn(4096, 4096, device="cuda")
    once, thrice = (clock.seconds(lambda n=n: [x @ x for _ in range(n)], 5) for n in (1, 3))
    assert 2 < thrice / once < 4


def test_peak_memory(clock):
    clock.start_over()
    torch.empty(2**28, dtype=torch.uint8, device="cuda")
    assert clock.peak() == pytest.approx(0.25, abs=0.01)


def test_training_and_memory(clock):
    rows = list(train.measure(clock, CEILINGS, sizes=[(SIZE, tuple(train.MODELS))], repeats=2))
    rows += memory.measure(clock, CEILINGS, lengths=LENGTHS, repeats=2)
    assert not [(row["model"], row["failed"]) for row in rows if "failed" in row]
    assert all(row["tokens_per_second"] > 0 and row["peak_gib"] > 0 for row in rows)


def test_decoding(clock, monkeypatch):
    monkeypatch.setattr(decode, "CACHES", {})
    assert all(row["token_ms"] > 0 for row in decode.measure(clock, CEILINGS, task=TASK, repeats=1))


def test_kernels(clock):
    rows = list(kernels.measure(clock, CEILINGS, shapes=(kernels.Shape(2, 256, 2, 64, 128, 512),), repeats=2))
    assert {row["form"] for row in rows} == {"PyTorch", "op", "recall", "flash", "efficient", "cuDNN"}
    assert not [row for row in rows if row["failed"] and row["form"] != "cuDNN"]


def test_cold_times_are_the_devices_alone(clock):
    x = torch.randn(64, 64, device="cuda")

    def slow_to_launch():
        time.sleep(0.002)
        return x @ x

    assert clock.seconds(slow_to_launch, 30, warm_up=1, cold=True) < 0.001


def test_backward_passes_are_recorded(clock):
    x = torch.randn(512, 512, device="cuda", requires_grad=True)
    clock.wait()
    with clock.aside():
        answer = (x @ x).sin()
    gradient = torch.ones_like(answer)
    clock.wait()

    def act():
        found.append(torch.autograd.grad(answer, x, gradient, retain_graph=True)[0])

    found = []
    replay = clock.recorded(act)
    before = found[0].clone()
    found[-1].zero_()
    replay()
    torch.testing.assert_close(found[-1], before)


def test_profile(clock):
    size = train.Size(name="small", width=128, blocks=2, heads=2, vocabulary=512, batch=4, time=256)
    found = profile.measure(clock, CEILINGS, size=size, task=decode.Task(size, 16, 64, (1,)), repeats=2)
    for step in ("training", "decoding"):
        rows = {
            name: {row["kind"]: row for row in found["rows"] if (row["step"], row["model"]) == (step, name)}
            for name in train.PAIR
        }
        mosaic, twin = rows["memory-mosaic"], rows["transformer"]
        assert mosaic[kinds.CONTEXT]["ms"] > 0
        assert mosaic[kinds.PERSISTENT]["ms"] > 0
        assert kinds.PERSISTENT not in twin
        assert kinds.IDLE in mosaic
        assert sum(row["share"] for row in mosaic.values()) == pytest.approx(1, abs=0.01)
        if step == "training":
            assert {kinds.KEYS, kinds.VALUES, kinds.LOSS, kinds.OPTIMISER} <= set(mosaic)
            assert mosaic[kinds.KEYS]["launches"] == 8  # two layers in each of two blocks, forward and backward
