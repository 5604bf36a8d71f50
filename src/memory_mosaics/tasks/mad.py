"""The six synthetic tasks of MAD: in-context recall, plain, noisy and fuzzy, selective copying, memorization and
compression. Poli et al. 2024 (2403.17844).

The defaults are the baselines of the authors' code, mad-lab, with 1280 examples for the test and as many for the
validation, which mad-lab does not have: it chooses runs by their test scores. `changes` are its variations of the
difficulty. The MAD score of a model in a task is the mean over the baseline and all changes, each trained separately,
of the accuracy of the best run with learning rates of 1e-4, 5e-4 and 1e-3 and weight decays of 0 and 0.1. Models of
width 128 with two blocks are trained for 200 epochs, in batches of 128.

Recall. Keys are the lower half of the vocabulary, values the upper half. A key has the same value throughout a sequence
and another one in the next; two keys may have the same value. Training asks for every next token, a test for the values
of keys that have occurred before. The last key is always one of these. mad-lab's `seq_len` of 128 includes the token
that is the last target: the inputs are 127 tokens.

    inputs      2  9  5  8  2  9  3  9  5                                 vocabulary 16: keys 0-7, values 8-15
    targets     .  .  .  .  9  .  .  .  8                                 in a test
                9  5  8  2  9  3  9  5  8                                 in training

Noisy recall. Each pair is replaced with two tokens of a third vocabulary, with probability `noise`.

    inputs      2  9  17 30 2  9  21 16 2                                 vocabulary 32: noise 16-31
    targets     .  .  .  .  9  .  .  .  9

Fuzzy recall. Keys and values are one to three tokens, no token twice in a key or in a value. The last pair repeats one
of the pairs before it. Keys of a test have three tokens. Examples are padded on the left.

    inputs      15 15 3  0  1  9  7  2  4  6  8  3  0  1  9               vocabulary 16: keys 0-6, values 7-14
    targets     .  .  .  .  .  .  .  .  .  .  .  .  .  9  7               (3 0 1) is (9 7), (2 4 6) is (8)

Selective copying. Tokens are mixed with blanks (b), none of which follows the last token; then the tokens are repeated.

    inputs      b  2  b  b  7  2  c  b  b  b                              vocabulary 16: blank 14, copy 15
    targets     .  .  .  .  .  .  .  2  7  2

Memorization. The value of a key is the same in all sequences, and never among the inputs: it is stored in the weights.

    inputs      2  i  5  i  2  i                                          vocabulary 256: i is 255
    targets     .  140 .  201 .  140                                      keys 0-126, values 127-254

Compression. All tokens are reconstructed from the feature of the last one alone, by a small network: `Autoencoder`.

    inputs      2  7  7  4  c                                             vocabulary 16: c is 15
    targets     2  7  7  4  c

Scores are the share of right answers. mad-lab reports torchmetrics' accuracy: the mean over all tokens that are targets
or predictions of the share of right answers among the targets of that token, averaged over batches of 128 examples.
Where half of the answers to the test are replaced with random values (that is, possible answers), the two differ by
less than 0.001 in all six tasks. Where they are replaced with random tokens of the whole vocabulary, each token that is
never a target counts as a class without a right answer: 0.528 is 0.264 in recall, 0.513 is 0.128 in noisy recall, 0.533
is 0.267 in fuzzy recall, 0.533 is 0.467 in copying and 0.503 is 0.252 in memorization. One such answer in a batch is
enough. A model that knows only the last token of compression has 0.096 here and 0.125 there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import part
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig
from memory_mosaics.norms import NoNormConfig
from memory_mosaics.ops.cross_entropy import linear_cross_entropy
from memory_mosaics.shapes import Float, Int
from memory_mosaics.tasks.synthetic import (
    IGNORED,
    MAX_LENGTH,
    MAX_VOCABULARY,
    Arrays,
    SyntheticData,
    cache_scores,
    distinct,
)
from memory_mosaics.tasks.task import Batch

MAP = 1000  # separates the random numbers of the map of memorization from those of the splits
FEWER_EXAMPLES = (6400, 3200, 1600, 800)
MAX_MOTIF = 4  # tokens of a fuzzy key or value: four make a number of 60 bits at most


@dataclass(frozen=True, kw_only=True)
class MADData(SyntheticData):
    """What all six have in common: the sizes of mad-lab, and the values to which each field is changed."""

    vocabulary: int = 16
    length: int = 128
    examples: int = 12_800
    held_out: int = 1280

    CHANGES: ClassVar[Mapping[str, Sequence[int | float]]]

    def changes(self) -> list["MADData"]:
        """Return the variations of difficulty over which a MAD score is averaged, each with one other value."""
        return [replace(self, **{name: value}) for name, values in self.CHANGES.items() for value in values]

    @property
    def label(self) -> str:
        """The fields that differ from the baseline."""
        differ = ((one.name, getattr(self, one.name)) for one in fields(self) if one.name in self.CHANGES)
        changed = [f"{name} {value:,}" for name, value in differ if value != getattr(type(self), name)]
        return ", ".join(changed) or "baseline"


@part("in_context_recall")
class InContextRecallData(MADData):
    """Pairs of a key and a value.

    Args:
        noise: Probability that a pair is replaced with noise; one pair never is.
        noise_vocabulary: Tokens of the noise, the last ones of the vocabulary.
    """

    length: int = 127
    noise: float = 0.0
    noise_vocabulary: int = 0

    CHANGES: ClassVar = {"vocabulary": (32, 64, 128), "length": (255, 511, 1023), "examples": FEWER_EXAMPLES}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(0, self.vocabulary - 4, noise_vocabulary=self.noise_vocabulary)
        if self.length % 2 == 0 or self.length < 3:
            raise UserError(f"length must be odd and at least 3, not {self.length}")
        if not 0 <= self.noise < 1:
            raise UserError(f"noise must be at least 0 and below 1, not {self.noise}")
        if self.noise and not self.noise_vocabulary:
            raise UserError(f"noise of {self.noise} needs a noise_vocabulary of at least 1")

    @property
    def candidates(self) -> range:
        """The values, after the keys and before the noise."""
        end = self.vocabulary - self.noise_vocabulary
        return range(end // 2, end)

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        pairs, rows = self.length // 2, np.arange(count)[:, None]
        first, end = self.candidates.start, self.candidates.stop
        value_of = rng.integers(first, end, size=(count, first + 1))
        keys = rng.integers(first, size=(count, pairs))
        if self.noise:
            is_noise = rng.random((count, pairs)) < self.noise
            is_noise[rows[:, 0], rng.integers(pairs, size=count)] = False
            keys[is_noise] = first  # an entry of its own in the tables
        shown = np.zeros((count, first + 1), dtype=bool)
        shown[rows, keys] = True
        last = (rng.random((count, first)) * shown[:, :-1]).argmax(axis=1)  # any of the keys shown
        repeated = (_first_occurrence(keys[..., None], self.vocabulary) < np.arange(pairs)) & (keys < first)
        repeated = np.hstack([repeated, np.ones((count, 1), dtype=bool)])
        keys = np.hstack([keys, last[:, None]])
        tokens = np.stack([keys, value_of[rows, keys]], axis=-1)
        if self.noise:
            noise = rng.integers(end, self.vocabulary, size=tokens.shape)
            tokens = np.where((keys == first)[..., None], noise, tokens)
        asked = np.stack([np.zeros_like(repeated), repeated], axis=-1)
        tokens, asked = (array.reshape(count, self.length + 1) for array in (tokens, asked))
        return _shifted(tokens, asked, training=training)


@part("noisy_in_context_recall")
class NoisyInContextRecallData(InContextRecallData):
    """Recall with noise between the pairs."""

    vocabulary: int = 32
    noise: float = 0.2
    noise_vocabulary: int = 16

    CHANGES: ClassVar = {**InContextRecallData.CHANGES, "vocabulary": (48, 80, 144), "noise": (0.4, 0.6, 0.8)}


@part("fuzzy_in_context_recall")
class FuzzyInContextRecallData(MADData):
    """Pairs whose keys and values have several tokens.

    A pair is drawn for the end of the sequence and placed before its other pairs that begin at or after a random
    position, unless its key has been drawn by then. In mad-lab it is placed nowhere if that position is too close to
    the end: 2.5 % of the last keys of its tests, with 1.1 % of the answers, have no value in the context. Here such a
    pair takes the last position that is left.

    Args:
        key_tokens: Tokens of the longest keys.
        value_tokens: Tokens of the longest values.
    """

    key_tokens: int = 3
    value_tokens: int = 3

    CHANGES: ClassVar = {"vocabulary": (32, 64, 128), "length": (256, 512, 1024), "examples": FEWER_EXAMPLES}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(1, MAX_MOTIF, key_tokens=self.key_tokens, value_tokens=self.value_tokens)
        least = 2 * (self.key_tokens + self.value_tokens) + 1
        if self.length < least:
            raise UserError(f"length must be at least {least} for such keys and values, not {self.length}")
        if self.candidates.start < self.key_tokens or len(self.candidates) < self.value_tokens:
            raise UserError(f"a vocabulary of {self.vocabulary} is too small for such keys and values")

    @property
    def candidates(self) -> range:
        """The tokens of values, after those of keys and before the padding, which is the last token."""
        return range((self.vocabulary - 1) // 2, self.vocabulary - 1)

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        shortest, longest = (1 if training else self.key_tokens), self.key_tokens + self.value_tokens
        columns = 1 + -(-(self.length - longest) // (shortest + 1))  # the last pair, then as many as could fit
        keys = _motifs(rng, range(self.candidates.start), range(shortest, self.key_tokens + 1), (count, columns))
        values = _motifs(rng, self.candidates, range(1, self.value_tokens + 1), (count, columns))
        first = _first_occurrence(keys, self.vocabulary)
        values = np.take_along_axis(values, first[..., None], axis=1)
        pairs = np.concatenate([keys, values], axis=-1)
        sizes = (pairs >= 0).sum(axis=-1)
        starts = np.cumsum(sizes[:, 1:], axis=1) - sizes[:, 1:]
        end = self.length - longest - sizes[:, :1]  # only the last pair begins here or later
        position = rng.integers(self.length - 2 * sizes[:, :1])
        before = np.minimum((starts < position).sum(axis=1), (starts < end).sum(axis=1) - 1)
        drawn = ((first[:, 1:] == 0) & (np.arange(columns - 1) < before[:, None])).any(axis=1)
        before[drawn] = columns - 1  # after the end
        order = np.arange(columns) + (np.arange(columns) < before[:, None])
        order[np.arange(count), before] = 0
        order = np.pad(order, ((0, 0), (0, 1)))  # the last pair comes again
        return self._join(np.take_along_axis(pairs, order[..., None], axis=1), end, training=training)

    def _join(self, pairs: np.ndarray, end: np.ndarray, *, training: bool) -> Arrays:
        """Concatenate the pairs that begin before the end and the last one, with padding before them."""
        count, columns, longest = pairs.shape
        sizes = (pairs >= 0).sum(axis=-1)
        kept = np.cumsum(sizes, axis=1) - sizes < end
        kept[:, -1] = True
        repeated = _first_occurrence(pairs[..., : self.key_tokens], self.vocabulary) < np.arange(columns)
        asked = np.zeros(pairs.shape, dtype=bool)
        asked[..., self.key_tokens :] = repeated[..., None]
        real = (pairs >= 0) & kept[..., None]
        real, pairs, asked = (array.reshape(count, columns * longest) for array in (real, pairs, asked))
        at = self.length + np.cumsum(real, axis=1) - real.sum(axis=1, keepdims=True)
        rows, at = np.broadcast_to(np.arange(count)[:, None], at.shape)[real], at[real]
        tokens, answers = (
            np.full((count, self.length + 1), self.vocabulary - 1),
            np.zeros((count, self.length + 1), dtype=bool),
        )
        tokens[rows, at], answers[rows, at] = pairs[real], asked[real]
        return _shifted(tokens, answers, training=training)


@part("selective_copying")
class SelectiveCopyingData(MADData):
    """Tokens between blanks, which are repeated without the blanks.

    Args:
        copied: Tokens to repeat.
    """

    length: int = 256
    copied: int = 16

    CHANGES: ClassVar = {
        "vocabulary": (32, 64, 128),
        "length": (512, 1024),
        "examples": FEWER_EXAMPLES,
        "copied": (32, 64, 96),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(3, MAX_VOCABULARY, vocabulary=self.vocabulary)
        check_range(1, MAX_LENGTH, copied=self.copied)
        if self.length < 2 * self.copied + 2:
            least = f"at least {2 * self.copied + 2} to copy {self.copied} tokens"
            raise UserError(f"length must be {least}, not {self.length}")

    @property
    def blank(self) -> int:
        return self.vocabulary - 2

    def guess(self) -> float:
        """One of the tokens that are not special."""
        return 1 / self.blank

    def anchors(self, examples: Batch) -> dict[str, float]:
        frequent = cache_scores(examples, range(self.blank))["most frequent"]
        return super().anchors(examples) | {"most frequent": frequent}

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        tokens = rng.integers(self.blank, size=(count, self.copied))
        blanks = self.length - 2 * self.copied - 1
        before = rng.integers(self.copied, size=(count, blanks)) + self.copied * np.arange(count)[:, None]
        per_token = np.bincount(before.ravel(), minlength=count * self.copied).reshape(count, self.copied)
        inputs = np.full((count, self.length), self.blank)
        np.put_along_axis(inputs, np.arange(self.copied) + np.cumsum(per_token, axis=1), tokens, axis=1)
        inputs[:, -self.copied - 1] = self.vocabulary - 1
        targets = np.full_like(inputs, IGNORED)
        targets[:, -self.copied :] = tokens
        return inputs, targets


@part("memorization")
class MemorizationData(MADData):
    """Keys, each before a token in place of its value, which is fixed by the seed."""

    vocabulary: int = 256
    length: int = 32
    examples: int = 256

    CHANGES: ClassVar = {"vocabulary": (512, 1024, 2048, 4096, 8192)}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(3, MAX_VOCABULARY, vocabulary=self.vocabulary)
        if self.length % 2:
            raise UserError(f"length must be even, not {self.length}")

    @cached_property
    def values(self) -> np.ndarray:
        """The value of each key: no two have the same."""
        keys = (self.vocabulary - 1) // 2
        return np.random.default_rng((self.seed, MAP)).permutation(np.arange(keys, self.vocabulary - 1))[:keys]

    def guess(self) -> float:
        """One of the values."""
        return 1 / len(self.values)

    def anchors(self, examples: Batch) -> dict[str, float]:
        """Also an upper bound, which is no predictor: the share of keys that occur in the training examples."""
        asked = examples.inputs[:, ::2]
        seen = torch.isin(asked, self.split("train").inputs[:, ::2]) if self.examples else asked >= 0
        return super().anchors(examples) | {"ceiling: seen keys": seen.double().mean().item()}

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        keys = rng.integers(len(self.values), size=(count, self.length // 2))
        inputs, targets = np.full((count, self.length), self.vocabulary - 1), np.full((count, self.length), IGNORED)
        inputs[:, ::2], targets[:, 1::2] = keys, self.values[keys]
        return inputs, targets


@part("compression")
class CompressionData(MADData):
    """Random tokens and a last one that is always the same, all of which are to be reconstructed."""

    length: int = 32

    CHANGES: ClassVar = {"vocabulary": (32, 64, 128), "length": (64, 128, 256), "examples": FEWER_EXAMPLES}

    def guess(self) -> float:
        """One of the tokens, and the last one for certain."""
        return (1 + (self.length - 1) / (self.vocabulary - 1)) / self.length

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        inputs = rng.integers(self.vocabulary - 1, size=(count, self.length))
        inputs[:, -1] = self.vocabulary - 1
        return inputs, inputs.copy()

    def model(self, body: LanguageModelConfig) -> "AutoencoderConfig":
        return AutoencoderConfig(body=body)


@part("autoencoder")
class AutoencoderConfig:
    """A language model whose blocks encode a sequence. The norm of its output is not used."""

    body: LanguageModelConfig

    def build(self) -> "Autoencoder":
        return Autoencoder(self)


class Autoencoder(nn.Module):
    """MAD's model of compression: all tokens from the feature x of the last one.

        h_t = MLP(x + code_t),    logits_t = output norm(h_t)

    The sinusoidal code of a position tells which token is wanted. The MLP has two layers, as wide as the model, each
    norm, linear, GELU. The model has what a task uses of a LanguageModel: embedding, features, output and loss.
    """

    def __init__(self, config: AutoencoderConfig):
        super().__init__()
        self.config = config
        self.body = LanguageModel(replace(config.body, output_norm=NoNormConfig()))
        width = config.body.width
        layers = [[nn.LayerNorm(width, bias=False), nn.Linear(width, width), nn.GELU()] for _ in range(2)]
        self.decoder = nn.Sequential(*chain(*layers), nn.LayerNorm(width, bias=False))
        for module in self.decoder:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    @property
    def embedding(self) -> nn.Embedding:
        return self.body.embedding

    @property
    def output(self) -> Float[Tensor, "vocabulary W"]:
        """The output matrix."""
        return self.body.output

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T vocabulary"]:
        """Return logits of the tokens themselves."""
        return self.body.logits(self.features(self.embedding(tokens))[0])

    def features(
        self, x: Float[Tensor, "B T W"], *, block_fn: Callable[..., tuple[Tensor, Any]] | None = None
    ) -> tuple[Float[Tensor, "B T W"], tuple]:
        """From embeddings to the input of the output matrix. There is no state: nothing follows the last token."""
        encoded, _ = self.body.features(x, block_fn=block_fn)
        code = sinusoidal_code(x.shape[1], x.shape[2], device=x.device)
        return self.decoder(encoded[:, -1:] + code), ()

    def loss(
        self,
        inputs: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"],
        *,
        block_fn: Callable[..., tuple[Tensor, Any]] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy of a batch."""
        features, _ = self.features(self.embedding(inputs), block_fn=block_fn)
        return linear_cross_entropy(features.flatten(0, 1), self.output, targets.flatten())


def sinusoidal_code(length: int, width: int, *, device: torch.device | None = None) -> Float[Tensor, "T W"]:
    """Sines of the positions at geometric frequencies from 1 to 1/10,000, then cosines; 0 where the width is odd."""
    half = width // 2
    frequencies = 10_000 ** -(torch.arange(half, device=device) / max(1, half - 1))
    angles = torch.arange(length, device=device)[:, None] * frequencies
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))


def _shifted(tokens: np.ndarray, asked: np.ndarray, *, training: bool) -> Arrays:
    """Return inputs and the token after each: all of them in training, in a test those that are asked for."""
    return tokens[:, :-1], tokens[:, 1:] if training else np.where(asked, tokens, IGNORED)[:, 1:]


def _motifs(rng: np.random.Generator, tokens: range, lengths: range, shape: tuple[int, int]) -> np.ndarray:
    """Draw sequences of different tokens, filled up with -1."""
    longest = lengths[-1]
    drawn = tokens.start + distinct(rng, len(tokens), (shape[0] * shape[1], longest)).reshape(*shape, longest)
    size = rng.integers(lengths.start, lengths.stop, size=(*shape, 1))
    return np.where(np.arange(longest) < size, drawn, -1)


def _first_occurrence(motifs: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return, for each motif, the number of the first one of its row that is equal."""
    numbers = ((motifs + 1) * (vocabulary + 1) ** np.arange(motifs.shape[-1])).sum(axis=-1)
    order = numbers.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(numbers, order, axis=1)
    begins = np.diff(ordered, axis=1, prepend=-1) != 0
    first = np.maximum.accumulate(np.where(begins, np.arange(numbers.shape[1]), 0), axis=1)
    found = np.empty_like(order)
    np.put_along_axis(found, order, np.take_along_axis(order, first, axis=1), axis=1)
    return found
