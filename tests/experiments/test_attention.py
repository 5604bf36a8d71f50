"""`mosaics attention`: means over sequences against each sequence by itself, widths, and what cannot be measured."""

import json

import numpy as np
import pytest
import torch

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.cli import main
from memory_mosaics.evaluation import sample_windows
from memory_mosaics.experiments import attention
from memory_mosaics.inspection import retrievals
from memory_mosaics.text.corpus import Corpus


def study(place, out, *names, **options):
    return attention.run([str(place / name) for name in names], data=place / "corpus", device="cpu", out=out, **options)


@pytest.mark.parametrize("name", ["mosaic", "rotary"])
def test_means_are_those_of_the_sequences_one_by_one(place, name):
    trained = LoadedModel.open(place / name)
    text = sample_windows(Corpus.open(place / "corpus"), length=30, count=7, overlap=True)
    [block] = attention.measure(trained, text, batch=3)
    weights = []
    for start in text.starts:
        row = torch.from_numpy(text.tokens[start : start + 30].astype(np.int64))[None]
        weights.append(next(retrievals(trained.model, row)).retrieval.weights([29])[0, :, 0].detach())
    p = torch.stack(weights).double()  # (sequences, H, N)
    distance = torch.arange(29, 29 - p.shape[-1], -1)
    for head, found in enumerate(block["heads"]):
        np.testing.assert_allclose(found["weights"], p[:, head].mean(dim=0), rtol=1e-4)
        assert found["pairs"] == pytest.approx((1 / p[:, head].square().sum(dim=-1)).mean().item(), rel=1e-4)
        assert found["distance"] == pytest.approx((p[:, head] * distance).sum(dim=-1).mean().item(), rel=1e-4)
        assert sum(found["weights"]) == pytest.approx(1, abs=1e-4)


def test_long_sequences_are_kept_in_parts():
    weights = np.random.default_rng(0).random(1535)
    starts = attention.bin_starts(len(weights))
    assert starts[:17] == list(range(17))
    assert starts[-64:] == list(range(1535 - 64, 1535))
    assert len(starts) < 150
    means = attention.bin_means(weights, starts)
    np.testing.assert_allclose(np.repeat(means, np.diff([*starts, 1535])).sum(), weights.sum())
    np.testing.assert_allclose(means[30], weights[starts[30] : starts[31]].mean())
    for count in (1, 2, 16, 17, 70, 80, 81):
        assert attention.bin_starts(count) == list(range(count))


@pytest.mark.usefixtures("undrawn")
def test_lambda_is_reported_where_there_is_one(place, tmp_path):
    mosaic, learned = study(place, tmp_path, "mosaic", "learned", length=[24], sequences=4)["models"]
    [block] = LoadedModel.open(place / "mosaic").model.blocks
    found = [head["lambda"] for head in mosaic["blocks"][0]["heads"]]
    assert found == pytest.approx(block.sequence_mixer.key.decay().tolist(), rel=1e-4)
    assert "sharpness" in mosaic["blocks"][0]["heads"][0]
    assert "lambda" not in learned["blocks"][0]["heads"][0]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_a_peak_has_the_width_of_its_decay(share):
    weights = 1e-3 + (share ** np.arange(400.0))[::-1]
    assert attention.peak(weights) == pytest.approx(1 / (1 - share), rel=1e-3)


def test_without_a_rise_at_the_end_there_is_no_peak():
    assert attention.peak(np.full(10, 0.1)) == 0
    assert attention.peak(np.linspace(1, 0, 11)) == 0


def test_any_mix_of_models_and_lengths(place, tmp_path, capsys):
    names = ("mosaic", "learned", "rotary", "alibi")
    results = study(place, tmp_path, *names, length=[24, 40], sequences=5, batch=2)
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    done = [(model["name"], model["length"]) for model in results["models"]]
    assert done == [(name, length) for name in names for length in (24, 40) if (name, length) != ("learned", 40)]
    assert "learned has 24 learned positions: it is not measured at 40\n" in capsys.readouterr().out
    for name in ("attention.png", "heads.png", "width.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        (tmp_path / name).unlink()
    assert main(["draw", str(tmp_path)]) == 0
    assert (tmp_path / "heads.png").exists()
    for model in results["models"]:
        heads = [head["weights"] for block in model["blocks"] for head in block["heads"]]
        np.testing.assert_allclose(model["weights"], np.mean(heads, axis=0), rtol=1e-3)  # so short: one by one
        assert len(model["weights"]) == model["length"] - (model["name"] == "mosaic")


def test_without_lambdas_there_is_no_figure_of_them(place, tmp_path):
    study(place, tmp_path, "rotary", length=[24], sequences=3)
    assert (tmp_path / "heads.png").exists()
    assert not (tmp_path / "width.png").exists()


@pytest.mark.usefixtures("undrawn")
def test_the_command_and_ctrl_c(place, tmp_path, monkeypatch, capsys):
    words = ["--data", str(place / "corpus"), "--length", "24", "30", "--sequences", "3", "--out", str(tmp_path)]
    assert main(["attention", str(place / "mosaic"), *words]) == 0
    measure = attention.measure

    def stopped(trained, text, **options):
        if text.length == 30:
            raise KeyboardInterrupt
        return measure(trained, text, **options)

    monkeypatch.setattr(attention, "measure", stopped)
    assert main(["attention", str(place / "mosaic"), *words]) == 130
    results = json.loads((tmp_path / "results.json").read_text())
    assert [model["length"] for model in results["models"]] == [24]
    assert results["interrupted"]


def test_nothing_to_measure_is_an_error(place, tmp_path, capsys):
    words = ["--data", str(place / "corpus"), "--length", "30", "--out", str(tmp_path / "out")]
    assert main(["attention", str(place / "learned"), *words]) == 2
    assert "no model reads 30 tokens; take a shorter --length" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_memory_that_sees_no_pair_has_no_effective_pairs():
    sums = attention._sums(np.array([[[0.0, 0.0], [0.5, 0.5]]]), 2)
    assert sums.tolist() == [[0.0, 0.0, 0.0, 0.0], [2.0, 0.5, 0.5, 0.5]]
