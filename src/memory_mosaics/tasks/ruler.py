"""RULER's tasks without text: find, follow and count words in a long context. Hsieh et al. 2024 (2404.06654).

A token is a word or a number. A model is trained at one length and tested at others, up to `test_lengths`. The question
comes last; an answer of several tokens is given one by one, each after the right ones before it (teacher forcing).

A needle in a haystack: a sentence that repeats hides a marked pair of a key and a value, and the key is asked for.
With `needles=0` the haystack is made of needles with other keys.

    inputs      a b c d  ! k 7  a b c d  a b c d  ? k         ! marks a needle, ? the question, a b c d is the sentence
    targets     . . . .  . . .  . . . .  . . . .  . 7         dots are not part of the loss

Variable tracking: assignments form chains, the question names a value, and the answers are the variables that have it.

    inputs      ! x = 5  a b c d  ! y = ! x  a b c d  ! z = ! y  ? 5 x y         x = 5, y = x, z = y: all are 5
    targets     . . . .  . . . .  . . . . .  . . . .  . . . . .  . x y z

Common words: ten words are repeated 30 times, all others 3 times, or 6 times and once below 4,096 tokens as in RULER.
Frequent words: the count of a word falls with its rank as rank^-alpha; the most frequent one is a blank, and the next
three are asked for.

    inputs      p q r p s q p t q  ? p                        two common words; p comes first
    targets     . . . . . . . . .  p q

These answers are a set. They are trained on in the order of first occurrence or of falling frequency, and an answer is
right if it is one of the set that was not given before it, as RULER counts the words that it finds in any order.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from memory_mosaics.config import part
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.shapes import Bool, Int
from memory_mosaics.tasks.synthetic import IGNORED, MAX_LENGTH, Arrays, SyntheticData, distinct
from memory_mosaics.tasks.task import Batch

QUERY, MARK, EQUALS, BLANK = range(4)
# Five short sentences with full stops, of sixteen words, like RULER's noise.
SENTENCE = 4 + np.array([0, 1, 2, 3, 4, 0, 5, 2, 6, 4, 0, 7, 2, 8, 4, 9, 10, 11, 4, 12, 13, 14, 15, 4])
FIRST_WORD = int(SENTENCE.max()) + 1
LENGTHS = (512, 1024, 2048, 4096, 8192, 16_384)
LONG = 4096  # from this length on RULER repeats common words more often
LONGEST_MATCH = 8  # tokens that are compared


@dataclass(frozen=True, kw_only=True)
class RulerData(SyntheticData):
    """What all tasks have in common.

    Args:
        test_lengths: Lengths to test a trained model at; none for the length of the training.
    """

    vocabulary: int = 1024
    length: int = 512
    held_out: int = 500
    test_lengths: tuple[int, ...] = LENGTHS

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check()
        self.variants()  # which are checked as well

    @property
    @abstractmethod
    def answers(self) -> int:
        """Tokens that answer the question."""

    @abstractmethod
    def check(self) -> None:
        """Raise an error for settings that do not fit the length or the vocabulary."""

    def check_words(self, words: int) -> None:
        if words > self.vocabulary - FIRST_WORD:
            needed = f"length {self.length:,} needs a vocabulary of {words + FIRST_WORD:,}"
            raise UserError(f"{needed}, not {self.vocabulary:,}; take a larger one or shorter test_lengths")

    def check_noise(self, statements: int, tokens: int) -> None:
        """There must be a sentence before every statement; `tokens` are all that are not noise."""
        needed = tokens + statements * len(SENTENCE)
        if self.length < needed:
            what = f"{statements} statement{'s' * (statements > 1)} in noise"
            raise UserError(f"length must be at least {needed:,} for {what}, not {self.length}")

    def variants(self) -> list[SyntheticData]:
        return [replace(self, length=length, test_lengths=()) for length in self.test_lengths] or [self]

    @property
    def words(self) -> tuple[range, range]:
        """Words without a function, in halves: keys and variables, and values."""
        half = (FIRST_WORD + self.vocabulary) // 2
        return range(FIRST_WORD, half), range(half, self.vocabulary)

    def place(self, context: np.ndarray, question: np.ndarray, answers: np.ndarray) -> Arrays:
        """Append the question and all answers but the last, each of which is then asked for."""
        inputs = np.concatenate([context, question, answers[:, :-1]], axis=1).astype(np.int64)
        targets = np.full_like(inputs, IGNORED)
        targets[:, inputs.shape[1] - answers.shape[1] :] = answers
        return inputs, targets

    def anchors(self, examples: Batch) -> dict[str, float]:
        """The guess, and the continuation of the longest match of the last tokens with earlier ones."""
        asked = examples.targets != IGNORED
        inputs = examples.inputs.numpy()
        found = [longest_match(inputs[row, : at + 1]) for row, at in asked.nonzero().tolist()]
        right = self.correct(torch.tensor(found), examples.targets[asked])
        return {"guess": self.guess(), "longest match": right.double().mean().item()}


def longest_match(tokens: np.ndarray) -> int:
    """Return what followed the latest of the longest matches of the last tokens, or -1 without any."""
    last = len(tokens) - 1
    lengths = np.zeros(last, dtype=np.int64)
    matches = np.ones(last, dtype=bool)
    for back in range(min(LONGEST_MATCH, last)):
        matches[:back] = False
        matches[back:] &= tokens[: last - back] == tokens[last - back]
        lengths += matches
    if not lengths.any():
        return -1
    return int(tokens[last - lengths[::-1].argmax()])


def hide(rng: np.random.Generator, chains: Sequence[Sequence[np.ndarray]], length: int) -> np.ndarray:
    """Hide statements (count, tokens) between sentences of noise, those of a chain in their order: (count, length).

    As in RULER, the statements of a chain are inserted before different elements of the text so far, sentences or
    statements of earlier chains. Of the first sentence only the end is kept, to fill the length.
    """
    statements = [statement for chain in chains for statement in chain]
    count = len(statements[0])
    sentences, rest = divmod(length - sum(one.shape[1] for one in statements), len(SENTENCE))
    order, number = np.zeros((count, sentences), dtype=np.int64), 0  # statements are numbered, 0 is the sentence
    for chain in chains:
        spots = np.sort(distinct(rng, order.shape[1], (count, len(chain))), axis=1) + np.arange(len(chain))
        new = np.zeros((count, order.shape[1] + len(chain)), dtype=bool)
        np.put_along_axis(new, spots, values=True, axis=1)
        longer = np.empty(new.shape, dtype=np.int64)
        longer[~new] = order.ravel()
        longer[new] = np.tile(np.arange(number + 1, number + len(chain) + 1), count)
        order, number = longer, number + len(chain)
    longest = max(len(SENTENCE), *(one.shape[1] for one in statements))
    table = np.full((count, 1 + number, longest), -1, dtype=np.int16)
    table[:, 0, : len(SENTENCE)] = SENTENCE
    for index, statement in enumerate(statements, start=1):
        table[:, index, : statement.shape[1]] = statement
    tokens = np.take_along_axis(table, order[:, :, None], axis=1)
    start = np.tile(SENTENCE[len(SENTENCE) - rest :], (count, 1))
    return np.hstack([start, tokens[tokens >= 0].reshape(count, length - rest)])


@part("needle")
class NeedleData(RulerData):
    """Pairs of a key and a value in a haystack, and questions for the values of some keys.

    RULER's niah_single_1 is the default, its multikey_2 has needles=0, and multikey_3 several tokens per key and value
    as well. The key of a question occurs in one needle only; other keys may repeat.

    Args:
        needles: Needles in noise; 0 for a haystack of needles, as many as fit.
        queries: Questions, for different keys.
        key_tokens: Tokens per key.
        value_tokens: Tokens per value.
    """

    needles: int = 1
    queries: int = 1
    key_tokens: int = 1
    value_tokens: int = 1

    def check(self) -> None:
        check_range(0, MAX_LENGTH, needles=self.needles)
        check_range(1, MAX_LENGTH, queries=self.queries, value_tokens=self.value_tokens)
        check_range(1, 4, key_tokens=self.key_tokens)
        self.check_words(2 * (self.queries + 1))
        if not self.needles:
            check_range(2 * self.queries * self.size - 1, MAX_LENGTH, length=self.length)
        else:
            check_range(self.queries, MAX_LENGTH, needles=self.needles)
            self.check_noise(self.needles, (self.needles + self.queries) * self.size - 1)

    @property
    def size(self) -> int:
        """Tokens per needle, and per question with its answer."""
        return 1 + self.key_tokens + self.value_tokens

    @property
    def count(self) -> int:
        """Needles per example."""
        return self.needles or (self.length + 1) // self.size - self.queries

    @property
    def answers(self) -> int:
        return self.queries * self.value_tokens

    def guess(self) -> float:
        """One of the values of the context; if there is only one, any value."""
        return 1 / (self.count if self.count > 1 else len(self.words[1]))

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        keys, values = self.words
        codes = len(keys) ** self.key_tokens
        asked = distinct(rng, codes, (count, self.queries))
        key = rng.integers(codes, size=(count, self.count))
        while (clash := (key[:, :, None] == asked[:, None]).any(axis=2)).any():
            key[clash] = rng.integers(codes, size=clash.sum())
        spots = distinct(rng, self.count, (count, self.queries))
        np.put_along_axis(key, spots, asked, axis=1)
        powers = len(keys) ** np.arange(self.key_tokens)
        needles = np.concatenate(
            [
                np.full((count, self.count, 1), MARK),
                keys.start + key[:, :, None] // powers % len(keys),
                rng.integers(values.start, values.stop, size=(count, self.count, self.value_tokens)),
            ],
            axis=2,
        )
        questions = np.take_along_axis(needles, spots[:, :, None], axis=1)
        questions[:, :, 0] = QUERY
        space = self.length + 1 - self.queries * self.size
        if self.needles:
            context = hide(rng, [[needles[:, each] for each in range(self.count)]], space)
        else:
            blanks = np.full((count, space - self.count * self.size), BLANK)
            context = np.hstack([blanks, needles.reshape(count, self.count * self.size)])
        inputs = np.hstack([context, questions.reshape(count, self.queries * self.size)[:, :-1]]).astype(np.int64)
        targets = np.full_like(inputs, IGNORED)
        for token in range(self.value_tokens):
            at = np.arange(self.queries) * self.size + space + self.key_tokens + token
            targets[:, at] = questions[:, :, 1 + self.key_tokens + token]
        return inputs, targets


@part("variable_tracking")
class VariableTrackingData(RulerData):
    """Chains of assignments in noise: `! x = 5`, then `! y = ! x` and so on.

    RULER has one chain by default, where the question need not be read.

    Args:
        chains: Chains, each with a value and variables of its own.
        hops: Assignments of a variable to another, per chain.
    """

    chains: int = 4
    hops: int = 4

    def check(self) -> None:
        check_range(1, 1000, chains=self.chains, hops=self.hops)
        self.check_words(2 * self.chains * self.answers)
        self.check_noise(self.answers, self.chains * (5 * self.answers - 1) + 1 + self.answers)

    @property
    def answers(self) -> int:
        return self.hops + 1

    def guess(self) -> float:
        """One of the variables of the context."""
        return 1 / (self.chains * self.answers)

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        names, numbers = self.words
        variables = names.start + distinct(rng, len(names), (count, self.chains * self.answers))
        variables = variables.reshape(count, self.chains, self.answers)
        values = numbers.start + distinct(rng, len(numbers), (count, self.chains))
        mark, equals = (np.full(count, token) for token in (MARK, EQUALS))
        chains = []
        for chain, value in zip(np.moveaxis(variables, 0, -1), values.T, strict=True):
            first = [mark, chain[0], equals, value]
            others = ([mark, new, equals, mark, old] for old, new in pairwise(chain))
            chains.append([np.stack(statement, axis=1) for statement in (first, *others)])
        context = hide(rng, chains, self.length - 1 - self.answers)
        question = np.stack([np.full(count, QUERY), values[:, 0]], axis=1)
        return self.place(context, question, variables[:, 0])


@dataclass(frozen=True, kw_only=True)
class WordListData(RulerData):
    """A shuffled list of words with given counts, and a question for those that occur most often."""

    @property
    @abstractmethod
    def counts(self) -> np.ndarray:
        """How often each word is listed, those asked for first; blanks fill the rest."""

    @property
    def blanks(self) -> int:
        """How often BLANK is listed."""
        return self.length - self.answers - int(self.counts.sum())

    def check(self) -> None:
        self.check_words(len(self.counts))

    def guess(self) -> float:
        """A random word of the list, other than blanks and the words given so far."""
        asked = self.counts[: self.answers]
        given = asked.cumsum() - asked
        return float(np.mean((asked.sum() - given) / (self.counts.sum() - given)))

    def correct(self, predicted: Int[Tensor, " N"], answers: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
        """An answer is right if it is one of those to be given here or later."""
        predicted, answers = (tokens.view(-1, self.answers) for tokens in (predicted, answers))
        return (predicted[:, :, None] == answers[:, None]).triu().any(dim=2).flatten()

    def shuffle(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the list of words (count, tokens), and the words that are asked for (count, answers)."""
        words = FIRST_WORD + _many_distinct(rng, self.vocabulary - FIRST_WORD, (count, len(self.counts)))
        blanks = np.full((count, self.blanks), BLANK)
        listed = np.hstack([blanks, words.repeat(self.counts, axis=1)])
        return rng.permuted(listed, axis=1), words[:, : self.answers]

    def anchors(self, examples: Batch) -> dict[str, float]:
        """Also the last words of the list, each once."""
        answers = examples.targets[:, -self.answers :]
        found = []
        for row in examples.inputs[:, : -self.answers].tolist():
            latest = [word for word in dict.fromkeys(reversed(row)) if word != BLANK]
            found += latest[: self.answers]
        latest = self.correct(torch.tensor(found), answers.flatten()).double().mean().item()
        return super().anchors(examples) | {"latest words": latest}


def _many_distinct(rng: np.random.Generator, size: int, shape: tuple[int, int]) -> np.ndarray:
    """Draw different numbers below `size` in each row, redrawing those that are taken; fast for many numbers."""
    rows, count = shape
    owner, drawn = np.full((rows, size), -1, dtype=np.int16), np.empty(shape, dtype=np.int64)
    row, place = np.divmod(np.arange(rows * count), count)
    while len(row):
        number = rng.integers(size, size=len(row))
        free = owner[row, number] < 0
        owner[row[free], number[free]] = place[free]  # one of several that drew the same number
        wins = owner[row, number] == place
        drawn[row[wins], place[wins]] = number[wins]
        row, place = row[~wins], place[~wins]
    return drawn


@part("common_words")
class CommonWordsData(WordListData):
    """Words that are repeated often among words that are not.

    Args:
        common: Common words, all of which are asked for.
        common_repeats: How often they are listed; None is 30, or 6 below 4,096 tokens.
        other_repeats: How often all others are listed; None is 3, or 1 below 4,096 tokens.
    """

    vocabulary: int = 8192
    common: int = 10
    common_repeats: int | None = None
    other_repeats: int | None = None

    def check(self) -> None:
        check_range(1, 1000, common=self.common, other_repeats=self.other_repeats)
        common, other = self.repeats
        if common <= other:
            raise UserError(f"common_repeats must be more than the {other} of other words, not {common}")
        check_range(self.common * (1 + common) + 1, MAX_LENGTH, length=self.length)
        super().check()

    @property
    def answers(self) -> int:
        return self.common

    @property
    def repeats(self) -> tuple[int, int]:
        """How often a common word and another one are listed."""
        usual = (30, 3) if self.length >= LONG else (6, 1)
        return self.common_repeats or usual[0], self.other_repeats or usual[1]

    @property
    def counts(self) -> np.ndarray:
        common, other = self.repeats
        words, rest = divmod(self.length - self.common - common * self.common, other)
        return np.array([common] * self.common + [other] * words + [rest] * (rest > 0))

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        context, asked = self.shuffle(rng, count)
        first = np.stack([(context == word[:, None]).argmax(axis=1) for word in asked.T], axis=1)
        asked = np.take_along_axis(asked, first.argsort(axis=1), axis=1)
        return self.place(context, np.full((count, 1), QUERY), asked)


@part("frequent_words")
class FrequentWordsData(WordListData):
    """Words whose counts fall as rank^-alpha, one per 50 tokens as in RULER; rank 1 is BLANK, ranks 2 to 4 are asked.

    Args:
        alpha: Exponent of the zeta distribution.
    """

    alpha: float = 2.0

    def check(self) -> None:
        if not 1 < self.alpha <= 10:
            raise UserError(f"alpha must be above 1 and at most 10, not {self.alpha}")
        counts = [*_zeta_counts(self.length - self.answers, self.length // 50, self.alpha), 0]
        if len(set(counts[1:5])) < 4:
            raise UserError(f"length {self.length} is too short: the counts of frequent words are {counts[1:5]}")
        super().check()

    @property
    def answers(self) -> int:
        return 3

    @property
    def counts(self) -> np.ndarray:
        return np.array(_zeta_counts(self.length - self.answers, self.length // 50, self.alpha)[1:])

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        context, asked = self.shuffle(rng, count)
        return self.place(context, np.full((count, 1), QUERY), asked)


@lru_cache
def _zeta_counts(tokens: int, words: int, alpha: float) -> tuple[int, ...]:
    """Return the largest counts floor(c rank^-alpha), c an integer, that add up to no more than `tokens`."""
    weights = np.arange(1, max(words, 5) + 1) ** -alpha
    low, high = 0, tokens + 1  # the first count alone is c
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if np.floor(middle * weights + 1e-9).sum() <= tokens else (low, middle)
    return tuple(int(each) for each in np.floor(low * weights + 1e-9) if each)
