"""Solutions of the synthetic tasks, from the inputs of an example alone, and scores by position.

A solution is written independently of the program that draws: it is what a perfect reader of the context answers.
"""

from collections import Counter
from collections.abc import Sequence
from functools import singledispatch
from itertools import groupby
from typing import Any

import torch

from memory_mosaics.tasks.induction import InductionExamples
from memory_mosaics.tasks.mad import (
    CompressionData,
    FuzzyInContextRecallData,
    InContextRecallData,
    MemorizationData,
    SelectiveCopyingData,
)
from memory_mosaics.tasks.mqar import CompositionalMQARData, MQARData
from memory_mosaics.tasks.ruler import (
    BLANK,
    EQUALS,
    MARK,
    QUERY,
    CommonWordsData,
    FrequentWordsData,
    NeedleData,
    VariableTrackingData,
)
from memory_mosaics.tasks.synthetic import IGNORED, SyntheticData
from memory_mosaics.tasks.task import Batch


@singledispatch
def solve(data: SyntheticData, row: Sequence[int]) -> dict[int, int]:
    """Return answers to an example of a test by their positions.

    Where random filler happens to ask something too, it has an answer here and none among the targets.
    """
    raise NotImplementedError(type(data).__name__)


@solve.register
def _(data: MQARData, row: Sequence[int]) -> dict[int, int]:
    start = 2 * (data.pairs + data.updates)
    known = dict(zip(row[0:start:2], row[1:start:2], strict=True))  # the last value of a key is kept
    return {at: known[row[at]] for at in range(start, len(row), 2) if row[at] in known}


@solve.register
def _(data: CompositionalMQARData, row: Sequence[int]) -> dict[int, int]:
    start = 3 * data.pairs
    known = {(row[at], row[at + 1]): row[at + 2] for at in range(0, start, 3)}
    queries = ((at, (row[at - 1], row[at])) for at in range(start + 1, len(row), 3))
    return {at: known[key] for at, key in queries if key in known}


@solve.register
def _(data: InductionExamples, row: Sequence[int]) -> dict[int, int]:
    """Whatever followed the last time."""
    last: dict[int, int] = {}
    answers = {}
    for at, token in enumerate(row):
        if token in last:
            answers[at] = row[last[token] + 1]
        last[token] = at
    return answers


@solve.register
def _(data: InContextRecallData, row: Sequence[int]) -> dict[int, int]:
    known: dict[int, int] = {}
    answers = {}
    for at in range(0, len(row), 2):
        if row[at] in known:
            answers[at] = known[row[at]]
        elif row[at] < data.candidates.start:
            known[row[at]] = row[at + 1]
    return answers


@solve.register
def _(data: FuzzyInContextRecallData, row: Sequence[int]) -> dict[int, int]:
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    key, end, answers = (), 0, {}
    for kind, tokens in groupby(
        row, key=lambda token: sum((token >= data.candidates.start, token >= data.candidates.stop))
    ):
        run = tuple(tokens)
        end += len(run)
        if kind == 0:
            key = run
            answers |= {end - 1 + offset: answer for offset, answer in enumerate(known.get(key, ()))}
        elif kind == 1:
            known.setdefault(key, run)
    return answers


@solve.register
def _(data: SelectiveCopyingData, row: Sequence[int]) -> dict[int, int]:
    end = row.index(data.vocabulary - 1)
    return dict(enumerate((token for token in row[:end] if token != data.blank), start=end + 1))


@solve.register
def _(data: MemorizationData, row: Sequence[int]) -> dict[int, int]:
    """Return the values of a table, since the inputs do not have them."""
    return {at + 1: int(data.values[row[at]]) for at in range(0, len(row), 2)}


@solve.register
def _(data: CompressionData, row: Sequence[int]) -> dict[int, int]:
    return dict(enumerate(row))


@solve.register
def _(data: NeedleData, row: Sequence[int]) -> dict[int, int]:
    pairs = {tuple(row[at + 1 : at + 1 + data.key_tokens]): at for at, token in enumerate(row) if token == MARK}
    found = {}
    for at, token in enumerate(row):
        if token == QUERY:
            needle = pairs[tuple(row[at + 1 : at + 1 + data.key_tokens])]
            positions = range(data.key_tokens, data.key_tokens + data.value_tokens)
            found |= {at + offset: row[needle + offset + 1] for offset in positions}
    return found


@solve.register
def _(data: VariableTrackingData, row: Sequence[int]) -> dict[int, int]:
    question = row.index(QUERY)
    assigned = {}  # variables by what was assigned to them
    for at in range(question):
        if row[at] == MARK and row[at + 2] == EQUALS:
            assigned[row[at + 4] if row[at + 3] == MARK else row[at + 3]] = row[at + 1]
    found, known = {}, row[question + 1]
    for at in range(question + 1, len(row)):
        known = found[at] = assigned[known]
    return found


@solve.register
def _(data: CommonWordsData, row: Sequence[int]) -> dict[int, int]:
    question = row.index(QUERY)
    common = {word for word, _ in Counter(row[:question]).most_common(data.common)}
    by_occurrence = dict.fromkeys(word for word in row[:question] if word in common)
    return dict(enumerate(by_occurrence, start=question))


@solve.register
def _(data: FrequentWordsData, row: Sequence[int]) -> dict[int, int]:
    question = row.index(QUERY)
    ranks = Counter(word for word in row[:question] if word != BLANK).most_common(data.answers)
    return {question + rank: word for rank, (word, _) in enumerate(ranks)}


@torch.no_grad()
def by_position(data: SyntheticData, model: Any, examples: Batch) -> dict[int, float]:
    """Return the mean score of the answers at each position that has any."""
    _, scores = data.score(model, examples.inputs, examples.targets)
    positions = (examples.targets != IGNORED).nonzero()[:, 1]
    totals, counts = torch.bincount(positions, scores.double()), torch.bincount(positions)
    return {at: (totals[at] / counts[at]).item() for at in counts.nonzero().flatten().tolist()}
