"""CUDA graphs: work on tensors whose shapes never change is captured once, and replayed without its launches.

A small model spends most of a step launching kernels. Replayed, it waits for nothing but the device.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def capture(function: Callable[[], Any], *, stream: "torch.cuda.Stream | None" = None) -> Callable[[], Any]:
    """Capture what `function` launches, which has been called before, so that libraries and compilers are prepared.

    The function that is returned replays it; its result is that of `function`, the same tensors every time. All that
    torch.compile guards on, such as the state of autocast, must be as in the calls before: a graph cannot hold a
    compilation.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        result = function()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


class CapturedFunction:
    """A function of tensors: called as it is `warm_up` times, then captured and replayed.

    What it returns is overwritten by the next call.
    """

    def __init__(self, function: Callable[..., Any], *, warm_up: int):
        self.function, self.warm_up = function, warm_up
        self.replay: Callable[[], Any] | None = None

    def __call__(self, *inputs: Tensor) -> Any:
        if self.warm_up > 0:
            self.warm_up -= 1
            return self.function(*inputs)
        if self.replay is None:
            self.inputs = [given.clone() for given in inputs]
            self.replay = capture(lambda: self.function(*self.inputs))
        for mine, given in zip(self.inputs, inputs, strict=True):
            mine.copy_(given)
        return self.replay()
