"""How the last position attends to earlier ones, head by head, over many sequences (appendix D.4).

Three widths say how far a head looks, each a number a head:

    pairs       1 / sum p^2, how many pairs are retrieved in effect, averaged over sequences
    distance    sum p d, how many tokens back they lie, averaged over sequences
    peak        the rise at the end of the averaged weights: its area above their median divided by its height

The last is what lambda widens in the paper: keys that are leaky averages resemble those just before them.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memory_mosaics import evaluation
from memory_mosaics import results as files
from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.errors import UserError, within_memory
from memory_mosaics.evaluation import Sample
from memory_mosaics.experiments import figures
from memory_mosaics.experiments.measuring import about, keep
from memory_mosaics.inspection import retrieval_weights, retrievals
from memory_mosaics.results import progress_bar
from memory_mosaics.runtime import find_device
from memory_mosaics.shapes import Float
from memory_mosaics.text.corpus import Corpus

LENGTHS = (512, 1536)
FIRST, RECENT, PARTS = 16, 64, 64  # weights kept one by one at the beginning and the end, and parts of a sequence
LAST = 16  # pairs at the end whose share of the weight the table shows


def run(
    runs: list[str],
    *,
    data: Path,
    length: list[int] | None = None,
    sequences: int = 2000,
    split: str = "valid",
    batch: int = 8,
    device: str = "auto",
    out: Path = Path("runs/attention"),
) -> dict[str, Any]:
    """Measure how the last position of a sequence attends to earlier ones: per block and head, and averaged.

    Ctrl-C keeps the models and lengths that are finished.

    Args:
        runs: training runs, of which the newest checkpoint is taken, or checkpoint folders
        data: a folder that `mosaics prepare` wrote, with the models' own tokenizer
        length: tokens in a sequence; 512 and 1536 if none are named. A model with learned positions is passed over
            where it has too few of them.
        sequences: how many, spread evenly over the split; they overlap where it is short
        split: which part of the data: valid or train
        batch: sequences at a time
        device: cpu, cuda, mps, or auto for the best there is
        out: folder for results.json and the figures
    """
    lengths = sorted(set(length or LENGTHS))
    for name, number, least in (("batch", batch, 1), ("sequences", sequences, 1), ("length", lengths[0], 2)):
        if number < least:
            raise UserError(f"{name} must be at least {least}, not {number}")
    place, corpus, models = torch.device(find_device(device)), Corpus.open(data), unique_names(runs)
    texts = _texts(models, corpus, split, lengths, sequences)
    results: dict[str, Any] = {"study": "attention", "interrupted": True, "corpus": corpus.folder.name}
    results |= {"split": split, "lengths": lengths, "models": []} | files.environment_info(place)
    opened = iter_models({name: models[name] for name in texts}, device=place)
    records = (_record(trained, text, batch) for trained in opened for text in texts[trained.name])
    keep(records, results, out)
    _say(results, out)
    return results


def _texts(
    models: dict[str, Path], corpus: Corpus, split: str, lengths: list[int], sequences: int
) -> dict[str, list[Sample]]:
    """What each model reads, one sample a length, without the models that can read none."""
    read: dict[str, list[int]] = {}
    for trained in iter_models(models):
        trained.check_reads(corpus)
        if not any(hasattr(block.sequence_mixer, "prepare_retrieval") for block in trained.model.blocks):
            raise UserError(f"{trained.name} has no attention to look at: its sequence mixers recall nothing")
        read[trained.name] = [long for long in lengths if _reads(trained, long)]
    samples = {
        long: evaluation.sample(corpus, split=split, length=long, count=sequences, overlap=True) for long in lengths
    }
    if not any(read.values()):
        raise UserError(f"there is nothing to measure: no model reads {lengths[0]} tokens; take a shorter --length")
    return {name: [samples[long] for long in asked] for name, asked in read.items() if asked}


def _reads(trained: LoadedModel, length: int) -> bool:
    """Whether it can read so many tokens; says so if not."""
    longest = trained.model.max_positions or length
    if longest < length:
        print(f"{trained.name} has {longest} learned positions: it is not measured at {length}")
    return longest >= length


def _record(trained: LoadedModel, text: Sample, batch: int) -> dict[str, Any]:
    """One model at one length."""
    start = time.monotonic()
    blocks = measure(trained, text, batch=batch)
    heads = [head for block in blocks for head in block["heads"]]
    record = about(trained) | {"length": text.length, "sequences": len(text)}
    record["seconds"] = round(time.monotonic() - start, 2)
    record |= {name: files.rounded(np.mean([head[name] for head in heads]), 5) for name in ("pairs", "distance")}
    record["weights"] = files.rounded(np.mean([head["weights"] for head in heads], axis=0), 5)
    record["places"] = places(len(record["weights"]))
    for head in heads:
        head["weights"] = files.rounded(averaged(head["weights"], record["places"]), 4)
    return record | {"blocks": blocks}


def places(count: int) -> list[int]:
    """Where the parts begin whose mean weight is kept of each head: one by one at both ends, longer in between."""
    first = min(FIRST, count)
    last = max(first, count - RECENT)
    return [*range(first), *range(first, last, max(1, count // PARTS)), *range(last, count)]


def averaged(weights: Float[np.ndarray, " N"], starts: list[int]) -> Float[np.ndarray, " M"]:
    """The mean of each part."""
    return np.add.reduceat(weights, starts) / np.diff([*starts, len(weights)])


def measure(trained: LoadedModel, text: Sample, *, batch: int = 8) -> list[dict[str, Any]]:
    """Each block's heads: their widths, lambda where there is one, and the mean weight of each position, 0 first."""
    model, totals, mixers = trained.model, {}, {}
    with progress_bar(f"{trained.name}, {text.length} tokens", len(text), "sequence") as bar:
        for rows in text.batches(batch, length=text.length):
            many = f"{batch} sequences of {text.length} tokens at once are too many"
            with within_memory(f"{many}; give a smaller --batch"):
                for number, kind, mixer, retrieval in retrievals(model, rows[:, :-1].to(model.embedding.weight.device)):
                    if kind == "sequence":
                        weights = retrieval_weights(retrieval, [-1])[:, :, 0].cpu().double().numpy()  # (B, H, N)
                        totals[number] = totals.get(number, 0) + _sums(weights, text.length)
                        mixers[number] = mixer
            bar.update(len(rows))
    return [{"block": number, "heads": _heads(totals[number] / len(text), mixers[number])} for number in sorted(totals)]


def _sums(weights: Float[np.ndarray, "B H N"], length: int) -> Float[np.ndarray, "H M"]:
    """Over sequences: effective pairs, distances, then the weights themselves. The pair of position i is pair i."""
    pairs = 1 / np.square(weights).sum(axis=-1, keepdims=True)
    distance = (weights * (length - 1 - np.arange(weights.shape[-1]))).sum(axis=-1, keepdims=True)
    return np.concatenate([pairs, distance, weights], axis=-1).sum(axis=0)


def _heads(means: Float[np.ndarray, "H M"], mixer: Any) -> list[dict[str, Any]]:
    decay, beta = getattr(getattr(mixer, "key", None), "decay", None), getattr(mixer, "sharpness", None)
    trained = {"lambda": decay, "sharpness": beta}
    values = {name: part() if isinstance(part, torch.nn.Module) else None for name, part in trained.items()}
    return [
        {name: files.rounded(value[head].item(), 5) for name, value in values.items() if torch.is_tensor(value)}
        | {"pairs": files.rounded(pairs, 5), "distance": files.rounded(distance, 5)}
        | {"peak": files.rounded(peak(weights), 5), "weights": weights}
        for head, (pairs, distance, weights) in enumerate(zip(means[:, 0], means[:, 1], means[:, 2:], strict=True))
    ]


def peak(weights: Float[np.ndarray, " N"]) -> float:
    """How wide the rise at the end is: 1 / (1 - lambda) for weights that fall as lambda^distance; 0 without one."""
    rise = weights[::-1] - np.median(weights)
    end = int(np.argmax(rise <= 0))  # the first that is no more than the median: there is one
    return float(rise[:end].sum() / rise[:end].max()) if end else 0.0


def _say(results: dict[str, Any], out: Path) -> None:
    drawn = "No figures: matplotlib is not installed here; mosaics draw makes them from results.json."
    if figures.available():
        drawn = f"Figures: {', '.join(file.name for file in figures.draw(results, out))} beside it."
    stopped = "Stopped: this is what was finished. " if results["interrupted"] else ""
    print(f"{table(results)}\n{stopped}Results: {out / 'results.json'}. {drawn}")


def table(results: dict[str, Any]) -> str:
    """One line a model and length, means over heads: widths, and the shares of the first and of the last positions."""
    width = max(len("model"), *(len(model["name"]) for model in results["models"]))
    heads = f"{'length':>6} {'sequences':>9} {'pairs':>8} {'distance':>8} {'first':>7} {f'last {LAST}':>7}"
    lines = [f"{'model':{width}} {heads}"]
    for model in results["models"]:
        weights = model["weights"]
        shares = f"{weights[0]:7.1%} {sum(weights[-LAST:]):7.1%}"
        widths = f"{model['pairs']:8.1f} {model['distance']:8.1f}"
        lines.append(f"{model['name']:{width}} {model['length']:6} {model['sequences']:9,} {widths} {shares}")
    return "\n".join(lines)
