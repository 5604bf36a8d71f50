"""Anchors: against counting anew at every position, and what is refused."""

import json
import math

import numpy as np
import pytest

from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.evaluation import sample
from memory_mosaics.experiments import anchors
from memory_mosaics.text import corpus as corpora


def naive(row, prior, order):
    """The formula of the docstring, counting the whole context anew for every prediction."""

    def p(word, history, past):
        pairs = [
            past[i + len(history)] for i in range(len(past) - len(history)) if past[i : i + len(history)] == history
        ]
        below = prior[word] if not history else p(word, history[1:], past)
        if not pairs:
            return below
        return (pairs.count(word) + len(set(pairs)) * below) / (len(pairs) + len(set(pairs)))

    losses = []
    for t in range(1, len(row)):
        past = row[:t]
        history = past[max(0, t - order + 1) :] if order > 1 else []
        losses.append(-math.log(p(row[t], history, past)))
    return losses


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_caches_are_what_counting_anew_gives(order):
    rng = np.random.default_rng(order)
    prior = rng.dirichlet(np.ones(7)).tolist()
    for length in (2, 3, 40):
        row = rng.integers(7, size=length).tolist()
        assert anchors.cache_losses(row, prior, order=order) == pytest.approx(naive(row, prior, order))


def test_every_prediction_is_a_distribution():
    prior, row = [0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1, 2, 0, 1]
    chances = [math.exp(-anchors.cache_losses([*row, word], prior, order=3)[-1]) for word in range(4)]
    assert sum(chances) == pytest.approx(1)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anchors")
    corpora.run(["stories:60"], out=folder / "stories", tokenizer="bytes", valid_share=0.2)
    (folder / "other.txt").write_text("ÄÖÜ 0123456789 XYZ! " * 40)
    corpora.run([str(folder / "other.txt")], out=folder / "other", tokenizer="bytes", valid_share=0.0)
    corpora.run(["stories:60"], out=folder / "bpe", tokenizer="bpe", vocabulary=300, valid_share=0.2)
    return folder


def test_unigrams_and_unseen_tokens_are_counted(place, tmp_path):
    results = anchors.run(place / "stories", data=place / "other", split="train", length=50, windows=None, out=tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    train = np.asarray(corpora.Corpus.open(place / "stories").tokens("train")[:])
    text = sample(corpora.Corpus.open(place / "other"), split="train", length=50)
    targets = np.concatenate([text.tokens[start + 1 : start + 51] for start in text.starts])
    assert results["unseen_share"] == pytest.approx(np.mean(~np.isin(targets, train)), rel=1e-3)
    assert 0.1 < results["unseen_share"] < 0.9
    for anchor, k in zip(results["anchors"], (1, 100), strict=False):
        chance = [(np.sum(train == token) + k) / (len(train) + 257 * k) for token in targets]
        assert anchor["loss"] == pytest.approx(-np.mean(np.log(chance)), rel=1e-5)
        seen = np.isin(targets, train)
        assert anchor["loss_seen"] == pytest.approx(-np.mean(np.log(chance)[seen]), rel=1e-5)
    unigram, cache = results["anchors"][1], results["anchors"][2]
    assert cache["loss"] < unigram["loss"]  # forty times the same line


def test_the_command_prints_a_line_per_anchor(place, tmp_path, capsys):
    command = (
        f"anchors {place / 'stories'} --data {place / 'stories'} --length 32 --windows 3 --smoothing 0.5 --order 2"
    )
    assert main([*command.split(), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "unigram of the training text, add-0.5" in printed
    assert "2-gram cache of the context" in printed


def test_what_cannot_be_compared_is_refused(place, tmp_path):
    with pytest.raises(UserError, match="different tokenizers"):
        anchors.run(place / "bpe", data=place / "stories", out=tmp_path / "out")
    for wrong, message in (
        ({"smoothing": [1.0, 0.0]}, "smoothing must be more than 0 and finite, not 0"),
        ({"smoothing": [math.nan]}, "smoothing must be more than 0 and finite, not nan"),
        ({"order": 0}, "order must be"),
    ):
        with pytest.raises(UserError, match=message):
            anchors.run(place / "stories", data=place / "stories", out=tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()
