"""Command `mosaics attention`: how the last position attends to earlier ones, per head, over many sequences (D.4).

Three numbers per head measure how far its attention reaches:

    pairs       1 / sum p^2, the effective number of retrieved pairs, averaged over sequences
    distance    sum p d, their mean distance in tokens, averaged over sequences
    peak        width of the peak at the end of the averaged weights: its area above their median, over its height

In the paper lambda widens the peak: keys that are leaky averages resemble the keys just before them.
"""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.errors import UserError, check_range, within_memory
from memory_mosaics.evaluation import EvalWindows, sample_windows
from memory_mosaics.experiments.report import collect_records, describe_model, print_summary, text_table
from memory_mosaics.inspection import retrievals
from memory_mosaics.results import environment_info, progress_bar, round_digits
from memory_mosaics.runtime import find_device
from memory_mosaics.shapes import Float
from memory_mosaics.stores import RetrievalMixer
from memory_mosaics.text.corpus import Corpus

LENGTHS = (512, 1536)
FIRST, RECENT, PARTS = 16, 64, 64  # weights kept one by one at the start and at the end, and bins in between
LAST = 16  # pairs at the end whose total weight the table shows


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
        length: tokens per sequence; 512 and 1536 by default. A model with learned positions is skipped at lengths
            beyond them.
        sequences: number of sequences, spread evenly over the split; they overlap where it is short
        split: which part of the data: valid or train
        batch: sequences per batch
        device: cuda, mps or cpu; auto takes the first that is available
        out: folder for results.json and the figures
    """
    lengths = sorted(set(length or LENGTHS))
    check_range(1, math.inf, batch=batch, sequences=sequences)
    check_range(2, math.inf, length=lengths[0])
    torch_device, corpus, models = torch.device(find_device(device)), Corpus.open(data), unique_names(runs)
    texts = _sequences(models, corpus, split, lengths, sequences)
    results: dict[str, Any] = {"study": "attention", "interrupted": True, "corpus": corpus.folder.name}
    results |= {"split": split, "lengths": lengths, "models": []} | environment_info(torch_device)
    opened = iter_models({name: models[name] for name in texts}, device=torch_device)
    records = (_record(trained, text, batch) for trained in opened for text in texts[trained.name])
    collect_records(records, results, out)
    print_summary(_table(results["models"]), results, out)
    return results


def _sequences(
    models: dict[str, Path], corpus: Corpus, split: str, lengths: list[int], count: int
) -> dict[str, list[EvalWindows]]:
    """Return what each model reads, one sample per length, without models that can read none."""
    longest: dict[str, int] = {}
    for trained in iter_models(models):
        trained.check_tokenizer_of(corpus)
        if not any(isinstance(block.sequence_mixer, RetrievalMixer) for block in trained.model.blocks):
            raise UserError(f"{trained.name} has no attention to measure: its sequence mixers recall nothing")
        longest[trained.name] = trained.model.max_positions or lengths[-1]
        for length in lengths:
            if length > longest[trained.name]:
                positions = f"{longest[trained.name]} learned positions"
                print(f"{trained.name} has {positions}: it is not measured at {length}")
    samples = [sample_windows(corpus, split=split, length=length, count=count, overlap=True) for length in lengths]
    if max(longest.values()) < lengths[0]:
        raise UserError(f"there is nothing to measure: no model reads {lengths[0]} tokens; take a shorter --length")
    texts = {name: [text for text in samples if text.length <= most] for name, most in longest.items()}
    return {name: read for name, read in texts.items() if read}


def _record(trained: LoadedModel, text: EvalWindows, batch: int) -> dict[str, Any]:
    """Measure one model at one length."""
    start = time.monotonic()
    blocks = measure(trained, text, batch=batch)
    heads = [head for block in blocks for head in block["heads"]]
    record = describe_model(trained) | {"length": text.length, "sequences": len(text)}
    record["seconds"] = round(time.monotonic() - start, 2)
    record |= {name: round_digits(np.mean([head[name] for head in heads]), 5) for name in ("pairs", "distance")}
    record["weights"] = round_digits(np.mean([head["weights"] for head in heads], axis=0), 5)
    record["bin_starts"] = bin_starts(len(record["weights"]))
    for head in heads:
        head["weights"] = round_digits(bin_means(head["weights"], record["bin_starts"]), 4)
    return record | {"blocks": blocks}


def bin_starts(count: int) -> list[int]:
    """Return the first positions of the bins in which weights are kept: single ones at both ends, wider in between."""
    first = min(FIRST, count)
    last = max(first, count - RECENT)
    return [*range(first), *range(first, last, max(1, count // PARTS)), *range(last, count)]


def bin_means(weights: Float[np.ndarray, " N"], starts: list[int]) -> Float[np.ndarray, " M"]:
    return np.add.reduceat(weights, starts) / np.diff([*starts, len(weights)])


def measure(trained: LoadedModel, text: EvalWindows, *, batch: int = 8) -> list[dict[str, Any]]:
    """Return the heads of each block: their widths, lambda where there is one, and mean weights by position."""
    model, totals, mixers = trained.model, {}, {}
    device = model.embedding.weight.device
    with progress_bar(f"{trained.name}, {text.length} tokens", len(text), "sequence") as bar:
        for rows in text.batches(batch, length=text.length):
            many = f"{batch} sequences of {text.length} tokens at once are too many"
            with within_memory(f"{many}; give a smaller --batch"):
                for number, kind, mixer, retrieval, _ in retrievals(model, rows[:, :-1].to(device)):
                    if kind == "sequence":
                        weights = retrieval.weights([-1])[:, :, 0].detach().cpu().double().numpy()  # (B, H, N)
                        totals[number] = totals.get(number, 0) + _sums(weights, text.length)
                        mixers[number] = mixer
            bar.update(len(rows))
    return [{"block": number, "heads": _heads(totals[number] / len(text), mixers[number])} for number in sorted(totals)]


def _sums(weights: Float[np.ndarray, "B H N"], length: int) -> Float[np.ndarray, "H M"]:
    """Sum over sequences: effective pairs, distances, then the weights themselves. Pair i is that of position i.

    A memory that sees no pair yet, as one with a delay of the whole sequence, has 0 effective pairs.
    """
    squares = np.square(weights).sum(axis=-1, keepdims=True)
    pairs = np.divide(1, squares, out=np.zeros_like(squares), where=squares > 0)
    distance = (weights * (length - 1 - np.arange(weights.shape[-1]))).sum(axis=-1, keepdims=True)
    return np.concatenate([pairs, distance, weights], axis=-1).sum(axis=0)


def _heads(means: Float[np.ndarray, "H M"], mixer: RetrievalMixer) -> list[dict[str, Any]]:
    values = {"lambda": mixer.decays(), "sharpness": mixer.memory_info().sharpness}
    return [
        {name: round_digits(value[head].item(), 5) for name, value in values.items() if torch.is_tensor(value)}
        | {"pairs": round_digits(pairs, 5), "distance": round_digits(distance, 5)}
        | {"peak": round_digits(peak(weights), 5), "weights": weights}
        for head, (pairs, distance, weights) in enumerate(zip(means[:, 0], means[:, 1], means[:, 2:], strict=True))
    ]


def peak(weights: Float[np.ndarray, " N"]) -> float:
    """Return the width of the peak at the end: 1 / (1 - lambda) for weights lambda^distance; 0 without a peak."""
    rise = weights[::-1] - np.median(weights)
    end = int(np.argmax(rise <= 0))  # the first at or below the median, which exists
    return float(rise[:end].sum() / rise[:end].max()) if end else 0.0


def _table(models: list[dict[str, Any]]) -> str:
    """Return one line per model and length: widths, and the weights of the first and the last positions."""
    rows = []
    for model in models:
        weights = model["weights"]
        widths = [str(model["length"]), f"{model['sequences']:,}", f"{model['pairs']:.1f}", f"{model['distance']:.1f}"]
        rows.append([model["name"], *widths, f"{weights[0]:.1%}", f"{sum(weights[-LAST:]):.1%}"])
    return text_table(["model", "length", "sequences", "pairs", "distance", "first", f"last {LAST}"], rows)
