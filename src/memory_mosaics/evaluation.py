"""Loss of a model on windows of a text, by position (figures 2 and 8), with perplexity and bits per byte.

All models read the same windows. Losses are in nats per token, computed in the model's own precision. Bits per byte
refer to the text that the predicted tokens decode to, so that tokenizers can be compared. `cache_losses` are those of
n-grams of the context, which need no training.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.bounded_stores import AnyPolicy
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError, check_range, within_memory
from memory_mosaics.language_model import LanguageModel, last_hidden_state
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.results import NORMAL_95, progress_bar
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.stores import State
from memory_mosaics.text.corpus import Corpus, TokenFile
from memory_mosaics.text.tokenizer import Tokenizer

PART = 1024  # tokens of a long text that are read at a time
MAX_LOGITS = 1 << 25  # computed at a time: 128 MiB in float32

Losses = Callable[[Tensor], np.ndarray]  # from windows (B, T + 1) to the losses (B, T) of all tokens but the first


@dataclass(frozen=True)
class EvalWindows:
    """The windows that every model reads: from each start, `length` input tokens and the token after them."""

    tokens: TokenFile | np.ndarray
    starts: list[int]
    length: int
    source: dict[str, Any] = field(default_factory=dict)  # what they are windows of, in results.json

    def __len__(self) -> int:
        return len(self.starts)

    def describe(self) -> dict[str, Any]:
        """Return what identifies the windows in results.json."""
        return self.source | {"length": self.length, "windows": len(self)}

    def batches(self, size: int, *, length: int | None = None) -> Iterator[Int[Tensor, "B N"]]:
        """Yield every window, or its first `length` + 1 tokens, `size` windows at a time."""
        end = (length or self.length) + 1
        for first in range(0, len(self), size):
            rows = [self.tokens[start : start + end] for start in self.starts[first : first + size]]
            yield torch.from_numpy(np.stack(rows).astype(np.int64))


def sample_windows(
    corpus: Corpus,
    *,
    split: str = "valid",
    length: int = 512,
    count: int | None = None,
    at_documents: bool = False,
    overlap: bool = False,
) -> EvalWindows:
    """Choose `count` windows (None: all), evenly spaced over a split.

    Windows are adjacent; with `overlap` one may start at any token. With `at_documents` each starts with a document and
    ends within it; documents shorter than a window are skipped.
    """
    check_range(1, math.inf, length=length, windows=count)
    tokens = corpus.tokens(split)
    remedy = "take another --split or a shorter --length"
    check_window(tokens, length, f"the {split} split of {corpus.folder}", remedy)
    if at_documents:
        starts = _long_documents(tokens, corpus, split, length)
    else:
        starts = range(0, len(tokens) - length, 1 if overlap else length)
    source = {"corpus": corpus.folder.name, "split": split, "at_documents": at_documents}
    return EvalWindows(tokens, choose_starts(starts, count), length, source)


def choose_starts(starts: Sequence[int] | np.ndarray, count: int | None) -> list[int]:
    """Return `count` of the starts (None: all), evenly spaced."""
    count = len(starts) if count is None else min(count, len(starts))
    return [int(starts[number * len(starts) // count]) for number in range(count)]


def check_window(tokens: Sized, length: int, name: str, remedy: str = "take more text or a shorter context") -> None:
    """Refuse a text without one window."""
    if len(tokens) <= length:
        wants = f"a window of {length} wants at least {length + 1:,}"
        raise UserError(f"{name} has {len(tokens):,} tokens, and {wants}; {remedy}")


def _long_documents(tokens: TokenFile, corpus: Corpus, split: str, length: int) -> np.ndarray:
    """Return the starts of documents that are longer than a window, counting the end-of-text token."""
    step = 1 << 24  # tokens at a time
    parts = [np.flatnonzero(tokens[at : at + step] == corpus.end_of_text) + at for at in range(0, len(tokens), step)]
    ends = np.concatenate(parts)
    starts, stops = np.concatenate([[0], ends + 1]), np.concatenate([ends + 1, [len(tokens)]])
    found = starts[stops - starts > length]
    if len(found) == 0:
        longest = f"the longest has {int((stops - starts).max()) - 1:,}; take a shorter --length"
        where = f"the {split} split of {corpus.folder}"
        raise UserError(f"no document of {where} has {length} tokens, {longest}, or no --at-documents")
    return found


class LossStatistics:
    """Token losses summed over windows: means by position, raw and smoothed, and 95 % confidence intervals.

    Names ending in `_within` are half the width of a confidence interval over windows: None for a single window.
    """

    def __init__(self, length: int, *, smoothing: int = 0, counts: np.ndarray | None = None):
        """`counts` is how often each token occurs in the training text: `seen` is about those that do."""
        self.length, self.smoothing, self.counts = length, smoothing, counts
        self.windows = self.bytes = self.seen = 0
        self._sums = self._squares = self._smoothed_squares = np.zeros(length)
        self._window_squares = self._seen_sum = 0.0

    def add(self, losses: Float[np.ndarray, "B T"], targets: Int[np.ndarray, "B T"], *, bytes: int = 0) -> None:
        """Add windows, and the number of bytes that their targets decode to."""
        self._sums, self._squares = self._sums + losses.sum(axis=0), self._squares + np.square(losses).sum(axis=0)
        self._smoothed_squares = self._smoothed_squares + np.square(smooth(losses, self.smoothing)).sum(axis=0)
        self._window_squares += np.square(losses.mean(axis=1)).sum()
        self.windows, self.bytes = self.windows + len(losses), self.bytes + bytes
        if self.counts is not None:
            known = self.counts[targets] > 0
            self.seen, self._seen_sum = self.seen + int(known.sum()), self._seen_sum + float(losses[known].sum())

    @property
    def tokens(self) -> int:
        return self.windows * self.length

    @property
    def loss_seen(self) -> float | None:
        return self._seen_sum / self.seen if self.seen else None

    @property
    def loss(self) -> float:
        return float(self._sums.mean() / self.windows)

    def summary(self) -> dict[str, Any]:
        """Return counts, and means over all tokens."""
        return {
            "windows": self.windows,
            "tokens": self.tokens,
            "bytes": max(self.bytes, 1),
            "loss": self.loss,
            "loss_within": self._within(self._sums.mean(), self._window_squares),
            "perplexity": math.exp(self.loss),
            "bits_per_byte": self.loss * self.tokens / max(self.bytes, 1) / math.log(2),
        }

    def curves(self) -> dict[str, Float[np.ndarray, " T"] | None]:
        """Return the mean loss at every position, raw and smoothed."""
        smoothed = smooth(self._sums, self.smoothing)
        return {
            "by_position": self._sums / self.windows,
            "by_position_within": self._within(self._sums, self._squares),
            "smoothed": smoothed / self.windows,
            "smoothed_within": self._within(smoothed, self._smoothed_squares),
        }

    def mean_between(self, first: int, end: int) -> float | None:
        """Return the mean loss of positions first, ..., end - 1; None where some of them were not read."""
        return float((self._sums / self.windows)[first:end].mean()) if end <= self.length else None

    def _within(self, sums: Any, squares: Any) -> Any:
        if self.windows < 2:
            return None
        variance = np.maximum(squares - sums**2 / self.windows, 0) / (self.windows - 1)
        return NORMAL_95 * np.sqrt(variance / self.windows)


def evaluate(
    trained: LoadedModel, text: EvalWindows, *, batch: int = 8, store: AnyPolicy | None = None
) -> LossStatistics:
    """Compute losses on every window, up to the model's last position where it has learned positions.

    With a bounded `store` windows are read in parts, in memory that does not grow with them.
    """
    model, length = trained.model.eval(), min(text.length, trained.model.max_positions or text.length)
    measured = LossStatistics(length, smoothing=text.length // 100)
    with within_memory(f"{batch} windows at once are too many; give a smaller --batch"):
        measure(
            of_model(model, model.empty_state(store)), text, measured, trained.tokenizer, rows=batch, name=trained.name
        )
    if not measured.loss < 700:  # the exponential of 710 is infinite
        raise UserError(f"the loss of {trained.name} is {measured.loss}: {trained.folder} is no trained model")
    return measured


def measure(
    losses_of: Losses, text: EvalWindows, measured: LossStatistics, tokenizer: Tokenizer, *, rows: int, name: str
) -> LossStatistics:
    """Add the losses of a predictor on every window to what was `measured`, so many `rows` at a time."""
    with progress_bar(name, len(text), "window") as bar:
        for windows in text.batches(rows, length=measured.length):
            targets = windows[:, 1:].numpy()
            measured.add(losses_of(windows), targets, bytes=tokenizer.count_bytes(targets))
            bar.set_postfix(loss=f"{measured.loss:.4f}", refresh=False)
            bar.update(len(windows))
    return measured


def of_model(model: LanguageModel, state: State | None = None, *, start_of_text: int | None = None) -> Losses:
    """Return a function from windows to the losses of a model, from a state on if it is given.

    What was read is forgotten at each start of text.
    """
    device = model.embedding.weight.device

    def losses(rows: Tensor) -> np.ndarray:
        inputs, targets = rows[:, :-1].to(device), rows[:, 1:].to(device)
        starts = None if start_of_text is None else inputs == start_of_text
        return token_losses(model, inputs, targets, starts, state=state).cpu().double().numpy()

    return losses


def of_unigram(probabilities: Float[np.ndarray, " V"]) -> Losses:
    """Return a function from windows to the losses of predicting each token with its probability."""
    return lambda rows: -np.log(probabilities[rows[:, 1:].numpy()])


def of_cache(prior: Float[np.ndarray, " V"], order: int, *, start_of_text: int | None = None) -> Losses:
    """Return a function from windows to the losses of n-grams of the context alone, forgotten at starts of text."""
    chances = prior.tolist()

    def losses(row: list[int]) -> list[float]:
        starts = (t for t in range(1, len(row) - 1) if row[t] == start_of_text)
        documents = (row[start : end + 1] for start, end in pairwise([0, *starts, len(row) - 1]))
        return [loss for document in documents for loss in cache_losses(document, chances, order=order)]

    return lambda rows: np.array([losses(row) for row in rows.tolist()])


def unigram(counts: Int[np.ndarray, " V"], smoothing: float) -> Float[np.ndarray, " V"]:
    """Return the probabilities of tokens by their counts, to each of which `smoothing` is added."""
    return (counts + smoothing) / (counts.sum() + smoothing * len(counts))


def smooth(losses: Float[np.ndarray, "*B T"], radius: int) -> Float[np.ndarray, "*B T"]:
    """Return a running mean over `radius` positions on either side, fewer near both ends."""
    at = np.arange(length := losses.shape[-1])
    reach = np.minimum(radius, np.minimum(at, length - 1 - at))
    before = np.concatenate([np.zeros_like(losses[..., :1]), losses.cumsum(axis=-1)], axis=-1)
    return (before[..., at + reach + 1] - before[..., at - reach]) / (2 * reach + 1)


@torch.no_grad()
def token_losses(
    model: LanguageModel,
    inputs: Int[Tensor, "B T"],
    targets: Int[Tensor, "B T"],
    starts: Bool[Tensor, "B T"] | None = None,
    *,
    state: State | None = None,
) -> Float[Tensor, "B T"]:
    """Return the loss of every token. Logits are computed in chunks, since all of them may take gigabytes.

    From a `state` on, the inputs are read in parts: what is kept of each is its state.
    """
    if state is not None:
        losses = torch.empty(inputs.shape, device=inputs.device)  # one tensor: many small ones would fragment the heap
        parts = (each.split(PART, dim=1) for each in (inputs, targets, losses))
        for x, wanted, found in zip(*parts, strict=True):
            features, state = model.features(model.embedding(x), state)
            found.copy_(_losses(model, features, wanted))
        return losses
    return _losses(model, last_hidden_state(model, inputs, starts), targets)


def _losses(
    model: LanguageModel, features: Float[Tensor, "B T W"], targets: Int[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    size = max(1, MAX_LOGITS // model.config.vocabulary)
    chunks = zip(features.flatten(0, 1).split(size), targets.flatten().split(size), strict=True)
    losses = [F.cross_entropy(at_least_fp32(model.logits(x)), wanted, reduction="none") for x, wanted in chunks]
    return torch.cat(losses).unflatten(0, targets.shape)


def cache_losses(row: Sequence[int], prior: Sequence[float], *, order: int) -> list[float]:
    """Return the losses of row[1:], each given the tokens before it, by interpolated n-grams of the row alone.

    p(w | h) = (count(h w) + kinds(h) p(w | shorter h)) / (count(h) + kinds(h)), where kinds(h) is the number of
    different tokens that have followed h (Witten and Bell). The empty context is interpolated with `prior`.
    """
    followers: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    totals: Counter[tuple[int, ...]] = Counter()
    losses = []
    for t in range(1, len(row)):
        for n in range(min(order, t)):
            history = tuple(row[t - 1 - n : t - 1])
            followers[history][row[t - 1]] += 1
            totals[history] += 1
        p = prior[row[t]]
        for n in range(min(order, t)):
            history = tuple(row[t - n : t])
            if history not in followers:
                break
            counts = followers[history]
            p = (counts[row[t]] + len(counts) * p) / (totals[history] + len(counts))
        losses.append(-math.log(p))
    return losses


def count_tokens(corpus: Corpus, step: int = 1 << 24) -> np.ndarray:
    """Count how often each id of the vocabulary occurs in the train split."""
    tokens, counts = corpus.tokens("train"), np.zeros(corpus.vocabulary, np.int64)
    for start in range(0, len(tokens), step):
        counts += np.bincount(tokens[start : start + step], minlength=corpus.vocabulary)
    return counts
