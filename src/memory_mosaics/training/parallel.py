"""The processes of a run: one by itself, or those that torchrun started, on one machine or many.

Every process holds the whole model and takes its share of each batch (DDP), or its share of the parameters too (FSDP2).
All code outside this file sees a `World` and does not ask which.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.training.recipe import Machine


@dataclass(frozen=True)
class World:
    """Who this process is."""

    rank: int
    size: int
    device: torch.device
    distributed: bool = False

    @property
    def first(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def sum(self, *numbers: float | Tensor) -> list[float]:
        """Each number, added up over the processes. Waits for the device."""
        total = torch.stack([torch.as_tensor(number).detach().cpu().double() for number in numbers])
        if self.distributed:
            dist.all_reduce(total)
        return total.tolist()

    def all(self, act: Callable[[], None]) -> None:
        """Have the first process act, and wait; where it fails, all fail with one line."""
        error = None
        if self.first:
            try:
                act()
            except (OSError, ValueError, RuntimeError) as failure:
                error = one_line(failure)
        error = self.agree(error)
        if error is not None:
            raise UserError(error)

    def gather(self, act: Callable[[], Any]) -> list[Any]:
        """What acting comes to in every process; where one fails, all fail with one line."""
        error = value = None
        try:
            value = act()
        except (OSError, ValueError, RuntimeError) as failure:
            error = one_line(failure)
        found: list[Any] = [(error, value)] * self.size
        if self.distributed:
            dist.all_gather_object(found, (error, value))
        for error, _ in found:
            if error is not None:
                raise UserError(error)
        return [value for _, value in found]

    def agree(self, value: Any) -> Any:
        """What the first process says."""
        box = [value]
        if self.distributed:
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def share(self, size: int) -> slice:
        """The rows of a batch of `size` that are this process's."""
        if size % self.size:
            raise UserError(
                f"a batch of {size} does not split over {self.size} processes; choose a multiple of {self.size}"
            )
        return slice(self.rank * size // self.size, (self.rank + 1) * size // self.size)


@contextmanager
def world(machine: Machine) -> Iterator[World]:
    """The processes that torchrun started, or this one alone. Within, another call gives the same."""
    kind = find_device(machine.device)
    if kind == "cuda" and machine.precision != "float32":
        torch.set_float32_matmul_precision("high")  # what stays in float32 may use TF32
    if "RANK" not in os.environ:
        yield World(0, 1, torch.device(kind))
        return
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    inside = dist.is_initialized()
    if not inside:
        dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device, distributed=True)
    finally:
        if not inside:
            dist.destroy_process_group()


def find_device(name: str) -> str:
    """The device that was asked for, or the best there is."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(kind for kind, found in there.items() if found)
    if not there.get(name):
        found = ", ".join(kind for kind, here in there.items() if here)
        raise UserError(f"there is no device {name!r} here; there is {found}")
    return name


def precision(machine: Machine, device: torch.device) -> Any:
    """The context in which losses are computed: bfloat16 products where that is asked for."""
    halved = precision_of(machine, device.type) == "bfloat16"
    return torch.autocast(device.type, dtype=torch.bfloat16) if halved else nullcontext()


def precision_of(machine: Machine, device: str) -> str:
    """What products are computed in; if nothing was asked for, bfloat16 on CUDA."""
    return machine.precision if machine.precision != "auto" else "bfloat16" if device == "cuda" else "float32"


def compiles(machine: Machine, world: World) -> bool:
    """Whether to compile the model."""
    return machine.compile if machine.compile is not None else world.device.type == "cuda"


def deals_out(machine: Machine, world: World) -> bool:
    """Whether each process holds only its share of the parameters."""
    return world.distributed and machine.sharding == "fsdp"


def spread(objective: nn.Module, machine: Machine, world: World) -> nn.Module:
    """The objective as this process holds it: its gradients summed over all, or its parameters dealt out to all."""
    if not world.distributed:
        return objective
    if not deals_out(machine, world):
        from torch.nn.parallel import DistributedDataParallel

        ids = [world.device.index] if world.device.type == "cuda" else None
        return DistributedDataParallel(objective, device_ids=ids, gradient_as_bucket_view=True)
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh(world.device.type, (world.size,))
    options: Any = {"mesh": mesh, "shard_placement_fn": lambda weight: _placement(weight, world.size)}
    for block in objective.model.blocks:  # type: ignore[union-attr]
        if compiles(machine, world):
            block.compile(dynamic=False)  # each by itself: what gathers its parameters stays outside
        fully_shard(block, **options)
    fully_shard(objective, **options)
    return objective


def _placement(weight: nn.Parameter, size: int) -> Any:
    """Slots are (memories, slots, heads, width) with few memories: deal out the slots."""
    from torch.distributed.tensor import Shard

    return Shard(1) if weight.dim() == 4 and weight.shape[1] % size == 0 else None


@contextmanager
def gradients_stay(model: nn.Module, stay: bool) -> Iterator[None]:
    """Within, gradients add up in this process only: all micro-batches but the last of a step."""
    if hasattr(model, "no_sync"):
        with model.no_sync() if stay else nullcontext():  # type: ignore[operator]
            yield
    else:
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(not stay)  # type: ignore[operator]
        yield
