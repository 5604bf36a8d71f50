"""Regression and classification in context: the statistics of the functions, and predictors that are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from memory_mosaics import checkpoint
from memory_mosaics.config import from_plain, to_plain
from memory_mosaics.errors import UserError
from memory_mosaics.language_model import weight_count
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.runtime import RuntimeConfig, start_runtime
from memory_mosaics.tasks.regression import (
    ClassificationData,
    LinearRegressionData,
    NetworkRegressionData,
    SparseRegressionData,
    VectorModelConfig,
    lasso,
    nearest_neighbours,
    ridge,
)
from memory_mosaics.tasks.synthetic import IGNORED, Synthetic, measure
from memory_mosaics.training.config import TaskRun, Training
from memory_mosaics.training.trainer import Trainer
from tasks.solutions import by_position

LINEAR = LinearRegressionData(held_out=400)
SPARSE = SparseRegressionData(held_out=200)
NETWORK = NetworkRegressionData(held_out=300)
CLASSES = ClassificationData(held_out=300)
ALL = (LINEAR, SPARSE, NETWORK, CLASSES)


def body(data, architecture="transformer-rotary", **sizes):
    sizes = {"width": 32, "blocks": 2, "heads": 2} | sizes
    return ARCHITECTURES[architecture].config(vocabulary=data.vocabulary, context=data.length, **sizes)


def points_and_values(data, split="test"):
    examples = data.split(split)
    return examples.inputs[:, ::2].double().numpy(), examples.targets[:, ::2].double().numpy()


@pytest.mark.parametrize("data", ALL[:3], ids=lambda data: type(data).__name__)
def test_points_and_values_take_turns(data):
    examples = data.split("test")
    assert (examples.targets[:, 1::2] == IGNORED).all()
    assert torch.equal(examples.inputs[:, 1::2, 0], examples.targets[:, ::2])
    assert (examples.inputs[:, 1::2, 1:] == 0).all()
    x, y = points_and_values(data)
    assert x.mean() == pytest.approx(0, abs=0.01)
    assert x.std() == pytest.approx(1, abs=0.01)
    assert (y**2).mean() / data.variance == pytest.approx(1, abs=0.1)


def test_a_linear_function_is_found_from_as_many_examples_as_dimensions():
    errors = LINEAR.anchors_by_point(LINEAR.split("test"))["least squares"]
    assert errors[:20] == pytest.approx(1 - np.arange(20) / 20, abs=0.25)
    assert errors[20:].max() < 1e-4
    x, y = points_and_values(LINEAR)
    weights = [np.linalg.lstsq(*pair, rcond=None) for pair in zip(x, y, strict=True)]
    norms = np.array([solution @ solution for solution, *_ in weights])
    assert norms.mean() == pytest.approx(20, abs=1)
    assert norms.std() == pytest.approx(40**0.5, abs=1)  # chi-squared of 20 degrees of freedom
    assert max(residual.max() for _, residual, *_ in weights) < 1e-8


def test_a_sparse_function_has_three_weights():
    x, y = points_and_values(SPARSE)
    weights = np.array([np.linalg.lstsq(*pair, rcond=None)[0] for pair in zip(x, y, strict=True)])
    assert set((np.abs(weights) > 1e-4).sum(axis=1)) <= {2, 3}  # a weight may be tiny
    assert (np.abs(weights) > 1e-4).mean(axis=0) == pytest.approx(np.full(20, 3 / 20), abs=0.1)
    errors = SPARSE.anchors_by_point(SPARSE.split("test"))
    assert errors["lasso 0.01"][12:].max() < 0.1 < errors["least squares"][14]


def test_a_network_is_half_linear():
    """Of the variance 1/pi is the mean and 1/2 is linear, so that no linear prediction has less than 0.18."""
    errors = NETWORK.anchors_by_point(NETWORK.split("test"))
    assert errors["ridge"][80:].mean() == pytest.approx(0.22, abs=0.04)
    assert errors["mean"][80:].mean() == pytest.approx(1 - 1 / np.pi, abs=0.06)
    wide = replace(NETWORK, length=20, hidden=2000, held_out=64)
    assert wide.anchors(wide.split("test"))["zero"] == pytest.approx(1, abs=0.25)


def test_noise_is_added_to_the_values():
    data = replace(LINEAR, noise=2.0, length=200, held_out=50)
    x, y = points_and_values(data)
    residuals = [np.linalg.lstsq(*pair, rcond=None)[1][0] / (100 - 20) for pair in zip(x, y, strict=True)]
    assert np.mean(residuals) == pytest.approx(4, rel=0.1)
    assert data.guess() == 1.2
    anchors = data.anchors(data.split("test"))
    assert anchors["ridge"] < anchors["least squares"]


def test_predictors_are_those_of_the_books():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 12, 4)), rng.standard_normal((3, 12))
    near, least, shrunk = nearest_neighbours(x, y), ridge(x, y, 0.0), ridge(x, y, 0.7)
    for row in range(3):
        assert near[row, 0] == least[row, 0] == shrunk[row, 0] == 0
        for n in range(1, 12):
            known, values, point = x[row, :n], y[row, :n], x[row, n]
            order = np.argsort(np.linalg.norm(known - point, axis=1))[:3]
            assert near[row, n] == pytest.approx(values[order].mean())
            assert least[row, n] == pytest.approx(point @ np.linalg.pinv(known) @ values, rel=1e-6, abs=1e-6)
            inverse = np.linalg.inv(known.T @ known + 0.7 * np.eye(4))
            assert shrunk[row, n] == pytest.approx(point @ inverse @ known.T @ values)


def test_the_lasso_fulfils_its_conditions():
    """At the optimum each slope is the penalty times the sign of its weight, or smaller where the weight is zero."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 16, 5)), rng.standard_normal((2, 16))
    x[:, -1] = 0
    for unit in range(5):  # the prediction at a unit vector is a weight
        probe = x.copy()
        probe[:, -1, unit] = 1
        found = lasso(probe, y, [0.3, 0.1])
        if unit == 0:
            weights = {penalty: np.zeros((2, 5)) for penalty in found}
        for penalty, predicted in found.items():
            weights[penalty][:, unit] = predicted[:, -1]
    for penalty, weight in weights.items():
        residual = y[:, :-1] - np.einsum("rnd,rd->rn", x[:, :-1], weight)
        slopes = np.einsum("rnd,rn->rd", x[:, :-1], residual) / 15
        assert slopes[weight != 0] == pytest.approx(penalty * np.sign(weight[weight != 0]), abs=1e-3)
        assert (np.abs(slopes[weight == 0]) <= penalty + 1e-3).all()
    assert (weights[0.3] == 0).any()


def test_a_label_is_asked_for_once_its_class_is_known():
    examples = CLASSES.split("test")
    labels = examples.inputs[:, 1::2, 20:]
    assert (examples.inputs[:, ::2, 20:] == 0).all()
    assert (examples.inputs[:, 1::2, :20] == 0).all()
    assert (labels.sum(dim=2) == 1).all()
    assert (examples.targets[:, 1::2] == IGNORED).all()
    sets = set()
    for row, targets in zip(labels.argmax(dim=2).tolist(), examples.targets[:, ::2].tolist(), strict=True):
        assert targets == [label if label in row[:at] else IGNORED for at, label in enumerate(row)]
        sets.add(frozenset(row))
        assert len(set(row)) <= 8
    assert len(sets) > 290


def test_points_of_a_class_are_around_its_centre():
    data = replace(CLASSES, noise=0.5)
    examples = data.split("test")
    x, labels = examples.inputs[:, ::2, :20].numpy(), examples.inputs[:, 1::2, 20:].argmax(dim=2).numpy()
    within, centres = [], []
    for row, names in zip(x, labels, strict=True):
        for name in set(names.tolist()):
            if (mine := row[names == name]).shape[0] > 3:
                within.append(mine.var(axis=0, ddof=1).mean())
                centres.append((mine.mean(axis=0) ** 2).mean() - within[-1] / len(mine))
    assert np.mean(within) == pytest.approx(0.25, abs=0.01)
    assert np.mean(centres) == pytest.approx(1, abs=0.03)
    anchors = data.anchors(examples)
    assert anchors["most frequent label"] < 0.2 < 0.99 < anchors["nearest neighbour"]
    noisy = CLASSES.anchors(CLASSES.split("test"))
    assert 0.8 < noisy["nearest neighbour"] < noisy["nearest class mean"] < 0.95


@pytest.mark.parametrize("data", ALL, ids=lambda data: type(data).__name__)
def test_the_model_reads_and_predicts_vectors(data, tmp_path):
    data = replace(data, held_out=20)
    config = data.model(body(data))
    assert from_plain(VectorModelConfig, to_plain(config)) == config
    model = config.build().eval()
    trained = sum(weight.numel() for weight in model.parameters())
    linear = 32 * (config.inputs + 1) + config.outputs * 33
    assert trained == weight_count(config.body) - 32 * data.vocabulary + linear
    examples = data.split("test")
    with torch.no_grad():
        whole, _ = model(examples.inputs)
        start, state = model(examples.inputs[:, :7])
        rest, _ = model(examples.inputs[:, 7:], state)
    assert whole.shape == (*examples.targets.shape, config.outputs)
    torch.testing.assert_close(torch.cat([start, rest], dim=1), whole, atol=1e-5, rtol=1e-4)
    task = Synthetic(data, batch_size=4)
    assert task.tokenizer is None
    task.loss(model, task.batch(0)).backward()
    assert all(weight.grad is not None for weight in model.parameters())
    checkpoint.write_files(model, tmp_path)
    assert (tmp_path / "model.safetensors").exists()


def test_the_score_is_the_squared_error_of_every_prediction():
    data = replace(SPARSE, held_out=30)
    model, examples = data.model(body(data)).build().eval(), data.split("test")
    with torch.no_grad():
        errors = (model(examples.inputs)[0][:, ::2, 0] - examples.targets[:, ::2]).square() / 3
    found = measure(data, model, examples)
    assert found["valid_loss"] == found["squared error"] == pytest.approx(errors.mean().item())
    curve = by_position(data, model, examples)
    assert list(curve) == list(range(0, 82, 2))
    assert list(curve.values()) == pytest.approx(errors.mean(dim=0).tolist())
    assert data.loss(model, examples, None).item() == pytest.approx(errors.mean().item())


@pytest.mark.parametrize("data", [ALL[1], ALL[3]], ids=lambda data: type(data).__name__)
def test_the_trainer_trains_saves_and_resumes_a_vector_model(data, tmp_path):
    data = replace(data, length=20, held_out=10)
    machine = RuntimeConfig(device="cpu", samples=0)

    def train(out, steps, *, lengthen=False):
        training = Training(steps=steps, learning_rate=1e-3, final_learning_rate=1e-3, warm_up=0, evaluate_every=2)
        config = data.model(body(data))
        run = TaskRun(out=out, name="vectors", task=data, model=config, training=training, runtime=machine)
        with start_runtime(machine) as here:
            return Trainer(run, Synthetic(data, batch_size=4), config, here).run(lengthen=lengthen)

    whole = train(tmp_path / "whole", 4)
    train(tmp_path / "parts", 2)
    assert train(tmp_path / "parts", 4, lengthen=True)[data.metric] == whole[data.metric]


@pytest.mark.slow
def test_a_small_transformer_learns_to_classify_in_context():
    data = ClassificationData(dimension=4, classes=3, labels=3, noise=0.2, length=32, held_out=200)
    torch.manual_seed(0)
    model, task = data.model(body(data, width=64)).build(), Synthetic(data, batch_size=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(400):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 50) * (1 - step / 400)
        loss = task.loss(model, task.batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert measure(data, model.eval(), data.split("test"))["accuracy"] > 0.9 > 2 * data.guess()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(LINEAR, length=81), "length must be even, two positions per point, not 81"),
        (lambda: replace(LINEAR, vocabulary=5), "vectors have no vocabulary: it must be 2, not 5"),
        (lambda: replace(LINEAR, dimension=0), "dimension must be at least 1, not 0"),
        (lambda: replace(LINEAR, noise=-1.0), "noise must be at least 0 and below 1,000,000, not -1.0"),
        (lambda: replace(SPARSE, sparsity=21), "sparsity must be at most 20, not 21"),
        (lambda: replace(NETWORK, hidden=0), "hidden must be at least 1, not 0"),
        (lambda: replace(CLASSES, classes=33), "classes must be at most 32, not 33"),
        (lambda: replace(CLASSES, length=16), "length must be at least 18, not 16"),
        (lambda: VectorModelConfig(body=body(LINEAR), inputs=0, outputs=1), "inputs must be at least 1, not 0"),
    ],
)
def test_a_wrong_setting_is_named(make, message):
    with pytest.raises(UserError, match=message):
        make()
