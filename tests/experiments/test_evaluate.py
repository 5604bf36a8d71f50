"""`mosaics evaluate`: the same windows for all, honest numbers, and an error where it cannot be done."""

import importlib.util
import json
import math

import numpy as np
import pytest
import torch
import yaml

from memory_mosaics import checkpoint
from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.evaluation import cache_losses, sample_windows
from memory_mosaics.experiments import evaluate
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.models import memory_mosaic
from memory_mosaics.text import corpus as corpora
from memory_mosaics.text.tokenizer import Tokenizer, train_bpe


def study(place, out, *names, **options):
    return evaluate.run([str(place / name) for name in names], data=place / "corpus", device="cpu", out=out, **options)


def test_every_model_reads_the_same_windows(place, tmp_path, capsys):
    results = study(place, tmp_path, "mosaic", "learned", "alibi", length=32, windows=10, by_position=True)
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    assert (tmp_path / "loss_by_position.png").read_bytes().startswith(b"\x89PNG")
    assert [model["architecture"] for model in results["models"]] == [
        "memory-mosaic",
        "transformer",
        "transformer-alibi",
    ]
    assert [len(model["by_position"]) for model in results["models"]] == [32, 24, 32]
    assert {model["windows"] for model in results["models"]} == {10}
    assert results["models"][0]["bytes"] == results["models"][2]["bytes"] > results["models"][1]["bytes"]
    output = capsys.readouterr().out
    assert output.startswith("learned has 24 learned positions: it reads each window up to there, not 32\n")
    for model in results["models"]:
        mean = sum(model["by_position"]) / len(model["by_position"])
        assert model["loss"] == pytest.approx(mean, abs=1e-3)
        [line] = [line for line in output.splitlines()[1:] if line.startswith(model["name"] + " ")]
        assert f"{model['loss']:.4f} ± {model['loss_within']:.4f}" in line


@pytest.mark.usefixtures("undrawn")
def test_spans_match_the_table(place, tmp_path):
    [model] = study(place, tmp_path, "mosaic", length=260, windows=3, by_position=True)["models"]
    for first, end, loss in model["spans"]:
        part = model["by_position"][first:end]
        assert loss == pytest.approx(sum(part) / len(part), abs=1e-3)
    assert [span[:2] for span in model["spans"]] == [[0, 100], [100, 250], [250, 260]]


@pytest.mark.usefixtures("undrawn")
def test_seeds_of_one_configuration_are_averaged(place, tmp_path):
    for seed in (1, 2, 3, 4):
        torch.manual_seed(seed)
        model, folder = checkpoint.load(place / "mosaic"), tmp_path / f"seed{seed}" / "step-00000001"
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        checkpoint.save(model, folder)
        Tokenizer.load(checkpoint.newest(place / "mosaic")).save(folder)
        training = {"learning_rate": 0.5 if seed == 4 else 0.1, "seed": seed}
        (folder.parent / "run.yaml").write_text(yaml.safe_dump({"training": training}))
    runs = [str(path) for path in (tmp_path / "seed1", tmp_path / "seed2/step-00000001", tmp_path / "seed3")]
    runs += [str(tmp_path / "seed4"), str(place / "alibi")]
    options = {"data": place / "corpus", "device": "cpu", "length": 32, "windows": 5, "by_position": True}
    alone = evaluate.run(runs, out=tmp_path / "alone", **options)["models"]
    results = evaluate.run(runs, out=tmp_path / "pooled", over_seeds=True, **options)
    assert json.loads((tmp_path / "pooled" / "results.json").read_text()) == json.loads(json.dumps(results))
    mosaic, other_rate, alibi = results["models"]
    assert (mosaic["seeds"], other_rate["seeds"], alibi["seeds"]) == (3, 1, 1)
    assert other_rate["loss"] == alone[3]["loss"]
    assert mosaic["loss"] == pytest.approx(sum(one["loss"] for one in alone[:3]) / 3, abs=1e-4)
    losses = [one["spans"][0][2] for one in alone[:3]]
    assert mosaic["spans"][0][2:] == pytest.approx([np.mean(losses), 4.303 * np.std(losses, ddof=1) / 3**0.5], rel=1e-2)
    assert mosaic["by_position"][5] == pytest.approx(np.mean([one["by_position"][5] for one in alone[:3]]), abs=1e-3)
    assert alibi["loss_within"] is None
    assert [one["loss"] for one in results["runs"]] == [one["loss"] for one in alone]


def test_anchors_of_the_same_windows_are_kept_and_of_others_refused(place, tmp_path):
    corpus = place / "corpus"
    found = evaluate.run_anchors(corpus, data=corpus, length=24, windows=3, out=tmp_path / "anchors")["anchors"]
    options = {"length": 24, "by_position": True, "anchors": tmp_path / "anchors"}
    kept = study(place, tmp_path / "out", "mosaic", windows=3, **options)["anchors"]
    assert [(one["label"], one["loss"]) for one in kept] == [(one["label"], one["loss"]) for one in found]
    assert (tmp_path / "out" / "loss_by_position.png").is_file()
    with pytest.raises(UserError, match="anchors was measured with windows 3, not 4; run mosaics anchors"):
        study(place, tmp_path / "other", "mosaic", windows=4, **options)
    with pytest.raises(UserError, match=r"none holds no results\.json; name the folder of mosaics anchors"):
        study(place, tmp_path / "other", "mosaic", windows=3, **options | {"anchors": tmp_path / "none"})
    (tmp_path / "anchors" / "results.json").write_text("{}")
    with pytest.raises(UserError, match="is not of mosaics anchors"):
        study(place, tmp_path / "other", "mosaic", windows=3, **options)
    assert not (tmp_path / "other").exists()


def test_curves_are_kept_on_request(place, tmp_path, capsys):
    [model] = study(place, tmp_path, "mosaic", length=24, windows=3)["models"]
    assert "by_position" not in model
    assert not list(tmp_path.glob("*.png"))
    assert main(["draw", str(tmp_path)]) == 2
    assert "measure with --by-position" in capsys.readouterr().err


def test_the_command_takes_several_runs(place, tmp_path, capsys):
    runs = [str(place / "mosaic"), str(place / "rotary")]
    words = ["--data", str(place / "corpus"), "--by-position", "--length", "24", "--windows", "4", "--at-documents"]
    assert main(["evaluate", *runs, *words, "--device", "cpu", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [model["name"] for model in results["models"]] == ["mosaic", "rotary"]
    assert results["at_documents"]
    (tmp_path / "loss_by_position.png").unlink()
    assert main(["draw", str(tmp_path)]) == 0
    assert (tmp_path / "loss_by_position.png").exists()


def test_without_matplotlib_the_numbers_are_there(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    study(place, tmp_path, "mosaic", length=24, windows=3, by_position=True)
    assert "mosaics draw makes them from results.json" in capsys.readouterr().out
    assert (tmp_path / "results.json").exists()


def test_ctrl_c_keeps_what_is_finished(place, tmp_path, monkeypatch, capsys):
    measure = evaluate.evaluation.evaluate

    def stopped(trained, *words, **options):
        if trained.name == "learned":
            raise KeyboardInterrupt
        return measure(trained, *words, **options)

    monkeypatch.setattr(evaluate.evaluation, "evaluate", stopped)
    runs = [str(place / name) for name in ("mosaic", "learned", "alibi")]
    words = ["--data", str(place / "corpus"), "--length", "24", "--windows", "3", "--out", str(tmp_path)]
    assert main(["evaluate", *runs, *words]) == 130
    results = json.loads((tmp_path / "results.json").read_text())
    assert [model["name"] for model in results["models"]] == ["mosaic"]
    assert results["interrupted"]
    assert "Stopped" in capsys.readouterr().out


def test_another_tokenizer_is_refused(place, tmp_path, capsys):
    other = tmp_path / "other"
    checkpoint.save(LanguageModel(memory_mosaic(width=16, blocks=1, heads=2, vocabulary=280)), other)
    train_bpe(["some other words, some other bytes"], 260, name="own").save(other)
    words = ["--data", str(place / "corpus"), "--out", str(tmp_path / "out")]
    assert main(["evaluate", str(place / "mosaic"), str(other), *words]) == 2
    output = capsys.readouterr().err
    assert "holds tokens of bytes" in output
    assert "prepare it with --tokenizer" in output
    assert output.count("\n") == 1
    assert not (tmp_path / "out").exists()


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
        assert cache_losses(row, prior, order=order) == pytest.approx(naive(row, prior, order))


def test_every_prediction_is_a_distribution():
    prior, row = [0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1, 2, 0, 1]
    chances = [math.exp(-cache_losses([*row, word], prior, order=3)[-1]) for word in range(4)]
    assert sum(chances) == pytest.approx(1)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anchors")
    corpora.prepare(["stories:60"], out=folder / "stories", tokenizer="bytes", valid_share=0.2)
    (folder / "other.txt").write_text("ÄÖÜ 0123456789 XYZ! " * 40)
    corpora.prepare([str(folder / "other.txt")], out=folder / "other", tokenizer="bytes", valid_share=0.0)
    corpora.prepare(["stories:60"], out=folder / "bpe", tokenizer="bpe", vocabulary=300, valid_share=0.2)
    return folder


def test_unigrams_and_unseen_tokens_are_counted(texts, tmp_path):
    results = evaluate.run_anchors(
        texts / "stories", data=texts / "other", split="train", length=50, windows=None, out=tmp_path
    )
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    train = np.asarray(corpora.Corpus.open(texts / "stories").tokens("train")[:])
    text = sample_windows(corpora.Corpus.open(texts / "other"), split="train", length=50)
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


def test_the_command_prints_a_line_per_anchor(texts, tmp_path, capsys):
    command = (
        f"anchors {texts / 'stories'} --data {texts / 'stories'} --length 32 --windows 3 --smoothing 0.5 --order 2"
    )
    assert main([*command.split(), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "unigram of the training text, add-0.5" in printed
    assert "2-gram cache of the context" in printed


def test_what_cannot_be_compared_is_refused(texts, tmp_path):
    with pytest.raises(UserError, match="different tokenizers"):
        evaluate.run_anchors(texts / "bpe", data=texts / "stories", out=tmp_path / "out")
    for wrong, message in (
        ({"smoothing": [1.0, 0.0]}, "smoothing must be more than 0 and finite, not 0"),
        ({"smoothing": [math.nan]}, "smoothing must be more than 0 and finite, not nan"),
        ({"order": 0}, "order must be"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate.run_anchors(texts / "stories", data=texts / "stories", out=tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()
