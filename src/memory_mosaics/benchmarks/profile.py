"""Profile one training step and one decoding step: the time of their kernels by a dozen kinds.

On CUDA both steps are replayed graphs, as in use, and all that is known of a kernel is its name and when it ran. Where
names are ambiguous, the order decides: each block recalls from its context first and from its persistent memory
second, and the backward pass goes the other way. The part of an unprofiled step in which no kernel runs is idle. On
the CPU it is the self time of operators.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from memory_mosaics.benchmarks import throughput
from memory_mosaics.benchmarks.throughput import Workload
from memory_mosaics.benchmarks.timing import TABLES, Timer, progress
from memory_mosaics.decoding import Decoder
from memory_mosaics.errors import UserError
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.memory import ContextualMemory, LeakyAverage, PersistentMemory, Taps
from memory_mosaics.mixers.attention import Attention
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.training.trainer import WARM_UP

PRODUCTS, CONTEXT, PERSISTENT = "matrix products", "recall from the context", "persistent recall"
KEYS, VALUES, POINTWISE = "keys (leaky average)", "values (taps)", "norms, residuals and the like"
LOSS, OPTIMISER, COPIES, REST = "loss over the vocabulary", "optimiser", "copies and casts", "the rest"
IDLE = "idle"
KINDS = (PRODUCTS, CONTEXT, PERSISTENT, KEYS, VALUES, POINTWISE, LOSS, OPTIMISER, COPIES, REST, IDLE)

NOT_KERNELS = re.compile(  # events of the profiler itself and of synchronization
    r"^(Activity Buffer|Command Buffer|Buffer Flush|Lazy |Runtime |Resource|Instrumentation"
    r"|(Context|Device|Stream|Event) (Sync|Wait|Record))"
)

NODE = "autograd::engine::evaluate_function"  # encloses the operators of a node of the backward pass
MAX_KERNELS = 15  # listed per step and model
REGIONS: dict[type[nn.Module], str] = {
    LeakyAverage: KEYS,
    Taps: VALUES,
    ContextualMemory: CONTEXT,
    Attention: CONTEXT,
    PersistentMemory: PERSISTENT,
}


@dataclass(frozen=True)
class Slice:
    """One kernel, or the self time of one operator."""

    name: str
    kind: str
    start: float  # in microseconds
    time: float


def measure(timer: Timer, ceilings: dict[str, Any], work: Workload) -> Iterator[dict[str, Any]]:
    """Yield a row per step, model and kind, and one for each of the longest kernels, of the median of several profiles.

    The rows of kernels are those with "kernel".
    """
    about = {
        "training": {"size": work.size.name, "batch": work.size.batch, "context": work.size.context},
        "decoding": {"size": work.size.name, "batch": work.batches[0], "context": work.prompt + work.length},
    }
    for step, name in progress([(step, name) for step in about for name in throughput.PAIR], "profile"):
        timer.reset()
        slices, seconds = (_training if step == "training" else _decoding)(name, work, timer)
        each = {"step": step, "model": name, "label": ARCHITECTURES[name].label}
        yield from (each | about[step] | row for row in time_by_kind(slices, seconds))
        yield from (each | row for row in longest_kernels(slices))


def _training(name: str, work: Workload, timer: Timer) -> tuple[list[Slice], float | None]:
    torch.manual_seed(0)
    task = throughput.RandomTokens(work.size, timer.device)
    model = LanguageModel(work.size.config(name)).to(timer.device)
    step = throughput.training_step(model, task)
    return _median_profile(model, step, timer, work.repeats["profile"], warm_up=WARM_UP + 2)


def _decoding(name: str, work: Workload, timer: Timer) -> tuple[list[Slice], float | None]:
    model = throughput.random_model(name, work.size, timer.device)
    prompts = torch.randint(work.size.vocabulary, (work.batches[0], work.prompt), device=timer.device)
    decoder = Decoder(model, list(prompts), compiled=timer.cuda)
    decoder.reserve(work.length)
    repeats = min(work.repeats["profile"], (work.length - 2) // 2)  # timed and profiled, after two to warm up
    return _median_profile(model, lambda: decoder.step(decoder.logits.argmax(-1)), timer, repeats, warm_up=2)


def _median_profile(
    model: LanguageModel, function: Callable[[], object], timer: Timer, repeats: int, *, warm_up: int
) -> tuple[list[Slice], float | None]:
    """Return what ran in one call, and on CUDA its seconds without the profiler."""
    seconds = timer.median(function, repeats if timer.cuda else 1, warm_up=warm_up)
    profiles = []
    for _ in range(repeats):
        with nullcontext() if timer.cuda else _layer_regions():
            profiles.append(_profile(model, function, timer))
    profiles.sort(key=lambda slices: sum(each.time for each in slices))
    return profiles[len(profiles) // 2], seconds if timer.cuda else None


def _profile(model: LanguageModel, function: Callable[[], object], timer: Timer) -> list[Slice]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler logs its start and end
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if timer.cuda else [])]
    timer.synchronize()
    with profile(activities=activities, acc_events=True) as result:  # torch 2.11 warns without
        function()
        timer.synchronize()
    events: list[Any] = list(result.events() or ())
    if not timer.cuda:
        return operator_slices(events)
    persistent = sum(isinstance(module, PersistentMemory) for module in model.modules())
    return kernel_slices(events, persistent=persistent)


def kernel_slices(events: list[Any], *, persistent: int) -> list[Slice]:
    """Return the kernels that ran on the device, in order."""
    ran = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    ran = [event for event in ran if not NOT_KERNELS.search(event.name)]
    if not ran:
        raise UserError("the profiler sees no kernels of this device; it may need a permission (CUPTI)")
    ran.sort(key=lambda event: event.time_range.start)
    kinds = kernel_kinds([event.name for event in ran], persistent=persistent)
    return [
        Slice(event.name, kind, event.time_range.start, event.time_range.end - event.time_range.start)
        for event, kind in zip(ran, kinds, strict=True)
    ]


def operator_slices(events: list[Any]) -> list[Slice]:
    """Return the operators that ran on the CPU. One of the backward pass belongs to the layer of its forward operator.

    The two share a sequence number: the last forward operator with a number is the one that made the node.
    """
    ran = sorted((event for event in events if not event.is_async), key=lambda event: event.time_range.start)
    enclosing = [_enclosing(event) for event in ran]
    nodes = [next((each for each in outer if each.name.startswith(NODE)), None) for outer in enclosing]
    made = {
        event.sequence_nr: outer
        for event, outer, node in zip(ran, enclosing, nodes, strict=True)
        if node is None and event.sequence_nr >= 0
    }
    slices = []
    for event, outer, node in zip(ran, enclosing, nodes, strict=True):
        if not event.is_user_annotation:
            made_in = outer if node is None else made.get(node.sequence_nr, [])
            region = next((region for each in made_in if (region := _region(each.name))), None)
            kind = operator_kind(event.name, region)
            slices.append(Slice(event.name, kind, event.time_range.start, event.self_cpu_time_total))
    return slices


def _enclosing(event: Any) -> list[Any]:
    """Return the event and those that enclose it, from the innermost."""
    return [event, *_enclosing(event.cpu_parent)] if event is not None else []


def _region(name: str) -> str | None:
    return OPTIMISER if name.startswith("Optimizer.") else name if name in REGIONS.values() else None


@contextmanager
def _layer_regions() -> Iterator[None]:
    """Mark for the profiler what runs in each kind of layer."""
    forwards = {layer: layer.forward for layer in REGIONS}
    for layer, forward in forwards.items():
        layer.forward = record_function(REGIONS[layer])(forward)
    try:
        yield
    finally:
        for layer, forward in forwards.items():
            layer.forward = forward


def time_by_kind(slices: list[Slice], seconds: float | None) -> list[dict[str, Any]]:
    """Return milliseconds, share and launches per kind; idle time where the seconds of the whole step are known."""
    total = sum(each.time for each in slices)
    idle = 0.0 if seconds is None else max(0.0, 1e6 * seconds - busy_time(slices))
    rows = []
    for kind in KINDS:
        times = [each.time for each in slices if each.kind == kind]
        if times or (kind == IDLE and seconds is not None):
            time = idle if kind == IDLE else sum(times)
            rows.append({"kind": kind, "ms": time / 1e3, "share": time / (total + idle), "launches": len(times)})
    return rows


def busy_time(slices: list[Slice]) -> float:
    """Return the microseconds in which at least one slice runs."""
    covered, end = 0.0, float("-inf")
    for each in sorted(slices, key=lambda each: each.start):
        covered += max(0.0, each.start + each.time - max(end, each.start))
        end = max(end, each.start + each.time)
    return covered


def longest_kernels(slices: list[Slice]) -> list[dict[str, Any]]:
    """Return the kernels with the most time over all their launches."""
    times: dict[tuple[str, str], list[float]] = {}
    for each in slices:
        times.setdefault((each.name[:160], each.kind), []).append(each.time)
    order = sorted(times, key=lambda key: -sum(times[key]))
    return [
        {"kernel": name, "kind": kind, "ms": sum(found) / 1e3, "launches": len(found)}
        for name, kind in order[:MAX_KERNELS]
        if (found := times[name, kind])
    ]


def table_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the printed table: kinds by models, and totals."""
    found = []
    for step in dict.fromkeys(row["step"] for row in rows):
        of_step = [row for row in rows if row["step"] == step]
        for kind in KINDS:
            times = {row["model"]: row["ms"] for row in of_step if row["kind"] == kind}
            found += [{"step": step, "kind": kind} | times] if times else []
        models = dict.fromkeys(row["model"] for row in of_step)
        total = {name: sum(row["ms"] for row in of_step if row["model"] == name) for name in models}
        found.append({"step": step, "kind": "total"} | total)
    return found


def kernel_kind(name: str) -> str:
    """Return the kind by the name alone, which does not distinguish the two recalls."""
    return _first("kernels", name)


def operator_kind(name: str, region: str | None) -> str:
    """Return the kind of an operator: that of its layer, unless it multiplies by a matrix."""
    kind = _first("operators", name)
    if region == CONTEXT and re.search("bmm|softmax", name):  # recall that keeps its weights is made of them
        return region
    if region in (KEYS, VALUES, OPTIMISER):
        products = kind == PRODUCTS and not name.endswith("bmm")  # a leaky average is a product over time
        return kind if products else region
    return region if kind == CONTEXT and region else kind


def _first(table: str, name: str) -> str:
    return next((kind for pattern, kind in TABLES[table] if re.search(pattern, name)), REST)


def kernel_kinds(names: Sequence[str], *, persistent: int = 0) -> list[str]:
    """Return the kinds of the kernels of one step in the order they ran; `persistent`: how many layers have slots."""
    kinds = [kernel_kind(name) for name in names]
    losses = [index for index, kind in enumerate(kinds) if kind == LOSS]
    for index in range(losses[0], losses[-1]) if losses else ():  # a chunked loss accumulates in between
        kinds[index] = kinds[index] if kinds[index] == PRODUCTS else LOSS
    for index in _persistent_recalls(kinds, persistent):
        kinds[index] = PERSISTENT
    return kinds


def _persistent_recalls(kinds: Sequence[str], layers: int) -> list[int]:
    """Return the kernels of every other recall: the second of each block, and in the backward pass the first.

    Between two recalls there is a matrix product. Without two recalls of each layer in each pass nothing is known.
    """
    recalls: list[list[int]] = []
    is_next = True
    for index, kind in enumerate(kinds):
        if kind == CONTEXT:
            recalls += [[]] if is_next else []
            recalls[-1].append(index)
        is_next = kind == PRODUCTS or (is_next and kind != CONTEXT)
    if len(recalls) not in (2 * layers, 4 * layers):
        return []
    return list(chain(*recalls[1 : 2 * layers : 2], *recalls[2 * layers :: 2]))
