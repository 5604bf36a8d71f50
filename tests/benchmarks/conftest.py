"""Benchmarks at sizes that take no time, on a machine of known ceilings."""

from dataclasses import replace

import pytest

from memory_mosaics.benchmarks import bench, throughput

CEILINGS = {"product": "by decree", "product_tflops": 1.0, "copy_gbs": 100.0}
SIZE = throughput.Size(name="tiny", width=16, blocks=1, heads=2, vocabulary=20, batch=2, context=12)
WORK = throughput.Workload(
    sizes=[(SIZE, throughput.PAIR)],
    lengths=[(4, 6), (2, 12)],
    shapes=[(2, 40), (1, 33)],
    batches=[1, 3],
    prompt=4,
    length=8,
    repeats=dict.fromkeys(bench.BENCHMARKS, 1),
)
SHAPES = WORK.resized(WORK.shapes)


@pytest.fixture
def tiny(monkeypatch):
    sizes = [(SIZE, throughput.MODELS), (replace(SIZE, blocks=2), throughput.PAIR)]
    monkeypatch.setattr(throughput.Workload, "for_device", lambda device: replace(WORK, sizes=sizes))
    monkeypatch.setattr(throughput, "CACHES", {})
    monkeypatch.setattr(bench, "measure_ceilings", lambda timer: CEILINGS)
