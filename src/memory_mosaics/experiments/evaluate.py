"""Loss by position: any number of models on the same windows of any prepared text (figures 2 and 8)."""

import math
import time
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from memory_mosaics import checkpoint, evaluation
from memory_mosaics import results as files
from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.evaluation import Sample
from memory_mosaics.experiments import figures
from memory_mosaics.experiments.measuring import about, keep
from memory_mosaics.files import read_json
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.runtime import find_device
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training.folder import read_run

CURVES = {"by_position": 5, "by_position_within": 3, "smoothed": 5, "smoothed_within": 3}  # and their digits
EDGES = (0, 100, 250, *(2**power for power in range(9, 40)))  # of the spans whose mean loss the table shows


def run(
    runs: list[str],
    *,
    data: Path,
    by_position: bool = False,
    length: int = 512,
    windows: int | None = 1000,
    split: str = "valid",
    at_documents: bool = False,
    over_seeds: bool = False,
    anchors: Path | None = None,
    batch: int = 8,
    device: str = "auto",
    out: Path = Path("runs/evaluation"),
) -> dict[str, Any]:
    """Measure how well trained models predict a text: loss, perplexity, bits per byte, and the loss by position.

    Ctrl-C keeps the models that are finished.

    Args:
        runs: training runs, of which the newest checkpoint is taken, or checkpoint folders
        data: a folder that `mosaics prepare` wrote, with the models' own tokenizer
        by_position: keep and draw the loss at each position, with its 95 % confidence band over windows
        length: tokens in a window. It may be longer than those a model was trained on; one with learned positions
            reads each window up to its last position
        windows: how many, spread evenly over the split; null for all. All models read the same.
        split: which part of the data: valid or train
        at_documents: begin each window with a document and keep it within; documents shorter than a window are skipped
        over_seeds: average runs that differ in their seed alone, of one model and one recipe; the intervals are then
            over the runs, not the windows
        anchors: folder of `mosaics anchors` for the same windows: its losses are kept and drawn beside the models'
        batch: windows at a time
        device: cpu, cuda, mps, or auto for the best there is
        out: folder for results.json and the figure
    """
    if batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    place, corpus, models = torch.device(find_device(device)), Corpus.open(data), unique_names(runs)
    for trained in iter_models(models):
        trained.check_reads(corpus)
        if (longest := trained.model.max_positions or length) < length:
            print(f"{trained.name} has {longest} learned positions: its curve ends there, before {length}")
    text = evaluation.sample(corpus, split=split, length=length, count=windows, at_documents=at_documents)
    results: dict[str, Any] = {"study": "evaluate", "interrupted": True, "corpus": corpus.folder.name}
    results |= {"split": split, "length": length, "windows": len(text), "at_documents": at_documents}
    if anchors is not None:
        results["anchors"] = read_anchors(anchors, results)
    results |= {"models": []} | files.environment_info(place)
    records = (_record(trained, text, batch, by_position=by_position) for trained in iter_models(models, device=place))
    keep(records, results, out)
    if over_seeds and not results["interrupted"]:
        results["runs"] = [{key: one for key, one in model.items() if key not in CURVES} for model in results["models"]]
        results["models"] = pool(results["models"], [_recipe(run) for run in models.values()])
        files.write(out / "results.json", results)
    _say(results, out, by_position=by_position)
    return results


def read_anchors(folder: Path, windows: dict[str, Any]) -> list[dict[str, Any]]:
    """The losses that `mosaics anchors` found on the same windows."""
    try:
        found = read_json(folder / "results.json")
        for name in ("corpus", "split", "length", "windows", "at_documents"):
            if found[name] != windows[name]:
                raise UserError(
                    f"{folder} was measured with {name} {found[name]}, not {windows[name]}; run mosaics anchors on the "
                    "same windows"
                )
        return [{key: one[key] for key in ("name", "label", "loss", "spans")} for one in found["anchors"]]
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} holds no results.json; name the folder of mosaics anchors") from None
    except (LookupError, TypeError) as error:
        raise UserError(f"{folder / 'results.json'} is not of mosaics anchors: {one_line(error)}") from error


def _record(trained: LoadedModel, text: Sample, batch: int, *, by_position: bool) -> dict[str, Any]:
    """One model on all windows."""
    start = time.monotonic()
    measured = evaluation.evaluate(trained, text, batch=batch)
    record = about(trained) | {name: getattr(measured, name) for name in ("windows", "tokens", "bytes")}
    names = ("loss", "loss_within", "perplexity", "bits_per_byte")
    record |= {name: files.rounded(getattr(measured, name), 6) for name in names}
    edges = [*(edge for edge in EDGES if edge < text.length), text.length]
    record["spans"] = [[*span, files.rounded(measured.between(*span), 6)] for span in pairwise(edges)]
    if by_position:
        record |= {name: files.rounded(getattr(measured, name), digits) for name, digits in CURVES.items()}
    return record | {"seconds": round(time.monotonic() - start, 2)}


def _recipe(run: Path) -> tuple[LanguageModelConfig, str]:
    """What two seeds share: the model's configuration and how it was trained, where the folder of the run says it."""
    newest = checkpoint.newest(run)
    recorded = read_run(run if newest != run else run.parent) or {}
    training = {name: value for name, value in dict(recorded.get("training") or {}).items() if name != "seed"}
    return checkpoint.read_config(newest), repr(sorted(training.items()))


def pool(models: list[dict[str, Any]], recipes: list[Any]) -> list[dict[str, Any]]:
    """One record per recipe: means over its runs, and 95 % intervals of these means."""
    pooled = []
    for recipe in dict.fromkeys(recipes):
        runs = [model for model, own in zip(models, recipes, strict=True) if own == recipe]
        record = runs[0] | {"seeds": len(runs)}
        loss, within = files.mean_and_interval([one["loss"] for one in runs])
        record |= {
            "loss": files.rounded(loss, 6),
            "loss_within": files.rounded(within, 3),
            "perplexity": math.exp(loss),
        }
        record["bits_per_byte"] = files.rounded(fmean(one["bits_per_byte"] for one in runs), 6)
        record["spans"] = []
        for cells in zip(*(one["spans"] for one in runs), strict=True):
            mean, within = (None, None) if cells[0][2] is None else files.mean_and_interval([cell[2] for cell in cells])
            record["spans"].append([*cells[0][:2], files.rounded(mean, 6), files.rounded(within, 3)])
        for name in ("by_position", "smoothed"):
            if name in record:
                both = [files.mean_and_interval(losses) for losses in zip(*(one[name] for one in runs), strict=True)]
                record[name] = files.rounded([mean for mean, _ in both], 5)
                record[f"{name}_within"] = None if len(runs) < 2 else files.rounded([one for _, one in both], 3)
        pooled.append(record)
    return pooled


def _say(results: dict[str, Any], out: Path, *, by_position: bool) -> None:
    drawn = ""
    if by_position and figures.available():
        drawn = f" Figure: {', '.join(file.name for file in figures.draw(results, out))} beside it."
    elif by_position:
        drawn = " No figure: matplotlib is not installed here; mosaics draw makes it from results.json."
    stopped = "Stopped: these are the models that were finished. " if results["interrupted"] else ""
    print(f"{table(results)}\n{stopped}Results: {out / 'results.json'}.{drawn}")


def table(results: dict[str, Any]) -> str:
    """One line a model; the last columns are the mean loss of those positions."""
    width = max(len("model"), *(len(model["name"]) for model in results["models"]))
    spans = [f"[{first}, {end})" for first, end, *_ in results["models"][0]["spans"]]
    heads = f"{'windows':>8} {'loss':>16} {'perplexity':>11} {'bits/byte':>10}"
    lines = [f"{'model':{width}} {heads} " + " ".join(f"{span:>12}" for span in spans)]
    for model in results["models"]:
        within = "" if model["loss_within"] is None else f" ± {model['loss_within']:.4f}"
        loss = f"{model['loss']:.4f}{within}"
        cells = f"{model['windows']:8,} {loss:>16} {model['perplexity']:11,.2f} {model['bits_per_byte']:10.4f}"
        means = (f"{loss:12.4f}" for _, _, loss, *_ in model["spans"] if loss is not None)
        lines.append(f"{model['name']:{width}} {cells} " + " ".join(means))
    return "\n".join(lines)
