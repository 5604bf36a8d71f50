"""Seconds, bytes and ceilings: what the benchmarks measure with, on CUDA or the CPU."""

import gc
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from statistics import median
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from memory_mosaics.runtime import capture

COLD = 2**28  # bytes, more than any cache holds
ROW = 8  # short acts that are timed together
Item = TypeVar("Item")


class Clock:
    """Times what runs on one device. On CUDA events do, so that the host may launch ahead as it does in earnest."""

    def __init__(self, device: torch.device):
        self.device, self.cuda = device, device.type == "cuda"
        self._before = 0
        self._stream = torch.cuda.Stream(device) if self.cuda else None

    def laps(
        self, acts: Mapping[str, Callable[[], object]], repeats: int, *, warm_up: int = 3, cold: bool = False
    ) -> dict[str, float]:
        """Median seconds of each act. They take turns, A B A B, so that noise hits all alike.

        `cold`, on CUDA, is for acts of microseconds: the caches hold none of their inputs, and what is measured is the
        device alone, however long the host takes to launch an act. Such an act is recorded: it may not wait for it.
        """
        if cold and self.cuda:
            return self._cold(acts, repeats, warm_up)
        for _ in range(warm_up):
            for act in acts.values():
                act()
        self.wait()
        marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in acts}
        for _ in range(repeats):
            for name, act in acts.items():
                start = self._mark()
                act()
                marks[name].append((start, self._mark()))
        self.wait()
        return {name: median(_between(*pair) for pair in pairs) for name, pairs in marks.items()}

    def _cold(self, acts: Mapping[str, Callable[[], object]], repeats: int, warm_up: int) -> dict[str, float]:
        """A graph of several acts, the caches wiped before each, less one that wipes them alone."""
        cache = torch.empty(COLD, dtype=torch.uint8, device=self.device)

        def row(act: Callable[[], object]) -> None:
            for _ in range(ROW):
                cache.zero_()
                act()

        rows = {name: self.recorded(partial(row, act)) for name, act in {**acts, "": lambda: None}.items()}
        seconds = self.laps(rows, repeats, warm_up=warm_up)
        return {name: (seconds[name] - seconds[""]) / ROW for name in acts}

    def seconds(self, act: Callable[[], object], repeats: int, *, warm_up: int = 3, cold: bool = False) -> float:
        """Median seconds of one act."""
        return self.laps({"act": act}, repeats, warm_up=warm_up, cold=cold)["act"]

    def aside(self) -> AbstractContextManager[object]:
        """Where an answer must be computed for its backward pass, which runs where the forward ran, to be recorded."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def recorded(self, act: Callable[[], object]) -> Callable[[], None]:
        """The act as a CUDA graph to replay."""
        self.wait()
        with self.aside():
            for _ in range(2):
                act()
        replay = capture(act, stream=self._stream)
        replay()
        self.wait()
        return replay

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def _mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start_over(self) -> None:
        """Forget compiled code and freed memory: what `peak` says from here on is of what comes next."""
        gc.collect()
        if self.cuda:
            torch.compiler.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            self._before = torch.cuda.memory_allocated(self.device)

    def peak(self) -> float | None:
        """Most memory at once since `start_over`, in GiB; None on the CPU, where nobody counts it."""
        return (torch.cuda.max_memory_allocated(self.device) - self._before) / 2**30 if self.cuda else None


def _between(start: Any, end: Any) -> float:
    return end - start if isinstance(start, float) else start.elapsed_time(end) / 1e3


def ceilings(clock: Clock, *, repeats: int = 20) -> dict[str, Any]:
    """What this machine allows: a large matrix product in TFLOP/s, a large copy in GB/s, read and written."""
    size, dtype = (8192, torch.bfloat16) if clock.cuda else (2048, torch.float32)
    a, b = (torch.randn(size, size, device=clock.device, dtype=dtype) for _ in range(2))
    product = clock.seconds(lambda: a @ b, repeats)
    source = torch.ones(2**29 if clock.cuda else 2**25, device=clock.device)
    target = torch.empty_like(source)
    copy = clock.seconds(lambda: target.copy_(source), repeats)
    return {
        "product": f"{size} x {size}, {str(dtype).removeprefix('torch.')}",
        "product_tflops": short(2 * size**3 / product / 1e12),
        "copy_gbs": short(2 * source.nbytes / copy / 1e9),
    }


def short(number: float | None) -> float | None:
    """Four digits: more is noise."""
    return None if number is None else float(f"{number:.4g}")


def progress(items: Iterable[Item], name: str) -> Iterable[Item]:
    """A bar on the error output."""
    return tqdm(list(items), desc=name, mininterval=0.2 if sys.stderr.isatty() else 30)
