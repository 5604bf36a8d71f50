"""One run of RegBench: its recipe, when it ends, and how it goes on."""

import os
import signal

import pytest
import torch

from experiments.conftest import SETTINGS
from experiments.conftest import train_regbench as run
from memory_mosaics import checkpoint
from memory_mosaics.cli import main
from memory_mosaics.experiments.regbench import make_task, training_of
from memory_mosaics.tasks.regbench import RegBench
from memory_mosaics.training.loggers import read_log
from memory_mosaics.training.trainer import TrainStep


def test_the_recipe_of_the_paper():
    settings = SETTINGS | {"environments": 1000, "epochs": 200, "learning_rate": 1e-3}
    training = training_of(settings)
    assert (training.steps, training.evaluate_every) == (6400, 32)
    assert training.rate(0) == pytest.approx(1e-6)
    assert training.rate(320) == pytest.approx(1e-6 + 0.5 * (1e-3 - 1e-6))
    assert training.rate(640) == pytest.approx(1e-3 * (0.1 + 0.45 * (1 + torch.tensor(0.1 * torch.pi).cos().item())))
    assert training.rate(6399) == pytest.approx(1e-4, rel=1e-3)
    steps = {100: 800, 500: 3200, 2500: 15_800, 40_000: 250_000}
    assert {number: training_of(settings | {"environments": number}).steps for number in steps} == steps


@pytest.mark.parametrize(
    ("environments", "steps"),
    [(100, 40), (2500, 790), (40_000, 1250)],
    ids=["few", "fewer epochs", "one epoch at least"],
)
def test_many_languages_are_seen_in_fewer_epochs(environments, steps):
    training = training_of(SETTINGS | {"environments": environments, "epochs": 10, "max_steps": 800})
    assert training.steps == steps
    assert (
        training.rate(steps // 10) > training.rate(steps - 1) >= 0.1 * training.learning_rate
    )  # the schedule is that of its steps


@pytest.mark.parametrize(("patience", "epochs"), [(None, 6), (2, 4), (3, 6)])
def test_patience_ends_a_run_that_grows_worse(patience, epochs, tmp_path, monkeypatch):
    losses, evaluate = iter([3.0, 2.0, 2.5, 2.1, 1.9, 2.6]), RegBench.evaluate
    monkeypatch.setattr(RegBench, "evaluate", lambda *given: evaluate(*given) | {"valid_loss": next(losses)})
    outcome = run(SETTINGS | {"epochs": 6, "patience": patience}, tmp_path / "run")
    assert outcome["trained_epochs"] == len(outcome["curve"]["valid_loss"]) == epochs
    assert outcome["tested"]["loss"]["epoch"] == (2 if epochs == 4 else 5)


def test_stopped_in_the_middle_it_ends_the_same(tmp_path, monkeypatch):
    whole = run(SETTINGS, tmp_path / "whole")
    take, taken = TrainStep.__call__, []

    def interrupted(step, number, batch):
        taken.append(number)
        if len(taken) == 4:  # the second of the second epoch
            os.kill(os.getpid(), signal.SIGINT)
        return take(step, number, batch)

    monkeypatch.setattr(TrainStep, "__call__", interrupted)
    assert run(SETTINGS, tmp_path / "stopped") is None
    again = run(SETTINGS, tmp_path / "stopped")
    assert taken == [0, 1, 2, 3, 4, 5]
    for name in ("curve", "tested", "valid_loss"):
        assert again[name] == whole[name]
    logs = [read_log(tmp_path / name / "trials" / "run" / "log.jsonl", "loss") for name in ("whole", "stopped")]
    assert [line["step"] for line in logs[0]] == [2, 4, 6]
    assert [line["loss"] for line in logs[0]] == [line["loss"] for line in logs[1]]


def test_its_model_opens_like_any_other(tmp_path, capsys):
    """That of the epoch with the lowest validation loss."""
    outcome = run(SETTINGS, tmp_path)
    folder = tmp_path / "trials" / "run" / "model"
    model = checkpoint.load(folder)
    task = RegBench(make_task(SETTINGS))
    assert task.test(model)["accuracy"] == pytest.approx(outcome["accuracy"], abs=1e-5)
    assert main(["generate", str(folder), "--prompt", "abc|abc|", "--length", "5", "--device", "cpu"]) == 0
    assert "abc|abc|" in capsys.readouterr().out
