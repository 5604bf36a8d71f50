"""MAD's six tasks: their protocol, the statistics of their examples, and the autoencoder of compression."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from memory_mosaics import checkpoint
from memory_mosaics.config import from_plain
from memory_mosaics.errors import CheckpointError, UserError
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.runtime import Runtime
from memory_mosaics.tasks.mad import (
    AutoencoderConfig,
    CompressionData,
    FuzzyInContextRecallData,
    InContextRecallData,
    MemorizationData,
    NoisyInContextRecallData,
    SelectiveCopyingData,
    sinusoidal_code,
)
from memory_mosaics.tasks.synthetic import IGNORED, Mixture, Synthetic
from memory_mosaics.tasks.task import Batch
from memory_mosaics.training.config import TaskRun, Training
from memory_mosaics.training.trainer import Trainer
from tasks.solutions import solve

RECALL = InContextRecallData()
NOISY = NoisyInContextRecallData()
FUZZY = FuzzyInContextRecallData()
COPYING = SelectiveCopyingData()
BASELINES = [RECALL, NOISY, FUZZY, COPYING, MemorizationData(), CompressionData()]


def drawn(data, count=2000, *, training=False):
    return data.draw(np.random.default_rng(3), count, training=training)


def tiny_body(data):
    return ARCHITECTURES["transformer-rotary"].config(
        width=16, blocks=1, heads=2, vocabulary=data.vocabulary, context=data.length
    )


def test_baselines_and_changes_are_those_of_mad_lab():
    sizes = [(one.vocabulary, one.length, one.examples, one.held_out) for one in BASELINES]
    recall = (127, 12_800, 1280)
    assert sizes[:2] == [(16, *recall), (32, *recall)]
    assert sizes[2:4] == [(16, 128, 12_800, 1280), (16, 256, 12_800, 1280)]
    assert sizes[4:] == [(256, 32, 256, 1280), (16, 32, 12_800, 1280)]
    assert [len(one.changes()) for one in BASELINES] == [10, 13, 10, 12, 5, 10]
    labels = [one.label for one in NOISY.changes()]
    assert labels[:4] == ["vocabulary 48", "vocabulary 80", "vocabulary 144", "length 255"]
    assert labels[-3:] == ["noise 0.4", "noise 0.6", "noise 0.8"]
    assert NOISY.label == "baseline"
    for one in BASELINES:
        assert len({other.label for other in (one, *one.changes())}) == len(one.changes()) + 1
        for change in one.changes():
            inputs, _ = drawn(change, 3)
            assert inputs.shape == (3, change.length)


@pytest.mark.parametrize("data", [RECALL, NOISY, FUZZY], ids=["plain", "noisy", "fuzzy"])
def test_recall_asks_for_all_known_values_in_a_test_and_for_every_token_in_training(data):
    inputs, targets = drawn(data, 300)
    for row, answers in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert {at: answer for at, answer in enumerate(answers) if answer != IGNORED} == solve(data, row)
        assert answers[-1] != IGNORED
    inputs, targets = drawn(data, 300, training=True)
    assert (targets[:, :-1] == inputs[:, 1:]).all()
    for row, answers in zip(inputs.tolist(), targets.tolist(), strict=True):
        assert answers[-1] == solve(data, row)[data.length - 1]


def test_keys_and_values_of_recall_are_uniform():
    inputs, targets = drawn(RECALL, 4000)
    keys, values = inputs[:, :-1:2], inputs[:, 1::2]
    assert np.bincount(keys.ravel()) / keys.size == pytest.approx(1 / 8, abs=0.003)
    assert np.bincount(values.ravel(), minlength=16)[8:] / values.size == pytest.approx(1 / 8, abs=0.006)
    assert (targets != IGNORED).sum() / 4000 == pytest.approx(64 - 8, abs=0.02)
    assert max(Counter(map(tuple, inputs[:, :2].tolist())).values()) < 120  # any value for any key


def test_noise_replaces_pairs_but_never_all():
    inputs, _ = drawn(replace(NOISY, noise=0.8), 4000)
    noise = inputs[:, :-1] >= 16
    assert (noise[:, ::2] == noise[:, 1::2]).all()
    assert noise.mean() == pytest.approx(0.8 * 62 / 63, abs=0.005)
    assert np.bincount(inputs[inputs >= 16])[16:] / (inputs >= 16).sum() == pytest.approx(1 / 16, abs=0.002)
    short, _ = drawn(replace(NOISY, noise=0.99, length=5))
    assert (short[:, :-1] < 16).any(axis=1).all()
    assert (short[:, -1] < 8).all()


def runs(row, *bounds):
    """Lengths of the runs of tokens between the bounds."""
    found, kinds = [], [sum(token >= bound for bound in bounds) for token in row]
    for at, kind in enumerate(kinds):
        if at and kinds[at - 1] == kind:
            found[-1][1] += 1
        else:
            found.append([kind, 1])
    return found


@pytest.mark.parametrize("training", [True, False])
def test_lengths_of_fuzzy_keys_and_values(training):
    """Examples begin with 2 to 7 pads, as in mad-lab, whose means of 4000 are 5.31 in training and 4.95 in tests."""
    inputs, targets = drawn(FUZZY, training=training)
    found = [runs(row, 7, 15) for row in inputs.tolist()]
    assert all(row[0][0] == 2 for row in found)
    assert all(kind == number % 2 for row in found for number, (kind, _) in enumerate(row[1:]))
    pads = [row[0][1] for row in found]
    assert (min(pads), max(pads)) == (2, 7)
    assert np.mean(pads) == pytest.approx(5.31 if training else 4.95, abs=0.12)
    for kind, lengths in ((0, range(1, 4) if training else [3]), (1, range(1, 4))):
        counts = Counter(size for row in found for that, size in row[:-2] if that == kind)
        assert sorted(counts) == list(lengths)
        assert np.array(list(counts.values())) / counts.total() == pytest.approx(1 / len(lengths), abs=0.02)
    if not training:  # 4.35 in mad-lab, 1.1 % of which cannot be known
        assert (targets != IGNORED).sum() / len(targets) == pytest.approx(4.38, abs=0.15)


def test_blanks_of_copying_are_never_behind_the_last_token():
    """The blanks before each token are multinomial: np.insert at random indices in mad-lab."""
    inputs, _ = drawn(COPYING, 4000)
    assert (inputs[:, 238] < 14).all()
    assert (inputs[:, 239] == 15).all()
    assert (inputs[:, 240:] == 14).all()
    at = np.nonzero(inputs < 14)[1].reshape(4000, 16)
    blanks = np.diff(at, axis=1, prepend=-1) - 1
    assert blanks.mean(axis=0) == pytest.approx(223 / 16, abs=0.25)
    assert blanks.std() == pytest.approx((223 / 16 * 15 / 16) ** 0.5, abs=0.05)


def test_memorization_has_one_map_of_different_values():
    data = MemorizationData(seed=5)
    known = {}
    for split in ("train", "validation", "test"):
        examples = data.split(split)
        for key, value in zip(
            examples.inputs[:, ::2].flatten().tolist(), examples.targets[:, 1::2].flatten().tolist(), strict=True
        ):
            assert known.setdefault(key, value) == value
    assert sorted(known) == list(range(127))
    assert len(set(known.values())) == 127
    assert all(127 <= value < 255 for value in known.values())
    assert not np.array_equal(data.values, MemorizationData(seed=6).values)


def test_anchors():
    assert RECALL.anchors(Batch(*map(torch.from_numpy, drawn(RECALL))))["bigram"] == 1.0
    by_hand = InContextRecallData(vocabulary=4, length=7)
    examples = Batch(torch.tensor([[0, 2, 1, 3, 0, 2, 1]]), torch.tensor([[-100, -100, -100, -100, 2, -100, 3]]))
    assert by_hand.anchors(examples) == {"guess": 0.5, "most frequent": 0.5, "bigram": 1.0}
    few = MemorizationData(vocabulary=8192)
    share = few.anchors(few.split("test"))["ceiling: seen keys"]
    assert share == pytest.approx(1 - np.exp(-256 * 16 / 4095), abs=0.02)
    assert replace(few, examples=0).anchors(few.split("test"))["ceiling: seen keys"] == 1.0
    examples = COPYING.split("test")
    assert 1.5 / 14 < COPYING.anchors(examples)["most frequent"] < 4 / 14


@pytest.mark.parametrize("data", BASELINES, ids=lambda data: type(data).__name__)
def test_no_examples_are_a_batch_too(data):
    inputs, targets = drawn(data, 0)
    assert inputs.shape == targets.shape == (0, data.length)


def test_tasks_can_be_mixed():
    mixture = Mixture(parts=(replace(RECALL, examples=0), replace(FUZZY, examples=0)))
    assert Synthetic(mixture, batch_size=2).batch(1).inputs.shape == (2, 128)


@pytest.mark.parametrize(
    ("data", "change", "message"),
    [
        (RECALL, {"length": 128}, "length must be odd and at least 3, not 128"),
        (RECALL, {"noise": 0.1}, "noise of 0.1 needs a noise_vocabulary of at least 1"),
        (NOISY, {"noise": 1.0}, "noise must be at least 0 and below 1, not 1.0"),
        (NOISY, {"vocabulary": 19}, "noise_vocabulary must be at most 15, not 16"),
        (FUZZY, {"length": 12}, "length must be at least 13 for such keys and values, not 12"),
        (FUZZY, {"vocabulary": 6}, "a vocabulary of 6 is too small for such keys and values"),
        (FUZZY, {"key_tokens": 5}, "key_tokens must be at most 4, not 5"),
        (COPYING, {"copied": 128}, "length must be at least 258 to copy 128 tokens, not 256"),
        (COPYING, {"vocabulary": 2}, "vocabulary must be at least 3, not 2"),
        (MemorizationData(), {"length": 31}, "length must be even, not 31"),
        (CompressionData(), {"seed": -1}, "seed must be at least 0, not -1"),
    ],
)
def test_a_wrong_setting_is_named(data, change, message):
    with pytest.raises(UserError, match=message):
        replace(data, **change)


def test_the_code_of_positions_is_that_of_fairseq():
    code = sinusoidal_code(50, 9)
    assert code.shape == (50, 9)
    for position, index in ((0, 0), (7, 1), (49, 3)):
        angle = position * 10_000 ** (-index / 3)
        assert_close(
            code[position, [index, 4 + index]].double(), torch.tensor([np.sin(angle), np.cos(angle)]), rtol=0, atol=1e-5
        )
    assert (code[:, 8] == 0).all()


def test_an_autoencoder_reconstructs_from_the_last_feature_alone():
    data = CompressionData(length=6)
    model = data.model(tiny_body(data)).build()
    tokens = data.split("test").inputs[:4]
    encoded, _ = model.body.features(model.embedding(tokens))
    by_hand = torch.stack([model.decoder(encoded[:, -1] + sinusoidal_code(6, 16)[at]) for at in range(6)], dim=1)
    logits = model(tokens)
    assert_close(logits, by_hand @ model.output.T)
    loss = model.loss(tokens, tokens)
    assert_close(loss, torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()))
    loss.backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.loss(tokens, tokens).isfinite()


def test_an_autoencoder_is_trained_saved_and_resumed(tmp_path):
    data = CompressionData(vocabulary=4, length=4, examples=0, held_out=64)
    config = data.model(tiny_body(data))
    training = Training(steps=60, batch=32, learning_rate=1e-2, warm_up=5, evaluate_every=30)
    run = TaskRun(out=tmp_path / "run", name="autoencoder", task=data, model=config, training=training)
    trainer = Trainer(run, Synthetic(data, batch_size=32), config, Runtime())
    found = trainer.run()
    assert found["valid_loss"] < -np.log(data.guess())
    again = Trainer(run, Synthetic(data, batch_size=32), config, Runtime())
    assert again.run()["valid_loss"] == found["valid_loss"]
    folder = checkpoint.save(trainer.model, tmp_path / "saved")
    plain = json.loads((folder / "config.json").read_text())
    loaded = from_plain(AutoencoderConfig, plain["autoencoder"])
    assert loaded == config
    model = loaded.build()
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("autoencoder."): weight for name, weight in weights.items()})
    tokens = data.split("test").inputs
    assert torch.equal(model(tokens), trainer.model(tokens))
    with pytest.raises(CheckpointError, match="it is a network of the kind autoencoder, not a language model"):
        checkpoint.load(folder)
