"""`mosaics mqar`: architectures on multi-query associative recall, by the runner of experiments."""

import json

import pytest

from memory_mosaics import checkpoint
from memory_mosaics.cli import main
from memory_mosaics.experiments.mqar import TINY, run, summary

FEW = ["--task.vocabulary", "16", "--task.length", "16", "--task.pairs", "2", "--task.examples", "60"]
FEW += ["--task.held_out", "20", "--epochs", "2", "--batch_size", "30", "--widths", "8"]


def test_the_command_trains_every_architecture_and_seed_once(tmp_path, capsys):
    words = ["mqar", "--out", str(tmp_path), *FEW, "--seeds", "2", "--rates", "1e-2"]
    words += ["--architectures", "memory-mosaic", "transformer-rotary", "mamba"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert all(label in told for label in ("Memory Mosaic", "transformer, RoPE", "Mamba"))
    results = json.loads((tmp_path / "results.json").read_text())
    assert [row["architecture"] for row in results["summary"]] == ["memory-mosaic", "transformer-rotary", "mamba"]
    assert all(row["seeds"] == 2 and 0 <= row["accuracy"] <= 1 for row in results["summary"])
    assert [len(one["curve"]) for one in results["runs"]] == [2] * 6
    newest = checkpoint.newest(tmp_path / "trials" / "memory-mosaic-8-0.01-seed0")
    assert checkpoint.load(newest).config.channel_mixer is None
    before = (newest / "model.safetensors").stat().st_mtime_ns
    assert main(words) == 0
    assert (newest / "model.safetensors").stat().st_mtime_ns == before
    assert main([*words, "--epochs", "3"]) == 2
    assert "holds runs with epochs" in capsys.readouterr().err


def test_the_rate_is_chosen_by_validation_and_reported_by_test():
    runs = [
        {"status": "finished", "architecture": "a", "width": 8, "learning_rate": rate, "seed": seed, "parameters": 9}
        | {"valid_accuracy": valid, "accuracy": test}
        for rate, seed, valid, test in [(0.1, 0, 0.9, 0.5), (0.1, 1, 0.7, 0.6), (0.2, 0, 0.6, 0.9), (0.2, 1, 0.5, 0.9)]
    ]
    (row,) = summary([*runs, {"status": "fail", "reason": "overflow"}])
    assert (row["learning_rate"], row["accuracy"], row["seeds"]) == (0.1, 0.55, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--architectures", "mambo"], "no architecture 'mambo'; did you mean mamba?"),
        (["--task.length", "7"], "length must be even and at least 4 times the 4 pairs, not 7"),
        (["--rates", "0"], "learning_rate must be more than 0, not 0.0"),
        (["--epochs", "0"], "epochs must be at least 1, not 0"),
    ],
)
def test_mistakes_are_one_line(words, message, tmp_path, capsys):
    assert main(["mqar", "--out", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_memory_mosaic_learns_to_recall(tmp_path):
    results = run(tmp_path, architectures=["memory-mosaic"], task=TINY, rates=[3e-3], blocks=1, epochs=2)
    assert results["summary"][0]["accuracy"] > 0.9
