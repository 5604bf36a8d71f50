"""Tokens per second and peak memory of whole models: training, training against sequence length, and decoding."""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from memory_mosaics.benchmarks.timing import TABLES, Timer, progress
from memory_mosaics.benchmarks.work import count_work
from memory_mosaics.decoding import GREEDY, generate
from memory_mosaics.errors import one_line
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig, parameter_count, without_state
from memory_mosaics.memory import PersistentMemoryConfig
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.parameters import named_param_specs
from memory_mosaics.runtime import Runtime, RuntimeConfig
from memory_mosaics.stores import DropoutOf, Pairs, Retrieval, VisiblePairs
from memory_mosaics.tasks.task import Batch, TokenTask
from memory_mosaics.training.config import Training
from memory_mosaics.training.trainer import WARM_UP, Objective, TrainStep, adamw

TRAINING = Training()
MODELS = tuple(name for name in ARCHITECTURES if name != "transformer-none")
PAIR = ("memory-mosaic", "transformer")
NO_SPECIAL_TOKENS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
CACHES = {"transformers-dynamic": "dynamic", "transformers-static": "static"}


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a model and of a batch, what dropout drops, and the heads of persistent memories if others."""

    name: str
    width: int
    blocks: int
    heads: int
    vocabulary: int
    batch: int
    context: int
    dropout: float = 0.0
    dropout_of: DropoutOf = "weights"
    persistent_heads: int | None = None

    def config(self, architecture: str) -> LanguageModelConfig:
        sizes = {"width": self.width, "blocks": self.blocks, "heads": self.heads, "vocabulary": self.vocabulary}
        config = ARCHITECTURES[architecture].config(context=self.context, dropout=self.dropout, **sizes)
        mixers: dict[str, Any] = {name: getattr(config, name) for name in ("sequence_mixer", "channel_mixer")}
        for name, mixer in mixers.items():
            if hasattr(mixer, "dropout_of"):
                mixers[name] = replace(mixer, dropout_of=self.dropout_of)
        if self.persistent_heads and isinstance(mixers["channel_mixer"], PersistentMemoryConfig):
            mixers["channel_mixer"] = replace(mixers["channel_mixer"], heads=self.persistent_heads)
        return replace(config, **mixers)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is measured on one kind of device; bench.yaml describes the fields."""

    sizes: Sequence[tuple[Size, Sequence[str]]]
    lengths: Sequence[tuple[int, int]]
    shapes: Sequence[tuple[int, int]]
    batches: Sequence[int]
    prompt: int
    length: int
    repeats: dict[str, int]
    compare: Any = None  # the module of another model: outside.py

    @classmethod
    def for_device(cls, device: str) -> "Workload":
        plain = TABLES["workloads"][device]
        return cls(**plain | {"sizes": [(Size(**size), models or MODELS) for size, models in plain["sizes"]]})

    @property
    def size(self) -> Size:
        """The first size, which is that of all benchmarks but training."""
        return self.sizes[0][0]

    def resized(self, shapes: Iterable[tuple[int, int]]) -> list[Size]:
        """Return that size with each of these batch sizes and sequence lengths."""
        return [replace(self.size, batch=batch, context=context) for batch, context in shapes]


class RandomTokens(TokenTask):
    """A task of one batch of random tokens, the same at every step."""

    def __init__(self, size: Size, device: torch.device):
        tokens = torch.randint(size.vocabulary, (size.batch, size.context + 1), device=device)
        self.batch_size, self.tokens_per_step = size.batch, size.batch * size.context
        self.tokens = Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        return Batch(self.tokens.inputs[rows], self.tokens.targets[rows])


def training_step(model: LanguageModel, task: RandomTokens) -> Callable[[], Tensor]:
    """Return a function that takes one optimizer step, as training does on this device, and returns the loss."""
    device = model.embedding.weight.device
    cuda = device.type == "cuda"
    block_fn = torch.compile(without_state, dynamic=False) if cuda else None
    here = Runtime(device, precision=RuntimeConfig().precision_on(device.type), block_fn=block_fn)
    return optimizer_step(model, Objective(model, task, here))


def optimizer_step(model: nn.Module, objective: Objective) -> Callable[[], Tensor]:
    """Return a function that takes one step of the model's weights, a CUDA graph on CUDA, and returns the loss."""
    task, here = objective.task, objective.runtime
    captured = here.device.type == "cuda"
    take = TrainStep(objective.train(), adamw(model, TRAINING), TRAINING, here, captured=captured)
    numbers = count()
    return lambda: take(next(numbers), task.batch(0))[0]


def measure_training(timer: Timer, ceilings: dict[str, Any], work: Workload) -> Iterator[dict[str, Any]]:
    """Yield a row per size and model."""
    for size, models in work.sizes:
        yield from _measure_size(timer, ceilings, size, models, repeats=work.repeats["train"])


def add_relative_speed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each training row its speed relative to the transformer of the same size, where both were measured."""
    size = lambda row: (row.get("size"), row["batch"], row["context"])  # noqa: E731
    trained = [row for row in rows if row.get("steps_per_second")]
    transformers = {size(row): row["tokens_per_second"] for row in trained if row["model"] == "transformer"}
    for row in trained:
        if speed := transformers.get(size(row)):
            row["relative_speed"] = row["tokens_per_second"] / speed
    return rows


def _measure_size(
    timer: Timer,
    ceilings: dict[str, Any],
    size: Size,
    models: Iterable[str],
    *,
    repeats: int,
    recalls: dict[str, Callable[[], object]] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield rows of models of one size: one by one on CUDA, where memory counts; in turns on the noisier CPU.

    `recalls`, a function per model, takes its turns with them; a row then has its `recall_seconds`.
    """
    groups = [[name] for name in models] if timer.cuda else [list(models)]
    for group in progress(groups, f"{size.name}, {size.batch} x {size.context}"):
        yield from _measure_group(timer, ceilings, size, group, repeats, recalls or {})


def _measure_group(
    timer: Timer,
    ceilings: dict[str, Any],
    size: Size,
    names: list[str],
    repeats: int,
    recalls: dict[str, Callable[[], object]],
) -> list[dict[str, Any]]:
    timer.reset()
    task = RandomTokens(size, timer.device)
    models: dict[str, LanguageModel] = {}
    functions: dict[str, Callable[[], object]] = {f"recall {name}": recalls[name] for name in names if name in recalls}
    try:
        for name in names:
            torch.manual_seed(0)
            models[name] = LanguageModel(size.config(name)).to(timer.device)
            functions[name] = training_step(models[name], task)
        seconds = timer.medians(functions, repeats, warm_up=WARM_UP + 2 if timer.cuda else 2)
    except torch.OutOfMemoryError:
        return [training_row(size, name) | {"failed": "out of memory"} for name in names]
    except RuntimeError as error:  # of a mixer that cannot be compiled or captured
        if names[0] in PAIR:
            raise
        return [training_row(size, name) | {"failed": one_line(error, 60)} for name in names]
    rows = []
    for name, model in models.items():
        row = training_row(size, name, seconds[name])
        if name in recalls:
            row["recall_seconds"] = seconds[f"recall {name}"]
        flops = count_work(model.config).model_flops * size.batch * size.context
        tflops = flops / seconds[name] / 1e12
        row |= {"parameters": parameter_count(model)["total"], "peak_gib": timer.peak_gib()}
        rows.append(row | {"tflops": tflops, "product_share": tflops / ceilings["product_tflops"]})
    return rows


def training_row(size: Size, name: str, seconds: float | None = None, *, label: str | None = None) -> dict[str, Any]:
    """Return the speed of a model, `name` in the table of models or another with a `label`."""
    row = {"model": name, "label": label or ARCHITECTURES[name].label, "size": size.name}
    row |= {key: value for key, value in asdict(size).items() if key != "name"}
    row |= {"step_seconds": seconds, "steps_per_second": seconds and 1 / seconds}
    return row | {"tokens_per_second": seconds and size.batch * size.context / seconds}


def measure_lengths(timer: Timer, ceilings: dict[str, Any], work: Workload) -> Iterator[dict[str, Any]]:
    """Yield a row per length and model, all with the same number of tokens per step.

    Recall compares every query with every earlier key, so that its time per token grows with T; all else should not.
    Recall alone is measured at the shapes of the model and subtracted: on the CPU in turns with the steps, so that
    noise affects both; on CUDA after them, since its tensors would count in their peak memory.
    """
    repeats = work.repeats["memory"]
    for size in work.resized(work.lengths):
        recalls = {} if timer.cuda else {name: _recall_once(timer, size, name) for name in PAIR}
        for row in _measure_size(timer, ceilings, size, PAIR, repeats=repeats, recalls=recalls):
            alone = row.pop("recall_seconds", None)
            if row["tokens_per_second"]:
                if alone is None:
                    alone = timer.median(_recall_once(timer, size, row["model"]), repeats, cold=True)
                whole = 1e6 / row["tokens_per_second"]
                part = 1e6 * size.blocks * alone / (size.batch * size.context)
                row |= {"microseconds": whole, "recall_microseconds": part, "rest_microseconds": whole - part}
            yield row


def _recall_once(timer: Timer, size: Size, model: str) -> Callable[[], object]:
    """Return a function: recall from the context, forward and backward, as in one block of a model of that size."""
    dtype = torch.bfloat16 if timer.cuda else torch.float32
    shape = (size.batch, size.context, size.heads, size.width // size.heads)
    keys, gradient = (torch.randn(shape, device=timer.device, dtype=dtype) for _ in range(2))
    if model == "memory-mosaic":  # the keys are the queries, and the last one has no value yet
        inputs = [keys, torch.randn_like(keys[:, 1:])]
    else:
        inputs = [torch.randn_like(keys), torch.randn_like(keys), keys]
    for x in inputs:
        x.requires_grad_()

    def recall(keys: Tensor, values: Tensor, queries: Tensor | None = None) -> Tensor:
        if queries is None:
            return Retrieval(
                keys, Pairs(keys[:, :-1], values, seen=(VisiblePairs(0),)), 1.0, queries_are_keys=True
            ).answers()
        return Retrieval(queries, Pairs(keys, values, seen=(VisiblePairs(1),)), 1.0).answers()

    function = torch.compile(recall, dynamic=False) if timer.cuda else recall
    return lambda: torch.autograd.grad(function(*inputs), inputs, gradient)


def measure_decoding(timer: Timer, ceilings: dict[str, Any], work: Workload) -> Iterator[dict[str, Any]]:
    """Yield a row per batch size and model, also of transformers' GPT-2 where it is installed.

    The time per token is that of all tokens but the first, whose time is that of the prompt.
    """
    names = [*PAIR, *(CACHES if importlib.util.find_spec("transformers") is not None else ())]
    for batch, name in progress([(batch, name) for batch in work.batches for name in names], "decode"):
        timer.reset()
        if name in ARCHITECTURES:
            label = ARCHITECTURES[name].label
        else:
            label = f"transformers {importlib.metadata.version('transformers')} GPT-2, {CACHES[name]} cache"
        row = {"model": name, "label": label, "batch": batch, "prompt": work.prompt, "length": work.length}
        yield row | _time_decoding(timer, work, batch, name)


def _time_decoding(timer: Timer, work: Workload, batch: int, name: str) -> dict[str, Any]:
    """Time one model, which is freed on return, so that it does not count in the memory of the next."""
    prompts = torch.randint(work.size.vocabulary, (batch, work.prompt), device=timer.device)
    try:
        decode = build_decode(name, work.size, timer.device)
        # All tokens first: what is compiled for them should not have to serve other lengths too.
        whole, first = (
            timer.median(partial(decode, prompts, length), work.repeats["decode"], warm_up=1)
            for length in (work.length, 1)
        )
    except torch.OutOfMemoryError:
        return {"tokens_per_second": None, "failed": "out of memory"}
    speed = {"tokens_per_second": batch * work.length / whole, "prefill_ms": 1e3 * first}
    return speed | {"token_ms": 1e3 * (whole - first) / (work.length - 1), "peak_gib": timer.peak_gib()}


def build_decode(name: str, size: Size, device: torch.device) -> Callable[[Tensor, int], Tensor]:
    """Return greedy decoding by a model with random weights, a function of prompts and the number of new tokens."""
    if name in CACHES:
        return _gpt2_decode(size, device, CACHES[name])
    model = random_model(name, size, device)
    return lambda prompts, length: torch.stack(
        generate(model, list(prompts), length, sampler=GREEDY, compiled=prompts.is_cuda)
    )


def random_model(name: str, size: Size, device: torch.device) -> LanguageModel:
    """Return a model of this library with random weights, in bfloat16 on CUDA."""
    torch.manual_seed(0)
    model = LanguageModel(size.config(name)).to(device).eval()
    if device.type == "cuda":
        for _, parameter, spec in named_param_specs(model):
            if not spec.keep_fp32:
                parameter.data = parameter.data.to(torch.bfloat16)
    return model


def _gpt2_decode(size: Size, device: torch.device, cache: str) -> Callable[[Tensor, int], Tensor]:
    """Decode by GPT-2 of the same size. On CUDA transformers itself compiles the step of a static cache."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": size.vocabulary, "n_embd": size.width, "n_layer": size.blocks, "n_head": size.heads}
    model: Any = GPT2LMHeadModel(GPT2Config(**sizes, **NO_SPECIAL_TOKENS))
    model = model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32).eval()
    model.generation_config.update(**NO_SPECIAL_TOKENS)
    options = {"do_sample": False} | ({"cache_implementation": "static"} if cache == "static" else {})

    def decode(prompts: Tensor, length: int) -> Tensor:
        tokens = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=length, **options)
        return tokens[:, prompts.shape[1] :]

    return decode
