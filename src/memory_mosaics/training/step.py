"""One step of training: the gradient of a batch, clipped, and the move of the optimiser.

    Eager       any device, any number of processes, gradients added up over micro-batches
    Recorded    a CUDA device by itself: the whole step is one graph, recorded once and replayed

A small model spends most of an eager step launching kernels; replayed, it waits for nothing but the device.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from memory_mosaics.shapes import Float, Int
from memory_mosaics.training import parallel
from memory_mosaics.training.objective import set_rate, take_step
from memory_mosaics.training.recipe import Machine, Schedule

Step = Callable[[int, Int[Tensor, "B T"], Int[Tensor, "B T"]], tuple[Float[Tensor, ""], Float[Tensor, ""]]]
TRIALS = 3  # steps before recording: compilers and libraries have then prepared all that they will use


class Eager:
    """Takes step `number` on a batch; returns its loss and the norm of its gradient."""

    def __init__(
        self, objective: nn.Module, adamw: torch.optim.AdamW, training: Schedule, machine: Machine, *, micro: int
    ):
        self.objective, self.adamw, self.training, self.machine, self.micro = objective, adamw, training, machine, micro

    def __call__(self, number: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        set_rate(self.adamw, self.training.rate(number))
        return self.move(inputs, targets)

    def move(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The step, at whatever the learning rate is."""
        parts = list(zip(inputs.split(self.micro), targets.split(self.micro), strict=True))
        total = torch.zeros((), device=inputs.device)
        for place, (part, answers) in enumerate(parts, start=1):
            with parallel.gradients_stay(self.objective, place < len(parts)):
                with parallel.precision(self.machine, inputs.device):
                    loss = self.objective(part, answers) / len(parts)
                loss.backward()
            total += loss.detach()
        norm = take_step(self.adamw, self.training)
        self.adamw.zero_grad(set_to_none=True)
        return total, norm


class Recorded:
    """The same, replayed. What it returns is overwritten by the next step."""

    def __init__(self, eager: Eager):
        self.eager, self.graph, self.taken = eager, torch.cuda.CUDAGraph(), 0

    def __call__(self, number: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        self.taken += 1
        if self.taken <= TRIALS:
            return self.eager(number, inputs, targets)
        if self.taken == TRIALS + 1:
            self._record(inputs, targets)
        self.inputs.copy_(inputs)
        self.targets.copy_(targets)
        set_rate(self.eager.adamw, self.eager.training.rate(number))
        self.graph.replay()
        return self.loss, self.norm

    def _record(self, inputs: Tensor, targets: Tensor) -> None:
        """Gradients are absent when it begins: they are made by the graph, in its own memory, and written anew."""
        self.inputs, self.targets = inputs.clone(), targets.clone()
        self.eager.adamw.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.loss, self.norm = self.eager.move(self.inputs, self.targets)


def step_for(eager: Eager, *, rows: int, compiled: bool, world: parallel.World) -> Step:
    """Recorded where it can be: one process on CUDA, all rows at once."""
    recorded = compiled and world.device.type == "cuda" and not world.distributed and rows == eager.micro
    return Recorded(eager) if recorded else eager
