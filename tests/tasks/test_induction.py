from dataclasses import replace

import numpy as np
import pytest
import torch

from counting import calls
from memory_mosaics.errors import UserError
from memory_mosaics.tasks.induction import InductionData, MarkovChain

TASK = InductionData()
SMALL = InductionData(vocabulary=12, length=40, triggers=3, entropy=1.3)


@pytest.fixture(scope="module")
def batch():
    return TASK.batch(500, seed=3, step=7)


def successors(inputs, targets):
    """What followed each token in one sequence, in order."""
    followed: dict[int, list[int]] = {}
    for now, after in zip(inputs.tolist(), targets.tolist(), strict=True):
        followed.setdefault(now, []).append(after)
    return followed


def test_shapes_and_range(batch):
    assert batch.inputs.shape == batch.targets.shape == batch.counted.shape == (500, 256)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.inputs.min() >= 0
    assert batch.inputs.max() < 65


def test_targets_are_the_inputs_one_step_later(batch):
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])


def test_counted_marks_a_trigger_from_its_second_time_on(monkeypatch):
    drawn = {}
    original = InductionData._outputs
    monkeypatch.setattr(InductionData, "_outputs", lambda *args: drawn.setdefault("table", original(*args)))
    batch = SMALL.batch(50, seed=0, step=0)
    for row, outputs in enumerate(drawn["table"].tolist()):
        triggers = {token: output for token, output in enumerate(outputs) if output >= 0}
        assert len(triggers) == 3
        times = dict.fromkeys(triggers, 0)
        for t, token in enumerate(batch.inputs[row].tolist()):
            if token in triggers:
                times[token] += 1
                assert batch.targets[row, t] == triggers[token]
            assert batch.counted[row, t] == (times.get(token, 0) >= 2)
    assert batch.counted.any()


def test_what_followed_a_counted_trigger_is_always_the_same(batch):
    for inputs, targets, counted in zip(batch.inputs, batch.targets, batch.counted, strict=True):
        followed = successors(inputs, targets)
        for token in inputs[counted].unique().tolist():
            assert len(set(followed[token])) == 1
        assert len(inputs[counted].unique()) <= 5


def test_outputs_are_uniform_over_the_vocabulary():
    outputs = TASK._outputs(np.random.default_rng(0), 20_000)
    counts = np.bincount(outputs[outputs >= 0], minlength=65)
    expected = 5 * 20_000 / 65
    assert ((counts - expected) ** 2 / expected).sum() < 110  # chi-square, 64 degrees of freedom: p < 0.001


def test_triggers_are_drawn_by_frequency_without_replacement():
    one = InductionData(triggers=1)
    counts = (one._outputs(np.random.default_rng(0), 50_000) >= 0).sum(axis=0)
    expected = 50_000 * one.chain.unigram
    assert ((counts - expected) ** 2 / expected).sum() < 110
    assert ((TASK._outputs(np.random.default_rng(0), 100) >= 0).sum(axis=1) == 5).all()


def test_fixed_triggers_are_the_most_frequent_tokens():
    task = InductionData(fixed_triggers=True)
    batch = task.batch(100, seed=0, step=0)
    frequent = set(np.argsort(-task.chain.unigram)[:5].tolist())
    assert set(batch.inputs[batch.counted].tolist()) == frequent


def test_without_triggers_tokens_follow_the_chain():
    task = InductionData(vocabulary=12, length=100, triggers=0, entropy=1.3)
    batch = task.batch(2000, seed=0, step=0)
    assert not batch.counted.any()
    pairs = torch.zeros(12, 12)
    pairs.index_put_((batch.inputs.flatten(), batch.targets.flatten()), torch.tensor(1.0), accumulate=True)
    frequencies = (pairs / pairs.sum(dim=1, keepdim=True)).numpy()
    noise = np.sqrt(task.chain.bigram / pairs.sum(dim=1, keepdim=True).numpy())
    assert (np.abs(frequencies - task.chain.bigram) <= 5 * noise + 1e-3).all()
    unigram = (pairs.sum(dim=1) / pairs.sum()).numpy()
    assert np.allclose(unigram, task.chain.unigram, atol=0.01)


def test_with_triggers_the_other_tokens_still_follow_the_chain():
    batch = SMALL.batch(4000, seed=1, step=0)
    pairs = torch.zeros(12, 12)
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        for token, after in successors(inputs, targets).items():
            if len(set(after)) > 1:  # no trigger: its successors differ
                for following in after:
                    pairs[token, following] += 1
    likely = SMALL.chain.bigram.argsort(axis=1)[:, -1]
    assert (pairs.numpy().argmax(axis=1) == likely).mean() > 0.9


@pytest.mark.parametrize(("vocabulary", "entropy"), [(65, 2.45), (16, 1.6), (12, 0.5)])
def test_the_chain_has_the_entropy_asked_for(vocabulary, entropy):
    chain = MarkovChain(vocabulary, entropy=entropy)
    assert np.allclose(chain.bigram.sum(axis=1), 1)
    assert np.allclose(chain.unigram @ chain.bigram, chain.unigram)
    independent = sum(
        -u * p * np.log(p) for u, row in zip(chain.unigram, chain.bigram, strict=True) for p in row if p > 0
    )
    assert independent == pytest.approx(entropy, abs=1e-6)


def test_the_chain_looks_like_language():
    frequencies = np.sort(TASK.chain.unigram)[::-1]
    slope, _ = np.polyfit(np.log(np.arange(1, 41)), np.log(frequencies[:40]), 1)
    assert slope == pytest.approx(-1, abs=0.15)  # Zipf's law
    assert frequencies.min() > 0


def test_a_batch_is_a_pure_function_of_seed_and_step():
    first, again = (replace(SMALL).batch(8, seed=1, step=2) for _ in range(2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.counted, again.counted)
    for other in (SMALL.batch(8, seed=1, step=3), SMALL.batch(8, seed=2, step=2)):
        assert not torch.equal(first.inputs, other.inputs)


def test_a_larger_batch_takes_no_more_calls():
    TASK.batch(1, seed=0, step=0)  # builds the chain
    one, many = (calls(lambda size=size: TASK.batch(size, seed=0, step=1)) for size in (1, 64))
    assert many <= one * 1.01


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"triggers": 13}, "13 triggers do not fit a vocabulary of 12"),
        ({"triggers": -1}, "-1 triggers"),
        ({"length": 0}, "length must be at least 1, not 0"),
        ({"entropy": 9.0}, r"entropy must be in \(0, 1.98\) for 12 tokens, not 9.0"),
        ({"entropy": 0.0}, "not 0.0"),
    ],
)
def test_a_wrong_setting_is_named(change, message):
    with pytest.raises(UserError, match=message):
        _ = replace(SMALL, **change).chain
