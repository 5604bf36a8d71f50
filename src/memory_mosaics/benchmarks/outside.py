"""Training speed beside a model of somebody else, from a file that the user has, such as nanoGPT's model.py.

The file defines GPTConfig (block_size, vocab_size, n_layer, n_head, n_embd, dropout, bias) and GPT, whose
`forward(tokens, targets)` returns logits and loss. It is imported, so that its code runs.
"""

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memory_mosaics.benchmarks import throughput
from memory_mosaics.benchmarks.throughput import PAIR, RandomTokens, Size, Workload
from memory_mosaics.benchmarks.timing import Timer, progress
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import read_bytes
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.runtime import Runtime, RuntimeConfig
from memory_mosaics.tasks.task import EAGER, Batch
from memory_mosaics.training.trainer import WARM_UP, Objective

OUTSIDE = "outside"
SETTINGS = {"cuda": "torch.compile of the whole model, its step one CUDA graph, bfloat16", "cpu": "eager, float32"}


class OutsideTokens(RandomTokens):
    """The same batch, with the loss that the model itself returns."""

    def loss(self, model: Any, batch: Batch, runtime: Runtime = EAGER) -> Tensor:
        return model(batch.inputs, batch.targets)[1]


def load(file: Path) -> Any:
    """Import the file and return it as a module with GPT and GPTConfig."""
    try:
        digest = hashlib.sha256(read_bytes(file)).hexdigest()
        name = f"outside_{digest[:16]}"
        spec = spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise UserError(f"{file} is not a Python file")
        module: Any = module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look for their module there
        with redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
        _ = module.GPT, module.GPTConfig
    except Exception as error:  # a file may do anything
        raise UserError(f"--compare {file} fails: {type(error).__name__}: {one_line(error)}") from error
    module.sha256 = digest
    return module


def build(module: Any, size: Size) -> nn.Module:
    """Return its model of this size, without bias, as ours are."""
    sizes = {"block_size": size.context, "vocab_size": size.vocabulary, "n_layer": size.blocks, "n_head": size.heads}
    with redirect_stdout(sys.stderr):
        return module.GPT(module.GPTConfig(**sizes, n_embd=size.width, dropout=size.dropout, bias=False))


def training_step(model: nn.Module, task: RandomTokens) -> Callable[[], Tensor]:
    """Return a step with the optimizer, the clipping and the precision of `throughput.training_step`."""
    device = task.tokens.inputs.device
    here = Runtime(device, precision=RuntimeConfig().precision_on(device.type))
    forward: Any = torch.compile(model, dynamic=False) if device.type == "cuda" else model
    return throughput.optimizer_step(model, Objective(forward, task, here))


def measure(timer: Timer, ceilings: dict[str, Any], work: Workload) -> Iterator[dict[str, Any]]:
    """Yield a row per size and model: theirs, our transformer, our Memory Mosaic, one by one on CUDA, else in turns."""
    module, names = work.compare, [OUTSIDE, *reversed(PAIR)]
    about = {"file": Path(module.__file__).name, "sha256": module.sha256, "settings": SETTINGS[timer.device.type]}
    for size in progress([size for size, _ in work.sizes], "compare"):
        for group in [[name] for name in names] if timer.cuda else [names]:
            yield from _measure(timer, size, group, module, about, work.repeats["train"])


def _measure(
    timer: Timer, size: Size, names: list[str], module: Any, about: dict[str, str], repeats: int
) -> list[dict[str, Any]]:
    timer.reset()
    models: dict[str, nn.Module] = {}
    steps: dict[str, Callable[[], Tensor]] = {}
    for name in names:
        torch.manual_seed(0)  # all train on the same tokens
        task = (OutsideTokens if name == OUTSIDE else RandomTokens)(size, timer.device)
        model: Any = build(module, size) if name == OUTSIDE else LanguageModel(size.config(name))
        models[name] = model.to(timer.device)
        steps[name] = (training_step if name == OUTSIDE else throughput.training_step)(model, task)
    rows, seconds = [], timer.medians(steps, repeats, warm_up=WARM_UP + 2 if timer.cuda else 2)
    for name, model in models.items():
        label = f"GPT of {about['file']}, {about['sha256'][:8]}" if name == OUTSIDE else None
        row = throughput.training_row(size, name, seconds[name], label=label)
        row |= {"parameters": sum(weight.numel() for weight in model.parameters()), "peak_gib": timer.peak_gib()}
        rows.append(row | (about if name == OUTSIDE else {}))
    return rows
