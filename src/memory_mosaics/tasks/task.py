"""A task: batches to train on, the loss of a model on one, and how the model is measured.

Every task is one file beside this one, and one trainer trains them all. A batch is a pure function of the seed, the
step and its rows: training resumes at any step, on any number of processes, without stored state.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from memory_mosaics.runtime import Runtime
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.text.tokenizer import Tokenizer, character_tokenizer

EAGER = Runtime()


@dataclass(frozen=True)
class Batch:
    """Inputs, and what follows each of them. `starts` is True at the first token of each document, to be read apart."""

    inputs: Int[Tensor, "B T"] | Float[Tensor, "B T W"]  # tokens or observations
    targets: Int[Tensor, "B T"] | Float[Tensor, "B T W"] | Float[Tensor, "B T"]
    starts: Bool[Tensor, "B T"] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class CountedBatch(Batch):
    """Also where the measure of the task is taken. All positions are trained on; `counted` are those at which an answer
    tells whether the task is solved, such as the last symbol of an example, or a word that the context has defined.
    """

    counted: Bool[Tensor, "B T"]


class Task(ABC):
    """What a trainer needs to know. `model` is a LanguageModel, or whatever module the task is about."""

    batch_size: int  # sequences of a step, over all processes
    tokens_per_step: float  # on average, for the speed
    train_tokens: int | None = None  # of a text that is read again and again; None where every example is new
    selects: ClassVar[Mapping[str, Callable[[float, float], bool]]] = {}  # metrics whose best weights are kept
    tokenizer: Tokenizer | None = None  # to be saved with a model
    splits: bool = True  # whether a batch may be split over processes and into micro-batches
    documents: bool = False  # whether batches have `starts`: the shapes in which they are computed then differ

    @abstractmethod
    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """Return some rows of the batch of a step."""

    @abstractmethod
    def loss(self, model: Any, batch: Batch, runtime: Runtime = EAGER) -> Float[Tensor, "*copies"]:
        """Return the mean loss of a batch; one per model if several are trained side by side."""

    def evaluate(self, model: Any, runtime: Runtime = EAGER) -> dict[str, float]:
        """Return the metrics of a model in eval mode. Every process takes part. A lower `valid_loss` is better."""
        return {}

    def reached(self, score: float, metrics: Mapping[str, float]) -> bool:
        """Return whether metrics are as good as a score: here, a loss."""
        return metrics["valid_loss"] <= score

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What identifies its data, beside its configuration: a run resumes only with the same."""
        return {}

    def next_evaluation(self, step: int, every: int) -> int:
        """Return the first step after `step` that is followed by an evaluation."""
        return every * (step // every + 1)

    def samples(self, model: Any, count: int, *, seed: int) -> list[tuple[str, str]]:
        """Return prompts and how the model continues them, for people to read."""
        return []


def symbol_tokenizer(count: int, name: str) -> Tokenizer:
    """Return a tokenizer with one character per token, for tasks whose tokens mean nothing; token 0 ends a text."""
    return character_tokenizer("".join(map(chr, range(0x4E00, 0x4E00 + count))), name=name, end_of_text=0)


class TokenTask(Task):
    """A task whose model is a LanguageModel that predicts every next token."""

    def loss(self, model: Any, batch: Batch, runtime: Runtime = EAGER) -> Float[Tensor, ""]:
        return model.loss(batch.inputs, batch.targets, starts=batch.starts, block_fn=runtime.block_fn)
