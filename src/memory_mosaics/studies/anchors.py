"""Anchors: predictors that need no training beyond counting, on the windows that `mosaics evaluate` reads.

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
from typing import Any

import numpy as np

from memory_mosaics import evaluation
from memory_mosaics import results as files
from memory_mosaics.errors import UserError
from memory_mosaics.progress import progress
from memory_mosaics.shapes import Float
from memory_mosaics.studies.evaluate import EDGES
from memory_mosaics.text.corpus import Corpus


def run(
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
        length: tokens in a window
        windows: how many, spread evenly over the split; null for all
        at_documents: begin each window with a document and keep it within; documents shorter than a window are skipped
        smoothing: what is added to the count of every token of the vocabulary, one unigram each; 1 and 100 if none are
            named. The caches are interpolated with the last.
        order: longest n-gram of the n-gram cache
        out: folder for results.json
    """
    added = smoothing or [1.0, 100.0]
    if min(added) <= 0 or order < 1:
        raise UserError(f"smoothing must be more than 0 and order at least 1, not {min(added):g} and {order}")
    counted, corpus = Corpus.open(training), Corpus.open(data)
    names = [one.manifest["tokenizer"]["fingerprint"] for one in (counted, corpus)]
    if names[0] != names[1]:
        raise UserError(f"{training} and {data} have different tokenizers; prepare one with --tokenizer of the other")
    text = evaluation.sample(corpus, split=split, length=length, count=windows, at_documents=at_documents)
    files.prepare(out)
    start = time.monotonic()
    counts = np.bincount(counted.tokens("train"), minlength=counted.vocabulary)
    unigrams = {k: -np.log((counts + k) / (counts.sum() + k * len(counts))) for k in added}
    prior = np.exp(-unigrams[added[-1]]).tolist()
    labels = {f"unigram-{k:g}": f"unigram of the training text, add-{k:g}" for k in added}
    labels |= {f"cache-{n}": f"{'unigram' if n == 1 else f'{n}-gram'} cache of the context" for n in sorted({1, order})}
    losses: dict[str, list[Any]] = {name: [] for name in labels}
    unseen = []
    with progress("anchors", len(text), "window") as bar:
        for (row,) in text.batches(1, length=length):
            targets = row[1:].numpy()
            unseen.append(counts[targets] == 0)
            for k, unigram in unigrams.items():
                losses[f"unigram-{k:g}"].append(unigram[targets])
            for n in sorted({1, order}):
                losses[f"cache-{n}"].append(cache_losses(row.tolist(), prior, order=n))
            bar.update(1)
    results: dict[str, Any] = {"study": "anchors", "corpus": corpus.folder.name, "training": counted.folder.name}
    results |= {"split": split, "length": length, "windows": len(text), "at_documents": at_documents, "order": order}
    results |= {"smoothing": added, "training_tokens": int(counts.sum()), "vocabulary": len(counts)}
    results |= {"tokens_in_training": int((counts > 0).sum()), "uniform_loss": files.rounded(math.log(len(counts)), 6)}
    results["unseen_share"] = files.rounded(float(np.mean(unseen)), 4)
    seen = ~np.array(unseen)
    results["anchors"] = [_record(name, labels[name], np.array(losses[name]), seen) for name in labels]
    results |= files.surroundings() | {"seconds": round(time.monotonic() - start, 1)}
    files.write(out / "results.json", results)
    print(f"{table(results)}\nResults: {out / 'results.json'}.")
    return results


def cache_losses(row: Sequence[int], prior: Sequence[float], *, order: int) -> list[float]:
    """The losses of row[1:], each given the tokens of the row before it, by interpolated n-grams of the row alone.

    p(w | h) = (count(h w) + kinds(h) p(w | shorter h)) / (count(h) + kinds(h)), kinds(h) being how many different
    tokens have followed h (Witten and Bell); below the empty context stands `prior`.
    """
    followers: dict[tuple[int, ...], dict[int, int]] = {}
    totals: dict[tuple[int, ...], int] = {}
    losses = []
    for t in range(1, len(row)):
        for n in range(min(order, t)):  # what followed the n tokens before the last one
            history = tuple(row[t - 1 - n : t - 1])
            counts = followers.setdefault(history, {})
            counts[row[t - 1]] = counts.get(row[t - 1], 0) + 1
            totals[history] = totals.get(history, 0) + 1
        p = prior[row[t]]
        for n in range(min(order, t)):
            history = tuple(row[t - n : t])
            counts = followers.get(history)
            if counts is None:
                break
            p = (counts.get(row[t], 0) + len(counts) * p) / (totals[history] + len(counts))
        losses.append(-math.log(p))
    return losses


def _record(name: str, label: str, losses: Float[np.ndarray, "B T"], seen: Any) -> dict[str, Any]:
    """One anchor over all windows, with the fields of `mosaics evaluate`, and its loss on tokens seen in training."""
    length = losses.shape[1]
    edges = [*(edge for edge in EDGES if edge < length), length]
    means = losses.mean(axis=1)
    within = None if len(means) < 2 else evaluation.NORMAL_95 * means.std(ddof=1) / math.sqrt(len(means))
    record = {"name": name, "label": label, "loss": files.rounded(float(means.mean()), 6)}
    record |= {"loss_within": files.rounded(within, 3), "loss_seen": files.rounded(float(losses[seen].mean()), 6)}
    spans = [[*span, files.rounded(float(losses[:, slice(*span)].mean()), 6)] for span in pairwise(edges)]
    return record | {"spans": spans}


def table(results: dict[str, Any]) -> str:
    """One line per anchor; the last columns are the mean loss of those positions."""
    spans = [f"[{first}, {end})" for first, end, _ in results["anchors"][0]["spans"]]
    share = f"{results['unseen_share']:.1%} of the tokens never occur in {results['training']}"
    lines = [f"{results['corpus']}, {results['windows']:,} windows: {share}; uniform {results['uniform_loss']:.3f}"]
    lines += [f"{'anchor':38} {'loss':>8} {'seen':>8} " + " ".join(f"{span:>12}" for span in spans)]
    for one in results["anchors"]:
        means = " ".join(f"{loss:12.4f}" for _, _, loss in one["spans"])
        lines.append(f"{one['label']:38} {one['loss']:8.4f} {one['loss_seen']:8.4f} {means}")
    return "\n".join(lines)
