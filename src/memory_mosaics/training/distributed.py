"""One model on several processes: copied to all of them (DDP), or with its parameters sharded (FSDP2)."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import nn

from memory_mosaics.runtime import Runtime, RuntimeConfig


def uses_fsdp(machine: RuntimeConfig, runtime: Runtime) -> bool:
    """Whether the parameters are sharded over the processes."""
    return runtime.distributed and machine.sharding == "fsdp"


def parallelize(objective: nn.Module, machine: RuntimeConfig, runtime: Runtime, *, compiled: bool) -> nn.Module:
    """Wrap the objective in DDP, or shard its model by FSDP2; one process alone trains it as it is."""
    if not runtime.distributed:
        return objective
    if not uses_fsdp(machine, runtime):
        from torch.nn.parallel import DistributedDataParallel

        ids = [runtime.device.index] if runtime.device.type == "cuda" else None
        return DistributedDataParallel(objective, device_ids=ids, gradient_as_bucket_view=True)
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    model: Any = objective.model
    mesh = dist.init_device_mesh(runtime.device.type, (runtime.size,))
    options: Any = {"mesh": mesh, "shard_placement_fn": lambda weight: _placement(weight, runtime.size)}
    for block in getattr(model, "blocks", ()):
        if compiled:
            block.compile(dynamic=False)  # each on its own: the gathering of parameters stays outside
        fully_shard(block, **options)
    fully_shard(model, **options)
    register_fsdp_forward_method(model, "loss")
    return objective


def _placement(weight: nn.Parameter, size: int) -> Any:
    """Shard persistent pairs, (memories, slots, heads, width) with few memories, by slots."""
    from torch.distributed.tensor import Shard

    return Shard(1) if weight.dim() == 4 and weight.shape[1] % size == 0 else None


@contextmanager
def no_grad_sync(objective: nn.Module, off: bool) -> Iterator[None]:
    """Accumulate gradients locally if `off`: for all micro-batches but the last of a step."""
    if hasattr(objective, "no_sync"):
        with objective.no_sync() if off else nullcontext():  # type: ignore[operator]
            yield
    else:
        if hasattr(objective.model, "set_requires_gradient_sync"):
            objective.model.set_requires_gradient_sync(not off)  # type: ignore[operator]
        yield
