"""Every synthetic task: its examples are solved from their inputs alone, and batches are functions of seed and step."""

import json
from dataclasses import replace

import pytest
import torch

from memory_mosaics.config import from_plain, to_plain
from memory_mosaics.errors import UserError
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.tasks.induction import InductionExamples
from memory_mosaics.tasks.mad import (
    CompressionData,
    FuzzyInContextRecallData,
    InContextRecallData,
    MemorizationData,
    NoisyInContextRecallData,
    SelectiveCopyingData,
)
from memory_mosaics.tasks.mqar import CompositionalMQARData, MQARData
from memory_mosaics.tasks.regression import (
    ClassificationData,
    LinearRegressionData,
    NetworkRegressionData,
    SparseRegressionData,
)
from memory_mosaics.tasks.ruler import CommonWordsData, FrequentWordsData, NeedleData, VariableTrackingData
from memory_mosaics.tasks.synthetic import IGNORED, Mixture, Synthetic, SyntheticData, measure
from tasks.solutions import by_position, solve

RECALL = MQARData(vocabulary=64, length=32, pairs=4, examples=70, held_out=40)
TASKS: dict[str, SyntheticData] = {
    "mqar": RECALL,
    "mqar-new-every-step": replace(RECALL, examples=0),
    "mqar-uniform": replace(RECALL, random_filler=False, power_a=1.0),
    "mqar-zoology": MQARData(length=512, pairs=64, examples=5, held_out=5, seed=3),
    "mqar-smallest": MQARData(vocabulary=7, length=8, pairs=2, examples=300, held_out=30),
    "forgetting": MQARData(vocabulary=64, length=40, pairs=5, updates=3, examples=70, held_out=200),
    "induction": InductionExamples(length=256, held_out=20),
    "compositional": CompositionalMQARData(vocabulary=64, length=60, pairs=9, examples=70, held_out=200),
    "recall": InContextRecallData(length=41, examples=70, held_out=200),
    "recall-smallest": InContextRecallData(vocabulary=4, length=9, examples=70, held_out=200),
    "noisy-recall": NoisyInContextRecallData(noise=0.6, length=31, examples=70, held_out=200),
    "fuzzy-recall": FuzzyInContextRecallData(length=40, examples=70, held_out=200),
    "fuzzy-recall-smallest": FuzzyInContextRecallData(
        vocabulary=5, key_tokens=1, value_tokens=2, length=7, examples=70, held_out=200
    ),
    "fuzzy-recall-large": FuzzyInContextRecallData(vocabulary=128, length=300, examples=0, held_out=20),
    "selective-copying": SelectiveCopyingData(length=40, copied=7, examples=70, held_out=200),
    "memorization": MemorizationData(vocabulary=33, length=8, examples=70, held_out=200),
    "compression": CompressionData(length=9, examples=70, held_out=200),
    "needle": NeedleData(vocabulary=64, length=130, held_out=50, test_lengths=(130, 517)),
    "needles": NeedleData(vocabulary=64, length=64, needles=0, queries=3, held_out=50, test_lengths=()),
    "needles-smallest": NeedleData(vocabulary=24, length=5, needles=0, held_out=9, test_lengths=()),
    "needles-of-many-tokens": NeedleData(
        length=300, needles=4, queries=2, key_tokens=3, value_tokens=30, held_out=20, test_lengths=()
    ),
    "variable-tracking": VariableTrackingData(vocabulary=80, length=256, held_out=50, test_lengths=(512,)),
    "variable-tracking-smallest": VariableTrackingData(
        vocabulary=24, length=60, chains=1, hops=1, held_out=9, test_lengths=()
    ),
    "common-words": CommonWordsData(vocabulary=512, length=128, held_out=50, test_lengths=()),
    "frequent-words": FrequentWordsData(vocabulary=64, length=300, held_out=50, test_lengths=(300, 1000)),
}
VECTORS: dict[str, SyntheticData] = {
    "linear": LinearRegressionData(dimension=4, length=20, held_out=100, examples=30),
    "noisy": LinearRegressionData(dimension=4, length=20, held_out=100, noise=0.5),
    "sparse": SparseRegressionData(dimension=6, length=20, held_out=100),
    "network": NetworkRegressionData(dimension=3, length=20, hidden=10, held_out=100),
    "classification": ClassificationData(dimension=3, length=20, classes=3, labels=5, held_out=100),
}
MIXED = Mixture(parts=(RECALL, TASKS["forgetting"]), tests=(replace(RECALL, length=64, pairs=8),), held_out=50)


@pytest.fixture(params=TASKS)
def data(request):
    return TASKS[request.param]


@pytest.fixture(params=[*TASKS, *VECTORS])
def any_data(request):
    return (TASKS | VECTORS)[request.param]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_solution_gives_every_answer(data, split):
    data = replace(data, examples=data.examples or 50)
    examples = data.split(split)
    assert examples.inputs.shape == (data.examples if split == "train" else data.held_out, data.length)
    for inputs, targets in zip(examples.inputs.tolist(), examples.targets.tolist(), strict=True):
        assert all(0 <= token < data.vocabulary for token in inputs)
        solution = solve(data, inputs)
        asked = {at: answer for at, answer in enumerate(targets) if answer != IGNORED}
        assert asked
        assert asked == {at: solution.get(at) for at in asked} or split == "train"


def test_examples_depend_on_seed_split_and_number_alone(any_data):
    few, many = (replace(any_data, held_out=count).split("test") for count in (3, 1500))
    assert torch.equal(few.inputs, many.inputs[:3])
    assert torch.equal(few.targets, many.targets[:3])
    for other in (any_data.split("validation"), replace(any_data, seed=any_data.seed + 1).split("test")):
        assert not torch.equal(few.inputs, other.inputs[:3])


def test_a_batch_is_a_function_of_seed_and_step(any_data):
    task, again, other = (Synthetic(any_data, batch_size=6, seed=seed) for seed in (5, 5, 6))
    task.batch(0)
    assert torch.equal(task.batch(3).inputs, again.batch(3).inputs)
    assert torch.equal(task.batch(3).targets[2:5], again.batch(3, slice(2, 5)).targets)
    assert not torch.equal(task.batch(3).inputs, other.batch(3).inputs)
    assert not torch.equal(task.batch(3).inputs, task.batch(4).inputs)


def test_an_epoch_has_every_example_once():
    task = Synthetic(RECALL, batch_size=28, seed=5)
    first, second = torch.cat([task.batch(step).inputs for step in range(5)]).split(70)
    everything = sorted(RECALL.split("train").inputs.tolist())
    assert sorted(first.tolist()) == sorted(second.tolist()) == everything
    assert not torch.equal(first, second)


def test_a_task_has_a_plain_form(any_data):
    for one in (any_data, MIXED):
        plain = json.loads(json.dumps(to_plain(one)))
        assert from_plain(type(one), plain) == one


def test_a_mixture_has_the_examples_of_its_parts():
    examples = MIXED.split("train")
    assert examples.inputs.shape == (140, 40)
    assert torch.equal(examples.inputs[:70, :32], RECALL.split("train").inputs)
    second = TASKS["forgetting"]
    assert torch.equal(examples.targets[70:], replace(second, seed=second.seed + 1000).split("train").targets)
    assert not torch.equal(examples.targets[70:], second.split("train").targets), "equal seeds draw similar examples"
    assert (examples.targets[:70, 32:] == IGNORED).all()
    assert [one.length for one in MIXED.variants()] == [64]
    endless = Mixture(parts=tuple(replace(one, examples=0) for one in (RECALL, MIXED.tests[0])))
    drawn = Synthetic(endless, batch_size=64).batch(1)
    assert 0 < (drawn.targets[:, 32:] != IGNORED).any(dim=1).sum() < 64


def test_a_perfect_model_scores_one_and_a_random_one_guesses(data):
    class Perfect(torch.nn.Module):
        def features(self, inputs, block_fn):
            rows = [solve(data, row) for row in inputs.argmax(-1).tolist()]
            answers = torch.zeros(inputs.shape[:2], dtype=torch.long)
            for number, row in enumerate(rows):
                for at, answer in row.items():
                    answers[number, at] = answer
            return torch.nn.functional.one_hot(answers, data.vocabulary).float() * 50, None

        def embedding(self, inputs):
            return torch.nn.functional.one_hot(inputs, data.vocabulary).float()

        output = torch.eye(data.vocabulary)

    found = measure(data, Perfect(), data.split("test"))
    assert found["accuracy"] == 1.0
    assert set(by_position(data, Perfect(), data.split("test")).values()) == {1.0}
    assert found["valid_loss"] < 1e-6
    config = ARCHITECTURES["memory-mosaic"].config(
        width=16, blocks=1, heads=2, vocabulary=data.vocabulary, context=data.length
    )
    found = measure(data, data.model(config).build().eval(), data.split("test"))
    assert found["accuracy"] <= max(3 * data.guess(), 0.4)


def test_the_mean_over_positions_is_the_measure(any_data):
    config = ARCHITECTURES["memory-mosaic"].config(
        width=16, blocks=1, heads=2, vocabulary=any_data.vocabulary, context=any_data.length
    )
    model, examples = any_data.model(config).build().eval(), any_data.split("test")
    found = by_position(any_data, model, examples)
    counts = (examples.targets != IGNORED).sum(dim=0)
    assert set(found) == set(counts.nonzero().flatten().tolist())
    mean = sum(counts[at].item() * score for at, score in found.items()) / counts.sum().item()
    assert mean == pytest.approx(measure(any_data, model, examples)[any_data.metric])


def test_anchors_are_scores_of_the_same_kind(any_data):
    examples = any_data.split("test")
    anchors = any_data.anchors(examples)
    assert anchors["guess"] == any_data.guess()
    assert all(0 <= score and (score <= 1 or not any_data.higher_is_better) for score in anchors.values())


def test_tests_are_tasks_of_their_own(any_data):
    for one in any_data.variants():
        assert replace(one, held_out=2).split("test").inputs.shape[:2] == (2, one.length)
        assert one.variants() == [one]


@pytest.mark.parametrize("data", [MQARData(random_filler=False, held_out=50), InductionExamples(held_out=50)])
def test_what_followed_a_token_answers_plain_recall(data):
    assert data.anchors(data.split("test"))["bigram"] == 1.0


def test_a_mixture_has_parts_with_the_same_model_and_score():
    with pytest.raises(UserError, match="CompressionData cannot be part of a mixture"):
        Mixture(parts=(CompressionData(),))


@pytest.mark.parametrize("data", [RECALL, TASKS["forgetting"], MIXED, TASKS["compositional"]])
def test_the_loss_of_few_targets_is_that_of_all_positions(data):
    config = ARCHITECTURES["memory-mosaic"].config(width=16, blocks=1, heads=2, vocabulary=64, context=data.length)
    model, batch = data.model(config).build(), Synthetic(data, batch_size=7).batch(0)
    assert data.targets_per_example is not None
    losses = data.loss(model, batch, None), model.loss(batch.inputs, batch.targets)
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    torch.testing.assert_close(*losses)
    for few, all_positions in zip(*gradients, strict=True):
        torch.testing.assert_close(few, all_positions)
