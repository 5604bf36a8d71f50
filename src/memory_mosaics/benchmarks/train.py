"""Training: tokens per second, the share of the machine's matrix product that they are, and peak memory."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from memory_mosaics.benchmarks.clock import Clock, progress, short
from memory_mosaics.benchmarks.flops import training_flops
from memory_mosaics.errors import one_line
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig, parameter_count, without_state
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.runtime import Runtime, RuntimeConfig, precision_of
from memory_mosaics.tasks.task import Batch, TokenTask
from memory_mosaics.training.config import Training
from memory_mosaics.training.trainer import WARM_UP, Objective, TrainStep, adamw

TRAINING = Training()
MODELS = tuple(name for name in ARCHITECTURES if name != "transformer-none")
PAIR = ("memory-mosaic", "transformer")
TRANSFORMERS = (*PAIR, "transformer-rotary", "transformer-alibi")


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model's size and a batch."""

    name: str
    width: int
    blocks: int
    heads: int
    vocabulary: int
    batch: int
    time: int
    dropout: float = 0.0

    def build(self, model: str) -> LanguageModelConfig:
        sizes = {"width": self.width, "blocks": self.blocks, "heads": self.heads, "vocabulary": self.vocabulary}
        return ARCHITECTURES[model].config(context=self.time, dropout=self.dropout, **sizes)


GPT2_SMALL = Size(name="GPT-2 small", width=768, blocks=12, heads=12, vocabulary=50304, batch=64, time=512)
LAPTOP = Size(name="laptop", width=256, blocks=4, heads=4, vocabulary=2048, batch=4, time=256)
_STORIES = {"width": 384, "heads": 6, "vocabulary": 50257, "batch": 64, "time": 512, "dropout": 0.1}
_REGBENCH = {"width": 128, "heads": 4, "vocabulary": 20, "batch": 32, "time": 300}
SIZES: dict[str, list[tuple[Size, Iterable[str]]]] = {
    "cuda": [
        (GPT2_SMALL, MODELS),
        (replace(GPT2_SMALL, name="GPT-2 small, dropout 0.1", dropout=0.1), TRANSFORMERS),
        (Size(name="stories, 1 block, dropout 0.1", blocks=1, **_STORIES), TRANSFORMERS),
        (Size(name="stories, 6 blocks, dropout 0.1", blocks=6, **_STORIES), TRANSFORMERS),
        (Size(name="small, 2 blocks", blocks=2, **_REGBENCH), PAIR),
        (Size(name="small, 8 blocks", blocks=8, **_REGBENCH), PAIR),
    ],
    "cpu": [(LAPTOP, PAIR), (replace(LAPTOP, batch=1, time=1024), PAIR)],
}
COLUMNS = {
    "size": ("size", "{}"),
    "batch": ("batch", "{}"),
    "T": ("time", "{}"),
    "model": ("label", "{}"),
    "parameters": ("parameters", "{:,}"),
    "steps/s": ("steps_per_second", "{:.4g}"),
    "tokens/s": ("tokens_per_second", "{:,.0f}"),
    "x twin": ("of_twin", "{:.2f}"),
    "TFLOP/s": ("tflops", "{:.4g}"),
    "MFU": ("mfu", "{:.1%}"),
    "peak GiB": ("peak_gib", "{:.2f}"),
    "": ("failed", "{}"),
}


class RandomTokens(TokenTask):
    """One batch of random tokens, again and again."""

    def __init__(self, size: Size, device: torch.device):
        tokens = torch.randint(size.vocabulary, (size.batch, size.time + 1), device=device)
        self.batch_size, self.tokens_per_step = size.batch, size.batch * size.time
        self.tokens = Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        return Batch(self.tokens.inputs[rows], self.tokens.targets[rows])


def training_step(model: LanguageModel, task: RandomTokens) -> Callable[[], Tensor]:
    """One step of the optimiser, as training takes it on this device; returns the loss."""
    device = model.embedding.weight.device
    cuda = device.type == "cuda"
    block_fn = torch.compile(without_state, dynamic=False) if cuda else None
    here = Runtime(device, precision=precision_of(RuntimeConfig(), device.type), block_fn=block_fn)
    objective = Objective(model, task, here).train()
    take, numbers = TrainStep(objective, adamw(model, TRAINING), TRAINING, here, captured=cuda), count()
    return lambda: take(next(numbers), task.batch(0))[0]


def measure(
    clock: Clock,
    ceilings: dict[str, Any],
    *,
    sizes: list[tuple[Size, Iterable[str]]] | None = None,
    repeats: int | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for every size and model."""
    for size, models in SIZES[clock.device.type] if sizes is None else sizes:
        yield from measure_size(clock, ceilings, size, models, repeats=repeats)


def beside_twin(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows, each with its speed in units of the transformer's of its size, where both were trained."""
    size = lambda row: (row.get("size"), row["batch"], row["time"])  # noqa: E731
    trained = [row for row in rows if row.get("steps_per_second")]
    twins = {size(row): row["tokens_per_second"] for row in trained if row["model"] == "transformer"}
    for row in trained:
        if twin := twins.get(size(row)):
            row["of_twin"] = short(row["tokens_per_second"] / twin)
    return rows


def measure_size(
    clock: Clock,
    ceilings: dict[str, Any],
    size: Size,
    models: Iterable[str],
    *,
    repeats: int | None = None,
    beside: dict[str, Callable[[], object]] | None = None,
) -> Iterator[dict[str, Any]]:
    """Models of one size: alone on CUDA, where memory is counted; in turn on the CPU, where noise is large.

    `beside`, an act for each model, takes its turns with them; a row then has its `beside_seconds`.
    """
    repeats = repeats or (15 if clock.cuda else 25)
    groups = [[name] for name in models] if clock.cuda else [list(models)]
    for group in progress(groups, f"{size.name}, {size.batch} x {size.time}"):
        yield from _measure_group(clock, ceilings, size, group, repeats, beside or {})


def _measure_group(
    clock: Clock,
    ceilings: dict[str, Any],
    size: Size,
    names: list[str],
    repeats: int,
    beside: dict[str, Callable[[], object]],
) -> list[dict[str, Any]]:
    clock.start_over()
    task = RandomTokens(size, clock.device)
    models: dict[str, LanguageModel] = {}
    acts: dict[str, Callable[[], object]] = {f"beside {name}": beside[name] for name in names if name in beside}
    try:
        for name in names:
            torch.manual_seed(0)
            models[name] = LanguageModel(size.build(name)).to(clock.device)
            acts[name] = training_step(models[name], task)
        seconds = clock.laps(acts, repeats, warm_up=WARM_UP + 2 if clock.cuda else 2)
    except torch.OutOfMemoryError:
        return [_row(size, name) | {"failed": "out of memory"} for name in names]
    except RuntimeError as error:  # of a mixer that the compiler or the recorder does not take
        if names[0] in PAIR:
            raise
        return [_row(size, name) | {"failed": one_line(error, 60)} for name in names]
    return [
        _row(size, name, seconds[name])
        | ({"beside_seconds": seconds[f"beside {name}"]} if name in beside else {})
        | {"parameters": parameter_count(model)["total"], "peak_gib": short(clock.peak())}
        | _use(training_flops(model, size.time) * size.batch * size.time / seconds[name], ceilings)
        for name, model in models.items()
    ]


def _row(size: Size, name: str, seconds: float | None = None) -> dict[str, Any]:
    speeds: dict[str, float | None] = {"step_seconds": None, "steps_per_second": None, "tokens_per_second": None}
    if seconds is not None:
        speeds = {"step_seconds": seconds, "steps_per_second": 1 / seconds}
        speeds["tokens_per_second"] = size.batch * size.time / seconds
    sizes = {"size": size.name} | {key: value for key, value in asdict(size).items() if key != "name"}
    return (
        {"model": name, "label": ARCHITECTURES[name].label}
        | sizes
        | {key: short(value) for key, value in speeds.items()}
    )


def _use(flops: float, ceilings: dict[str, Any]) -> dict[str, Any]:
    return {"tflops": short(flops / 1e12), "mfu": short(flops / 1e12 / ceilings["product_tflops"])}
