"""On a CUDA device: events, peak memory, kernels and compiled steps, at sizes that take no time."""

import time
from dataclasses import replace

import pytest
import torch

from benchmarks.conftest import CEILINGS, SIZE, WORK
from memory_mosaics.benchmarks import kernels, profile, throughput
from memory_mosaics.benchmarks.timing import Timer, measure_ceilings
from memory_mosaics.runtime import RuntimeConfig, start_runtime
from on_cuda import ON_CUDA

pytestmark = ON_CUDA


@pytest.fixture
def timer():
    # As the command has it: what stays in float32 uses TF32.
    with start_runtime(RuntimeConfig(device="cuda")) as world:
        yield Timer(world.device)


def test_measure_ceilings(timer):
    limits = measure_ceilings(timer, repeats=3)
    assert limits["product_tflops"] > 1
    assert limits["copy_gbs"] > 50


def test_events_see_the_device(timer):
    x = torch.randn(4096, 4096, device="cuda")
    once, thrice = (timer.median(lambda n=n: [x @ x for _ in range(n)], 5) for n in (1, 3))
    assert 2 < thrice / once < 4


def test_peak_memory(timer):
    timer.reset()
    torch.empty(2**28, dtype=torch.uint8, device="cuda")
    assert timer.peak_gib() == pytest.approx(0.25, abs=0.01)


def test_training_and_memory(timer):
    rows = list(throughput.measure_training(timer, CEILINGS, replace(WORK, sizes=[(SIZE, throughput.MODELS)])))
    rows += throughput.measure_lengths(timer, CEILINGS, WORK)
    assert not [(row["model"], row["failed"]) for row in rows if "failed" in row]
    assert all(row["tokens_per_second"] > 0 and row["peak_gib"] > 0 for row in rows)


def test_decoding(timer, monkeypatch):
    monkeypatch.setattr(throughput, "CACHES", {})
    assert all(row["token_ms"] > 0 for row in throughput.measure_decoding(timer, CEILINGS, WORK))


def test_kernels(timer):
    size = replace(SIZE, width=128, vocabulary=512)
    work = replace(WORK, sizes=[(size, throughput.PAIR)], shapes=[(2, 256)])
    rows = list(kernels.measure(timer, CEILINGS, work))
    assert {row["form"] for row in rows} == {"PyTorch", "op", "recall", "flash", "efficient", "cuDNN"}
    assert not [row for row in rows if row["failed"] and row["form"] != "cuDNN"]


def test_cold_times_are_the_devices_alone(timer):
    x = torch.randn(64, 64, device="cuda")

    def slow_to_launch():
        time.sleep(0.002)
        return x @ x

    assert timer.median(slow_to_launch, 30, warm_up=1, cold=True) < 0.001


def test_backward_passes_are_captured(timer):
    x = torch.randn(512, 512, device="cuda", requires_grad=True)
    timer.synchronize()
    with timer.side_stream():
        answer = (x @ x).sin()
    gradient = torch.ones_like(answer)
    timer.synchronize()

    def act():
        found.append(torch.autograd.grad(answer, x, gradient, retain_graph=True)[0])

    found = []
    replay = timer.captured(act)
    before = found[0].clone()
    found[-1].zero_()
    replay()
    torch.testing.assert_close(found[-1], before)


def test_profile(timer):
    size = throughput.Size(name="small", width=128, blocks=2, heads=2, vocabulary=512, batch=4, context=256)
    work = replace(WORK, sizes=[(size, throughput.PAIR)], batches=[1], prompt=16, length=64)
    found = [row for row in profile.measure(timer, CEILINGS, work) if "kernel" not in row]
    for step in ("training", "decoding"):
        rows = {
            name: {row["kind"]: row for row in found if (row["step"], row["model"]) == (step, name)}
            for name in throughput.PAIR
        }
        mosaic, twin = rows["memory-mosaic"], rows["transformer"]
        assert mosaic[profile.CONTEXT]["ms"] > 0
        assert mosaic[profile.PERSISTENT]["ms"] > 0
        assert profile.PERSISTENT not in twin
        assert profile.IDLE in mosaic
        assert sum(row["share"] for row in mosaic.values()) == pytest.approx(1, abs=0.01)
        if step == "training":
            assert {profile.KEYS, profile.VALUES, profile.LOSS, profile.OPTIMISER} <= set(mosaic)
            assert mosaic[profile.KEYS]["launches"] == 8  # two layers in each of two blocks, forward and backward
