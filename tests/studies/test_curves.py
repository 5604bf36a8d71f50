"""The curves of both architectures: on the same batches, resumable, and honest about runs that fail."""

import json

import pytest

from memory_mosaics.cli import main
from memory_mosaics.studies import curves
from memory_mosaics.text import corpus as corpora
from memory_mosaics.training.recipe import Machine, ModelChoice, Training

MODEL = ModelChoice(width=16, heads=2, context=16)
TRAINING = Training(
    steps=6, batch=4, learning_rate=1e-3, final_learning_rate=1e-4, warm_up=2, evaluate_every=3, evaluate_windows=4
)
MACHINE = Machine(device="cpu", samples=0, log_every=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text") / "corpus"
    corpora.run(["stories:30"], out=folder, tokenizer="bytes", valid_share=0.1)
    return folder


def study(corpus, out, **options):
    return curves.run(corpus, out, **{"model": MODEL, "training": TRAINING, "machine": MACHINE} | options)


def test_every_pair_is_trained_and_drawn(corpus, tmp_path):
    results = study(corpus, tmp_path, blocks=[1, 2], rates=[1e-3, 1e-2])
    labels = [(run["architecture"], run["blocks"], run["learning_rate"]) for run in results["runs"]]
    assert len(set(labels)) == 8
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    for name in ("curves.png", "step_sizes.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    for run in results["runs"]:
        assert [point[0] for point in run["measured"]] == [3, 6]
        assert len(run["curve"]) == 6
    final = json.loads((tmp_path / "runs" / "transformer-2-0.01" / "results.json").read_text())
    assert final["training"]["final_learning_rate"] == pytest.approx(1e-3), "the same share of the largest"


def test_finished_runs_are_not_repeated(corpus, tmp_path):
    first = study(corpus, tmp_path, blocks=[1], rates=[1e-3])
    stamps = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("model.safetensors")}
    assert len(stamps) == 2
    again = study(corpus, tmp_path, blocks=[1], rates=[1e-3])
    assert again["runs"] == first["runs"]
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("model.safetensors")} == stamps


def test_a_run_that_diverges_is_a_fail_and_the_others_go_on(corpus, tmp_path, capsys):
    results = study(corpus, tmp_path, blocks=[1], rates=[1e30, 1e-3])
    assert [run["valid_loss"] is None for run in results["runs"]] == [True, True, False, False]
    assert "fail" in capsys.readouterr().out
    assert (tmp_path / "curves.png").exists()


def test_nothing_is_drawn_where_all_fail(corpus, tmp_path, capsys):
    study(corpus, tmp_path, blocks=[1], rates=[1e30])
    assert "No figures: no run came to an end." in capsys.readouterr().out
    assert main(["draw", str(tmp_path)]) == 2
    assert "there is nothing to draw" in capsys.readouterr().err


def test_figures_can_be_drawn_elsewhere(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(curves.figures, "available", lambda: False)
    study(corpus, tmp_path, blocks=[1], rates=[1e-3])
    assert "mosaics draw makes them" in capsys.readouterr().out
    assert not (tmp_path / "curves.png").exists()
    assert main(["draw", str(tmp_path)]) == 0
    assert (tmp_path / "curves.png").exists()
