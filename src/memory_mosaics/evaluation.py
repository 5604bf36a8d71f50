"""How well a model predicts a text: the loss at every position of its windows (figures 2 and 8), and what follows.

All models read the same windows. Losses are in nats per token, computed in the model's own precision; bits per byte are
of the text that the predicted tokens spell, so that tokenizers can be compared.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError, within_memory
from memory_mosaics.language_model import LanguageModel, without_state
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.results import progress_bar
from memory_mosaics.shapes import Float, Int
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.text.token_file import TokenFile

LOGITS = 1 << 25  # at a time, 128 MiB of them
NORMAL_95 = 1.959964  # standard errors on either side of a mean that hold 95 % of a normal distribution


@dataclass(frozen=True)
class Sample:
    """What every model reads: `length` tokens from each start, and the one after them."""

    tokens: TokenFile
    starts: list[int]
    length: int

    def __len__(self) -> int:
        return len(self.starts)

    def batches(self, size: int, *, length: int) -> Iterator[Int[Tensor, "B N"]]:
        """The first `length` tokens of every window and the next, `size` windows at a time."""
        for first in range(0, len(self), size):
            rows = [self.tokens[start : start + length + 1] for start in self.starts[first : first + size]]
            yield torch.from_numpy(np.stack(rows).astype(np.int64))


def sample(
    corpus: Corpus,
    *,
    split: str = "valid",
    length: int = 512,
    count: int | None = None,
    at_documents: bool = False,
    overlap: bool = False,
) -> Sample:
    """`count` windows, or all, spread evenly over a split.

    They lie side by side; with `at_documents` each begins with a document and lies within it, so that documents shorter
    than a window are passed over; with `overlap` there may be as many as there are tokens.
    """
    for name, number in (("length", length), ("windows", count)):
        if number is not None and number < 1:
            raise UserError(f"{name} must be at least 1, not {number}")
    tokens = corpus.tokens(split)
    if len(tokens) <= length:
        remedy = "take another --split or a shorter --length"
        needs = f"and a window of {length} wants at least {length + 1:,}; {remedy}"
        raise UserError(f"the {split} split of {corpus.folder} has {len(tokens):,} tokens, {needs}")
    if at_documents:
        starts = _long_documents(tokens, corpus, split, length)
    else:
        starts = range(0, len(tokens) - length, 1 if overlap else length)
    count = len(starts) if count is None else min(count, len(starts))
    return Sample(tokens, [int(starts[number * len(starts) // count]) for number in range(count)], length)


def _long_documents(tokens: TokenFile, corpus: Corpus, split: str, length: int, step: int = 1 << 24) -> np.ndarray:
    """Where documents begin that are, with the end of text after them, longer than a window."""
    parts = [np.flatnonzero(tokens[at : at + step] == corpus.end_of_text) + at for at in range(0, len(tokens), step)]
    ends = np.concatenate(parts)
    starts, stops = np.concatenate([[0], ends + 1]), np.concatenate([ends + 1, [len(tokens)]])
    found = starts[stops - starts > length]
    if len(found) == 0:
        longest = f"the longest has {int((stops - starts).max()) - 1:,}; take a shorter --length"
        where = f"the {split} split of {corpus.folder}"
        raise UserError(f"no document of {where} has {length} tokens, {longest}, or no --at-documents")
    return found


@dataclass(frozen=True)
class Evaluation:
    """Mean losses by position, as they are and smoothed, and how far each may be off at 95 % confidence over windows.

    Of one window nothing can be said about that: None.
    """

    by_position: Float[np.ndarray, " T"]
    by_position_within: Float[np.ndarray, " T"] | None
    smoothed: Float[np.ndarray, " T"]
    smoothed_within: Float[np.ndarray, " T"] | None
    loss: float
    loss_within: float | None
    windows: int
    bytes: int

    @property
    def tokens(self) -> int:
        """How many were predicted."""
        return self.windows * len(self.by_position)

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        return self.loss * self.tokens / self.bytes / math.log(2)

    def between(self, first: int, end: int) -> float | None:
        """The mean loss of the positions from `first` to before `end`; None where not all of them were read."""
        return float(self.by_position[first:end].mean()) if end <= len(self.by_position) else None


def evaluate(trained: LoadedModel, text: Sample, *, batch: int = 8) -> Evaluation:
    """Read every window, up to the last position that the model has where it has a table of them."""
    model, length = trained.model.eval(), min(text.length, trained.model.max_positions or text.length)
    device, reach = model.embedding.weight.device, text.length // 100
    sums = squares = smooth_squares = np.zeros(length)
    window_squares = bytes_ = windows = 0
    with progress_bar(trained.name, len(text), "window") as bar:
        for rows in text.batches(batch, length=length):
            with within_memory(f"{batch} windows at once are too many; give a smaller --batch"):
                losses = token_losses(model, rows[:, :-1].to(device), rows[:, 1:].to(device)).cpu().double().numpy()
            sums, squares = sums + losses.sum(axis=0), squares + np.square(losses).sum(axis=0)
            smooth_squares = smooth_squares + np.square(smooth(losses, reach)).sum(axis=0)
            window_squares += np.square(losses.mean(axis=1)).sum()
            windows += len(rows)
            bytes_ += trained.tokenizer.count_bytes(rows[:, 1:].numpy())
            bar.set_postfix(loss=f"{sums.mean() / windows:.4f}", refresh=False)
            bar.update(len(rows))
    loss = float(sums.mean() / windows)
    if not loss < 700:  # whose exponential is the largest number there is
        raise UserError(f"the loss of {trained.name} is {loss}: {trained.folder} is no trained model")
    smoothed = smooth(sums, reach)
    return Evaluation(
        by_position=sums / windows,
        by_position_within=_within(sums, squares, windows),
        smoothed=smoothed / windows,
        smoothed_within=_within(smoothed, smooth_squares, windows),
        loss=loss,
        loss_within=_within(sums.mean(), window_squares, windows),
        windows=windows,
        bytes=max(bytes_, 1),
    )


def smooth(losses: Float[np.ndarray, "*B T"], reach: int) -> Float[np.ndarray, "*B T"]:
    """A running mean, `reach` positions to either side but fewer at both ends: there it is what was measured."""
    at = np.arange(length := losses.shape[-1])
    radius = np.minimum(reach, np.minimum(at, length - 1 - at))
    before = np.concatenate([np.zeros_like(losses[..., :1]), losses.cumsum(axis=-1)], axis=-1)
    return (before[..., at + radius + 1] - before[..., at - radius]) / (2 * radius + 1)


def _within(total: Any, squares: Any, count: int) -> Any:
    """Half the width of the confidence interval of a mean."""
    if count < 2:
        return None
    variance = np.maximum(squares - total**2 / count, 0) / (count - 1)
    return NORMAL_95 * np.sqrt(variance / count)


@torch.no_grad()
def token_losses(model: LanguageModel, inputs: Int[Tensor, "B T"], targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The loss of every token. Logits are there for some tokens at a time: all of them may be gigabytes."""
    features, _ = model.features(model.embedding(inputs), block_fn=without_state)
    size = max(1, LOGITS // model.config.vocabulary)
    parts = zip(features.flatten(0, 1).split(size), targets.flatten().split(size), strict=True)
    losses = [F.cross_entropy(at_least_fp32(model.logits(some)), wanted, reduction="none") for some, wanted in parts]
    return torch.cat(losses).unflatten(0, inputs.shape)
