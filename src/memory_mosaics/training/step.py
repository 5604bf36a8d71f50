"""One training step: the gradient of a batch, clipped, and the update of the optimiser."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from memory_mosaics.runtime import CapturedFunction, Runtime
from memory_mosaics.tasks.task import Batch, Task
from memory_mosaics.training.config import Training
from memory_mosaics.training.distributed import no_grad_sync
from memory_mosaics.training.optimizer import set_rate, take_step

WARM_UP = 3  # steps before a capture: compilers and libraries have then prepared all that they will use


class Objective(nn.Module):
    """The loss of a task as a module of tensors, which DDP can wrap."""

    def __init__(self, model: nn.Module, task: Task, runtime: Runtime):
        super().__init__()
        self.model, self.task, self.runtime = model, task, runtime

    def forward(self, *batch: Tensor) -> Tensor:
        return self.task.loss(self.model, Batch(*batch), self.runtime)


class Step:
    """Takes the step of a number on a batch; returns its loss and the norm of its gradient.

    `captured`, for one process on a CUDA device and batches of one shape: the whole step is one graph. What it returns
    is then overwritten by the next step.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimizer: torch.optim.AdamW,
        training: Training,
        runtime: Runtime,
        *,
        captured: bool = False,
    ):
        self.objective, self.optimizer, self.training, self.runtime = objective, optimizer, training, runtime
        self.update: Callable[..., Any] = CapturedFunction(self._update, warm_up=WARM_UP) if captured else self._update

    def __call__(self, number: int, batch: Batch) -> tuple[Tensor, Tensor]:
        set_rate(self.optimizer, self.training.rate(number))
        return self.update(batch.inputs, batch.targets)

    def _update(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """The step, at whatever the learning rate is. Losses of models trained side by side are added up."""
        size = self.runtime.micro_batch or len(batch[0])
        parts = list(zip(*(tensor.split(size) for tensor in batch), strict=True))
        total: Tensor | None = None
        for number, part in enumerate(parts, start=1):
            with no_grad_sync(self.objective, off=number < len(parts)):
                with self.runtime.autocast():
                    loss = self.objective(*part) / len(parts)
                loss.sum().backward()
            total = loss.detach() if total is None else total + loss.detach()
        norm = take_step(self.optimizer, self.training)
        self.optimizer.zero_grad(set_to_none=True)
        assert total is not None
        return total, norm
