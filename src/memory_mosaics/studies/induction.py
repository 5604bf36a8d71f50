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

import numpy as np
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
                train(model, task, held_out, record, steps=steps, batch_size=batch_size, step_size=step_size, seed=seed)
        except KeyboardInterrupt:
            results["interrupted"] = True
    results["seconds"] = round(time.perf_counter() - start, 1)
    files.write(out / "results.json", results)
    figures.induction(results, out / "induction.png")
    print(table(results))
    stopped = "Stopped early; what was finished is kept. " if results["interrupted"] else ""
    print(f"{stopped}Results: {out / 'results.json'}. Figure: {out / 'induction.png'}.")
    return results


def models(task: InductionTask, *, width: int) -> dict[str, LanguageModelConfig]:
    """The four models by name."""
    memory = LanguageModelConfig(
        vocabulary=task.vocabulary,
        width=width,
        blocks=1,
        context=task.length,
        tied=False,
        sequence_mixer=ContextualMemoryConfig(heads=HEADS),
    )
    attention = AttentionConfig(heads=HEADS)
    transformer = replace(
        memory, sequence_mixer=attention, positions=LearnedPositionsConfig(context=task.length)
    )
    shifted = replace(attention, key=TapsConfig(back=1, peek=0, norm=False))
    return {
        "memory": memory,
        "transformer-1": transformer,
        "transformer-1-shifted": replace(transformer, sequence_mixer=shifted),
        "transformer-2": replace(transformer, blocks=2),
    }


def build(config: LanguageModelConfig) -> LanguageModel:
    """The model with PyTorch's own initial matrices and embeddings, as in Bietti et al.

    From GPT-2's small ones the two-block transformer takes about three times as many steps to find the solution.
    """
    model = LanguageModel(config)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.reset_parameters()
    return model


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def train(
    model: LanguageModel,
    task: InductionTask,
    held_out: Batch,
    record: dict[str, Any],
    *,
    steps: int,
    batch_size: int,
    step_size: float,
    seed: int,
) -> None:
    """Train the model; add the curve, point by point, then the final measures and the seconds, to `record`.

    AdamW warms up over 20 steps, keeps its step size, and lowers it to zero over the last third.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=step_size, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min((s + 1) / 20, 1, 3 * (1 - s / steps)))
    every = -(-steps // POINTS)
    start = time.perf_counter()
    total = steps * batch_size * task.length
    with tqdm(desc=record["label"], total=total, unit="token", unit_scale=True, disable=None) as progress:
        for step in range(steps + 1):
            if step % every == 0 or step == steps:
                measures = measure(answers(model, held_out), held_out)
                record["curve"].append([step, measures["loss"], measures["accuracy"]])
                record["final"] = measures if step == steps else None
                progress.set_postfix(loss=measures["loss"], accuracy=measures["accuracy"], refresh=False)
            if step == steps:
                break
            batch = task.batch(batch_size, seed=seed, step=step)
            loss = next_token_loss(model(batch.inputs)[0], batch.targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            progress.update(batch.inputs.numel())
    record["seconds"] = round(time.perf_counter() - start, 1)


@torch.no_grad()
def answers(model: LanguageModel, batch: Batch) -> Float[Tensor, "B T vocabulary"]:
    """The logits of the model, computed a few sequences at a time."""
    return torch.cat([model(inputs)[0] for inputs in batch.inputs.split(32)])


def measure(logits: Float[Tensor, "B T vocabulary"], batch: Batch) -> dict[str, float]:
    """The loss at all positions, and the share of right answers at the counted ones and at the others.

    A trigger whose output is the trigger itself repeats to the end of the sequence, and predicting that takes no
    memory. `accuracy_changing` leaves these positions out of the counted ones.
    """
    right = logits.argmax(dim=-1) == batch.targets
    where = {
        "accuracy": batch.counted,
        "accuracy_changing": batch.counted & (batch.inputs != batch.targets),
        "accuracy_others": ~batch.counted,
    }
    shares = {name: round(right[positions].float().mean().item(), 4) for name, positions in where.items()}
    return shares | {"loss": round(next_token_loss(logits, batch.targets).item(), 4)}


def rules(task: InductionTask, batch: Batch) -> dict[str, Any]:
    """Two rules that need no training, measured like the models.

    The first is a memory with nothing learned: the key is the current token, the value is the next one, and a sharp
    recall answers with what followed the same token earlier. The second knows the statistics of the language alone.
    """
    tokens, following = (F.one_hot(x, task.vocabulary).float()[:, :, None] for x in (batch.inputs, batch.targets))
    recalled = recall(tokens, tokens, following, sharpness=100.0, known=0)[:, :, 0]
    expected = torch.from_numpy(task.chain.bigram).float()[batch.inputs]
    shares = {"token-memory": measure(recalled, batch), "bigram": measure(expected.log(), batch)}
    return {
        name: {"label": RULES[name], "final": {key: value for key, value in share.items() if key != "loss"}}
        for name, share in shares.items()
    }


def describe(task: InductionTask, batch: Batch) -> dict[str, float]:
    """What the sequences are like: entropies in nats, and how many positions are counted."""
    unigram = task.chain.unigram
    repeats = batch.counted & (batch.inputs == batch.targets)
    return {
        "bigram_entropy": round(task.chain.entropy(), 4),
        "unigram_entropy": round(float(-(unigram * np.log(unigram)).sum()), 4),
        "counted_share": round(batch.counted.float().mean().item(), 4),
        "repeating_share_of_counted": round(repeats.sum().item() / batch.counted.sum().item(), 4),
    }


def table(results: dict[str, Any]) -> str:
    """The results as text, one line a model."""
    head = f"{'':<42}{'parameters':>10}{'counted':>9}{'changing':>10}{'others':>8}{'loss':>7}{'seconds':>9}"
    lines = ["Accuracy on held-out sequences, where the trigger has been seen before (counted) and elsewhere", head]
    for record in (*results["models"].values(), *results["rules"].values()):
        final = record.get("final")
        if final is None:
            lines.append(f"{record['label']:<42}{record['parameters']:>10,}  stopped at step {record['curve'][-1][0]}")
            continue
        shares = "".join(f"{final[key]:>{size}.3f}" for key, size in zip(("accuracy", "accuracy_changing", "accuracy_others"), (9, 10, 8), strict=True))
        trained = f"{final['loss']:>7.3f}{record['seconds']:>9.0f}" if "loss" in final else ""
        lines.append(f"{record['label']:<42}{record.get('parameters', ''):>10,}{shares}{trained}")
    return "\n".join(lines)
