"""Decoding: tokens per second after a short prompt, greedy, beside transformers' own GPT-2 where it is installed."""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from memory_mosaics.benchmarks.clock import Clock, progress, short
from memory_mosaics.benchmarks.train import GPT2_SMALL, LAPTOP, PAIR, Size
from memory_mosaics.decoding import GREEDY, generate
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.parameters import named_param_specs
from memory_mosaics.shapes import Int

Decode = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Task:
    """How much to read and to write, in how many rows at once."""

    size: Size
    prompt: int
    length: int
    batches: tuple[int, ...]


TASKS = {"cuda": Task(GPT2_SMALL, 16, 496, (1, 32)), "cpu": Task(LAPTOP, 16, 112, (1, 8))}
END: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}  # none, so that all is written
CACHES = {"transformers-dynamic": "dynamic", "transformers-static": "static"}
COLUMNS = {
    "batch": ("batch", "{}"),
    "model": ("label", "{}"),
    "tokens/s": ("tokens_per_second", "{:,.0f}"),
    "prefill ms": ("prefill_ms", "{:.4g}"),
    "ms/token": ("token_ms", "{:.4g}"),
    "peak GiB": ("peak_gib", "{:.2f}"),
    "": ("failed", "{}"),
}


def decode(model: LanguageModel, prompts: Int[Tensor, "B T"], length: int) -> Int[Tensor, "B N"]:
    """The greedy continuations of all prompts."""
    texts = generate(model, list(prompts), length, sampler=GREEDY, compiled=prompts.is_cuda)
    return torch.stack(texts)


def measure(
    clock: Clock, ceilings: dict[str, Any], *, task: Task | None = None, repeats: int = 3
) -> Iterator[dict[str, Any]]:
    """A row for every batch and model. A token's time is that of the whole without its first token, which prefills."""
    task = TASKS[clock.device.type] if task is None else task
    for batch, name in progress([(batch, name) for batch in task.batches for name in contenders()], "decode"):
        clock.start_over()
        row = {"model": name, "label": _label(name), "batch": batch, "prompt": task.prompt, "length": task.length}
        yield row | _measured(clock, task, batch, name, repeats)


def _measured(clock: Clock, task: Task, batch: int, name: str, repeats: int) -> dict[str, Any]:
    """Nothing of it is left when it returns: what the next one takes is counted from there."""
    prompts = torch.randint(task.size.vocabulary, (batch, task.prompt), device=clock.device)
    try:
        decoder = build(name, task, clock.device)
        # The whole comes first: what is compiled for it should not have to serve other lengths too.
        whole, first = (
            clock.seconds(partial(decoder, prompts, length), repeats, warm_up=1) for length in (task.length, 1)
        )
    except torch.OutOfMemoryError:
        return {"tokens_per_second": None, "failed": "out of memory"}
    speed = {"tokens_per_second": short(batch * task.length / whole), "prefill_ms": short(1e3 * first)}
    return speed | {"token_ms": short(1e3 * (whole - first) / (task.length - 1)), "peak_gib": short(clock.peak())}


def contenders() -> Iterator[str]:
    """Ours, and those of transformers where it is installed."""
    yield from PAIR
    if importlib.util.find_spec("transformers") is not None:
        yield from CACHES


def _label(name: str) -> str:
    if name in ARCHITECTURES:
        return ARCHITECTURES[name].label
    return f"transformers {importlib.metadata.version('transformers')} GPT-2, {CACHES[name]} cache"


def build(name: str, task: Task, device: torch.device) -> Decode:
    """A model with random weights as a function of prompts and the number of tokens to write."""
    if name in CACHES:
        torch.manual_seed(0)
        return _transformers(task, device, CACHES[name])
    model = to_decode(name, task, device)
    return lambda prompts, length: decode(model, prompts, length)


def to_decode(name: str, task: Task, device: torch.device) -> LanguageModel:
    """One of ours with random weights, bfloat16 on CUDA."""
    torch.manual_seed(0)
    model = LanguageModel(task.size.build(name)).to(device).eval()
    if device.type == "cuda":
        for _, parameter, spec in named_param_specs(model):
            if not spec.keep_fp32:
                parameter.data = parameter.data.to(torch.bfloat16)
    return model


def _transformers(task: Task, device: torch.device, cache: str) -> Decode:
    """GPT-2 of the same size. On CUDA transformers compiles the step of a static cache by itself."""
    from transformers import GPT2Config, GPT2LMHeadModel

    size = task.size
    config = GPT2Config(vocab_size=size.vocabulary, n_embd=size.width, n_layer=size.blocks, n_head=size.heads, **END)
    model: Any = GPT2LMHeadModel(config)
    model = model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32).eval()
    model.generation_config.update(**END)
    options = {"do_sample": False} | ({"cache_implementation": "static"} if cache == "static" else {})

    def generate(prompts: Tensor, length: int) -> Tensor:
        answer = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=length, **options)
        return answer[:, prompts.shape[1] :]

    return generate
