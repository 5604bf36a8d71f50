"""Commands `mosaics evaluate` and `mosaics anchors`: losses on the same windows of any prepared text (figures 2 and 8).

Anchors are predictors that need no training beyond counting:

    unigram            p(w) = (count of w in the training text + k) / (tokens + k vocabulary)
    unigram cache      Witten-Bell interpolation of the counts of the window so far with that unigram
    n-gram cache       the same, recursively, for the last 1, 2, ... tokens: a shorter context is the prior of a longer

A model whose loss is above an anchor's has not shown what the anchor lacks: above the unigram, not even the token
frequencies of its training text; above the cache, no use of the context beyond repetition.
"""

import math
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from memory_mosaics import checkpoint, evaluation
from memory_mosaics.bounded_stores import EXACT, StorePolicy
from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.evaluation import EvalWindows, LossStatistics, count_tokens, sample_windows, unigram
from memory_mosaics.experiments.report import collect_records, describe_model, print_summary, text_table
from memory_mosaics.files import read_json
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.memory_files import start_with_memory
from memory_mosaics.results import (
    create_output_folder,
    environment_info,
    mean_and_interval,
    read_results,
    round_digits,
    write_results,
)
from memory_mosaics.runtime import find_device
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training.checkpointing import read_run

CURVE_DIGITS = {"by_position": 5, "by_position_within": 3, "smoothed": 5, "smoothed_within": 3}
SPAN_EDGES = (0, 100, 250, *(2**power for power in range(9, 40)))  # of the positions whose mean loss the table shows


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
    memory: list[Path] | None = None,
    store: str | None = None,
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
        length: tokens per window, which may be more than the model was trained on; one with learned positions reads
            each window up to its last position
        windows: number of windows, spread evenly over the split; null for all. All models read the same
        split: which part of the data: valid or train
        at_documents: start each window with a document and end it within; documents shorter than a window are skipped
        over_seeds: average runs that differ in their seed alone, of one model and one recipe; the intervals are then
            over the runs, not the windows
        anchors: folder of `mosaics anchors` for the same windows: its losses are kept and drawn beside the models'
        memory: one or several files of `mosaics read`, of the one model that is measured: each window is read as if
            after what they hold
        store: which pairs contextual memories keep, such as lru:4096 (`mosaics read --help` has all); a window may then
            be longer than memory. null is exact, or as in the memory files; exact after a file with another store keeps
            its pairs and all of the window
        batch: windows per batch
        device: cuda, mps or cpu; auto takes the first that is available
        out: folder for results.json and the figure
    """
    check_range(1, 1 << 40, batch=batch)
    policy = None if store is None else StorePolicy.parse(store)
    if memory and len(runs) > 1:
        raise UserError(f"memory files are of one model, and {len(runs)} are named; measure them one by one")
    torch_device, corpus, models = torch.device(find_device(device)), Corpus.open(data), unique_names(runs)
    for trained in iter_models(models):
        trained.check_tokenizer_of(corpus)
        trained.model.empty_state(policy)  # refuses a model without memories
        if (longest := trained.model.max_positions or length) < length:
            print(f"{trained.name} has {longest} learned positions: it reads each window up to there, not {length}")
    text = sample_windows(corpus, split=split, length=length, count=windows, at_documents=at_documents)
    results: dict[str, Any] = {"study": "evaluate", "interrupted": True} | text.describe()
    if anchors is not None:
        results["anchors"] = read_anchors(anchors, text)
    results |= ({} if policy is None else {"store": store}) | {"models": []} | environment_info(torch_device)
    opened = iter_models(models, device=torch_device)
    collect_records(
        (_record(trained, text, batch, memory or [], store, by_position=by_position) for trained in opened),
        results,
        out,
    )
    if over_seeds and not results["interrupted"]:
        scalars = [{key: one for key, one in model.items() if key not in CURVE_DIGITS} for model in results["models"]]
        recipes = [_recipe(run) for run in models.values()]
        results |= {"runs": scalars, "models": average_over_seeds(results["models"], recipes)}
        write_results(out / "results.json", results)
    print_summary(_model_table(results["models"]), results, out, draw=by_position)
    return results


def read_anchors(folder: Path, text: EvalWindows) -> list[dict[str, Any]]:
    """Read the losses that `mosaics anchors` measured on the same windows."""
    try:
        found = read_json(folder / "results.json")
        for name, value in text.describe().items():
            if found[name] != value:
                raise UserError(
                    f"{folder} was measured with {name} {found[name]}, not {value}; run mosaics anchors on the same "
                    "windows"
                )
        return [{key: one[key] for key in ("name", "label", "loss", "spans")} for one in found["anchors"]]
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} holds no results.json; name the folder of mosaics anchors") from None
    except (LookupError, TypeError) as error:
        raise UserError(f"{folder / 'results.json'} is not of mosaics anchors: {one_line(error)}") from error


def _record(
    trained: LoadedModel, text: EvalWindows, batch: int, files: list[Path], store: str | None, *, by_position: bool
) -> dict[str, Any]:
    start, record = time.monotonic(), describe_model(trained)
    state, memory = start_with_memory(trained, files, store)
    if memory is not None:
        record["memory"] = {"store": str(memory.policy or EXACT), "pairs": memory.pairs, "texts": memory.texts}
    measured = evaluation.evaluate(trained, text, batch=batch, state=state)
    record |= measured.summary()
    record |= {name: round_digits(value, 6) for name, value in record.items() if isinstance(value, float)}
    record["spans"] = _spans(measured, text.length)
    if by_position:
        record |= {name: round_digits(values, CURVE_DIGITS[name]) for name, values in measured.curves().items()}
    return record | {"seconds": round(time.monotonic() - start, 2)}


def _spans(measured: LossStatistics, length: int) -> list[list[Any]]:
    """Return the mean loss between each two edges: [first, end, loss]."""
    edges = [*(edge for edge in SPAN_EDGES if edge < length), length]
    return [[*span, round_digits(measured.mean_between(*span), 6)] for span in pairwise(edges)]


def _recipe(run: Path) -> tuple[LanguageModelConfig, str]:
    """Return what two seeds share: the model's configuration, and the training options where the run has them."""
    newest = checkpoint.newest(run)
    options = (read_run(run if newest != run else run.parent) or {}).get("training") or {}
    training = {name: value for name, value in options.items() if name != "seed"}
    return checkpoint.read_config(newest), repr(sorted(training.items()))


def average_over_seeds(models: list[dict[str, Any]], recipes: list[Any]) -> list[dict[str, Any]]:
    """Return one record per recipe: means over its runs, and 95 % confidence intervals of these means."""
    averaged = []
    for recipe in dict.fromkeys(recipes):
        runs = [model for model, own in zip(models, recipes, strict=True) if own == recipe]
        loss, within = _mean([one["loss"] for one in runs])
        record = runs[0] | {"seeds": len(runs), "loss": loss, "loss_within": within}
        record["perplexity"] = math.exp(fmean(one["loss"] for one in runs))
        record["bits_per_byte"] = round_digits(fmean(one["bits_per_byte"] for one in runs), 6)
        spans = zip(*(one["spans"] for one in runs), strict=True)
        record["spans"] = [[*cells[0][:2], *_mean([cell[2] for cell in cells])] for cells in spans]
        for name in ("by_position", "smoothed"):
            if name in record:
                means = [_mean(losses, 5) for losses in zip(*(one[name] for one in runs), strict=True)]
                record[name] = [mean for mean, _ in means]
                record[f"{name}_within"] = None if len(runs) < 2 else [within for _, within in means]
        averaged.append(record)
    return averaged


def _mean(losses: Sequence[Any], digits: int = 6) -> tuple[float | None, float | None]:
    """Return the rounded mean and half the width of its confidence interval; None where there are no losses."""
    return (None, None) if losses[0] is None else mean_and_interval(losses, digits=digits)


def _model_table(models: list[dict[str, Any]]) -> str:
    rows = []
    for one in models:
        loss = _number(one["loss"]) + ("" if one["loss_within"] is None else f" ± {one['loss_within']:.4f}")
        rows.append(
            [one["name"], f"{one['windows']:,}", loss, f"{one['perplexity']:,.2f}", _number(one["bits_per_byte"])]
        )
    return _table(["model", "windows", "loss", "perplexity", "bits/byte"], rows, models)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _table(header: list[str], rows: list[list[str]], records: list[dict[str, Any]]) -> str:
    """Return one line per record; the last columns are mean losses between positions."""
    spans = [f"[{first}, {end})" for first, end, *_ in records[0]["spans"]]
    losses = [[_number(loss) for _, _, loss, *_ in record["spans"]] for record in records]
    return text_table([*header, *spans], [left + right for left, right in zip(rows, losses, strict=True)])


def run_anchors(
    training: Path,
    *,
    data: Path,
    split: str = "valid",
    length: int = 512,
    windows: int | None = 1000,
    at_documents: bool = False,
    smoothing: list[float] | None = None,
    order: int = 3,
    out: Path = Path("runs/anchors"),
) -> dict[str, Any]:
    """Measure unigrams of a training text, and unigram and n-gram caches of the context, on the windows of another.

    Args:
        training: the prepared corpus that the models were trained on; its train split is counted
        data: a folder that `mosaics prepare` wrote, with the same tokenizer
        split: which part of the data: valid or train
        length: tokens per window
        windows: number of windows, spread evenly over the split; null for all
        at_documents: start each window with a document and end it within; documents shorter than a window are skipped
        smoothing: values to add to the count of every token of the vocabulary, one unigram for each; 1 and 100 by
            default. The caches are interpolated with the last.
        order: longest n-gram of the n-gram cache
        out: folder for results.json
    """
    added = smoothing or [1.0, 100.0]
    check_range(1, 100, order=order)
    for k in added:
        if not 0 < k < math.inf:
            raise UserError(f"smoothing must be more than 0 and finite, not {k:g}")
    counted, corpus = Corpus.open(training), Corpus.open(data)
    if counted.manifest["tokenizer"]["fingerprint"] != corpus.manifest["tokenizer"]["fingerprint"]:
        raise UserError(f"{training} and {data} have different tokenizers; prepare one with --tokenizer of the other")
    text = sample_windows(corpus, split=split, length=length, count=windows, at_documents=at_documents)
    create_output_folder(out)
    read_results(out, "anchors")
    start = time.monotonic()
    counts, tokenizer = count_tokens(counted), corpus.tokenizer()
    labels = {f"unigram-{k:g}": f"unigram of the training text, add-{k:g}" for k in added}
    labels |= {f"cache-{n}": f"{'unigram' if n == 1 else f'{n}-gram'} cache of the context" for n in sorted({1, order})}
    losses = [evaluation.of_unigram(unigram(counts, k)) for k in added]
    losses += [evaluation.of_cache(unigram(counts, added[-1]), n) for n in sorted({1, order})]
    measured = {
        name: evaluation.measure(one, text, LossStatistics(length, counts=counts), tokenizer, rows=1, name=name)
        for name, one in zip(labels, losses, strict=True)
    }
    [seen_share] = {one.seen / one.tokens for one in measured.values()}
    results: dict[str, Any] = {"study": "anchors", "training": counted.folder.name} | text.describe()
    results |= {"order": order, "smoothing": added, "training_tokens": int(counts.sum()), "vocabulary": len(counts)}
    results |= {"tokens_in_training": int((counts > 0).sum()), "uniform_loss": round_digits(math.log(len(counts)), 6)}
    results["unseen_share"] = round_digits(1 - seen_share, 4)
    results["anchors"] = [
        {
            "name": name,
            "label": label,
            "loss": round_digits(measured[name].loss, 6),
            "loss_within": round_digits(measured[name].summary()["loss_within"], 3),
            "loss_seen": round_digits(measured[name].loss_seen, 6),
            "spans": _spans(measured[name], length),
        }
        for name, label in labels.items()
    ]
    results |= environment_info() | {"seconds": round(time.monotonic() - start, 1)}
    write_results(out / "results.json", results)
    share = f"{results['unseen_share']:.1%} of the tokens never occur in {results['training']}"
    print(f"{results['corpus']}, {len(text):,} windows: {share}; uniform {results['uniform_loss']:.3f}")
    rows = [[one["label"], _number(one["loss"]), _number(one["loss_seen"])] for one in results["anchors"]]
    print_summary(_table(["anchor", "loss", "seen"], rows, results["anchors"]), results, out, draw=False)
    return results
