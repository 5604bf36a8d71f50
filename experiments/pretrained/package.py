"""Write the models that come with the package: the better run of each, in bfloat16, with its card, and results.json.

python experiments/pretrained/package.py RUNS DATA OUT

RUNS has the folders NAME-RATE of training runs, DATA the prepared texts `tokens` and `report`. The run is chosen by its
validation loss; on `report` the models are measured as the package opens them. Models that are in OUT already are only
measured, and need no checkpoints in RUNS.
"""

import sys
from pathlib import Path
from typing import Any

import torch

from memory_mosaics import load, preset, pretrained, save
from memory_mosaics.apps import demo
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import evaluate
from memory_mosaics.files import read_json, write_text
from memory_mosaics.language_model import weight_count
from memory_mosaics.results import write_results
from memory_mosaics.text.corpus import Corpus

CARD = Path(__file__).with_name("card.md")
KEPT = ("train_loss", "valid_loss", "seconds", "tokens_per_second", "parameters", "versions", "commit", "hardware")


def main(runs: Path, data: Path, out: Path) -> None:
    """Package both models, measure them and write their cards."""
    corpus = Corpus.open(data / "tokens")
    trained = {name: training_runs(runs, name) for name in pretrained.NAMES}
    best = {name: min(found, key=lambda run: run["valid_loss"]) for name, found in trained.items()}
    for name, run in best.items():
        if not (out / name).exists():
            half = load(runs / run["run"], dtype=torch.bfloat16)
            if half.config != preset(name):
                raise UserError(f"{runs / run['run']} is not a model of the preset {name}")
            save(half, out / name, tokenizer=corpus.tokenizer())
    pretrained.FOLDER = out  # where names are found: measured is what a name opens
    report: dict[str, Any] = {"data": data / "report", "split": "train", "windows": None}
    evaluate.run_anchors(data / "tokens", **report, out=out / "anchors")
    measured = evaluate.run(list(pretrained.NAMES), **report, anchors=out / "anchors", out=out / "evaluation")
    results: dict[str, Any] = {"study": "pretrained", "interrupted": measured.pop("interrupted")}
    results["runs"] = [run | {"chosen": run in best.values()} for found in trained.values() for run in found]
    splits = corpus.manifest["splits"] | {"report": Corpus.open(data / "report").manifest["splits"]["train"]}
    results |= {"stories": splits, "evaluation": measured, "probed": demo.PROBED}
    opened = {name: LoadedModel.open(Path(name)) for name in pretrained.NAMES}
    results["recall"] = {name: demo.recall_accuracy(each.model, each.tokenizer) for name, each in opened.items()}
    write_results(out / "results.json", results)
    for name in pretrained.NAMES:
        write_text(out / name / "README.md", card(results, name))
        print(card(results, name))


def training_runs(runs: Path, name: str) -> list[dict[str, Any]]:
    """Return what is known of the runs of a model that have ended."""
    found = []
    for file in sorted(runs.glob(f"{name}-*/results.json")):
        results = read_json(file)
        if results["interrupted"]:
            print(f"{file.parent} has not ended: left out", file=sys.stderr)
            continue
        kept = {key: results[key] for key in KEPT} | {"training": results["training"]}
        found.append({"run": file.parent.name, "model": name} | kept)
    if not found:
        raise UserError(f"no run of {name} in {runs} has ended")
    return found


def card(results: dict[str, Any], name: str) -> str:
    """Return the card of a model, with the numbers of results.json."""
    (run,) = (run for run in results["runs"] if run["chosen"] and run["model"] == name)
    measured = {one["name"]: one for one in results["evaluation"]["models"]}
    training, recall, stories = run["training"], results["recall"], results["stories"]
    other = next(each for each in pretrained.NAMES if each != name)
    rows = [(each, measured[each]["loss"], measured[each]["bits_per_byte"]) for each in (name, other)]
    rows += [(f"*{one['label']}*", one["loss"], None) for one in results["evaluation"]["anchors"]]
    cells = [f"| {label} | {loss:.3f} | {'' if bits is None else f'{bits:.3f}'} |" for label, loss, bits in rows]
    config = preset(name)
    rates = [each["training"]["learning_rate"] for each in results["runs"] if each["model"] == name]
    read = training["steps"] * training["batch"] * config.context
    return CARD.read_text(encoding="utf-8").format(
        name=name,
        kind=KINDS[name],
        other=other,
        blocks=config.blocks,
        width=config.width,
        heads=config.sequence_mixer.heads,  # type: ignore[attr-defined]
        vocabulary=config.vocabulary,
        context=config.context,
        parameters=weight_count(config),
        stories=stories["train"]["documents"],
        chosen_on=stories["valid"]["documents"],
        reported_on=stories["report"]["documents"],
        tokens=stories["train"]["tokens"],
        read=read,
        passes=read / stories["train"]["tokens"],
        steps=training["steps"],
        batch=training["batch"],
        rate=training["learning_rate"],
        final=training["final_learning_rate"],
        search=(
            f"Of the learning rates {' and '.join(f'{rate:g}' for rate in rates)} it is the one with the lower loss"
            if len(rates) > 1
            else "No other learning rate was tried. Loss"
        ),
        valid=run["valid_loss"],
        seconds=run["seconds"],
        runs=len(results["runs"]),
        hardware=run["hardware"],
        commit=run["commit"],
        losses="\n".join(cells),
        recall="; ".join(f"{each}: {recall[each]['right']} of {recall[each]['asked']}" for each in (name, other)),
        probed=results["probed"],
    )


KINDS = {
    pretrained.MOSAIC: "a Memory Mosaic v2: short-term and long-term memories, gated keys, adaptive sharpness, SwiGLU",
    pretrained.TWIN: "a Llama-like transformer: rotary positions, RMSNorm, SwiGLU",
}

if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except (UserError, OSError) as error:
        print(f"package.py: {error}", file=sys.stderr)
        raise SystemExit(2) from None
