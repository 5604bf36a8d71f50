"""Helpers of all ops: precision, and optional Triton.

Kernels are written as in Triton's documentation, with `@triton.jit` and `tl`, in the file of the op they compute. Such
a file imports `triton` and `tl` from here: two stand-ins, so that the package imports without Triton and without the
half second it takes to load. The first launch of a kernel imports Triton and puts the real objects into the globals of
the kernel's module, which is where Triton looks names up when it compiles or interprets a kernel. Later launches call
Triton directly.
"""

import os
from collections.abc import Callable, Collection
from contextlib import nullcontext
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from threading import RLock
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

TRITON = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU too, to test them
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # of the kernels' inputs
WIDTHS = (16, 32, 64, 128)  # of a head in the kernels of keys and values


def full_precision(device: torch.device) -> torch.autocast | nullcontext:
    """Disable autocast, which would round each product: the errors of many steps add up."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def at_least_fp32(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 if it is float64."""
    return x.to(at_least_fp32_dtype(x))


def at_least_fp32_dtype(x: Tensor) -> torch.dtype:
    """Return torch.float32, or torch.float64 if x is float64."""
    return torch.promote_types(x.dtype, torch.float32)


def double_dtype(device: torch.device) -> torch.dtype:
    """Return torch.float64, for long sums, or torch.float32 on MPS, which has nothing wider."""
    return torch.float32 if device.type == "mps" else torch.float64


def can_use_triton(
    *tensors: Tensor, dtypes: Collection[torch.dtype] = DTYPES, widths: Collection[int] | None = None
) -> bool:
    """Whether Triton kernels can run on these tensors; otherwise ops take their PyTorch form.

    Triton must be installed, and the tensors on a CUDA device or Triton's interpreter enabled. None may be empty, all
    must have the same dtype, one of `dtypes`, and the last axis of the first one of `widths`, where these are given.
    """
    dtype, width = tensors[0].dtype, tensors[0].shape[-1]
    runs = TRITON and (tensors[0].is_cuda or INTERPRETED)
    return (
        runs
        and dtype in dtypes
        and (widths is None or width in widths)
        and all(x.dtype == dtype and x.numel() > 0 for x in tensors)
    )


def custom_op(
    name: str,
    launch: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Register a function that launches kernels as torch.ops.memory_mosaics.<name>; annotations give the schema.

    torch.compile sees one call whose outputs have the shapes and dtypes of `fake`; `backward` is its gradient.
    """
    op = torch.library.custom_op(f"memory_mosaics::{name}", launch, mutates_args=())
    op.register_fake(fake)
    if backward is not None:
        op.register_autograd(backward, setup_context=setup_context)
    return getattr(torch.ops.memory_mosaics, name).default


def differentiable_op(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    fake_backward: Callable[..., Any],
    saved: Callable[[tuple, tuple], tuple],
) -> Callable[..., Any]:
    """Register a launch and that of its gradient, `backward(d_first, ..., *saved(inputs, outputs))`.

    Its parameters d_... are the gradients of the first outputs; all but the first may be None. It returns one tensor
    per input, of its shape or with partial sums in front, which are added up here, where a compiler can fuse the sum
    with the next op; for an input that is None any tensor.
    """
    launch_backward = custom_op(f"{name}_backward", backward, fake=fake_backward)
    taken = sum(parameter.startswith("d_") for parameter in signature(backward).parameters)

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.shapes, ctx.output_shape = [None if x is None else x.shape for x in inputs], outputs[0].shape
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved(inputs, outputs))

    def gradients(ctx: Any, d_first: Tensor | None, *d_others: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        d_first = tensors[0].new_zeros(ctx.output_shape) if d_first is None else d_first
        found = launch_backward(d_first, *d_others[: taken - 1], *tensors)
        return tuple(
            None if shape is None else x.sum_to_size(shape) for x, shape in zip(found, ctx.shapes, strict=True)
        )

    return custom_op(name, forward, fake=fake, setup_context=setup_context, backward=gradients)


def host_count(counts: Tensor) -> int | None:
    """The number that all rows share, if they do and reading it waits for no device: on the CPU, not compiled."""
    if counts.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    numbers = counts.tolist()
    return numbers[0] if numbers and min(numbers) == max(numbers) else None


@lru_cache
def flash_kernel(module: str, name: str) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """A kernel in `fla.ops` of flash-linear-attention, if the package is installed."""
    if find_spec("fla") is None or not TRITON:
        return None
    return getattr(import_module(f"fla.ops.{module}"), name)


def contiguous(*tensors: Tensor | None) -> tuple[Any, ...]:
    """Return contiguous tensors; None stays None."""
    return tuple(None if x is None else x.contiguous() for x in tensors)


def contiguous_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors contiguous along their last axis; kernels take any strides of the others."""
    return tuple(x if x.stride(-1) == 1 else x.contiguous() for x in tensors)


@lru_cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


class constexpr:
    """`tl.constexpr` until Triton is imported: annotates a parameter, or holds a global constant of kernels.

    Triton knows the annotation by the name of the class.
    """

    def __init__(self, value: float | int):
        self.value = value


class LazyKernel:
    """A function under `@triton.jit` until Triton is imported, by its first launch."""

    def __init__(self, function: Any):
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        with _IMPORTING:
            _import_triton(self.function.__globals__)
        return self.jitted[grid]

    @cached_property
    def jitted(self) -> Any:
        import triton

        return triton.jit(self.function)


triton: Any = SimpleNamespace(jit=LazyKernel)
tl: Any = SimpleNamespace(constexpr=constexpr)
_IMPORTING = RLock()


def _import_triton(scope: dict[str, Any]) -> None:
    """Replace the stand-ins among the globals of a module, and of those modules whose kernels it calls."""
    import triton.language

    for name, value in list(scope.items()):
        if value is tl:
            scope[name] = triton.language
        elif isinstance(value, constexpr):
            scope[name] = triton.language.constexpr(value.value)
        elif isinstance(value, LazyKernel):
            scope[name] = value.jitted
            if value.function.__globals__ is not scope:
                _import_triton(value.function.__globals__)
