"""Training curves: both architectures at several depths and step sizes, same batches, same order (figure 7).

Every pair has the same width, heads, blocks, context and recipe; the batch of a step depends on the seed alone. Each
run is a training run like any other, in a folder of its own: a study that was stopped goes on where it was, and
finished runs are not repeated.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from memory_mosaics import figures
from memory_mosaics import results as files
from memory_mosaics.errors import UserError
from memory_mosaics.figures.language import LABELS
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training import loop, parallel
from memory_mosaics.training.log import read
from memory_mosaics.training.recipe import Machine, ModelChoice, Run, Training, recipe

ARCHITECTURES = ("memory-mosaic", "transformer")
MODEL, TRAINING = recipe("memory-mosaic-small")
MACHINE = Machine(samples=0)


def run(
    data: Path,
    out: Path = Path("runs/curves"),
    *,
    blocks: list[int] | None = None,
    rates: list[float] | None = None,
    model: ModelChoice = MODEL,
    training: Training = TRAINING,
    machine: Machine = MACHINE,
) -> dict[str, Any]:
    """Train Memory Mosaics and transformers of several depths and learning rates side by side, and draw their curves.

    Ctrl-C keeps everything; the same command goes on.

    Args:
        data: a folder that `mosaics prepare` wrote
        out: folder for the runs, results.json and the figures
        blocks: the depths; 1 and 6 if none are named
        rates: the largest learning rates; 1e-3, 3e-3 and 6e-3 if none are named. All end at the same share of it.
        model: what all models have in common; its name and blocks are chosen by the study
        training: how all learn
        machine: how it is computed
    """
    base = Run(data=data, out=out, model=model, training=training, machine=machine)
    plans = list(_plans(base, blocks or [1, 6], rates or [1e-3, 3e-3, 6e-3]))
    corpus = Corpus.open(data)
    for _, plan in plans:
        plan.model.build(corpus.vocabulary)  # a wrong size is found before hours are spent
    files.prepare(out)
    results: dict[str, Any] = {"study": "curves", "interrupted": False, "corpus": _corpus(corpus)}
    results |= {"model": asdict(model), "training": asdict(training), "runs": []}
    with parallel.world(machine) as world:
        for labels, plan in plans:
            try:
                trained = loop.train(plan)
                results |= {key: trained[key] for key in ("versions", "hardware")}
            except loop.Diverged:
                trained = {}
            results["interrupted"] = bool(trained.get("interrupted"))
            if not results["interrupted"]:
                results["runs"].append(labels | {"run": str(plan.out.relative_to(out))} | _record(trained, plan.out))
            if world.first:
                files.write(out / "results.json", results)
            if results["interrupted"]:
                break
        if world.first:
            _say(results, out)
    return results


def _say(results: dict[str, Any], out: Path) -> None:
    drawn = "No figures: matplotlib is not installed here; mosaics draw makes them from results.json."
    if not any(record["valid_loss"] for record in results["runs"]):
        drawn = "No figures: no run came to an end."
    elif figures.available():
        drawn = f"Figures: {', '.join(file.name for file in figures.draw(results, out))} beside it."
    stopped = "Stopped; the same command goes on. " if results["interrupted"] else ""
    print(f"{table(results)}\n{stopped}Results: {out / 'results.json'}. {drawn}")


def _plans(base: Run, depths: list[int], rates: list[float]) -> Iterator[tuple[dict[str, Any], Run]]:
    """Every run with what tells it from the others."""
    share = base.training.final_learning_rate / base.training.learning_rate
    for depth, rate, architecture in product(depths, rates, ARCHITECTURES):
        own = {"slots": None} if architecture == "transformer" else {"position": None}
        if rate <= 0:
            raise UserError(f"a learning rate must be more than 0, not {rate}")
        yield (
            {"architecture": architecture, "blocks": depth, "learning_rate": rate},
            replace(
                base,
                out=base.out / "runs" / f"{architecture}-{depth}-{rate:g}",
                model=replace(base.model, name=f"{architecture}-12", blocks=depth, **own),
                training=replace(base.training, learning_rate=rate, final_learning_rate=rate * share),
            ),
        )


def _corpus(corpus: Corpus) -> dict[str, Any]:
    """What was read, and how much of it."""
    manifest = corpus.manifest
    counts = {name: {key: split[key] for key in ("documents", "tokens")} for name, split in manifest["splits"].items()}
    return {"name": corpus.folder.name, "tokenizer": manifest["tokenizer"]["name"], "splits": counts}


def _record(trained: dict[str, Any], out: Path) -> dict[str, Any]:
    """One run: where it ended, how fast, and its curves."""
    lines = read(out / "log.jsonl")
    names = ("parameters", "train_loss", "valid_loss", "tokens_per_second", "seconds")
    training = [[line["step"], round(line["loss"], 4)] for line in lines if "loss" in line]
    measured = [
        [line["step"], *(round(line[f"{split}_loss"], 4) for split in ("train", "valid"))]
        for line in lines
        if "valid_loss" in line
    ]
    return {name: trained.get(name) for name in names} | {"curve": training, "measured": measured}


def table(results: dict[str, Any]) -> str:
    """One line a depth and learning rate, the two architectures beside each other."""
    rows = ["blocks  learning rate  " + "  ".join(f"{LABELS[name]:>34}" for name in ARCHITECTURES)]
    rows += [" " * 23 + "  ".join(["  train   valid  thousand tokens/s"] * 2)]
    pairs: dict[tuple[int, float], dict[str, Any]] = {}
    for record in results["runs"]:
        pairs.setdefault((record["blocks"], record["learning_rate"]), {})[record["architecture"]] = record
    for (depth, rate), pair in pairs.items():
        cells = []
        for name in ARCHITECTURES:
            record = pair.get(name)
            if record is None or record["valid_loss"] is None:
                cells.append(f"{'fail' if record else '':>34}")
            else:
                speed = record["tokens_per_second"] / 1000
                cells.append(f"{record['train_loss']:7.3f} {record['valid_loss']:7.3f} {speed:18,.0f}")
        rows.append(f"{depth:6}  {rate:13g}  " + "  ".join(cells))
    return "\n".join(rows)
