"""Induction: section 3 of the paper says that one layer of memories solves what a transformer needs two layers for.

Four models read the trigger-bigram sequences of tasks/induction.py and learn to predict every next token:

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

from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from memory_mosaics.config import MAX_SEED, MAX_SIZE
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.experiments.grid import Grid
from memory_mosaics.experiments.report import text_table
from memory_mosaics.experiments.runner import load_packaged, prepare, report, train_and_collect
from memory_mosaics.extractors import TapsConfig
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.memory import ContextualMemoryConfig
from memory_mosaics.mixers.attention import AttentionConfig, LearnedPositionsConfig
from memory_mosaics.ops.recall import recall
from memory_mosaics.runtime import RuntimeConfig, check_memory, start_runtime
from memory_mosaics.tasks.induction import HELD_OUT, Induction, InductionData, measure
from memory_mosaics.tasks.task import CountedBatch
from memory_mosaics.training.config import TaskRun, Training
from memory_mosaics.training.trainer import Trainer

RECIPE = load_packaged("induction")
HEADS = 4
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
TASK = InductionData(**RECIPE["task"])


def run(
    out: Path = Path("runs/induction"),
    *,
    task: InductionData = TASK,
    steps: int = RECIPE["steps"],
    batch_size: int = RECIPE["batch_size"],
    width: int = RECIPE["width"],
    learning_rate: float = RECIPE["learning_rate"],
    seed: int = RECIPE["seed"],
    seeds: int = RECIPE["seeds"],
) -> dict[str, Any]:
    """Train one block of memory and three transformers on the induction task, side by side.

    A few minutes on two CPU cores. Ctrl-C keeps what is finished; the same command continues.

    Args:
        out: folder for the runs, results.json and induction.png
        task: the sequences: vocabulary, length, number and kind of triggers
        steps: training steps of each model
        batch_size: sequences per step
        width: width of the models; each has 4 heads
        learning_rate: peak learning rate of AdamW
        seed: seed of the data and of the initial values
        seeds: models of each kind, with consecutive seeds; the table has mean and lowest, the figure the first
    """
    arguments = dict(locals())
    settings = {name: value for name, value in arguments.items() if name not in ("out", "task")}
    held_out = check(settings, task)
    settings |= {"heads": HEADS} | asdict(task)
    prepare(out, arguments, {name: value for name, value in settings.items() if name != "seeds"})
    results: dict[str, Any] = {"study": "induction", "interrupted": False, "settings": settings}
    results |= {"data": describe(task, held_out), "rules": rules(task, held_out)}
    configs = models(task, width=width)
    grid = Grid(
        out=out,
        name_of=lambda run: f"{run['name']}-seed{run['seed']}",
        train=lambda run, folder: train(configs[run["name"]], task, settings, folder, **run, held_out=held_out),
        settings=[{"name": name, "seed": one} for name in configs for one in range(seed, seed + seeds)],
        required_fields=("curve", "parameters", "final", "seconds"),
        quiet=False,
    )
    common, finished = train_and_collect(grid)
    results |= common | {"models": {}}
    for run in finished:
        about = {"label": LABELS[run["name"]], "blocks": configs[run["name"]].blocks, "seeds": []}
        first = results["models"].setdefault(run["name"], about | {name: run[name] for name in grid.required_fields})
        first["seeds"].append({"seed": run["seed"]} | run["final"])
    report(results, out, table(results), drawable=bool(results["models"]))
    if results["failed"] and not results["models"]:
        raise UserError(f"no model was trained; lower learning_rate, now {learning_rate}")
    return results


def check(settings: dict[str, Any], task: InductionData) -> CountedBatch:
    """The held-out sequences, once everything that is asked for makes sense."""
    check_range(1, MAX_SIZE, **{name: settings[name] for name in ("steps", "batch_size", "width")})
    check_range(1, 10_000, seeds=settings["seeds"])
    check_range(0, MAX_SEED, seed=settings["seed"])
    if not 0 < settings["learning_rate"] < inf:
        raise UserError(f"learning_rate must be positive, not {settings['learning_rate']}")
    if settings["width"] % HEADS:
        raise UserError(f"width {settings['width']} does not split into {HEADS} heads; choose a multiple of {HEADS}")
    rows = max(HELD_OUT, settings["batch_size"])  # of 8 bytes, with their random numbers and targets
    need = 16 * task.vocabulary**2 + rows * (24 * task.length + task.vocabulary)
    check_memory("this task", need, advice="choose a smaller vocabulary, length or batch_size")
    held_out = task.evaluation_batch(settings["seed"])
    if not (held_out.counted & (held_out.inputs != held_out.targets)).any():
        sizes = f"triggers ({task.triggers}) or length ({task.length})"
        raise UserError(f"no trigger of this task occurs twice; raise {sizes}")
    return held_out


def models(task: InductionData, *, width: int) -> dict[str, LanguageModelConfig]:
    """The four models by name."""
    memory = LanguageModelConfig(
        vocabulary=task.vocabulary,
        width=width,
        blocks=1,
        context=task.length,
        tied=False,
        sequence_mixer=ContextualMemoryConfig(heads=HEADS),
        init="pytorch",  # from GPT-2's small values the two-block transformer takes far longer to find the solution
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


def train(
    config: LanguageModelConfig,
    task: InductionData,
    settings: dict[str, Any],
    out: Path,
    *,
    name: str,
    seed: int,
    held_out: CountedBatch,
) -> dict[str, Any] | None:
    """Train a model, or continue; return its curve and the final measures, or None if it was told to stop."""
    training = Training(
        steps=settings["steps"],
        batch=settings["batch_size"],
        learning_rate=settings["learning_rate"],
        final_learning_rate=0.0,
        warm_up=20,
        schedule="trapezoid",
        betas=(0.9, 0.99),
        weight_decay=0.01,
        decay_all=True,
        clip=None,
        seed=seed,
    )
    runtime = RuntimeConfig(
        device="cpu", samples=0, log_every=settings["steps"], save_every=max(1, settings["steps"] // 4)
    )
    run = TaskRun(out=out, name=LABELS[name], task=task, model=config, training=training, runtime=runtime)
    with torch.random.fork_rng(devices=[]), start_runtime(runtime) as here:
        sizes = {"batch_size": training.batch, "steps": training.steps}
        induction = Induction(task, **sizes, seed=seed, held_out=held_out)
        trainer = Trainer(run, induction, config, here)
        first = induction.evaluate(trainer.model.eval(), here)
        results = trainer.run()
    if results["interrupted"]:
        return None
    names = ("accuracy", "accuracy_changing", "accuracy_others")
    final = {measure: trainer.progress[measure] for measure in names} | {"loss": trainer.progress["valid_loss"]}
    curve = [[0, first["valid_loss"], first["accuracy"]]]
    curve += [[step, loss, accuracy] for step, _, loss, accuracy, *_ in trainer.progress["curve"]]
    seconds = round(trainer.progress["seconds"], 1)
    return {"curve": curve, "parameters": results["parameters"], "final": final, "seconds": seconds}


def rules(task: InductionData, batch: CountedBatch) -> dict[str, Any]:
    """Two rules that need no training, measured like the models.

    The first is a memory with nothing learned: the key is the current token, the value is the next one, and a sharp
    recall answers with what followed the same token earlier. The second knows the statistics of the language alone.
    """
    tokens, following = (F.one_hot(x, task.vocabulary).float()[:, :, None] for x in (batch.inputs, batch.targets))
    recalled = recall(tokens, tokens, following, sharpness=100.0, causal_offset=0)[:, :, 0]
    expected = torch.from_numpy(task.chain.bigram).float()[batch.inputs]
    shares = {"token-memory": measure(recalled, batch), "bigram": measure(expected.log(), batch)}
    return {
        name: {"label": RULES[name], "final": {key: value for key, value in share.items() if key != "loss"}}
        for name, share in shares.items()
    }


def describe(task: InductionData, batch: CountedBatch) -> dict[str, float]:
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
    """The results as text, one line per model."""
    seeds = results["settings"].get("seeds", 1)
    over = f", mean and lowest of {seeds} seeds" if seeds > 1 else ""
    rows = []
    for record in (*results["models"].values(), *results["rules"].values()):
        finals = record.get("seeds") or [record["final"]]
        means = {name: float(np.mean([final[name] for final in finals])) for name in record["final"]}
        lowest = min(final["accuracy"] for final in finals)
        shares = [means["accuracy"], lowest, means["accuracy_changing"], means["accuracy_others"], means.get("loss")]
        parameters = f"{record['parameters']:,}" if "parameters" in record else ""
        rows.append([record["label"], parameters, *("" if share is None else f"{share:.3f}" for share in shares)])
    header = ["model", "parameters", "seen", "lowest", "changing", "others", "loss"]
    legend = [
        f"Accuracy on held-out sequences{over}, at positions where",
        "    seen      the trigger has occurred before, so that its output is known from the context",
        "    changing  the same, and the output is another token than the trigger",
        "    others    only the statistics of the language help",
    ]
    return "\n".join([*legend, text_table(header, rows)])
