"""Benchmarks at sizes that take no time, on a machine of known ceilings."""

from dataclasses import replace

import pytest

from memory_mosaics.benchmarks import bench, kernels, profile, throughput

CEILINGS = {"product": "by decree", "product_tflops": 1.0, "copy_gbs": 100.0}
SIZE = throughput.Size(name="tiny", width=16, blocks=1, heads=2, vocabulary=20, batch=2, time=12)
LENGTHS = throughput.Lengths(SIZE, 24, (6, 12))
DECODE_SIZE = throughput.DecodeSize(SIZE, 4, 8, (1, 3))
SHAPES = (kernels.Shape(2, 40, 2, 16, 6, 30), kernels.Shape(1, 33, 2, 16, 6, 30))


@pytest.fixture
def tiny(monkeypatch):
    sizes = [(SIZE, tuple(throughput.MODELS)), (replace(SIZE, blocks=2), throughput.PAIR)]
    monkeypatch.setitem(throughput.SIZES, "cpu", sizes)
    monkeypatch.setitem(throughput.LENGTHS, "cpu", LENGTHS)
    monkeypatch.setitem(throughput.DECODE_SIZES, "cpu", DECODE_SIZE)
    monkeypatch.setattr(throughput, "CACHES", {})
    monkeypatch.setitem(profile.SIZES, "cpu", SIZE)
    monkeypatch.setitem(kernels.SHAPES, "cpu", SHAPES)
    monkeypatch.setattr(bench, "measure_ceilings", lambda timer: CEILINGS)
