"""MQAR: every row answers its queries, gaps follow the power law, batches are a function of seed and step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from memory_mosaics import LanguageModel
from memory_mosaics.errors import UserError
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.tasks.mqar import BLOCK, MQAR, MQARData

SMALL = MQARData(vocabulary=64, length=32, pairs=4, examples=70, held_out=40)


def check_by_dictionary(inputs: list[int], targets: list[int], data: MQARData) -> None:
    """Read the pairs of a row into a dictionary, and look up every query."""
    start, half = 2 * data.pairs, data.vocabulary // 2
    pairs = dict(zip(inputs[0:start:2], inputs[1:start:2], strict=True))
    assert len(pairs) == len(set(pairs.values())) == data.pairs
    assert all(0 < key < half <= value < data.vocabulary for key, value in pairs.items())
    queries = [t for t, target in enumerate(targets) if target != -100]
    assert sorted(inputs[t] for t in queries) == sorted(pairs)
    assert all(t >= start and t % 2 == 0 and targets[t] == pairs[inputs[t]] for t in queries)
    filler = [token for t, token in enumerate(inputs) if t >= start and t not in queries]
    assert all(0 <= token < (data.vocabulary if data.random_filler else 1) for token in filler)


@pytest.mark.parametrize(
    "data",
    [
        SMALL,
        replace(SMALL, random_filler=False, power_a=1.0),
        MQARData(examples=20, held_out=20),
        MQARData(vocabulary=8192, length=512, pairs=64, examples=5, held_out=5, seed=3),
        MQARData(vocabulary=7, length=8, pairs=2, examples=300, held_out=1),
    ],
)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_row_answers_its_queries(data, split):
    batch = data.split(split)
    assert batch.inputs.shape == (data.examples if split == "train" else data.held_out, data.length)
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        check_by_dictionary(inputs, targets, data)


def test_gaps_follow_the_power_law():
    """The gap of the first key has its probabilities; that of the last key is left over by the others."""
    data = MQARData(vocabulary=64, length=32, pairs=4, examples=20 * BLOCK, held_out=1)
    batch = data.split("train")
    p = np.arange(1, 13) ** (0.01 - 1)
    p /= p.sum()
    rng = np.random.default_rng(0)
    reference = np.array([rng.choice(12, size=4, replace=False, p=p) for _ in range(20_000)])
    for key in range(4):
        is_query = (batch.inputs == batch.inputs[:, 2 * key, None]) & (batch.targets != -100)
        gaps = (is_query.int().argmax(dim=1) - 8).numpy() // 2
        found = np.bincount(gaps, minlength=12) / len(gaps)
        wanted = np.bincount(reference[:, key], minlength=12) / len(reference)
        assert found == pytest.approx(p if key == 0 else wanted, abs=0.015)


def test_examples_depend_on_seed_split_and_number_alone():
    few, many = (replace(SMALL, examples=count).split("train") for count in (70, 3000))
    assert torch.equal(few.inputs, many.inputs[:70])
    assert torch.equal(few.targets, many.targets[:70])
    others = [SMALL.split("validation"), SMALL.split("test"), replace(SMALL, seed=1).split("train")]
    assert all(not torch.equal(few.inputs[:40], other.inputs[:40]) for other in others)


def test_batches_are_a_function_of_seed_and_step_and_an_epoch_has_all_once():
    task = MQAR(SMALL, batch_size=28, seed=5)
    batches = [task.batch(step).inputs for step in range(5)]
    first, second = torch.cat(batches).split(70)
    everything = sorted(SMALL.split("train").inputs.tolist())
    assert sorted(first.tolist()) == sorted(second.tolist()) == everything
    assert not torch.equal(first, second)
    again = MQAR(SMALL, batch_size=28, seed=5)
    assert torch.equal(again.batch(4).inputs, batches[4])
    assert not torch.equal(MQAR(SMALL, batch_size=28, seed=6).batch(4).inputs, batches[4])
    parts = [again.batch(2, slice(rank, None, 2)).inputs for rank in range(2)]
    assert torch.equal(torch.stack(parts, dim=1).flatten(0, 1), batches[2])


def test_loss_and_accuracy_are_those_at_the_queries():
    sizes = {"width": 16, "blocks": 1, "heads": 1, "vocabulary": 64, "context": 32}
    model = LanguageModel(replace(ARCHITECTURES["memory-mosaic"].config(**sizes), channel_mixer=None)).eval()
    task = MQAR(SMALL, batch_size=10)
    examples = task.splits["validation"]
    logits = model(examples.inputs)[0]
    found = task.evaluate(model)
    assert found["valid_loss"] == pytest.approx(model.loss(examples.inputs, examples.targets).item(), rel=1e-5)
    right = [
        int(logits[row, t].argmax()) == int(examples.targets[row, t])
        for row, t in (examples.targets != -100).nonzero().tolist()
    ]
    assert found["accuracy"] == sum(right) / len(right)
    assert len(right) == 40 * 4
    assert task.measure(model, "test") != found
    assert task.tokenizer.vocabulary == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 31}, "length must be even and at least 4 times the 4 pairs, not 31"),
        ({"pairs": 9}, "length must be even and at least 4 times the 9 pairs, not 32"),
        ({"vocabulary": 8}, "4 pairs need a vocabulary of 10, not 8"),
        ({"vocabulary": 1 << 20}, "vocabulary must be at most 16,384"),
        ({"power_a": 0.0}, "power_a must be above 0 and at most 1, not 0.0"),
        ({"examples": 0}, "examples must be at least 1, not 0"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
    ],
)
def test_a_wrong_setting_is_named(change, message):
    with pytest.raises(UserError, match=message):
        replace(SMALL, **change)
