"""Multi-query associative recall (MQAR) of Zoology: how many pairs can a model recall? Arora et al. 2023 (2312.04927).

A sequence lists key-value pairs, then every key comes once more, as a query: the answer is its value.

    inputs      2  8  4  7  a  b  4  c  d  e  f  g  2  h  i  j      keys 2 and 4, values 8 and 7; letters are filler
    targets     .  .  .  .  .  .  7  .  .  .  .  .  8  .  .  .      dots are not part of the loss
    gap                           1           4                     of a query, in steps of two tokens

Keys are the lower half of the vocabulary without 0, values the upper half, and neither repeats within a sequence. Gaps
are drawn without replacement, with probabilities proportional to (1 + gap)^(power_a - 1): most queries come soon after
the pairs. Filler is random tokens of the whole vocabulary, or 0 as in figure 2 of the paper. That figure has 8192
tokens and lengths of 64, 128, 256 and 512 with 4, 8, 16 and 64 pairs.

Example i of a split depends on the seed, the split and i alone, so that a smaller training set is part of a larger one.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F

from memory_mosaics.errors import UserError, check_range
from memory_mosaics.language_model import LanguageModel, without_state
from memory_mosaics.runtime import Runtime
from memory_mosaics.shapes import Int
from memory_mosaics.tasks.task import EAGER, Batch, TokenTask
from memory_mosaics.text.tokenizer import Tokenizer, character_tokenizer

IGNORED = -100  # a target that is not part of the loss
BLOCK = 1024  # examples drawn at a time; another number would change the examples of a seed
EVAL_BATCH = 128
MAX_VOCABULARY = 1 << 14  # one character per token
MAX_LENGTH, MAX_EXAMPLES = 1 << 16, 10_000_000

SplitName = Literal["train", "validation", "test"]


@dataclass(frozen=True, kw_only=True)
class MQARData:
    """The examples.

    Args:
        vocabulary: Number of tokens.
        length: Tokens per example, even, at least four per pair.
        pairs: Key-value pairs per example.
        power_a: Exponent of the distribution of gaps; 1 is uniform.
        random_filler: Fill the rest with random tokens, instead of 0.
        examples: Training examples.
        held_out: Examples for validation, and as many for the test.
        seed: Another seed gives other examples.

    """

    vocabulary: int = 8192
    length: int = 64
    pairs: int = 4
    power_a: float = 0.01
    random_filler: bool = True
    examples: int = 100_000
    held_out: int = 3000
    seed: int = 0

    def __post_init__(self) -> None:
        check_range(4, MAX_VOCABULARY, vocabulary=self.vocabulary)
        check_range(1, MAX_LENGTH, length=self.length, pairs=self.pairs)
        check_range(1, MAX_EXAMPLES, examples=self.examples, held_out=self.held_out)
        if self.seed < 0:
            raise UserError(f"seed must be at least 0, not {self.seed}")
        if not 0 < self.power_a <= 1:
            raise UserError(f"power_a must be above 0 and at most 1, not {self.power_a}")
        if self.length % 2 or self.length < 4 * self.pairs:
            raise UserError(f"length must be even and at least 4 times the {self.pairs} pairs, not {self.length}")
        if self.pairs >= self.vocabulary // 2:
            raise UserError(f"{self.pairs} pairs need a vocabulary of {2 * self.pairs + 2}, not {self.vocabulary}")

    def split(self, name: SplitName) -> Batch:
        """Return all examples of a split."""
        count = self.examples if name == "train" else self.held_out
        blocks = [self._draw(name, block) for block in range(-(-count // BLOCK))]
        inputs, targets = (torch.from_numpy(np.concatenate(part)[:count]) for part in zip(*blocks, strict=True))
        return Batch(inputs, targets)

    def _draw(self, split: SplitName, block: int) -> tuple[Int[np.ndarray, "B T"], Int[np.ndarray, "B T"]]:
        rng = np.random.default_rng((self.seed, get_args(SplitName).index(split), block))
        half, start = self.vocabulary // 2, 2 * self.pairs
        keys = 1 + _distinct(rng, half - 1, self.pairs)
        values = half + _distinct(rng, self.vocabulary - half, self.pairs)
        weights = np.arange(1, (self.length - start) // 2 + 1) ** (self.power_a - 1)
        # The order of exponential times at these rates is that of drawing without replacement.
        gaps = (rng.standard_exponential((BLOCK, len(weights))) / weights).argsort(axis=1)[:, : self.pairs]
        inputs = np.zeros((BLOCK, self.length), dtype=np.int64)
        if self.random_filler:
            inputs = rng.integers(self.vocabulary, size=inputs.shape)
        inputs[:, 0:start:2], inputs[:, 1:start:2] = keys, values
        np.put_along_axis(inputs, start + 2 * gaps, keys, axis=1)
        targets = np.full_like(inputs, IGNORED)
        np.put_along_axis(targets, start + 2 * gaps, values, axis=1)
        return inputs, targets


def _distinct(rng: np.random.Generator, size: int, count: int) -> Int[np.ndarray, "B count"]:
    """Draw `count` different numbers below `size` in each row, by Floyd's algorithm."""
    drawn = np.empty((BLOCK, 0), dtype=np.int64)
    for largest in range(size - count, size):
        number = rng.integers(largest, endpoint=True, size=(BLOCK, 1))
        taken = (drawn == number).any(axis=1, keepdims=True)
        drawn = np.hstack([drawn, np.where(taken, largest, number)])
    return rng.permuted(drawn, axis=1)


class MQAR(TokenTask):
    """Predict the value of every query. Each epoch has every training example once, in an order of its own."""

    def __init__(self, data: MQARData, *, batch_size: int, seed: int = 0):
        """`seed` gives the order of the training examples."""
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self.splits = {name: data.split(name) for name in get_args(SplitName)}
        self.tokens_per_step = batch_size * data.length
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def _draw_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, epoch)).permutation(self.data.examples)

    @cached_property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        """One character per token; 0, the filler, ends a text."""
        characters = "".join(map(chr, range(0x4E00, 0x4E00 + self.data.vocabulary)))
        return character_tokenizer(characters, name="mqar", end_of_text=0)

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        numbers = range(step * self.batch_size, (step + 1) * self.batch_size)[rows]
        epochs = (divmod(number, self.data.examples) for number in numbers)
        chosen = [int(self._order(epoch)[index]) for epoch, index in epochs]
        return Batch(self.splits["train"].inputs[chosen], self.splits["train"].targets[chosen])

    def evaluate(self, model: LanguageModel, runtime: Runtime = EAGER) -> dict[str, float]:
        return self.measure(model, "validation", runtime)

    @torch.no_grad()
    def measure(self, model: LanguageModel, split: SplitName, runtime: Runtime = EAGER) -> dict[str, float]:
        """Return the mean loss and the accuracy at the queries of a split."""
        loss = correct = 0.0
        examples = self.splits[split]
        for rows in torch.arange(len(examples.inputs)).split(EVAL_BATCH):
            inputs, targets = examples.inputs[rows].to(runtime.device), examples.targets[rows].to(runtime.device)
            with runtime.autocast():
                features, _ = model.features(model.embedding(inputs), block_fn=without_state)
            is_query = targets != IGNORED
            logits, answers = F.linear(features[is_query].float(), model.output.float()), targets[is_query]
            loss += F.cross_entropy(logits, answers, reduction="sum").item()
            correct += (logits.argmax(dim=-1) == answers).sum().item()
        queries = len(examples.inputs) * self.data.pairs
        return {"valid_loss": loss / queries, "accuracy": correct / queries}
