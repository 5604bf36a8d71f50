"""RULER at token level: what stands where, how sets of answers are scored, and which settings are refused."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from memory_mosaics.errors import UserError
from memory_mosaics.tasks.ruler import (
    BLANK,
    FIRST_WORD,
    LENGTHS,
    MARK,
    QUERY,
    SENTENCE,
    CommonWordsData,
    FrequentWordsData,
    NeedleData,
    VariableTrackingData,
    hide,
    longest_match,
)
from memory_mosaics.tasks.synthetic import IGNORED
from tasks.solutions import solve

DEFAULTS = (NeedleData(), NeedleData(needles=0), VariableTrackingData(), CommonWordsData(), FrequentWordsData())


def draw(data, count=200, seed=0):
    return data.draw(np.random.default_rng(seed), count, training=False)


@pytest.mark.parametrize("data", DEFAULTS, ids=lambda data: f"{type(data).__name__}-{getattr(data, 'needles', '')}")
def test_every_length_is_solved(data):
    assert tuple(one.length for one in data.variants()) == LENGTHS
    for one in data.variants():
        inputs, targets = draw(one, 3)
        assert inputs.shape == (3, one.length)
        for row, answers in zip(inputs.tolist(), targets.tolist(), strict=True):
            asked = {at: answer for at, answer in enumerate(answers) if answer != IGNORED}
            assert len(asked) == one.answers
            assert asked == solve(one, row)


def test_a_needle_is_before_any_sentence_of_the_noise():
    data = NeedleData(length=5 + 24 * 8, test_lengths=())
    inputs, _ = draw(data, 4000)
    at, sentences = (inputs == MARK).argmax(axis=1), np.tile(SENTENCE, 8)
    assert (at % len(SENTENCE) == 0).all()
    found = np.bincount(at // len(SENTENCE), minlength=8) / len(at)
    assert found == pytest.approx(np.full(8, 1 / 8), abs=0.03)
    for row, start in zip(inputs[:50], at[:50], strict=True):
        assert np.array_equal(np.delete(row[:-2], slice(start, start + 3)), sentences)


def test_the_key_of_a_question_is_in_one_needle_only():
    for data in (
        NeedleData(vocabulary=40, length=200, needles=0, queries=4, test_lengths=()),
        NeedleData(vocabulary=40, length=300, needles=0, key_tokens=2, test_lengths=()),
    ):
        for row in draw(data, 100)[0].tolist():
            after = range(1, 1 + data.key_tokens)
            needles = [tuple(row[at + one] for one in after) for at, token in enumerate(row) if token == MARK]
            asked = [tuple(row[at + one] for one in after) for at, token in enumerate(row) if token == QUERY]
            assert len(needles) == data.count
            assert len(asked) == len(set(asked)) == data.queries
            assert all(needles.count(key) == 1 for key in asked)


def test_statements_are_inserted_as_in_ruler():
    """The distribution of places, against a list into which statements are inserted one by one."""
    chains = [[np.full((20_000, 2), 100 + 10 * chain + each) for each in range(3)] for chain in range(2)]
    tokens = hide(np.random.default_rng(0), chains, 4 * len(SENTENCE) + 12)
    rng, wanted = np.random.default_rng(1), Counter()
    for _ in range(20_000):
        elements = [0] * 4
        for chain in range(2):
            places = np.sort(rng.choice(len(elements), size=3, replace=False))
            for each, place in enumerate(places):
                elements.insert(place + each, 100 + 10 * chain + each)
        wanted[tuple(elements)] += 1
    found = Counter()
    for row in tokens:
        starts = row[(row >= 100) | (row == SENTENCE[-2])]  # one token per sentence, two per statement
        order = [0 if token < 100 else int(token) for token in starts]
        found[tuple(token for at, token in enumerate(order) if not token or order[at - 1 : at] != [token])] += 1
    assert found.keys() == wanted.keys()
    assert all(abs(found[order] - wanted[order]) < 6 * wanted[order] ** 0.5 + 10 for order in wanted)


def test_chains_are_in_order_and_have_their_own_names():
    data = VariableTrackingData(test_lengths=())
    inputs, targets = draw(data, 100)
    names, values = data.words
    for row, answers in zip(inputs, targets, strict=True):
        counts = Counter(row[: -1 - data.answers].tolist())
        assert sum(token in names for token in counts) == 20
        assert sum(token in values for token in counts) == 4
        places = [row.tolist().index(answer) for answer in answers[answers != IGNORED]]
        assert places == sorted(places)


@pytest.mark.parametrize(("length", "repeats"), [(512, (6, 1)), (2048, (6, 1)), (4096, (30, 3))])
def test_common_words_are_repeated_as_in_ruler(length, repeats):
    data = CommonWordsData(length=length, test_lengths=())
    inputs, targets = draw(data, 20)
    for row, answers in zip(inputs, targets[:, -10:], strict=True):
        counts = Counter(row[:-10].tolist())
        assert {counts[word] for word in answers} == {repeats[0]}
        others = [count for word, count in counts.items() if word not in answers]
        assert others.count(repeats[1]) >= len(others) - 1
        assert list(answers) == sorted(answers, key=row.tolist().index)
    assert len(set(inputs[:, :50].flatten().tolist())) > 400  # other words in every list


def test_frequent_words_have_the_counts_of_ruler():
    data = FrequentWordsData(length=4096, test_lengths=())
    row, answers = (array[0].tolist() for array in draw(data, 1))
    counts = Counter(row[:-3])
    assert len(counts) == 1 + len(data.counts) <= 4096 // 50
    assert [counts[word] for word in answers[-3:]] == data.counts[:3].tolist()
    scale = counts[BLANK]
    for rank in range(2, 20):
        assert sorted(counts.values())[-rank] == pytest.approx(scale / rank**2, abs=3)


def test_an_answer_of_a_set_is_right_in_any_order_but_once():
    data = FrequentWordsData(test_lengths=())
    answers = torch.tensor([[30, 31, 32]] * 4)
    predicted = torch.tensor([[30, 31, 32], [32, 32, 32], [31, 30, 32], [9, 31, 30]])
    right = [[True, True, True], [True, True, True], [True, False, True], [False, True, False]]
    assert data.correct(predicted.flatten(), answers.flatten()).view(4, 3).tolist() == right


def test_words_are_uniform():
    words = draw(CommonWordsData(vocabulary=100, length=64, common=4, test_lengths=()), 20_000)[1][:, -4:]
    found = np.bincount(words.flatten(), minlength=100)[FIRST_WORD:] / len(words)
    assert found == pytest.approx(np.full(80, 4 / 80), abs=0.008)


def test_longest_match():
    assert longest_match(np.array([1, 2, 3, 5, 2, 4, 1, 2])) == 3
    assert longest_match(np.array([1, 2, 3, 5, 2, 4, 2])) == 4
    assert longest_match(np.array([1, 2, 3])) == -1
    assert longest_match(np.array([7, 7])) == 7
    anchors = [data.anchors(replace(data, held_out=20, test_lengths=()).split("test")) for data in DEFAULTS]
    assert [found["longest match"] for found in anchors[:3]] == [1, 1, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NeedleData(length=20), "length must be at least 29 for 1 statement in noise, not 20"),
        (lambda: NeedleData(length=10, needles=0, queries=2), "length must be at least 11, not 10"),
        (lambda: NeedleData(length=60, needles=4), "must be at least 110 for 4 statements in noise, not 60"),
        (lambda: NeedleData(needles=1, queries=2), "needles must be at least 2, not 1"),
        (lambda: NeedleData(key_tokens=5), "key_tokens must be at most 4, not 5"),
        (lambda: NeedleData(vocabulary=23), "needs a vocabulary of 24, not 23"),
        (lambda: NeedleData(test_lengths=(4,)), "length must be at least .*, not 4"),
        (lambda: VariableTrackingData(length=200), "must be at least 222 for 5 statements in noise, not 200"),
        (lambda: VariableTrackingData(chains=0), "chains must be at least 1, not 0"),
        (lambda: CommonWordsData(vocabulary=1024), "length 1,024 needs a vocabulary of 984|length 2,048 needs"),
        (lambda: CommonWordsData(other_repeats=9), "common_repeats must be more than the 9 of other words, not 6"),
        (lambda: CommonWordsData(length=70), "length must be at least 71, not 70"),
        (lambda: FrequentWordsData(alpha=1.0), "alpha must be above 1 and at most 10, not 1.0"),
        (lambda: FrequentWordsData(length=20), "length 20 is too short"),
    ],
)
def test_a_wrong_setting_is_named(make, message):
    with pytest.raises(UserError, match=message):
        make()
