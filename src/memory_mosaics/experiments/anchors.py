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
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from memory_mosaics import evaluation
from memory_mosaics import results as files
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.experiments.evaluate import EDGES
from memory_mosaics.results import progress_bar
from memory_mosaics.shapes import Float
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
    check_range(1, 100, order=order)
    for k in added:
        if not 0 < k < math.inf:
            raise UserError(f"smoothing must be more than 0 and finite, not {k:g}")
    counted, corpus = Corpus.open(training), Corpus.open(data)
    names = [one.manifest["tokenizer"]["fingerprint"] for one in (counted, corpus)]
    if names[0] != names[1]:
        raise UserError(f"{training} and {data} have different tokenizers; prepare one with --tokenizer of the other")
    text = evaluation.sample(corpus, split=split, length=length, count=windows, at_documents=at_documents)
    files.prepare(out)
    start = time.monotonic()
    counts = count_tokens(counted)
    unigrams = {k: -np.log((counts + k) / (counts.sum() + k * len(counts))) for k in added}
    prior = np.exp(-unigrams[added[-1]]).tolist()
    labels = {f"unigram-{k:g}": f"unigram of the training text, add-{k:g}" for k in added}
    labels |= {f"cache-{n}": f"{'unigram' if n == 1 else f'{n}-gram'} cache of the context" for n in sorted({1, order})}
    found = {name: Losses(np.zeros(length)) for name in labels}
    with progress_bar("anchors", len(text), "window") as bar:
        for (row,) in text.batches(1, length=length):
            targets = row[1:].numpy()
            seen = counts[targets] > 0
            for k, unigram in unigrams.items():
                found[f"unigram-{k:g}"].add(unigram[targets], seen)
            for n in sorted({1, order}):
                found[f"cache-{n}"].add(np.array(cache_losses(row.tolist(), prior, order=n)), seen)
            bar.update(1)
    results: dict[str, Any] = {"study": "anchors", "corpus": corpus.folder.name, "training": counted.folder.name}
    results |= {"split": split, "length": length, "windows": len(text), "at_documents": at_documents, "order": order}
    results |= {"smoothing": added, "training_tokens": int(counts.sum()), "vocabulary": len(counts)}
    results |= {"tokens_in_training": int((counts > 0).sum()), "uniform_loss": files.rounded(math.log(len(counts)), 6)}
    results["unseen_share"] = files.rounded(1 - found["cache-1"].seen / (len(text) * length), 4)
    results["anchors"] = [{"name": name, "label": labels[name]} | losses.record() for name, losses in found.items()]
    results |= files.environment_info() | {"seconds": round(time.monotonic() - start, 1)}
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


def count_tokens(corpus: Corpus, step: int = 1 << 24) -> np.ndarray:
    """How often each id of the vocabulary occurs in the train split."""
    tokens, counts = corpus.tokens("train"), np.zeros(corpus.vocabulary, np.int64)
    for start in range(0, len(tokens), step):
        counts += np.bincount(tokens[start : start + step], minlength=corpus.vocabulary)
    return counts


@dataclass
class Losses:
    """The losses of one anchor, summed while windows are read."""

    by_position: Float[np.ndarray, " T"]
    means: list[float] = field(default_factory=list)  # of the windows
    seen: int = 0  # tokens that occur in the training text
    seen_loss: float = 0.0

    def add(self, losses: Float[np.ndarray, " T"], seen: np.ndarray) -> None:
        """Add a window; `seen` marks the tokens that occur in the training text."""
        self.by_position += losses
        self.means.append(float(losses.mean()))
        self.seen += int(seen.sum())
        self.seen_loss += float(losses[seen].sum())

    def record(self) -> dict[str, Any]:
        """With the fields of `mosaics evaluate`, and the loss on tokens that occur in the training text."""
        count, by_position = len(self.means), self.by_position / len(self.means)
        edges = [*(edge for edge in EDGES if edge < len(by_position)), len(by_position)]
        within = None if count < 2 else evaluation.NORMAL_95 * float(np.std(self.means, ddof=1)) / math.sqrt(count)
        seen = self.seen_loss / self.seen if self.seen else None
        record = {"loss": float(by_position.mean()), "loss_within": within, "loss_seen": seen}
        digits = {"loss": 6, "loss_within": 3, "loss_seen": 6}
        spans = [[*span, files.rounded(float(by_position[slice(*span)].mean()), 6)] for span in pairwise(edges)]
        return {name: files.rounded(value, digits[name]) for name, value in record.items()} | {"spans": spans}


def table(results: dict[str, Any]) -> str:
    """One line per anchor; the last columns are the mean loss of those positions."""
    spans = [f"[{first}, {end})" for first, end, _ in results["anchors"][0]["spans"]]
    share = f"{results['unseen_share']:.1%} of the tokens never occur in {results['training']}"
    lines = [f"{results['corpus']}, {results['windows']:,} windows: {share}; uniform {results['uniform_loss']:.3f}"]
    lines += [f"{'anchor':38} {'loss':>8} {'seen':>8} " + " ".join(f"{span:>12}" for span in spans)]
    for one in results["anchors"]:
        means = " ".join(f"{loss:12.4f}" for _, _, loss in one["spans"])
        seen = "" if one["loss_seen"] is None else f"{one['loss_seen']:.4f}"
        lines.append(f"{one['label']:38} {one['loss']:8.4f} {seen:>8} {means}")
    return "\n".join(lines)
