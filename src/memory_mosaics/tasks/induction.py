"""The trigger-bigram task of Bietti et al. 2023 (arXiv 2306.00802): can a model complete what it has seen once?

Text is a Markov chain of characters, except that in each sequence a few tokens are triggers: each is followed by an
output of its own, always the same one in that sequence, and another one in the next.

    triggers of this sequence:   q -> 7    e -> w

    inputs      t  h  q  7  i  s  e  w  a  q  7  e  w  q
    targets     h  q  7  i  s  e  w  a  q  7  e  w  q  7
    counted     .  .  .  .  .  .  .  .  .  x  .  x  .  x        the trigger has been seen before: the output is known

Outputs are uniform over the vocabulary, so no statistics of the language predict them: at the counted positions the
answer stands in the context and nowhere else. Where a token is no trigger, the chain decides.

Bietti et al. count unigrams and bigrams on tiny-Shakespeare. Here a random chain with the same vocabulary, a Zipf-like
distribution of tokens and the same bigram entropy takes its place, so that the task needs no file.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from memory_mosaics.config import part
from memory_mosaics.errors import UserError
from memory_mosaics.language_model import LanguageModel, next_token_loss
from memory_mosaics.runtime import Runtime
from memory_mosaics.shapes import Float
from memory_mosaics.tasks.synthetic import IGNORED, Arrays, SyntheticData
from memory_mosaics.tasks.task import EAGER, Batch, CountedBatch, TokenTask, symbol_tokenizer
from memory_mosaics.text.tokenizer import Tokenizer

HELD_OUT = 128  # sequences
POINTS = 28  # at which a model is evaluated, increasingly far apart
SHAKESPEARE_ENTROPY = 2.45  # nats per character given the one before, of tiny-Shakespeare


class MarkovChain:
    """A random language: P(next = j | now = i) ~ rank_j^-1.2 exp(spread g_ij), g normal, the ranks in random order.

    `spread` is found by bisection so that the entropy of the next token given this one is `entropy` nats. `unigram` is
    the stationary distribution, what counting tokens of a long text would give.
    """

    def __init__(self, vocabulary: int, *, entropy: float, seed: int = 0):
        rng = np.random.default_rng(seed)
        zipf = -1.2 * np.log1p(rng.permutation(vocabulary))  # log rank^-1.2: the noise flattens it to about 1/rank
        noise = rng.standard_normal((vocabulary, vocabulary))
        self._set(zipf + 0 * noise)
        if not 0 < entropy < self.entropy():
            raise UserError(f"entropy must be in (0, {self.entropy():.2f}) for {vocabulary} tokens, not {entropy}")
        low, high = 0.0, 50.0
        for _ in range(50):
            spread = (low + high) / 2
            self._set(zipf + spread * noise)
            low, high = (spread, high) if self.entropy() > entropy else (low, spread)

    def _set(self, logits: np.ndarray) -> None:
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        self.bigram = weights / weights.sum(axis=1, keepdims=True)
        self.unigram = _stationary(self.bigram)

    def entropy(self) -> float:
        """Of the next token given this one, in nats."""
        logarithm = np.log(self.bigram, where=self.bigram > 0, out=np.zeros_like(self.bigram))
        return float(-(self.unigram[:, None] * self.bigram * logarithm).sum())


def _stationary(bigram: np.ndarray) -> np.ndarray:
    """The distribution u with u = u P: the equations, with one of them replaced by sum(u) = 1."""
    size = len(bigram)
    equations = np.vstack([(bigram.T - np.eye(size))[:-1], np.ones(size)])
    u = np.linalg.solve(equations, np.eye(size)[-1]).clip(min=0)
    return u / u.sum()


@dataclass(frozen=True, kw_only=True)
class InductionData:
    """What the sequences are like.

    Args:
        vocabulary: number of tokens
        length: tokens in a sequence
        triggers: triggers in a sequence, drawn by frequency without replacement
        fixed_triggers: take the most frequent tokens as triggers of all sequences instead
        entropy: nats of the next token given this one, where no trigger decides
    """

    vocabulary: int = 65
    length: int = 256
    triggers: int = 5
    fixed_triggers: bool = False
    entropy: float = SHAKESPEARE_ENTROPY

    def __post_init__(self) -> None:
        if not 0 <= self.triggers <= self.vocabulary:
            raise UserError(f"{self.triggers} triggers do not fit a vocabulary of {self.vocabulary}")
        if self.length < 1:
            raise UserError(f"length must be at least 1, not {self.length}")

    @cached_property
    def chain(self) -> MarkovChain:
        """The language between the triggers: the same in all sequences, batches and seeds."""
        return MarkovChain(self.vocabulary, entropy=self.entropy)

    def batch(self, size: int, *, seed: int, step: int) -> CountedBatch:
        """The batch of a training step: the same numbers whenever and wherever (seed, step) is asked for."""
        rng = np.random.default_rng([seed, step])
        outputs = self._outputs(rng, size)
        rows = np.arange(size)
        tokens = np.empty((size, self.length + 1), dtype=np.int64)
        counted = np.empty((size, self.length), dtype=bool)
        seen = np.zeros((size, self.vocabulary), dtype=bool)
        chance = rng.random((self.length + 1, size, 1))
        first, cumulative = np.cumsum(self.chain.unigram), np.cumsum(self.chain.bigram, axis=1)
        tokens[:, 0] = _draw(first, chance[0])
        for t in range(self.length):
            now = tokens[:, t]
            output = outputs[rows, now]
            tokens[:, t + 1] = np.where(output >= 0, output, _draw(cumulative[now], chance[t + 1]))
            counted[:, t] = (output >= 0) & seen[rows, now]
            seen[rows, now] = True
        text = torch.from_numpy(tokens)
        return CountedBatch(text[:, :-1], text[:, 1:], torch.from_numpy(counted))

    def evaluation_batch(self, seed: int) -> CountedBatch:
        """Sequences to evaluate a model on: those of a step that no training reaches."""
        return self.batch(HELD_OUT, seed=seed, step=2**40)

    def _outputs(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """What follows each token of the vocabulary in each sequence, -1 where the chain decides: (size, vocabulary).

        Sorting exponential times that run at speed `unigram` draws tokens by frequency without replacement.
        """
        order = np.argsort(rng.standard_exponential((size, self.vocabulary)) / self.chain.unigram, axis=1)
        if self.fixed_triggers:
            order = np.tile(np.argsort(-self.chain.unigram), (size, 1))
        outputs = np.full((size, self.vocabulary), -1)
        drawn = rng.integers(self.vocabulary, size=(size, self.triggers))
        np.put_along_axis(outputs, order[:, : self.triggers], drawn, axis=1)
        return outputs


class Induction(TokenTask):
    """Predict every next token of such sequences; measured where the trigger has been seen before."""

    def __init__(
        self,
        sequences: InductionData,
        *,
        batch_size: int,
        steps: int,
        seed: int = 0,
        held_out: CountedBatch | None = None,
    ):
        """Batches are drawn with `seed`; a model is evaluated on `held_out`, or `sequences.evaluation_batch(seed)`."""
        self.sequences, self.batch_size, self.seed = sequences, batch_size, seed
        self.tokens_per_step = batch_size * sequences.length
        self.held_out = sequences.evaluation_batch(seed) if held_out is None else held_out
        self.points = sorted({round(steps ** (i / POINTS)) for i in range(POINTS + 1)})

    @cached_property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        return symbol_tokenizer(self.sequences.vocabulary, "induction")

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        whole = self.sequences.batch(self.batch_size, seed=self.seed, step=step)
        return Batch(whole.inputs[rows], whole.targets[rows])

    @torch.no_grad()
    def evaluate(self, model: LanguageModel, runtime: Runtime = EAGER) -> dict[str, float]:
        with runtime.autocast():
            logits = [model(inputs.to(runtime.device))[0].float().cpu() for inputs in self.held_out.inputs.split(32)]
        found = measure(torch.cat(logits), self.held_out)
        return {"valid_loss": found.pop("loss"), **found}

    def next_evaluation(self, step: int, every: int) -> int:
        """Return the next of the points, which are increasingly far apart."""
        return next((point for point in self.points if point > step), self.points[-1])


def measure(logits: Float[Tensor, "B T vocabulary"], batch: CountedBatch) -> dict[str, float]:
    """The loss at all positions, and the share of right answers at the counted ones and at the others.

    A trigger whose output is the trigger itself repeats to the end of the sequence, and predicting that takes no
    memory. `accuracy_changing` leaves these positions out of the counted ones.
    """
    right, counted = logits.argmax(dim=-1) == batch.targets, batch.counted
    changing = counted & (batch.inputs != batch.targets)
    where = {"accuracy": counted, "accuracy_changing": changing, "accuracy_others": ~counted}
    shares = {name: round(right[positions].float().mean().item(), 4) for name, positions in where.items()}
    return shares | {"loss": round(next_token_loss(logits, batch.targets).item(), 4)}


def _draw(cumulative: np.ndarray, chance: np.ndarray) -> np.ndarray:
    """Tokens with the given cumulative distributions, from uniform numbers of shape (size, 1)."""
    return (cumulative[..., :-1] <= chance).sum(axis=-1)


@part("induction")
class InductionExamples(InductionData, SyntheticData):
    """Such sequences as examples of the arena: all next tokens are trained on, the counted ones are tested."""

    def __post_init__(self) -> None:
        InductionData.__post_init__(self)
        SyntheticData.__post_init__(self)

    @property
    def candidates(self) -> range:
        return range(self.vocabulary)

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        drawn = self.batch(count, seed=int(rng.integers(2**62)), step=0)
        targets = drawn.targets if training else drawn.targets.where(drawn.counted, IGNORED)
        return drawn.inputs.numpy(), targets.numpy()
