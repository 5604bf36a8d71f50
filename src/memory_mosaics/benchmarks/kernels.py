"""Each operation alone, forward and backward: the Triton form beside plain PyTorch, recall by every stock kernel.

What moves numbers is held against the copy, counting the least that must be read and written: inputs, answers and
their gradients, once each. What multiplies matrices is held against the product; the backward pass of recall has five
products where the forward pass has two, since no kernel keeps the scores.
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

from memory_mosaics.benchmarks.clock import Clock, progress, short
from memory_mosaics.errors import one_line
from memory_mosaics.extractors import normalise
from memory_mosaics.language_model import next_token_loss
from memory_mosaics.ops.contextual_recall import contextual_recall
from memory_mosaics.ops.cross_entropy import linear_cross_entropy
from memory_mosaics.ops.gated_average import gated_average, gated_key
from memory_mosaics.ops.leaky_average import leaky_average, leaky_key
from memory_mosaics.ops.recall import recall
from memory_mosaics.ops.taps import apply_taps, tap_values

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True)
class Shape:
    """Of a batch in heads, and of the layers that see all its tokens at once."""

    batch: int
    time: int
    heads: int
    head_width: int
    slots: int
    vocabulary: int


SHAPES = {
    "cuda": (Shape(64, 512, 12, 64, 2688, 50304), Shape(4, 8192, 12, 64, 2688, 50304)),
    "cpu": (Shape(4, 256, 4, 64, 896, 2048), Shape(1, 1024, 4, 64, 896, 2048)),
}
STOCK = {"cuda": ("flash", "efficient", "cuDNN"), "cpu": ("flash", "math")}
COLUMNS = {
    "operation": ("op", "{}"),
    "B": ("batch", "{}"),
    "T": ("time", "{}"),
    "form": ("form", "{}"),
    "forward ms": ("forward_ms", "{:.4g}"),
    "backward ms": ("backward_ms", "{:.4g}"),
    "forward": ("forward_rate", "{:.4g}"),
    "backward": ("backward_rate", "{:.4g}"),
    "unit": ("unit", "{}"),
    "forward of limit": ("forward_share", "{:.0%}"),
    "backward of limit": ("backward_share", "{:.0%}"),
    "": ("failed", "{}"),
}


@dataclass(frozen=True)
class Case:
    """Forms of one operation, their inputs, and the bytes or products that they have to do forward and backward."""

    op: str
    unit: str
    forms: dict[str, Callable[..., Tensor]]
    inputs: tuple[Tensor, ...]
    work: tuple[int, int | None]


def measure(
    clock: Clock, ceilings: dict[str, Any], *, shapes: tuple[Shape, ...] | None = None, repeats: int | None = None
) -> Iterator[dict[str, Any]]:
    """A row for every operation, shape and form. Layers that see all tokens at once are measured at the first shape."""
    shapes = SHAPES[clock.device.type] if shapes is None else shapes
    repeats = repeats or (12 if clock.cuda else 10)
    jobs = [(shape, build) for shape in shapes for build in (_keys, _gated_keys, _values, _contextual)]
    jobs += [(shapes[0], build) for build in (_persistent, _loss, *([_loss_in_chunks] if clock.cuda else []))]
    for shape, build in progress(jobs, "kernels"):
        clock.start_over()
        case = build(clock, shape)
        if not clock.cuda:  # where no layer takes the op
            case = replace(case, forms={form: act for form, act in case.forms.items() if form != "op"})
        about = {"op": case.op, "batch": shape.batch, "time": shape.time, "unit": case.unit}
        yield from (about | row for row in _measure(clock, ceilings, case, repeats))


def _measure(clock: Clock, ceilings: dict[str, Any], case: Case, repeats: int) -> Iterator[dict[str, Any]]:
    wanted = [x for x in case.inputs if x.requires_grad]
    forward: dict[str, Callable[[], object]] = {}
    backward: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    with _kept_for_more_than_one_backward_pass(clock):
        clock.wait()  # for the inputs
        for form, act in case.forms.items():
            try:
                with clock.aside():
                    answer = act(*case.inputs)
                    again = partial(torch.autograd.grad, answer, wanted, torch.randn_like(answer), retain_graph=True)
                    again()
                clock.wait()
            except (RuntimeError, NotImplementedError) as error:  # a kernel that is not for this device or shape
                failed[form] = one_line(error, 60)
            else:
                forward[form], backward[form] = partial(act, *case.inputs), again
        seconds = {
            way: clock.laps(acts, repeats, cold=True) for way, acts in (("forward", forward), ("backward", backward))
        }
    limit, scale = (ceilings["copy_gbs"], 1e9) if case.unit == "GB/s" else (ceilings["product_tflops"], 1e12)
    for form in case.forms:
        row: dict[str, Any] = {"form": form, "failed": failed.get(form)}
        for way, work in zip(seconds, case.work, strict=True):
            time = seconds[way].get(form)
            rate = None if time is None or work is None else work / time / scale
            row |= {f"{way}_ms": short(time and 1e3 * time), f"{way}_rate": short(rate)}
            row |= {f"{way}_share": short(rate and rate / limit)}
        yield row


def _kept_for_more_than_one_backward_pass(clock: Clock) -> Any:
    """Compiled code would otherwise hand its buffers on to the first."""
    if not clock.cuda:
        return nullcontext()
    import torch._functorch.config as compiler

    return compiler.patch(donated_buffer=False)


def _keys(clock: Clock, shape: Shape) -> Case:
    raw = _random(clock, shape.batch, shape.time, shape.heads, shape.head_width)
    decay = torch.exp(-10 * torch.linspace(0.05, 0.5, shape.heads, device=clock.device)).requires_grad_()

    def plain(raw: Tensor, decay: Tensor) -> Tensor:
        return normalise(leaky_average(raw.float(), decay)[0]).to(raw.dtype)

    forms = {"PyTorch": _compiled(clock, plain), "op": lambda *given: leaky_key(*given)[0]}
    return Case("key", "GB/s", forms, (raw, decay), (2 * raw.nbytes, 3 * raw.nbytes))


def _gated_keys(clock: Clock, shape: Shape) -> Case:
    raw = _random(clock, shape.batch, shape.time, shape.heads, shape.head_width)
    steps = [torch.rand(raw.shape[:3], device=clock.device).requires_grad_() for _ in range(2)]

    def plain(raw: Tensor, decay: Tensor, gate: Tensor) -> Tensor:
        return normalise(gated_average(raw, decay, gate)).to(raw.dtype)

    forms = {"PyTorch": _compiled(clock, plain), "op": lambda *given: gated_key(*given)[0]}
    return Case("gated key", "GB/s", forms, (raw, *steps), (2 * raw.nbytes, 4 * raw.nbytes))


def _values(clock: Clock, shape: Shape) -> Case:
    raw = _random(clock, shape.batch, shape.time, shape.heads, shape.head_width)
    mixing = torch.rand(shape.heads, 2, device=clock.device).requires_grad_()

    def plain(raw: Tensor, taps: Tensor) -> Tensor:
        return normalise(apply_taps(raw.float(), taps)).to(raw.dtype)

    forms = {"PyTorch": _compiled(clock, plain), "op": tap_values}
    return Case("value", "GB/s", forms, (raw, mixing), (2 * raw.nbytes, 3 * raw.nbytes))


def _contextual(clock: Clock, shape: Shape) -> Case:
    """Query t sees t pairs, whose keys asked before it: causal attention on shifted tensors, to the stock kernels."""
    B, T, H, D = shape.batch, shape.time, shape.heads, shape.head_width
    inputs = (_random(clock, B, T, H, D), _random(clock, B, T - 1, H, D))
    asking = {"recall": partial(recall, causal_offset=0)} | {
        name: partial(_stock, BACKENDS[name], ahead=1) for name in STOCK[clock.device.type]
    }
    forms = {"op": contextual_recall} | {
        name: _compiled(clock, lambda keys, values, ask=ask: ask(keys, keys[:, :-1], values))
        for name, ask in asking.items()
    }
    work = 4 * B * H * D * T * (T - 1) // 2
    return Case("contextual recall", "TFLOP/s", forms, inputs, (work, 5 * work // 2))


def _persistent(clock: Clock, shape: Shape) -> Case:
    N, H, D = shape.batch * shape.time, shape.heads, shape.head_width
    inputs = tuple(_random(clock, 1, length, H, D) for length in (N, shape.slots, shape.slots))
    forms = {"recall": recall} | {name: partial(_stock, BACKENDS[name]) for name in STOCK[clock.device.type]}
    work = 4 * N * shape.slots * H * D
    return Case("persistent recall", "TFLOP/s", forms, inputs, (work, 5 * work // 2))


def _stock(backend: SDPBackend, queries: Tensor, stored: Tensor, values: Tensor, *, ahead: int | None = None) -> Tensor:
    queries, stored, values = (x.transpose(1, 2) for x in (queries, stored, values))
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            queries[:, :, ahead or 0 :], stored, values, is_causal=ahead is not None, scale=1.0
        )


def _loss(clock: Clock, shape: Shape) -> Case:
    inputs, work = _features(clock, shape)

    def plain(features: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return next_token_loss(F.linear(features, weight)[None], targets[None])

    return Case("loss", "TFLOP/s", {"PyTorch": _compiled(clock, plain)}, inputs, (work, 2 * work))


def _loss_in_chunks(clock: Clock, shape: Shape) -> Case:
    """It computes the gradients on its way forward, while it has the logits."""
    inputs, work = _features(clock, shape)
    return Case("loss", "TFLOP/s", {"op": linear_cross_entropy}, inputs, (3 * work, None))


def _features(clock: Clock, shape: Shape) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    N, width = shape.batch * shape.time, shape.heads * shape.head_width
    targets = torch.randint(shape.vocabulary, (N,), device=clock.device)
    inputs = (_random(clock, N, width), _random(clock, shape.vocabulary, width), targets)
    return inputs, 2 * N * shape.vocabulary * width


def _compiled(clock: Clock, act: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What plain PyTorch is at its best: compiled, where training compiles."""
    return torch.compile(act, dynamic=False) if clock.cuda else act


def _random(clock: Clock, *shape: int) -> Tensor:
    dtype = torch.bfloat16 if clock.cuda else torch.float32
    return torch.randn(shape, device=clock.device).to(dtype).requires_grad_()
