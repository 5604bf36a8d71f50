"""Multi-query associative recall (MQAR) of Zoology: how many pairs can a model recall? Arora et al. 2023 (2312.04927).

A sequence lists key-value pairs, then every key comes once more, as a query: the answer is its value.

    inputs      2  8  4  7  a  b  4  c  d  e  f  g  2  h  i  j      keys 2 and 4, values 8 and 7; letters are filler
    targets     .  .  .  .  .  .  7  .  .  .  .  .  8  .  .  .      dots are not part of the loss
    gap                           1           4                     of a query, in steps of two tokens

Keys are the lower half of the vocabulary without 0, values the upper half, and neither repeats within a sequence. Gaps
are drawn without replacement, with probabilities proportional to (1 + gap)^(power_a - 1): most queries come soon after
the pairs. Filler is random tokens of the whole vocabulary, or 0 as in figure 2 of the paper. That figure has 8192
tokens and lengths of 64, 128, 256 and 512 with 4, 8, 16 and 64 pairs.

With forgetting, some keys are then given a second value, and the last one counts:

    inputs      2  8  4  7  2  9  a  b  4  c  d  e  2  f            key 2 had the value 8, and has 9 now
    targets     .  .  .  .  .  .  .  .  7  .  .  .  9  .

In compositional recall a key is two tokens, each of which occurs in several keys: all combinations of a few of the
first kind and a few of the second. The vocabulary has thirds: first tokens, second tokens, values.

    inputs      2  5  9  3  5  7  2  6  8  3  6  9' a  3  5  b      (2 5) is 9, (3 5) is 7, (2 6) is 8
    targets     .  .  .  .  .  .  .  .  .  .  .  .  .  .  7  .
"""

from dataclasses import dataclass
from math import isqrt

import numpy as np

from memory_mosaics.config import part
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.tasks.synthetic import IGNORED, MAX_LENGTH, Arrays, SyntheticData, distinct


@dataclass(frozen=True, kw_only=True)
class RecallData(SyntheticData):
    """What all kinds have in common.

    Args:
        pairs: Key-value pairs per example.
        power_a: Exponent of the distribution of gaps; 1 is uniform.
        random_filler: Fill the rest with random tokens, instead of 0.
    """

    vocabulary: int = 8192
    length: int = 64
    examples: int = 100_000
    held_out: int = 3000
    pairs: int = 4
    power_a: float = 0.01
    random_filler: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(1, MAX_LENGTH, pairs=self.pairs)
        if not 0 < self.power_a <= 1:
            raise UserError(f"power_a must be above 0 and at most 1, not {self.power_a}")

    def guess(self) -> float:
        """One of the values of the context."""
        return 1 / self.pairs

    @property
    def targets_per_example(self) -> int | None:
        return self.pairs

    @property
    def label(self) -> str:
        return f"{self.pairs} pairs in {self.length:,}"

    def place(self, rng: np.random.Generator, context: np.ndarray, queries: np.ndarray, values: np.ndarray) -> Arrays:
        """Put queries (count, pairs, tokens) after the context, each in a slot of its own, and filler into the rest.

        A slot is a query and one token of filler.
        """
        count, start = context.shape
        size = max(2, queries.shape[-1] + 1)
        weights = np.arange(1, (self.length - start) // size + 1) ** (self.power_a - 1)
        # The order of exponential times at these rates is that of drawing without replacement.
        gaps = (rng.standard_exponential((count, len(weights))) / weights).argsort(axis=1)[:, : self.pairs]
        inputs = np.zeros((count, self.length), dtype=np.int64)
        if self.random_filler:
            inputs = rng.integers(self.vocabulary, size=inputs.shape)
        inputs[:, :start] = context
        for offset, tokens in enumerate(np.moveaxis(queries, -1, 0)):
            np.put_along_axis(inputs, start + size * gaps + offset, tokens, axis=1)
        targets = np.full_like(inputs, IGNORED)
        np.put_along_axis(targets, start + size * gaps + queries.shape[-1] - 1, values, axis=1)
        return inputs, targets


@part("mqar")
class MQARData(RecallData):
    """Pairs of a key and a value; `updates` of the keys, at random, have a second value, which counts.

    Args:
        updates: Keys that are given another value.
    """

    updates: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(0, self.pairs, updates=self.updates)
        needed = 4 * self.pairs + 2 * self.updates
        if self.length % 2 or self.length < needed:
            raise UserError(f"length must be even and at least {needed} for {self.pairs} pairs, not {self.length}")
        if self.pairs + self.updates >= self.vocabulary // 2:
            raise UserError(f"{self.pairs} pairs need a vocabulary of {2 * self.pairs + 2}, not {self.vocabulary}")

    @property
    def candidates(self) -> range:
        return range(self.vocabulary // 2, self.vocabulary)

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        half = self.vocabulary // 2
        keys = 1 + distinct(rng, half - 1, (count, self.pairs))
        values = half + distinct(rng, self.vocabulary - half, (count, self.pairs + self.updates))
        values, renewed = values[:, : self.pairs], values[:, self.pairs :]
        context = np.stack([keys, values], axis=-1)
        if self.updates:
            changed = distinct(rng, self.pairs, (count, self.updates))
            again = np.stack([np.take_along_axis(keys, changed, axis=1), renewed], axis=-1)
            context, values = np.concatenate([context, again], axis=1), values.copy()
            np.put_along_axis(values, changed, renewed, axis=1)
        return self.place(rng, context.reshape(count, 2 * (self.pairs + self.updates)), keys[..., None], values)


@part("compositional_mqar")
class CompositionalMQARData(RecallData):
    """A value for every combination of sqrt(pairs) first tokens and as many second ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isqrt(self.pairs) ** 2 != self.pairs:
            raise UserError(f"pairs must be a square number, not {self.pairs}")
        if self.length < 6 * self.pairs:
            raise UserError(f"length must be at least {6 * self.pairs} for {self.pairs} pairs, not {self.length}")
        if self.pairs >= self.vocabulary // 3:
            raise UserError(f"{self.pairs} pairs need a vocabulary of {3 * self.pairs + 3}, not {self.vocabulary}")

    @property
    def candidates(self) -> range:
        return range(2 * (self.vocabulary // 3), self.vocabulary)

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        third, side = self.vocabulary // 3, isqrt(self.pairs)
        first = 1 + distinct(rng, third - 1, (count, side))
        second = third + distinct(rng, third, (count, side))
        keys = np.stack([first.repeat(side, axis=1), np.tile(second, side)], axis=-1)
        order = distinct(rng, self.pairs, (count, self.pairs))
        keys = np.take_along_axis(keys, order[..., None], axis=1)
        values = self.candidates.start + distinct(rng, len(self.candidates), (count, self.pairs))
        context = np.concatenate([keys, values[..., None]], axis=-1).reshape(count, 3 * self.pairs)
        return self.place(rng, context, keys, values)
