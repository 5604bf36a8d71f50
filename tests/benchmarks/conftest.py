"""Benchmarks at sizes that take no time, on a machine of known ceilings."""

from dataclasses import replace

import pytest

from memory_mosaics.benchmarks import bench, decode, kernels, memory, profile, train

CEILINGS = {"product": "by decree", "product_tflops": 1.0, "copy_gbs": 100.0}
SIZE = train.Size(name="tiny", width=16, blocks=1, heads=2, vocabulary=20, batch=2, time=12)
LENGTHS = memory.Lengths(SIZE, 24, (6, 12))
TASK = decode.Task(SIZE, 4, 8, (1, 3))
SHAPES = (kernels.Shape(2, 40, 2, 16, 6, 30), kernels.Shape(1, 33, 2, 16, 6, 30))


@pytest.fixture
def tiny(monkeypatch):
    sizes = [(SIZE, tuple(train.MODELS)), (replace(SIZE, blocks=2), train.PAIR)]
    monkeypatch.setitem(train.SIZES, "cpu", sizes)
    monkeypatch.setitem(memory.SIZES, "cpu", LENGTHS)
    monkeypatch.setitem(decode.TASKS, "cpu", TASK)
    monkeypatch.setattr(decode, "CACHES", {})
    monkeypatch.setitem(profile.SIZES, "cpu", SIZE)
    monkeypatch.setitem(kernels.SHAPES, "cpu", SHAPES)
    monkeypatch.setattr(bench, "ceilings", lambda clock: CEILINGS)
