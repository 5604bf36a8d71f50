"""Induction: section 3 of the paper says that one layer of memories solves what a transformer needs two layers for.

Four models read the trigger-bigram sequences of data/induction.py and learn to predict every next token:

    memory                   one block of contextual memory
    transformer-1            one block of attention, with learned positions
    transformer-1-shifted    the same, but each key also sees the token before it
    transformer-2            two blocks of attention

What is measured is the accuracy where a trigger has been seen before. There, the memory finds its current token among
the keys and answers with the value stored beside it, the token that came next. One attention block cannot: its keys
and values are of the same token. It needs a first block, or shifted keys, to put a token and its successor together.

Blocks have no channel mixer, since the claim is about the sequence mixers. Initial values, optimiser and step size are
those of Bietti et al. 2023: the recipe under which the two-block transformer is known to learn.
"""

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from memory_mosaics import figures
from memory_mosaics.data.batches import Batch
from memory_mosaics.data.induction import InductionTask
from memory_mosaics.errors import UserError
from memory_mosaics.extractors import TapsConfig
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig, next_token_loss
from memory_mosaics.memory import ContextualMemoryConfig
from memory_mosaics.mixers.attention import AttentionConfig, LearnedPositionsConfig
from memory_mosaics.ops.recall import recall
from memory_mosaics.shapes import Float
from memory_mosaics.studies import results as files

HEADS = 4
HELD_OUT = 128  # sequences, of a step that no training reaches
POINTS = 24  # of the curve of each model
LABELS = {
    "memory": "contextual memory, 1 block",
    "transformer-1": "transformer, 1 block",
    "transformer-1-shifted": "transformer, 1 block, shifted keys",
    "transformer-2": "transformer, 2 blocks",
}
RULES = {
    "token-memory": "rule: what followed this token here",
    "bigram": "rule: what follows this token on average",
}


def run(
    out: Path,
    *,
    task: InductionTask = InductionTask(fixed_triggers=True),
    steps: int = 600,
    batch_size: int = 32,
    width: int = 128,
    step_size: float = 0.01,
    seed: int = 0,
) -> dict[str, Any]:
    """Train one block of memory and three transformers on the induction task, side by side.

    About four minutes on two CPU cores. Ctrl-C stops early and keeps what is finished.

    Args:
        out: Folder for results.json and induction.png.
        task: The sequences: vocabulary, length, number and kind of triggers.
        steps: Training steps of each model.
        batch_size: Sequences in a step.
        width: Width of the models; each has 4 heads.
        step_size: Largest step size of AdamW.
        seed: Of the data and of the initial values.
    """
    for name, value in {"steps": steps, "batch_size": batch_size, "step_size": step_size}.items():
        if value <= 0:
            raise UserError(f"{name} must be more than 0, not {value}")
    figures.check()
    out = Path(out)
    files.prepare(out)
    held_out = task.batch(HELD_OUT, seed=seed, step=2**40)
    settings = {"steps": steps, "batch_size": batch_size, "width": width, "heads": HEADS}
    settings |= {"step_size": step_size, "seed": seed, "held_out_sequences": HELD_OUT, "task": asdict(task)}
    results: dict[str, Any] = {"study": "induction", "interrupted": False, "settings": settings}
    results |= files.surroundings() | {"data": describe(task, held_out), "rules": rules(task, held_out), "models": {}}
    start = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        try:
            for name, config in models(task, width=width).items():
                torch.manual_seed(seed)
                model = build(config)
                record = {"label": LABELS[name], "blocks": config.blocks, "parameters": count(model), "curve": []}
                results["models"][name] = record
                batches = (task.batch(batch_size, seed=seed, step=step) for step in range(steps))
                train(model, batches, steps, held_out, record, step_size=step_size)
        except KeyboardInterrupt:
            results["interrupted"] = True
    results["seconds"] = round(time.perf_counter() - start, 1)
    files.write(out / "results.json", results)
    figures.induction(results, out / "induction.png")
    print(table(results))
    stopped = "Stopped early; what was finished is kept. " if results["interrupted"] else ""
    print(f"{stopped}Results: {out / 'results.json'}. Figure: {out / 'induction.png'}.")
    return results
