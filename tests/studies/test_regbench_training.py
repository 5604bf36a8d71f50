"""One run of RegBench: its recipe, when it ends, and how it goes on."""

import json
from dataclasses import replace

import pytest
import torch

from memory_mosaics.errors import UserError
from memory_mosaics.studies.regbench_training import Machine, Trainer
from memory_mosaics.training.loop import Diverged
from studies.conftest import JOB


def test_the_recipe_of_the_paper():
    job = replace(JOB, environments=1000, epochs=200, learning_rate=1e-3)
    assert (job.steps, job.steps_an_epoch) == (6400, 32)
    assert job.rate(0) == pytest.approx(1e-6)
    assert job.rate(320) == pytest.approx(1e-6 + 0.5 * (1e-3 - 1e-6))
    assert job.rate(640) == pytest.approx(1e-3 * (0.1 + 0.45 * (1 + torch.tensor(0.1 * torch.pi).cos().item())))
    assert job.rate(6399) == pytest.approx(1e-4, rel=1e-3)
    steps = {100: 800, 500: 3200, 2500: 15_800, 40_000: 250_000}
    assert {number: replace(job, environments=number).steps for number in steps} == steps


@pytest.mark.parametrize(
    ("environments", "steps"),
    [(100, 40), (2500, 790), (40_000, 1250)],
    ids=["few", "fewer epochs", "one epoch at least"],
)
def test_many_languages_are_seen_in_fewer_epochs(environments, steps):
    job = replace(JOB, environments=environments, epochs=10, most_steps=800)
    assert job.steps == steps
    assert job.rate(steps // 10) > job.rate(steps - 1) >= 0.1 * job.learning_rate  # the schedule is that of its steps


@pytest.mark.parametrize(("patience", "epochs"), [(None, 6), (2, 4), (3, 6)])
def test_patience_ends_a_run_that_grows_worse(patience, epochs, tmp_path, monkeypatch):
    losses = iter([3.0, 2.0, 2.5, 2.1, 1.9, 2.6])
    trainer = Trainer(replace(JOB, epochs=6, patience=patience), tmp_path, data=tmp_path, machine=Machine(device="cpu"))
    validate = trainer.validate
    monkeypatch.setattr(trainer, "validate", lambda: validate() | {"loss": next(losses)})
    outcome = trainer.go()
    assert outcome["trained_epochs"] == len(outcome["curve"]["valid_loss"]) == epochs
    assert outcome["tested"]["loss"]["epoch"] == (2 if epochs == 4 else 5)


def test_stopped_in_the_middle_it_ends_the_same(tmp_path):
    machine = Machine(device="cpu")
    places = [tmp_path / "whole", tmp_path / "stopped"]
    for place in places:
        place.mkdir()
    whole = Trainer(JOB, places[0], data=tmp_path, machine=machine).go()
    trainer = Trainer(JOB, places[1], data=tmp_path, machine=machine)
    take = trainer.take

    def stopped(step, *batch):
        trainer.stopping = step == 3  # the second of the second epoch
        return take(step, *batch)

    trainer.take = stopped
    assert trainer.go() is None
    again = Trainer(JOB, places[1], data=tmp_path, machine=machine).go()
    assert whole is not None
    assert again is not None
    for name in ("curve", "tested", "valid_loss"):
        assert again[name] == whole[name]
    lines = (places[1] / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4, 6]


def test_a_damaged_state_is_named(tmp_path):
    (tmp_path / "state.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match=r"cannot go on from .*state\.safetensors: .*; remove it to begin anew"):
        Trainer(JOB, tmp_path, data=tmp_path, machine=Machine(device="cpu")).go()


def test_what_has_diverged_does_not_replace_what_was_saved(tmp_path):
    trainer = Trainer(JOB, tmp_path, data=tmp_path, machine=Machine(device="cpu"))
    trainer._save()
    before = trainer.state.read_bytes()
    next(trainer.model.parameters()).data.view(-1)[0] = float("inf")
    with pytest.raises(Diverged, match="contains NaN or Inf at step 0"):
        trainer._save()
    assert trainer.state.read_bytes() == before


def test_flipped_bits_in_a_state_are_refused(tmp_path):
    trainer = Trainer(JOB, tmp_path, data=tmp_path, machine=Machine(device="cpu"))
    trainer._save()
    trainer._restore()
    content = bytearray(trainer.state.read_bytes())
    content[-3] ^= 1
    trainer.state.write_bytes(content)
    with pytest.raises(UserError, match=r"state\.safetensors: its checksum is another; remove it to begin anew"):
        trainer._restore()
