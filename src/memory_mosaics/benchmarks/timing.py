"""Measure seconds, peak memory and the limits of the machine, on CUDA or the CPU."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
import yaml

from memory_mosaics.results import progress_bar, round_digits
from memory_mosaics.runtime import capture

TABLES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("bench.yaml").read_text(encoding="utf-8"))
FLUSH_BYTES = 2**28  # more than any cache holds
CALLS_PER_GRAPH = 8  # calls of a short function that are timed together
Item = TypeVar("Item")


class Timer:
    """Times functions on one device: by CUDA events, so that the host may launch ahead, or by the clock."""

    def __init__(self, device: torch.device):
        self.device, self.cuda = device, device.type == "cuda"
        self._allocated = 0
        self._stream = torch.cuda.Stream(device) if self.cuda else None

    def medians(
        self, functions: Mapping[str, Callable[[], object]], repeats: int, *, warm_up: int = 3, cold: bool = False
    ) -> dict[str, float]:
        """Return the median seconds of each function. They take turns, A B A B, so that noise affects all alike.

        `cold`, on CUDA, is for functions of microseconds: their inputs are in no cache, and only the device is
        measured, however long the host takes to launch them. Such a function is captured and may not synchronize.
        """
        if cold and self.cuda:
            return self._cold_medians(functions, repeats, warm_up)
        for _ in range(warm_up):
            for function in functions.values():
                function()
        self.synchronize()
        marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in functions}
        for _ in range(repeats):
            for name, function in functions.items():
                start = self._mark()
                function()
                marks[name].append((start, self._mark()))
        self.synchronize()
        return {name: median(_elapsed(*pair) for pair in pairs) for name, pairs in marks.items()}

    def _cold_medians(
        self, functions: Mapping[str, Callable[[], object]], repeats: int, warm_up: int
    ) -> dict[str, float]:
        """Time a graph of several calls, each after flushing the caches, minus a graph that only flushes them."""
        cache = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=self.device)

        def calls(function: Callable[[], object]) -> None:
            for _ in range(CALLS_PER_GRAPH):
                cache.zero_()
                function()

        graphs = {name: self.captured(partial(calls, each)) for name, each in {**functions, "": lambda: None}.items()}
        seconds = self.medians(graphs, repeats, warm_up=warm_up)
        return {name: (seconds[name] - seconds[""]) / CALLS_PER_GRAPH for name in functions}

    def median(self, function: Callable[[], object], repeats: int, *, warm_up: int = 3, cold: bool = False) -> float:
        """Return the median seconds of one function."""
        return self.medians({"": function}, repeats, warm_up=warm_up, cold=cold)[""]

    def side_stream(self) -> AbstractContextManager[object]:
        """Return the stream of captured graphs: a backward pass runs where its forward ran, so both must be there."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def captured(self, function: Callable[[], object]) -> Callable[[], None]:
        """Return the function as a CUDA graph to replay."""
        self.synchronize()
        with self.side_stream():
            for _ in range(2):
                function()
        replay = capture(function, stream=self._stream)
        replay()
        self.synchronize()
        return replay

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def _mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reset(self) -> None:
        """Drop compiled code and freed memory, and count peak memory from here."""
        gc.collect()
        if self.cuda:
            torch.compiler.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            self._allocated = torch.cuda.memory_allocated(self.device)

    def peak_gib(self) -> float | None:
        """Return the peak memory since `reset` in GiB; None on the CPU, where it is not counted."""
        return (torch.cuda.max_memory_allocated(self.device) - self._allocated) / 2**30 if self.cuda else None


def _elapsed(start: Any, end: Any) -> float:
    return end - start if isinstance(start, float) else start.elapsed_time(end) / 1e3


def measure_ceilings(timer: Timer, *, repeats: int = 20) -> dict[str, Any]:
    """Measure what the machine allows: a large matrix product in TFLOP/s, a large copy (read + write) in GB/s."""
    size, dtype = (8192, torch.bfloat16) if timer.cuda else (2048, torch.float32)
    a, b = (torch.randn(size, size, device=timer.device, dtype=dtype) for _ in range(2))
    product = timer.median(lambda: a @ b, repeats)
    source = torch.ones(2**29 if timer.cuda else 2**25, device=timer.device)
    target = torch.empty_like(source)
    copy = timer.median(lambda: target.copy_(source), repeats)
    return {
        "product": f"{size} x {size}, {str(dtype).removeprefix('torch.')}",
        "product_tflops": round_digits(2 * size**3 / product / 1e12),
        "copy_gbs": round_digits(2 * source.nbytes / copy / 1e9),
    }


def progress(items: Iterable[Item], name: str) -> Iterator[Item]:
    """Iterate with a progress bar on stderr."""
    items = list(items)
    with progress_bar(name, len(items), "row") as bar:
        for item in items:
            yield item
            bar.update(1)
