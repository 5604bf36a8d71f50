"""`mosaics evaluate`: the same windows for all, honest numbers, and what is said where it cannot be done."""

import json

import numpy as np
import pytest
import torch
import yaml

from memory_mosaics import checkpoint
from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import anchors, evaluate
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.models import memory_mosaic
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
    said = capsys.readouterr().out
    assert said.startswith("learned has 24 learned positions: its curve ends there, before 32\n")
    for model in results["models"]:
        mean = sum(model["by_position"]) / len(model["by_position"])
        assert model["loss"] == pytest.approx(mean, abs=1e-3)
        [line] = [line for line in said.splitlines()[1:] if line.startswith(model["name"] + " ")]
        assert f"{model['loss']:.4f} ± {model['loss_within']:.4f}" in line


def test_spans_are_where_the_table_says(place, tmp_path):
    [model] = study(place, tmp_path, "mosaic", length=260, windows=3, by_position=True)["models"]
    for first, end, loss in model["spans"]:
        part = model["by_position"][first:end]
        assert loss == pytest.approx(sum(part) / len(part), abs=1e-3)
    assert [span[:2] for span in model["spans"]] == [[0, 100], [100, 250], [250, 260]]


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
    found = anchors.run(corpus, data=corpus, length=24, windows=3, out=tmp_path / "anchors")["anchors"]
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
    monkeypatch.setattr(evaluate.figures, "available", lambda: False)
    study(place, tmp_path, "mosaic", length=24, windows=3, by_position=True)
    assert "mosaics draw makes it from results.json" in capsys.readouterr().out
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
    said = capsys.readouterr().err
    assert "holds tokens of bytes" in said
    assert "prepare it with --tokenizer" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
