"""Where a run is computed: the device and its memory, the precision, the processes of torchrun, and CUDA graphs.

Every process holds the whole model and takes its share of each batch (DDP), or its share of the parameters too (FSDP2).
Code outside this file uses a `Runtime` and need not know which.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from memory_mosaics.config import check_choices
from memory_mosaics.errors import UserError, check_range, one_line


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    """How a run is computed, saved and logged. It changes results only by rounding, by which units are dropped
    and by which delays are drawn.

    Args:
        device: cuda, mps or cpu; auto takes the first that is available
        precision: of matrix products; auto is bfloat16 on CUDA and float32 elsewhere
        compile: with torch.compile; null compiles on CUDA, unless documents are read apart
        sharding: ddp copies the model to every process of torchrun, fsdp shards its parameters
        micro_batch: sequences at once on a device; null takes the process's whole share, less accumulates gradients
        save_every: steps between checkpoints; null saves at every evaluation
        save_seconds: least seconds between checkpoints; null for no limit
        keep: checkpoints to keep beside the best that was saved
        log_every: steps between lines of log.jsonl
        samples: texts written into samples.md at every evaluation
        loggers: any of tensorboard, wandb, trackio, beside the log.jsonl that is always written
    """

    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: bool | None = None
    sharding: Literal["ddp", "fsdp"] = "ddp"
    micro_batch: int | None = None
    save_every: int | None = None
    save_seconds: float | None = None
    keep: int = 1
    log_every: int = 10
    samples: int = 1
    loggers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_range(1, inf, keep=self.keep, log_every=self.log_every)
        check_range(1, inf, micro_batch=self.micro_batch, save_every=self.save_every)
        check_range(0, inf, samples=self.samples, save_seconds=self.save_seconds)
        check_choices(self)
        for name in self.loggers:
            if name not in ("tensorboard", "wandb", "trackio"):
                raise UserError(f"no logger {name!r}; there are tensorboard, wandb and trackio")

    def precision_on(self, device: str) -> str:
        """Return the precision of matrix products on this kind of device."""
        return self.precision if self.precision != "auto" else "bfloat16" if device == "cuda" else "float32"


@dataclass(frozen=True)
class Runtime:
    """The device, the precision of matrix products, and the rank of this process."""

    device: torch.device = torch.device("cpu")
    rank: int = 0
    size: int = 1
    distributed: bool = False
    precision: str = "float32"
    micro_batch: int | None = None  # sequences at once; None for all
    block_fn: Callable[..., tuple[Tensor, Any]] | None = None  # a compiled forward pass of a block

    def autocast(self) -> Any:
        """Return the context in which losses are computed."""
        if self.precision == "bfloat16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    @property
    def is_rank0(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum(self, *numbers: float | Tensor) -> list[float]:
        """Sum each number over the processes. Waits for the device."""
        total = torch.stack([torch.as_tensor(number).detach().cpu().double() for number in numbers])
        if self.distributed:
            dist.all_reduce(total)
        return total.tolist()

    def run_on_rank0(self, function: Callable[[], None]) -> None:
        """Call a function on rank 0 and wait for it; if it fails, all processes raise its error."""
        self.gather(lambda: function() if self.is_rank0 else None)

    def gather(self, function: Callable[[], Any]) -> list[Any]:
        """Return what a function returns on every process; if one fails, all raise its error."""
        if not self.distributed:
            return [function()]
        error = value = None
        try:
            value = function()
        except Exception as failure:  # of any kind: the other processes wait for this one
            error = failure if isinstance(failure, UserError) else UserError(one_line(failure))
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, (error, value))
        for error, _ in found:
            if error is not None:
                raise error
        return [value for _, value in found]

    def broadcast(self, value: Any) -> Any:
        """Return the value of rank 0."""
        box = [value]
        if self.distributed:
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def local_rows(self, size: int) -> slice:
        """Return the rows of a batch of `size` that this process trains on."""
        if size % self.size:
            raise UserError(
                f"a batch of {size} does not split over {self.size} processes; choose a multiple of {self.size}"
            )
        return slice(self.rank * size // self.size, (self.rank + 1) * size // self.size)


@contextmanager
def start_runtime(config: RuntimeConfig) -> Iterator[Runtime]:
    """Yield the runtime of this process, in the process group of torchrun if there is one. May be nested."""
    kind = find_device(config.device)
    precision = config.precision_on(kind)
    before = torch.get_float32_matmul_precision()
    if kind == "cuda" and config.precision != "float32":
        torch.set_float32_matmul_precision("high")  # what stays in float32 may use TF32
    try:
        with _process_group(kind) as (device, *ranks):
            yield Runtime(device, *ranks, precision=precision)
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _process_group(kind: str) -> Iterator[tuple[torch.device, int, int, bool]]:
    """Yield the device of this process, its rank, the number of processes and whether there is a group of them."""
    if "RANK" not in os.environ:
        yield torch.device(kind), 0, 1, False
        return
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    nested = dist.is_initialized()
    if not nested:
        dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    try:
        yield device, dist.get_rank(), dist.get_world_size(), True
    finally:
        if not nested:
            dist.destroy_process_group()


def find_device(name: str) -> str:
    """Return the requested device, or the best available for auto; refuse one that is not available."""
    checks = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [kind for kind, found in checks.items() if found]
    if name == "auto":
        return available[0]
    if name not in available:
        raise UserError(f"there is no device {name!r} here; there is {', '.join(available)}")
    return name


def parallelize(objective: nn.Module, runtime: Runtime, *, sharded: bool, compiled: bool) -> nn.Module:
    """Wrap the objective in DDP, or if `sharded` in FSDP2, each block on its own; one process trains it as it is."""
    if not runtime.distributed:
        return objective
    if not sharded:
        from torch.nn.parallel import DistributedDataParallel

        ids = [runtime.device.index] if runtime.device.type == "cuda" else None
        return DistributedDataParallel(objective, device_ids=ids, gradient_as_bucket_view=True)
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh(runtime.device.type, (runtime.size,))
    options: Any = {"mesh": mesh, "shard_placement_fn": lambda weight: _placement(weight, runtime.size)}
    for block in [block for module in objective.modules() for block in getattr(module, "blocks", ())]:
        if compiled:
            block.compile(dynamic=False)  # each on its own: the gathering of parameters stays outside
        fully_shard(block, **options)
    return fully_shard(objective, **options)


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
        if hasattr(objective, "set_requires_gradient_sync"):
            objective.set_requires_gradient_sync(not off)  # type: ignore[operator]
        yield


# Memory limits of a container, by control groups version 2 and version 1.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def total_memory(device: str | torch.device = "cpu") -> int:
    """Return the total memory of a device in bytes, used or free."""
    device = torch.device(device)
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_properties(device).total_memory
    if not hasattr(os, "sysconf"):  # Windows
        return 1 << 62
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in LIMITS:
        text = file.read_text().strip() if file.exists() else "max"
        found += [int(text)] if text.isdigit() else []
    return min(found)


def check_memory(
    what: str, need: int, device: str | torch.device = "cpu", advice: str = "choose smaller sizes"
) -> None:
    """Refuse what needs more bytes than the device has in total."""
    have = total_memory(device)
    if need > have:
        needs = f"{what} needs at least {need / 1e9:,.1f} GB of memory"
        raise UserError(f"{needs}, and {torch.device(device)} has {have / 1e9:,.1f} GB; {advice}")


def capture(function: Callable[[], Any], *, stream: "torch.cuda.Stream | None" = None) -> Callable[[], Any]:
    """Capture the kernels that `function` launches in a CUDA graph and return a function that replays it.

    `function` must have been called before, so that libraries and compilers are initialised, and under the same guards
    of torch.compile, such as autocast: a graph cannot contain a compilation. The result is the same tensors every time.
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
    """A function of tensors of fixed shapes, called eagerly `warm_up` times, then captured and replayed.

    What it returns is overwritten by the next call. Replaying saves small models most of a step: the kernel launches.
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
