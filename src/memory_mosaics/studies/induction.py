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
those of Bietti et al. 2023, the recipe under which the two-block transformer is known to learn; to it the step size
adds a warm-up and a decay.
"""

import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

import memory_mosaics.figures as figures
from memory_mosaics import results as files
from memory_mosaics.config import MAX_SEED, MAX_SIZE
from memory_mosaics.data.batches import Batch
from memory_mosaics.data.induction import InductionTask
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.extractors import TapsConfig
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig, next_token_loss
from memory_mosaics.memory import ContextualMemoryConfig
from memory_mosaics.mixers.attention import AttentionConfig, LearnedPositionsConfig
from memory_mosaics.ops.recall import recall
from memory_mosaics.shapes import Float
from memory_mosaics.sizes import check_memory

# The triggers are the five most frequent tokens. With random ones a model must also guess, from one occurrence, whether
# a token is a trigger at all, and even the best guess is at times wrong.
TASK = InductionTask(fixed_triggers=True)
HEADS = 4
HELD_OUT = 128  # sequences, of a step that no training reaches
POINTS = 28  # of the curve of each model, ever further apart
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
    out: Path = Path("runs/induction"),
    *,
    task: InductionTask = TASK,
    steps: int = 600,
    batch_size: int = 32,
    width: int = 128,
    step_size: float = 0.01,
    seed: int = 0,
    seeds: int = 1,
) -> dict[str, Any]:
    """Train one block of memory and three transformers on the induction task, side by side.

    A few minutes on two CPU cores. Ctrl-C stops early and keeps what is finished.

    Args:
        out: Folder for results.json and induction.png.
        task: The sequences: vocabulary, length, number and kind of triggers.
        steps: Training steps of each model.
        batch_size: Sequences in a step.
        width: Width of the models; each has 4 heads.
        step_size: Largest step size of AdamW.
        seed: Of the data and of the initial values.
        seeds: Models of each kind, with consecutive seeds; the table has mean and lowest, the figure the first.
    """
    settings = {"steps": steps, "batch_size": batch_size, "width": width, "step_size": step_size, "seed": seed}
    settings |= {"seeds": seeds}
    held_out = check(settings, task)
    figures.check()
    files.prepare(out)
    results = {"study": "induction", "interrupted": False, "settings": settings | {"heads": HEADS} | asdict(task)}
    results |= files.surroundings() | {"data": describe(task, held_out), "rules": rules(task, held_out), "models": {}}
    start = time.perf_counter()
    try:
        for name, config in models(task, width=width).items():
            results["models"][name] = first = {"label": LABELS[name], "blocks": config.blocks, "curve": [], "seeds": []}
            for one in range(seed, seed + seeds):
                record = first if one == seed else {"label": f"{LABELS[name]}, seed {one}", "curve": []}
                batches = (task.batch(batch_size, seed=one, step=step) for step in range(steps))
                train(build(config, seed=one), batches, held_out, record, steps=steps, step_size=step_size)
                first["seeds"].append({"seed": one} | record["final"])
    except KeyboardInterrupt:
        results["interrupted"] = True
    results["seconds"] = round(time.perf_counter() - start, 1)
    files.write(out / "results.json", results)
    figures.draw(results, out)
    stopped = "Stopped early; what was finished is kept. " if results["interrupted"] else ""
    print(f"{table(results)}\n{stopped}Results: {out / 'results.json'}. Figure: {out / 'induction.png'}.")
    return results


def check(settings: dict[str, Any], task: InductionTask) -> Batch:
    """The held-out sequences, once everything that is asked for makes sense."""
    for name, value in settings.items():
        if value < 0 or (value == 0 and name != "seed"):
            raise UserError(f"{name} must be {'0 or more' if name == 'seed' else 'more than 0'}, not {value}")
    check_range(1, 10_000, seeds=settings["seeds"])
    check_range(1, MAX_SIZE, steps=settings["steps"])
    check_range(0, MAX_SEED, seed=settings["seed"])
    if settings["width"] % HEADS:
        raise UserError(f"width {settings['width']} does not split into {HEADS} heads; choose a multiple of {HEADS}")
    rows = max(HELD_OUT, settings["batch_size"])  # of 8 bytes, with their random numbers and targets
    need = 16 * task.vocabulary**2 + rows * (24 * task.length + task.vocabulary)
    check_memory("this task", need, advice="choose a smaller vocabulary, length or batch_size")
    held_out = task.batch(HELD_OUT, seed=settings["seed"], step=2**40)
    if not (held_out.counted & (held_out.inputs != held_out.targets)).any():
        sizes = f"triggers ({task.triggers}) or length ({task.length})"
        raise UserError(f"no trigger of this task occurs twice; raise {sizes}")
    return held_out


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
    transformer = replace(memory, sequence_mixer=attention, positions=LearnedPositionsConfig(context=task.length))
    shifted = replace(attention, key=TapsConfig(back=1, peek=0, norm=False))
    return {
        "memory": memory,
        "transformer-1": transformer,
        "transformer-1-shifted": replace(transformer, sequence_mixer=shifted),
        "transformer-2": replace(transformer, blocks=2),
    }


def build(config: LanguageModelConfig, *, seed: int) -> LanguageModel:
    """The model with PyTorch's own initial matrices and embeddings, as in Bietti et al.

    From GPT-2's small ones the two-block transformer takes far longer to find the solution.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LanguageModel(config)
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.reset_parameters()
    return model


def train(
    model: LanguageModel,
    batches: Iterable[Batch],
    held_out: Batch,
    record: dict[str, Any],
    *,
    steps: int,
    step_size: float,
) -> None:
    """Train on `steps` batches and write into `record`: the curve as it grows, the final measures once there are any.

    AdamW warms up over 20 steps, keeps its step size, and lowers it to zero over the last third.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=step_size, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min((s + 1) / 20, 1, 3 * (1 - s / steps)))
    points = {round(steps ** (i / POINTS)) for i in range(POINTS + 1)}
    start = time.perf_counter()
    record["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    measures = measure(answers(model, held_out), held_out)
    record["curve"].append([0, measures["loss"], measures["accuracy"]])
    often = 0.2 if sys.stderr.isatty() else 30  # seconds between two lines of progress
    with tqdm(batches, desc=record["label"], total=steps, unit="step", mininterval=often) as progress:
        for step, batch in enumerate(progress, start=1):
            loss = next_token_loss(model(batch.inputs)[0], batch.targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            if step in points:
                measures = measure(answers(model, held_out), held_out)
                record["curve"].append([step, measures["loss"], measures["accuracy"]])
            if not isfinite(measures["loss"]):
                raise UserError(f"the loss of {record['label']} overflows; lower step_size, now {step_size}")
            speed = step * batch.inputs.numel() / (time.perf_counter() - start)
            news = f"loss {loss:.3f}, accuracy {measures['accuracy']:.3f}, {speed:,.0f} tokens/s"
            progress.set_postfix_str(news, refresh=False)
    record |= {"final": measures, "seconds": round(time.perf_counter() - start, 1)}


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
    seeds = results["settings"].get("seeds", 1)
    over = f", mean and lowest of {seeds} seeds" if seeds > 1 else ""
    lines = [
        f"Accuracy on held-out sequences{over}, at positions where",
        "    seen      the trigger has occurred before, so that its output is known from the context",
        "    changing  the same, and the output is another token than the trigger",
        "    others    only the statistics of the language help",
        f"{'':<42}{'parameters':>10}{'seen':>8}{'lowest':>8}{'changing':>10}{'others':>8}{'loss':>8}",
    ]
    for record in (*results["models"].values(), *results["rules"].values()):
        parameters = f"{record['parameters']:,}" if "parameters" in record else ""
        line = f"{record['label']:<42}{parameters:>10}"
        if "final" in record:
            finals = record.get("seeds") or [record["final"]]
            means = {name: float(np.mean([final[name] for final in finals])) for name in record["final"]}
            lowest = min(final["accuracy"] for final in finals)
            line += f"{means['accuracy']:>8.3f}{lowest:>8.3f}{means['accuracy_changing']:>10.3f}"
            line += f"{means['accuracy_others']:>8.3f}" + (f"{means['loss']:>8.3f}" if "loss" in means else "")
        else:
            line += "  stopped"
        lines.append(line)
    return "\n".join(lines)
