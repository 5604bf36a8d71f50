import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from memory_mosaics.errors import UserError
from memory_mosaics.experiments import figures, induction
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.results import write_results
from memory_mosaics.tasks.induction import InductionData
from memory_mosaics.training.trainer import Diverged

TINY = InductionData(vocabulary=16, length=64, triggers=3, fixed_triggers=True, entropy=1.6)
NAMES = ["memory", "transformer-1", "transformer-1-shifted", "transformer-2"]


pytestmark = pytest.mark.usefixtures("undrawn")


def run(out, **changes):
    task = replace(TINY, length=32)
    return induction.run(out, **{"task": task, "steps": 5, "batch_size": 4, "width": 16} | changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Trained for long enough to learn it."""
    out = tmp_path_factory.mktemp("induction")
    return out, run(out, task=TINY, steps=60, batch_size=16, width=32)


def test_what_is_returned_is_what_is_written(finished):
    out, results = finished
    assert sorted(file.name for file in out.iterdir()) == [
        ".locks",
        "induction.pdf",
        "induction.png",
        "induction.svg",
        "recipe.yaml",
        "results.json",
        "setup.json",
        "trials",
    ]
    assert json.loads((out / "results.json").read_text()) == results


def test_results_are_complete(finished):
    _, results = finished
    assert results["interrupted"] is False
    assert results["settings"]["steps"] == 60
    assert results["settings"]["vocabulary"] == 16
    assert results["settings"]["seed"] == 0
    assert set(results["versions"]) == {"memory-mosaics", "python", "torch", "numpy"}
    assert "cores" in results["hardware"]
    assert results["data"]["bigram_entropy"] == pytest.approx(1.6, abs=1e-3)
    assert list(results["models"]) == NAMES
    for name, record in results["models"].items():
        model = LanguageModel(induction.models(TINY, width=32)[name])
        assert record["parameters"] == sum(parameter.numel() for parameter in model.parameters())
        steps, losses, accuracies = zip(*record["curve"], strict=True)
        assert (steps[0], steps[-1]) == (0, 60)
        assert list(steps) == sorted(set(steps))
        assert losses[-1] == record["final"]["loss"] < losses[0]
        assert accuracies[-1] == record["final"]["accuracy"]
        assert record["seconds"] > 0


def test_one_block_of_memory_beats_one_of_attention(finished):
    final = {name: record["final"]["accuracy"] for name, record in finished[1]["models"].items()}
    assert final["memory"] > 0.95
    assert final["transformer-1-shifted"] > final["transformer-1"] + 0.15
    assert final["memory"] > final["transformer-1"] + 0.3


def test_the_rules_bound_the_task(finished):
    rules = finished[1]["rules"]
    assert rules["token-memory"]["final"]["accuracy"] == 1.0
    assert rules["bigram"]["final"]["accuracy"] < 0.3
    assert rules["bigram"]["final"]["accuracy_others"] > rules["token-memory"]["final"]["accuracy_others"]


def test_all_models_read_the_same_batches_in_the_same_order(tmp_path, monkeypatch):
    asked = []
    original = InductionData.batch
    monkeypatch.setattr(
        InductionData, "batch", lambda *args, **where: asked.append(where["step"]) or original(*args, **where)
    )
    run(tmp_path, steps=3)
    assert asked[0] > 1_000_000  # the held-out batch
    assert [step for step in asked if step < 1_000_000] == [0, 1, 2] * 4


def test_the_same_seed_gives_the_same_numbers(tmp_path):
    first, again, other = (run(tmp_path / str(i), steps=3, seed=seed)["models"] for i, seed in enumerate((1, 1, 2)))
    for name in NAMES:
        assert first[name]["curve"] == again[name]["curve"]
        assert first[name]["curve"] != other[name]["curve"]


def test_a_run_leaves_the_random_state_alone(tmp_path):
    before = torch.get_rng_state()
    run(tmp_path, steps=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_ctrl_c_keeps_what_is_finished(tmp_path, monkeypatch, capsys):
    calls = iter(range(1000))
    original = InductionData.batch

    def batch(*args, **where):
        if where["step"] < 1_000_000 and next(calls) == 7:  # five steps of the first model, two of the second
            raise KeyboardInterrupt
        return original(*args, **where)

    monkeypatch.setattr(InductionData, "batch", batch)
    results = run(tmp_path)
    assert results["interrupted"] is True
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert list(results["models"]) == NAMES[:1]
    output = capsys.readouterr().out
    assert "Stopped; the same command continues." in output
    assert str(tmp_path / "results.json") in output
    monkeypatch.undo()
    assert list(run(tmp_path)["models"]) == NAMES, "the same command continues"


def test_the_table_holds_every_number(finished):
    text = induction.table(finished[1])
    for record in finished[1]["models"].values():
        line = next(line for line in text.splitlines() if line.startswith(record["label"] + "  "))
        assert f"{record['parameters']:,}" in line
        assert f"{record['final']['accuracy']:.3f}" in line
        assert f"{record['final']['loss']:.3f}" in line


def test_measure_against_a_count_by_hand():
    batch = TINY.batch(4, seed=0, step=0)
    logits = torch.randn(4, 64, 16)
    rights = {"accuracy": [], "accuracy_changing": [], "accuracy_others": []}
    for row in range(4):
        for t in range(64):
            right = int(logits[row, t].argmax()) == int(batch.targets[row, t])
            rights["accuracy" if batch.counted[row, t] else "accuracy_others"].append(right)
            if batch.counted[row, t] and batch.inputs[row, t] != batch.targets[row, t]:
                rights["accuracy_changing"].append(right)
    measures = induction.measure(logits, batch)
    for name, right in rights.items():
        assert measures[name] == pytest.approx(sum(right) / len(right), abs=1e-4)
    loss = nn.CrossEntropyLoss()(logits.flatten(0, 1), batch.targets.flatten())
    assert measures["loss"] == pytest.approx(loss.item(), abs=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"batch_size": -1}, "batch_size must be at least 1, not -1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, not 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive, not nan"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"width": 30}, "width 30 does not split into 4 heads"),
        ({"task": InductionData(triggers=0)}, "no trigger of this task occurs twice"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_written(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        run(tmp_path / "new", **change)
    assert not (tmp_path / "new").exists()


def test_models_that_diverge_are_named_and_the_others_trained(tmp_path, monkeypatch, capsys):
    with pytest.raises(UserError, match="no model was trained; lower learning_rate, now 1e"):
        run(tmp_path / "all", steps=2, learning_rate=1e30)
    assert len(json.loads((tmp_path / "all" / "results.json").read_text())["failed"]) == len(NAMES)
    original = induction.train

    def train(*args, name, **options):
        if name == "transformer-1":
            raise Diverged("the loss is nan")
        return original(*args, name=name, **options)

    monkeypatch.setattr(induction, "train", train)
    for _ in range(2):  # the second time nothing is trained, and the seconds are those of the training
        results = run(tmp_path / "one", steps=2)
        assert list(results["models"]) == [name for name in NAMES if name != "transformer-1"]
        assert results["failed"] == {"transformer-1-seed0": "the loss is nan"}
        assert results["seconds"] == round(sum(model["seconds"] for model in results["models"].values()), 1)
        assert "transformer-1-seed0 failed: the loss is nan" in capsys.readouterr().out


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"cannot write to .*file"):
        run(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_without_matplotlib_the_results_are_there(tmp_path, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setattr(figures, "available", lambda: False)
    run(tmp_path, steps=1)
    assert "No figures: matplotlib is not installed here; mosaics draw makes them" in capsys.readouterr().out
    assert (tmp_path / "results.json").exists()


def test_results_are_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "results.json"
    write_results(file, {"curve": [[1, 2.5], [2, 2.25]], "name": "a", "empty": {}})
    before = file.read_text()
    assert json.loads(before) == {"curve": [[1, 2.5], [2, 2.25]], "name": "a", "empty": {}}
    with pytest.raises(ValueError, match="a number in it is NaN or Inf"):
        write_results(file, {"loss": float("nan")})
    assert file.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_seeds_are_models_of_their_own_and_the_first_is_that_of_one_seed(tmp_path):
    results = run(tmp_path, seeds=2)
    alone = run(tmp_path / "alone")
    for name, record in results["models"].items():
        first, second = record["seeds"]
        assert {"seed": 0} | record["final"] == first
        assert second["seed"] == 1
        assert second["loss"] != first["loss"]
        assert record["final"] == alone["models"][name]["final"]
        assert record["parameters"] == alone["models"][name]["parameters"]
    text = induction.table(results)
    assert "mean and lowest of 2 seeds" in text
    losses = [seed["loss"] for seed in results["models"]["memory"]["seeds"]]
    assert f"{sum(losses) / 2:.3f}" in text


def test_fewer_than_one_seed_is_refused(tmp_path):
    with pytest.raises(UserError, match="seeds must be at least 1"):
        run(tmp_path, seeds=0)


@pytest.mark.parametrize("options", [{"seeds": 10**12}, {"steps": 10**30}, {"seed": 2**70}])
def test_numbers_without_end_are_refused(tmp_path, options, monkeypatch):
    monkeypatch.setattr("memory_mosaics.experiments.induction.train", pytest.fail)
    with pytest.raises(UserError, match=rf"{next(iter(options))} must be at most"):
        run(tmp_path, **options)
    assert not list(tmp_path.iterdir())
