"""Synthetic tasks: examples drawn by a program, with a target wherever an answer is asked for.

A kind of example is a frozen dataclass, a subclass of `SyntheticData` in one of the files beside this one: it draws
examples, and knows the model that it trains and how that is scored. `Synthetic` makes a task of the data. The tests
solve the examples again, from their inputs alone, by programs that are written independently of those that draw.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.config import part
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.language_model import LanguageModelConfig, last_hidden_state
from memory_mosaics.ops.cross_entropy import IGNORED, linear_cross_entropy
from memory_mosaics.runtime import Runtime
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.tasks.task import EAGER, Batch, Task, symbol_tokenizer
from memory_mosaics.text.tokenizer import Tokenizer

BLOCK = 1024  # examples drawn at a time; another number would change the examples of a seed
MAX_VOCABULARY = 1 << 14  # one character per token
MAX_LENGTH, MAX_EXAMPLES = 1 << 16, 10_000_000
EVAL_TOKENS = 1 << 16  # at once
SCORED = ("score", "logits", "correct")  # the methods by which a model is scored

SplitName = Literal["train", "validation", "test"]
Arrays = tuple[np.ndarray, np.ndarray]  # inputs and targets


@dataclass(frozen=True, kw_only=True)
class SyntheticData(ABC):
    """Examples of one kind. Example i of a split depends on the seed, the split and i alone.

    Args:
        vocabulary: Number of tokens.
        length: Tokens per example.
        examples: Training examples, each of which every epoch has once; 0 draws new ones at every step.
        held_out: Examples for validation, and as many for the test.
        seed: Another seed gives other examples.
    """

    vocabulary: int
    length: int
    examples: int = 0
    held_out: int = 1000
    seed: int = 0

    metric: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    has_tokens: ClassVar[bool] = True  # the inputs are tokens, not vectors

    def __post_init__(self) -> None:
        check_range(2, MAX_VOCABULARY, vocabulary=self.vocabulary)
        check_range(1, MAX_LENGTH, length=self.length)
        check_range(0, MAX_EXAMPLES, examples=self.examples)
        check_range(1, MAX_EXAMPLES, held_out=self.held_out)
        if self.seed < 0:
            raise UserError(f"seed must be at least 0, not {self.seed}")

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        """Draw examples: inputs (count, length), and what the answer is at each position, or IGNORED.

        In training more may be asked for than in a test, such as every next token.
        """

    @property
    def candidates(self) -> range | None:
        """The tokens that can be answers, where caches of the context are anchors."""
        return None

    def guess(self) -> float:
        """Return the score of the best guess that ignores what was asked: one of the candidates."""
        return 1 / (len(self.candidates) if self.candidates else self.vocabulary)

    def anchors(self, examples: Batch) -> dict[str, float]:
        """Return the scores of predictors that need no training."""
        return {"guess": self.guess()} | (cache_scores(examples, self.candidates) if self.candidates else {})

    @property
    def label(self) -> str:
        """A name among variants of the same task."""
        return f"length {self.length:,}"

    def variants(self) -> list["SyntheticData"]:
        """Return what a trained model is tested on: the task itself, or longer and harder ones too."""
        return [self]

    def split(self, name: SplitName) -> Batch:
        """Return all examples of a split."""
        count, number = self.examples if name == "train" else self.held_out, get_args(SplitName).index(name)
        blocks = []
        for block in range(-(-count // BLOCK)):
            rng = np.random.default_rng((self.seed, number, block))
            blocks.append(self.draw(rng, BLOCK, training=name == "train"))
        return _batch(*(np.concatenate(arrays)[:count] for arrays in zip(*blocks, strict=True)))

    def model(self, body: LanguageModelConfig) -> Any:
        """Return the configuration of the model to train: a language model, or one that is built around it."""
        return body

    def prepare(self, folder: Path) -> dict[str, Any]:
        """Write what training reads from files, and return what identifies it; nothing, since examples are drawn."""
        return {}

    def open(self, folder: Path) -> "SyntheticData":
        """Return what has a task and tests, once `prepare` has written its files."""
        return self

    def task(self, *, batch_size: int, seed: int, steps: int) -> "Synthetic":
        """Return the task for the trainer."""
        return Synthetic(self, batch_size=batch_size, seed=seed)

    def test_sets(self) -> list["SyntheticTest"]:
        """Return what a trained model is tested on."""
        return [SyntheticTest(one) for one in self.variants()]

    @property
    def targets_per_example(self) -> int | None:
        """The largest number of targets in a training example, if it is small beside the length; None if it is not."""
        return None

    def loss(self, model: Any, batch: Batch, block_fn: Callable[..., Any] | None) -> Float[Tensor, ""]:
        """Return the mean cross-entropy. Where targets are few, logits are computed there alone, in a fixed number."""
        if self.targets_per_example is None:
            return model.loss(batch.inputs, batch.targets, block_fn=block_fn)
        features, _ = model.features(model.embedding(batch.inputs), block_fn=block_fn)
        asked = (batch.targets != IGNORED).float().topk(self.targets_per_example, dim=1).indices
        features = features.gather(1, asked[..., None].expand(-1, -1, features.shape[-1]))
        return linear_cross_entropy(features.flatten(0, 1), model.output, batch.targets.gather(1, asked).flatten())

    def score(self, model: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses and the scores of all answers of a batch."""
        asked = targets != IGNORED
        logits, answers = self.logits(model, inputs, asked), targets[asked]
        return F.cross_entropy(logits, answers, reduction="none"), self.correct(logits.argmax(dim=-1), answers).float()

    def logits(self, model: Any, inputs: Tensor, asked: Bool[Tensor, "B T"]) -> Float[Tensor, "N vocabulary"]:
        """Return the logits of a model where it is asked, in float32 whatever its precision."""
        return F.linear(last_hidden_state(model, inputs)[asked].float(), model.output.float())

    def correct(self, predicted: Int[Tensor, " N"], answers: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
        """Return which of the predicted answers are right, of one example after the other."""
        return predicted == answers


def _batch(inputs: np.ndarray, targets: np.ndarray) -> Batch:
    return Batch(*(torch.from_numpy(array) for array in (inputs, targets)))


def distinct(rng: np.random.Generator, size: int, shape: tuple[int, int]) -> np.ndarray:
    """Draw different numbers below `size` in each row, by Floyd's algorithm."""
    rows, count = shape
    drawn = np.empty((rows, 0), dtype=np.int64)
    for largest in range(size - count, size):
        number = rng.integers(largest, endpoint=True, size=(rows, 1))
        taken = (drawn == number).any(axis=1, keepdims=True)
        drawn = np.hstack([drawn, np.where(taken, largest, number)])
    return rng.permuted(drawn, axis=1)


def cache_scores(examples: Batch, answers: range) -> dict[str, float]:
    """Return the scores of two predictors that need no training.

    `most frequent` gives the most frequent of the tokens so far that could be `answers`, `bigram` the token that
    followed this one when it last occurred.
    """
    inputs, targets = examples.inputs.numpy(), examples.targets.numpy()
    rows, size = np.arange(len(inputs)), max(inputs.max(), answers.stop - 1) + 1
    counts, following = np.zeros((len(inputs), size), dtype=np.int64), np.full((len(inputs), size), IGNORED)
    right, total = np.zeros(2), (targets != IGNORED).sum()
    for at in range(inputs.shape[1]):
        counts[rows, inputs[:, at]] += 1
        if at:
            following[rows, inputs[:, at - 1]] = inputs[:, at]
        asked = rows[targets[:, at] != IGNORED]
        frequent = answers.start + counts[asked, answers.start : answers.stop].argmax(axis=1)
        found = np.stack([frequent, following[asked, inputs[asked, at]]])
        right += (found == targets[asked, at]).sum(axis=1)
    return dict(zip(("most frequent", "bigram"), (right / total).tolist(), strict=True))


@part("mixture")
class Mixture(SyntheticData):
    """Examples of several kinds, trained on together and tested one after the other.

    Each of `parts` has its own number of training examples; all are filled up to the longest. Where examples are drawn
    at every step, each is of a random one of `parts`. `tests` are `parts` if none are given.
    """

    vocabulary: int = 2
    length: int = 1
    parts: tuple[SyntheticData, ...]
    tests: tuple[SyntheticData, ...] = ()

    def __post_init__(self) -> None:
        if not self.parts:
            raise UserError("a mixture needs at least one part")
        if len({one.examples > 0 for one in self.parts}) > 1:
            raise UserError("either all parts of a mixture have a number of examples, or none has")
        for one in (*self.parts, *self.tests):
            if any(getattr(type(one), name) is not getattr(SyntheticData, name) for name in ("model", *SCORED)):
                raise UserError(f"{type(one).__name__} cannot be part of a mixture: its model or its score is its own")
        sizes = {"vocabulary": max(one.vocabulary for one in (*self.parts, *self.tests))}
        sizes |= {"length": max(one.length for one in self.parts), "examples": sum(one.examples for one in self.parts)}
        for name, size in sizes.items():
            if (given := getattr(self, name)) not in (getattr(type(self), name), size):
                raise UserError(f"{name} of a mixture follows from its parts and is {size}, not {given}; leave it out")
        vars(self).update(sizes)  # the class is frozen
        super().__post_init__()

    def _seeded(self) -> tuple[list[SyntheticData], list[SyntheticData]]:
        """The parts and the tests, each with a seed of its own: equal seeds would draw similar examples."""
        every = [replace(one, seed=one.seed + 1000 * number) for number, one in enumerate((*self.parts, *self.tests))]
        return every[: len(self.parts)], every[len(self.parts) :]

    def variants(self) -> list[SyntheticData]:
        parts, tests = self._seeded()
        return tests or parts

    @property
    def targets_per_example(self) -> int | None:
        counts = [one.targets_per_example for one in self.parts]
        return None if None in counts else max(count for count in counts if count is not None)

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        kinds = rng.integers(len(self.parts), size=count)
        inputs, targets = np.zeros((count, self.length), np.int64), np.full((count, self.length), IGNORED)
        for number, one in enumerate(self.parts):
            rows = np.flatnonzero(kinds == number)
            inputs[rows, : one.length], targets[rows, : one.length] = one.draw(rng, len(rows), training=training)
        return inputs, targets

    def split(self, name: SplitName) -> Batch:
        if name != "train":
            return super().split(name)
        sets = [one.split(name) for one in self._seeded()[0]]
        columns = (([one.inputs for one in sets], 0), ([one.targets for one in sets], IGNORED))
        fill = lambda rows, value: F.pad(rows, (0, self.length - rows.shape[1]), value=value)  # noqa: E731
        return Batch(*(torch.cat([fill(rows, value) for rows in column]) for column, value in columns))


@lru_cache(maxsize=6)
def _split(data: SyntheticData, name: SplitName) -> Batch:
    """The examples of a split: runs of one process share them."""
    return data.split(name)


class Synthetic(Task):
    """Give every answer. Each epoch has every training example once, in an order of its own, or each step new ones."""

    def __init__(self, data: SyntheticData, *, batch_size: int, seed: int = 0):
        """`seed` gives the order of the training examples, or the examples if there is no end of them."""
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self.tokens_per_step = batch_size * data.length
        self.split = partial(_split, data)
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def _draw_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, epoch)).permutation(self.data.examples)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:  # type: ignore[override]
        if not self.data.has_tokens:
            return None
        return symbol_tokenizer(self.data.vocabulary, "synthetic")

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        if not self.data.examples:
            rng = np.random.default_rng((self.data.seed, len(get_args(SplitName)), self.seed, step))
            return _batch(*(array[rows] for array in self.data.draw(rng, self.batch_size, training=True)))
        numbers = range(step * self.batch_size, (step + 1) * self.batch_size)[rows]
        epochs = (divmod(number, self.data.examples) for number in numbers)
        chosen = [int(self._order(epoch)[index]) for epoch, index in epochs]
        return Batch(self.split("train").inputs[chosen], self.split("train").targets[chosen])

    def loss(self, model: Any, batch: Batch, runtime: Runtime = EAGER) -> Float[Tensor, ""]:
        return self.data.loss(model, batch, runtime.block_fn)

    def evaluate(self, model: Any, runtime: Runtime = EAGER) -> dict[str, float]:
        return measure(self.data, model, self.split("validation"), runtime)

    def reached(self, score: float, metrics: Mapping[str, float]) -> bool:
        found = metrics[self.data.metric]
        return found >= score if self.data.higher_is_better else found <= score


@dataclass(frozen=True)
class SyntheticTest:
    """The test examples of one kind."""

    data: SyntheticData

    @property
    def label(self) -> str:
        return self.data.label

    @property
    def length(self) -> int:
        return self.data.length

    def check(self) -> None:
        """Raise an error if there is nothing to test on; examples can always be drawn."""

    def describe(self) -> dict[str, Any]:
        """Return what results.json has of the test."""
        return {"examples": self.data.held_out}

    def measure(self, model: Any, runtime: Runtime = EAGER) -> dict[str, float]:
        """Return the score of a model by the name of the metric."""
        return {self.data.metric: measure(self.data, model, self.data.split("test"), runtime)[self.data.metric]}

    def anchors(self) -> dict[str, dict[str, float]]:
        """Return the scores of predictors that need no training."""
        scores = self.data.anchors(self.data.split("test"))
        return {name: {self.data.metric: score} for name, score in scores.items()}


def measure(data: SyntheticData, model: Any, examples: Batch, runtime: Runtime = EAGER) -> dict[str, float]:
    """Return the mean loss and the mean score of the answers of a model, computed in parts that fit into memory."""
    totals, count, rows = [0.0, 0.0], 0, max(1, EVAL_TOKENS // data.length)
    for inputs, targets in zip(examples.inputs.split(rows), examples.targets.split(rows), strict=True):
        with torch.no_grad(), runtime.autocast():
            found = data.score(model, inputs.to(runtime.device), targets.to(runtime.device))
        totals = [total + values.double().sum().item() for total, values in zip(totals, found, strict=True)]
        count += found[0].numel()
    return {"valid_loss": totals[0] / count, data.metric: totals[1] / count}
