"""Peak memory and time against the length of the sequences, at one number of tokens per step.

Recall compares every query with every earlier key, so that its time a token grows with T. All else should not: recall
is measured by itself, at the shapes that the model gives it, and taken off: on the CPU in turn with the steps, so that
noise hits both; on CUDA after them, since its tensors would count as theirs.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from memory_mosaics.benchmarks.clock import Clock, short
from memory_mosaics.benchmarks.train import GPT2_SMALL, LAPTOP, PAIR, Size, measure_size
from memory_mosaics.stores import Pairs, Retrieval


@dataclass(frozen=True)
class Lengths:
    """Sequences of several lengths that share one number of tokens per step."""

    size: Size
    tokens: int
    times: tuple[int, ...]


SIZES = {
    "cuda": Lengths(GPT2_SMALL, 32768, (512, 2048, 8192, 32768)),
    "cpu": Lengths(LAPTOP, 2048, (256, 512, 1024, 2048)),
}
COLUMNS = {
    "T": ("time", "{}"),
    "batch": ("batch", "{}"),
    "model": ("label", "{}"),
    "tokens/s": ("tokens_per_second", "{:,.0f}"),
    "x twin": ("of_twin", "{:.2f}"),
    "peak GiB": ("peak_gib", "{:.2f}"),
    "µs/token": ("microseconds", "{:.4g}"),
    "of it recall": ("recall_microseconds", "{:.4g}"),
    "the rest": ("rest_microseconds", "{:.4g}"),
    "": ("failed", "{}"),
}


def measure(
    clock: Clock,
    ceilings: dict[str, Any],
    *,
    lengths: Lengths | None = None,
    models: Iterable[str] = PAIR,
    repeats: int | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for every length and model."""
    lengths = SIZES[clock.device.type] if lengths is None else lengths
    repeats = repeats or (10 if clock.cuda else 5)
    for time in lengths.times:
        size = replace(lengths.size, batch=lengths.tokens // time, time=time)
        beside = {} if clock.cuda else {name: recall_once(clock, size, name) for name in models}
        for row in measure_size(clock, ceilings, size, models, repeats=repeats, beside=beside):
            alone = row.pop("beside_seconds", None)
            if row["tokens_per_second"]:
                if alone is None:
                    alone = clock.seconds(recall_once(clock, size, row["model"]), repeats, cold=True)
                whole = 1e6 / row["tokens_per_second"]
                part = 1e6 * size.blocks * alone / lengths.tokens
                row |= {"microseconds": short(whole), "recall_microseconds": short(part)}
                row |= {"rest_microseconds": short(whole - part)}
            yield row


def recall_once(clock: Clock, size: Size, model: str) -> Callable[[], object]:
    """Recall from the context, forward and backward, as in one block of a model of that size."""
    dtype = torch.bfloat16 if clock.cuda else torch.float32
    shape = (size.batch, size.time, size.heads, size.width // size.heads)
    keys, gradient = (torch.randn(shape, device=clock.device, dtype=dtype) for _ in range(2))
    if model == "memory-mosaic":  # keys are what is asked with, and the last has no value yet
        others = [torch.randn_like(keys[:, 1:])]
        ask = lambda keys, values: Retrieval(keys, Pairs(keys[:, :-1], values, 0), 1.0, queries_are_keys=True).answer()  # noqa: E731
    else:
        others = [torch.randn_like(keys) for _ in range(2)]
        ask = lambda keys, values, queries: Retrieval(queries, Pairs(keys, values, 1), 1.0).answer()  # noqa: E731
    inputs = [x.requires_grad_() for x in (keys, *others)]
    answer = torch.compile(ask, dynamic=False) if clock.cuda else ask
    return lambda: torch.autograd.grad(answer(*inputs), inputs, gradient)
