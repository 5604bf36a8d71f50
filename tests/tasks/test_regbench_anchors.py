from collections import Counter

import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.errors import UserError
from memory_mosaics.tasks.regbench import VOCABULARY, RegBenchTask, Scores
from memory_mosaics.tasks.regbench_anchors import anchors, ngrams, oracle_loss, uniform

PUBLISHED = {"1-gram": (0.480, 0.623), "2-gram": (0.827, 0.326), "3-gram": (0.934, 0.258)}  # accuracy, distance


@pytest.fixture(scope="module")
def measured():
    """Of ten tests of 500 new sequences each."""
    return [anchors(RegBenchTask(seed=seed).sequences("test")) for seed in range(10)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_anchors_are_where_others_measured_them(measured, name):
    """500 sequences have a standard deviation of about .005, so one set in a few is further than .01 off."""
    published = torch.tensor(PUBLISHED[name])
    total = sum((found[name] for found in measured), Scores())
    assert_close(torch.tensor([total.accuracy, total.tvd]), published, rtol=0, atol=0.0075)
    off = [(torch.tensor([found[name].accuracy, found[name].tvd]) - published).abs().max() for found in measured]
    assert sum(worst < 0.01 for worst in off) >= 7
    assert max(off) < 0.015


def test_the_uniform_predictor_and_longer_contexts(measured):
    for found in measured:
        assert found["uniform"].tvd == pytest.approx(0.901, abs=0.01)
        assert found["uniform"].accuracy == pytest.approx(1 - found["uniform"].tvd)
        assert found["4-gram"].accuracy > found["3-gram"].accuracy
        assert found["4-gram"].tvd > found["3-gram"].tvd  # contexts this long are too rare to count on


def test_the_loss_of_one_who_knows_the_automata():
    sequences = RegBenchTask(environments=4000).sequences("train")
    losses = torch.stack([oracle_loss(sequences.at(n).targets, sequences.legal(n)) for n in sequences.portions(500)])
    assert 0.57 < losses.mean() < 0.60
    assert losses.std() < 0.03


def by_definition(text, order):
    """The estimate after a text, by counting its padded strings one by one."""
    strings = ["." * (order - 1) + string for string in text.split("|")]
    grams = Counter(
        string[i : i + n] for n in range(1, order + 1) for string in strings for i in range(len(string) - n + 1)
    )
    letters = sorted(set(text) - {"|"})

    def estimate(context):
        if not context:
            return {letter: grams[letter] / sum(grams[other] for other in [*letters, "."]) for letter in letters}
        seen = {letter: grams[context + letter] / grams[context] for letter in letters if grams[context + letter]}
        lower = {letter: p for letter, p in estimate(context[1:]).items() if letter not in seen}
        left = 1 - sum(seen.values()) - grams[context + "."] / grams[context]
        return seen | {letter: left * p / sum(lower.values()) for letter, p in lower.items()}

    return estimate(strings[-1][len(strings[-1]) - order + 1 :])


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_ngrams_are_counts_with_back_off(order):
    sequences = RegBenchTask(held_out=2, seed=4).sequences("test")
    inputs = sequences.at([0, 1]).inputs
    found = ngrams(inputs, order)[-1]
    for row in range(2):
        text = "".join(VOCABULARY[token] for token in inputs[row]).rstrip(".")
        for t in [*range(40), *range(40, len(text), 7)]:
            slow = by_definition(text[: t + 1], order)
            expected = torch.tensor([slow.get(letter, 0.0) for letter in VOCABULARY])
            assert_close(found[row, t], expected, rtol=1e-4, atol=1e-6)


def test_lower_orders_come_on_the_way_and_nothing_ahead_is_seen():
    inputs = RegBenchTask(held_out=3).sequences("test").at(range(3)).inputs
    four = ngrams(inputs, 4)
    assert [len(ngrams(inputs, highest)) for highest in (1, 2, 3, 4)] == [1, 2, 3, 4]
    for whole, part in zip(four, ngrams(inputs[:, :100], 4), strict=True):
        assert_close(whole[:, :100], part)
    for estimate in four:
        assert estimate.min() >= 0
        assert estimate.sum(dim=-1).max() < 1 + 1e-5


def test_uniform_is_uniform():
    assert_close(uniform(torch.zeros(2, 3, dtype=torch.long)), torch.full((2, 3, 20), 0.05))


@pytest.mark.parametrize("order", [0, 5])
def test_other_orders_are_refused(order):
    with pytest.raises(UserError, match=f"the order of an n-gram must be 1 to 4, not {order}"):
        ngrams(torch.ones(1, 2, dtype=torch.long), order)
