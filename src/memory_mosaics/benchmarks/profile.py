"""Where the time goes: the kernels of one training step and of one decoding step, by what they are for.

On CUDA both steps are graphs that are replayed, as in earnest; what no kernel accounts for of the time that a step
takes without the profiler is idle. On the CPU it is the operators' own time, without Python's.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from memory_mosaics.benchmarks import decode, kinds, train
from memory_mosaics.benchmarks.clock import Clock, progress, short
from memory_mosaics.decoding import Decoder
from memory_mosaics.errors import UserError
from memory_mosaics.extractors import LeakyAverage, Taps
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.memory import ContextualMemory, PersistentMemory
from memory_mosaics.mixers.attention import Attention
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.training.trainer import WARM_UP

NODE = "autograd::engine::evaluate_function"  # around all that a node of the backward pass does
LONGEST = 15  # kernels that are named
SIZES = {"cuda": train.GPT2_SMALL, "cpu": train.LAPTOP}
REGIONS: dict[type[nn.Module], str] = {
    LeakyAverage: kinds.KEYS,
    Taps: kinds.VALUES,
    ContextualMemory: kinds.CONTEXT,
    Attention: kinds.CONTEXT,
    PersistentMemory: kinds.PERSISTENT,
}
COLUMNS = {
    "step": ("step", "{}"),
    "milliseconds": ("kind", "{}"),
    **{ARCHITECTURES[name].label: (name, "{:.4g}") for name in train.PAIR},
}


@dataclass(frozen=True)
class Slice:
    """One kernel, or one operator's own time."""

    name: str
    kind: str
    start: float  # microseconds, as is all here
    time: float


def measure(
    clock: Clock,
    ceilings: dict[str, Any],
    *,
    size: train.Size | None = None,
    task: decode.Task | None = None,
    repeats: int | None = None,
) -> dict[str, Any]:
    """A row for every step, model and kind, and the longest kernels of each. Of several profiles the median counts."""
    size = SIZES[clock.device.type] if size is None else size
    task = decode.TASKS[clock.device.type] if task is None else task
    repeats = repeats or (10 if clock.cuda else 5)
    batch = task.batches[0]
    reads = min(repeats, (task.length - 2) // 2)  # to be warm, on the clock and under the profiler
    about = {
        "training": {"size": size.name, "batch": size.batch, "time": size.time},
        "decoding": {"size": task.size.name, "batch": batch, "time": task.prompt + task.length},
    }
    rows, longest = [], []
    for step, name in progress([(step, name) for step in about for name in train.PAIR], "profile"):
        clock.start_over()
        if step == "training":
            slices, seconds = _profiled(*_training(name, size, clock), clock, repeats, warm_up=WARM_UP + 2)
        else:
            slices, seconds = _profiled(*_decoding(name, task, batch, clock), clock, reads, warm_up=2)
        each = {"step": step, "model": name, "label": ARCHITECTURES[name].label}
        rows += [each | about[step] | row for row in shares(slices, seconds)]
        longest += [each | row for row in longest_of(slices)]
    return {"rows": rows, "kernels": longest}


def _training(name: str, size: train.Size, clock: Clock) -> tuple[LanguageModel, Callable[[], object]]:
    torch.manual_seed(0)
    task = train.RandomTokens(size, clock.device)
    model = LanguageModel(size.build(name)).to(clock.device)
    return model, train.training_step(model, task)


def _decoding(name: str, task: decode.Task, batch: int, clock: Clock) -> tuple[LanguageModel, Callable[[], object]]:
    model = decode.to_decode(name, task, clock.device)
    prompts = torch.randint(task.size.vocabulary, (batch, task.prompt), device=clock.device)
    decoder = Decoder(model, list(prompts), compiled=clock.cuda)
    decoder.reserve(task.length)
    return model, lambda: decoder.step(decoder.logits.argmax(-1))


def _profiled(
    model: LanguageModel, act: Callable[[], object], clock: Clock, repeats: int, *, warm_up: int
) -> tuple[list[Slice], float | None]:
    """What ran in one act, and on CUDA the seconds that it takes without a profiler."""
    seconds = clock.seconds(act, repeats if clock.cuda else 1, warm_up=warm_up)
    profiles = []
    for _ in range(repeats):
        with nullcontext() if clock.cuda else _named(model):
            profiles.append(_profile(model, act, clock))
    profiles.sort(key=lambda slices: sum(each.time for each in slices))
    return profiles[len(profiles) // 2], seconds if clock.cuda else None


def _profile(model: LanguageModel, act: Callable[[], object], clock: Clock) -> list[Slice]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler says that it begins, and that it ends
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if clock.cuda else [])]
    clock.wait()
    with profile(activities=activities, acc_events=True) as recorded:  # torch 2.11 warns without, of nothing here
        act()
        clock.wait()
    events: list[Any] = list(recorded.events() or ())
    if not clock.cuda:
        return operators(events)
    persistent = sum(isinstance(module, PersistentMemory) for module in model.modules())
    return kernels(events, persistent=persistent)


def kernels(events: list[Any], *, persistent: int) -> list[Slice]:
    """What ran on the device, in order."""
    ran = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    ran = [event for event in ran if not kinds.NOT_KERNELS.search(event.name)]
    if not ran:
        raise UserError("the profiler sees no kernels of this device; it may need a permission (CUPTI)")
    ran.sort(key=lambda event: event.time_range.start)
    found = kinds.of_kernels([event.name for event in ran], persistent=persistent)
    return [
        Slice(event.name, kind, event.time_range.start, event.time_range.end - event.time_range.start)
        for event, kind in zip(ran, found, strict=True)
    ]


def operators(events: list[Any]) -> list[Slice]:
    """What ran on the CPU. An operator of the backward pass is of the layer whose forward operator it differentiates.

    The two share a sequence number: the last forward operator to show one is the one that made the node.
    """
    ran = sorted((event for event in events if not event.is_async), key=lambda event: event.time_range.start)
    around = [_outer(event) for event in ran]
    nodes = [next((each for each in outer if each.name.startswith(NODE)), None) for outer in around]
    made = {
        event.sequence_nr: outer
        for event, outer, node in zip(ran, around, nodes, strict=True)
        if node is None and event.sequence_nr >= 0
    }
    slices = []
    for event, outer, node in zip(ran, around, nodes, strict=True):
        if not event.is_user_annotation:
            made_in = outer if node is None else made.get(node.sequence_nr, [])
            region = next((region for each in made_in if (region := _region(each.name))), None)
            kind = kinds.of_operator(event.name, region)
            slices.append(Slice(event.name, kind, event.time_range.start, event.self_cpu_time_total))
    return slices


def _outer(event: Any) -> list[Any]:
    """The event and all around it, from the innermost."""
    found = []
    while event is not None:
        found.append(event)
        event = event.cpu_parent
    return found


def _region(name: str) -> str | None:
    return kinds.OPTIMISER if name.startswith("Optimizer.") else name if name in REGIONS.values() else None


@contextmanager
def _named(model: LanguageModel) -> Iterator[None]:
    """Within, the layers tell the profiler what they are for."""
    handles, inside = [], []

    def enter(module: nn.Module, _: Any) -> None:
        inside.append(record_function(REGIONS[type(module)]))
        inside[-1].__enter__()

    def leave(*_: Any) -> None:
        inside.pop().__exit__(None, None, None)

    for module in model.modules():
        if type(module) in REGIONS:
            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def shares(slices: list[Slice], seconds: float | None) -> list[dict[str, Any]]:
    """Milliseconds, share and launches of each kind. With the seconds of the whole, what no kernel fills is idle."""
    total = sum(each.time for each in slices)
    idle = 0.0 if seconds is None else max(0.0, 1e6 * seconds - busy(slices))
    rows = []
    for kind in kinds.KINDS:
        times = [each.time for each in slices if each.kind == kind]
        if kind == kinds.IDLE and seconds is not None:
            rows.append({"kind": kind, "ms": short(idle / 1e3), "share": short(idle / (total + idle)), "launches": 0})
        elif times:
            row = {"kind": kind, "ms": short(sum(times) / 1e3), "share": short(sum(times) / (total + idle))}
            rows.append(row | {"launches": len(times)})
    return rows


def busy(slices: list[Slice]) -> float:
    """Microseconds in which at least one of them runs."""
    covered, end = 0.0, float("-inf")
    for each in sorted(slices, key=lambda each: each.start):
        covered += max(0.0, each.start + each.time - max(end, each.start))
        end = max(end, each.start + each.time)
    return covered


def longest_of(slices: list[Slice]) -> list[dict[str, Any]]:
    """The kernels that take the most time in all their launches."""
    times: dict[tuple[str, str], list[float]] = {}
    for each in slices:
        times.setdefault((each.name[:160], each.kind), []).append(each.time)
    order = sorted(times, key=lambda key: -sum(times[key]))
    return [
        {"kernel": name, "kind": kind, "ms": short(sum(found) / 1e3), "launches": len(found)}
        for name, kind in order[:LONGEST]
        if (found := times[name, kind])
    ]


def lines(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For the table: kinds by models, and in all."""
    found = []
    for step in dict.fromkeys(row["step"] for row in rows):
        of_step = [row for row in rows if row["step"] == step]
        for kind in kinds.KINDS:
            times = {row["model"]: row["ms"] for row in of_step if row["kind"] == kind}
            found += [{"step": step, "kind": kind} | times] if times else []
        models = dict.fromkeys(row["model"] for row in of_step)
        total = {name: sum(row["ms"] for row in of_step if row["model"] == name) for name in models}
        found.append({"step": step, "kind": "in all"} | total)
    return found
