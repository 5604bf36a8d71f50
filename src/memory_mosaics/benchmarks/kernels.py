"""Time each operation alone, forward and backward: Triton and plain PyTorch forms, recall by every stock kernel.

Memory-bound operations are compared with the copy, counting the least that must be read and written: inputs, outputs
and their gradients, once each. Compute-bound ones are compared with the matrix product; the backward pass of recall
has five products where the forward pass has two, since no kernel stores the scores.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from memory_mosaics.benchmarks.throughput import Size, Workload
from memory_mosaics.benchmarks.timing import Timer, progress
from memory_mosaics.errors import one_line
from memory_mosaics.language_model import next_token_loss
from memory_mosaics.ops.contextual_recall import contextual_recall
from memory_mosaics.ops.cross_entropy import linear_cross_entropy
from memory_mosaics.ops.gated_average import gated_average, gated_key
from memory_mosaics.ops.leaky_average import leaky_average, leaky_key
from memory_mosaics.ops.normalise import normalise
from memory_mosaics.ops.recall import recall
from memory_mosaics.ops.taps import apply_taps, tap_values

FLASH = SDPBackend.FLASH_ATTENTION
STOCK = {  # PyTorch's own kernels, by device
    "cuda": {"flash": FLASH, "efficient": SDPBackend.EFFICIENT_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION},
    "cpu": {"flash": FLASH, "math": SDPBackend.MATH},
}


@dataclass(frozen=True)
class Case:
    """Forms of one operation, their inputs, and the bytes or operations of the forward and the backward pass."""

    op: str
    unit: str
    forms: dict[str, Callable[..., Tensor]]
    inputs: tuple[Tensor, ...]
    work: tuple[int, int | None]


def measure(timer: Timer, ceilings: dict[str, Any], work: Workload) -> Iterator[dict[str, Any]]:
    """Yield a row per operation, shape and form. Layers that process all tokens at once have the first shape only."""
    sizes = work.resized(work.shapes)
    jobs = [(size, build) for size in sizes for build in (_keys, _gated_keys, _values, _contextual)]
    jobs += [(sizes[0], build) for build in (_persistent, _loss)]
    jobs += [(sizes[0], partial(_loss, chunked=True))] if timer.cuda else []
    for size, build in progress(jobs, "kernels"):
        timer.reset()
        case = build(timer, size)
        if not timer.cuda:  # no layer uses the op there
            case.forms.pop("op", None)
        about = {"op": case.op, "batch": size.batch, "context": size.context, "unit": case.unit}
        yield from (about | row for row in _measure(timer, ceilings, case, work.repeats["kernels"]))


def _measure(timer: Timer, ceilings: dict[str, Any], case: Case, repeats: int) -> Iterator[dict[str, Any]]:
    inputs = [x for x in case.inputs if x.requires_grad]
    forward: dict[str, Callable[[], object]] = {}
    backward: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    with _keep_buffers(timer):
        timer.synchronize()  # for the inputs
        for form, function in case.forms.items():
            try:
                with timer.side_stream():
                    output = function(*case.inputs)
                    gradient = torch.randn_like(output)
                    grad = partial(torch.autograd.grad, output, inputs, gradient, retain_graph=True)
                    grad()
                timer.synchronize()
            except (RuntimeError, NotImplementedError) as error:  # a kernel that is not for this device or shape
                failed[form] = one_line(error, 60)
            else:
                forward[form], backward[form] = partial(function, *case.inputs), grad
        passes = {"forward": forward, "backward": backward}
        seconds = {name: timer.medians(functions, repeats, cold=True) for name, functions in passes.items()}
    limit, scale = (ceilings["copy_gbs"], 1e9) if case.unit == "GB/s" else (ceilings["product_tflops"], 1e12)
    for form in case.forms:
        row: dict[str, Any] = {"form": form, "failed": failed.get(form)}
        for name, work in zip(seconds, case.work, strict=True):
            time = seconds[name].get(form)
            rate = None if time is None or work is None else work / time / scale
            row |= {f"{name}_ms": time and 1e3 * time, f"{name}_rate": rate, f"{name}_share": rate and rate / limit}
        yield row


def _keep_buffers(timer: Timer) -> Any:
    """Keep compiled code from donating its buffers to the first backward pass, so that it can run again."""
    if not timer.cuda:
        return nullcontext()
    import torch._functorch.config as compiler

    return compiler.patch(donated_buffer=False)


def _keys(timer: Timer, size: Size) -> Case:
    decay = torch.exp(-10 * torch.linspace(0.05, 0.5, size.heads, device=timer.device)).requires_grad_()
    average = lambda raw, decay: leaky_average(raw.float(), decay)[0]  # noqa: E731
    return _extractor(timer, size, "key", average, lambda *inputs: leaky_key(*inputs)[0], decay)


def _gated_keys(timer: Timer, size: Size) -> Case:
    shape = (size.batch, size.context, size.heads)
    gates = [torch.rand(shape, device=timer.device).requires_grad_() for _ in range(2)]
    case = _extractor(timer, size, "gated key", gated_average, lambda *inputs: gated_key(*inputs)[0], *gates)
    return replace(case, work=(case.work[0], 2 * case.work[0]))


def _values(timer: Timer, size: Size) -> Case:
    taps = torch.rand(size.heads, 2, device=timer.device).requires_grad_()
    return _extractor(timer, size, "value", lambda raw, taps: apply_taps(raw.float(), taps), tap_values, taps)


def _extractor(
    timer: Timer, size: Size, op: str, plain: Callable[..., Tensor], fused: Callable[..., Tensor], *weights: Tensor
) -> Case:
    """Return an operation on each head over time whose output is normalised."""
    raw = _random(timer, size.batch, size.context, size.heads, size.width // size.heads)

    def normalised(raw: Tensor, *weights: Tensor) -> Tensor:
        return normalise(plain(raw, *weights)).to(raw.dtype)

    forms = {"PyTorch": _compiled(timer, normalised), "op": fused}
    return Case(op, "GB/s", forms, (raw, *weights), (2 * raw.nbytes, 3 * raw.nbytes))


def _contextual(timer: Timer, size: Size) -> Case:
    """Query t sees the t pairs before it: to the stock kernels, causal attention on shifted tensors."""
    B, T, H, D = size.batch, size.context, size.heads, size.width // size.heads
    inputs = (_random(timer, B, T, H, D), _random(timer, B, T - 1, H, D))
    functions = {"recall": partial(recall, causal_offset=0)} | {
        name: partial(_stock, backend, delay=1) for name, backend in STOCK[timer.device.type].items()
    }
    forms = {"op": contextual_recall} | {
        name: _compiled(timer, lambda keys, values, function=function: function(keys, keys[:, :-1], values))
        for name, function in functions.items()
    }
    work = 4 * B * H * D * T * (T - 1) // 2
    return Case("contextual recall", "TFLOP/s", forms, inputs, (work, 5 * work // 2))


def _persistent(timer: Timer, size: Size) -> Case:
    N, H, D = size.batch * size.context, size.heads, size.width // size.heads
    slots = 7 * size.width // 2  # as in the paper
    inputs = tuple(_random(timer, 1, length, H, D) for length in (N, slots, slots))
    forms = {"recall": recall}
    forms |= {name: partial(_stock, backend) for name, backend in STOCK[timer.device.type].items()}
    work = 4 * N * slots * H * D
    return Case("persistent recall", "TFLOP/s", forms, inputs, (work, 5 * work // 2))


def _stock(backend: SDPBackend, queries: Tensor, stored: Tensor, values: Tensor, *, delay: int | None = None) -> Tensor:
    queries, stored, values = (x.transpose(1, 2) for x in (queries, stored, values))
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            queries[:, :, delay or 0 :], stored, values, is_causal=delay is not None, scale=1.0
        )


def _loss(timer: Timer, size: Size, *, chunked: bool = False) -> Case:
    N = size.batch * size.context
    targets = torch.randint(size.vocabulary, (N,), device=timer.device)
    inputs = (_random(timer, N, size.width), _random(timer, size.vocabulary, size.width), targets)
    work = 2 * N * size.vocabulary * size.width
    if chunked:  # the op computes the gradients in the forward pass, while it has the logits
        return Case("loss", "TFLOP/s", {"op": linear_cross_entropy}, inputs, (3 * work, None))

    def plain(features: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return next_token_loss(F.linear(features, weight)[None], targets[None])

    return Case("loss", "TFLOP/s", {"PyTorch": _compiled(timer, plain)}, inputs, (work, 2 * work))


def _compiled(timer: Timer, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile plain PyTorch where training compiles."""
    return torch.compile(function, dynamic=False) if timer.cuda else function


def _random(timer: Timer, *shape: int) -> Tensor:
    dtype = torch.bfloat16 if timer.cuda else torch.float32
    return torch.randn(shape, device=timer.device).to(dtype).requires_grad_()
