import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import sweep
from memory_mosaics.experiments.outcomes import read_outcome
from memory_mosaics.experiments.sweep import Space
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text import corpus
from memory_mosaics.training.config import ModelArgs, Run, Training
from waiting import HANG

pytest.importorskip("optuna", reason="Optuna is not installed")
pytestmark = pytest.mark.usefixtures("undrawn")

MODEL = ModelArgs(name="memory-mosaic-tiny", width=16, blocks=1, heads=1, context=16, dropout=0.05)
TRAINING = Training(
    steps=8, batch=2, learning_rate=5e-3, final_learning_rate=1e-4, warm_up=10, evaluate_every=2, evaluate_windows=2
)
BASE = {"learning_rate": 5e-3, "dropout": 0.05, "weight_decay": 0.1, "warm_up": 10, "steps": 8}
TWO = Space(learning_rate=[1e-3, 5e-3])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    words = random.Random(0)
    stories = [" ".join(words.choices(["the", "cat", "saw", "one", "red", "bird"], k=20)) for _ in range(30)]
    (folder / "stories.jsonl").write_text("".join(json.dumps(story) + "\n" for story in stories))
    corpus.prepare(
        [str(folder / "stories.jsonl")], out=folder / "corpus", tokenizer="bytes", valid_share=0.2, workers=1
    )
    return folder / "corpus"


def run(data, out, **changes):
    runtime = RuntimeConfig(device="cpu", samples=0)
    return sweep.run(data, out, **{"model": MODEL, "training": TRAINING, "runtime": runtime} | changes)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    return out, run(data, out)


def losses(results):
    return {row["name"]: (row["status"], row["train_loss"], row["valid_loss"]) for row in results["rows"]}


def logs(out):
    return {file: (file.stat().st_mtime_ns, file.read_text()) for file in out.glob("trials/*/log.jsonl")}


def test_the_table_changes_one_thing_at_a_time(finished):
    out, results = finished
    assert json.loads((out / "results.json").read_text()) == results
    assert (out / "sweep.png").stat().st_size > 10_000
    changes = [{}, {"learning_rate": 1e-3}, {"dropout": 0}, {"weight_decay": 0.01}, {"warm_up": 1}]
    changes += [{"steps": 4}, {"steps": 16}]
    assert [{name: row[name] for name in BASE} for row in results["rows"]] == [BASE | change for change in changes]
    assert [row["changed"] for row in results["rows"]] == [list(change) for change in changes]
    assert results["base"] == BASE
    assert not results["interrupted"]
    for row in results["rows"]:
        of_run = json.loads((out / "trials" / row["name"] / "results.json").read_text())
        assert (of_run["train_loss"], of_run["valid_loss"]) == (row["train_loss"], row["valid_loss"])
        assert {name: of_run["training"][name] for name in BASE if name != "dropout"}.items() <= row.items()
        assert of_run["model"]["dropout"] == row["dropout"]
    best = min(results["rows"], key=lambda row: row["valid_loss"])
    assert results["best"] == best["name"]


def test_the_printed_table_is_the_papers(finished):
    lines = sweep.table(finished[1]).splitlines()
    assert re.split(" {2,}", lines[0].strip())[-2:] == ["train loss", "valid loss"]
    assert lines[2].split()[:5] == ["*0.001", "0.05", "0.1", "10", "8"]
    assert sum("best" in line for line in lines) == 1


def test_the_rows_of_the_paper_itself():
    paper = {"learning_rate": 5e-3, "dropout": 0.05, "weight_decay": 0.1, "warm_up": 2000, "steps": 80_000}
    changed = [{name: row[name] for name in row if row[name] != paper[name]} for row in sweep.paper_rows(paper)]
    first = [{}, {"learning_rate": 1e-3}, {"dropout": 0}, {"weight_decay": 0.01}, {"warm_up": 200}]
    assert changed == [*first, {"steps": 40_000}, {"steps": 160_000}]


def test_what_is_finished_is_not_repeated(data, finished):
    out, results = finished
    before = logs(out)
    assert len(before) == 7
    assert losses(run(data, out)) == losses(results)
    assert logs(out) == before


def test_a_run_that_diverges_is_a_fail(data, tmp_path, capsys):
    results = run(data, tmp_path, method="grid", space=Space(learning_rate=[1e-3, 1e6]))
    assert [row["status"] for row in results["rows"]] == ["finished", "fail"]
    assert results["rows"][1]["valid_loss"] is None
    assert "nan" in results["rows"][1]["reason"]
    assert re.search(r"\*1e\+06 .* fail +fail\n", capsys.readouterr().out)
    before = logs(tmp_path)
    assert losses(run(data, tmp_path, method="grid", space=Space(learning_rate=[1e-3, 1e6]))) == losses(results)
    assert logs(tmp_path) == before


def test_worse_than_a_guess_is_a_fail(data, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "log", lambda _: 0.5)
    results = run(data, tmp_path, method="grid", space=Space(dropout=[0.0]))
    assert results["rows"][0]["status"] == "fail"
    assert results["rows"][0]["valid_loss"] > 0.5
    assert results["best"] is None


def test_trials_can_be_sent_to_other_processes(data, tmp_path):
    base = Run(data=data, out=tmp_path, model=MODEL, training=TRAINING, runtime=RuntimeConfig(device="cpu", samples=0))
    grid, _ = sweep.make_grid(base, "grid", TWO, 1)
    sent = pickle.loads(pickle.dumps(grid))
    assert (sent.runs, sent.search, sent.train.args) == (grid.runs, grid.search, grid.train.args)
    assert [sent.name_of(row) for row in sent.runs] == [grid.name_of(row) for row in grid.runs]


@pytest.mark.slow  # processes share runs in test_curves.py too, and a journal in test_regbench.py
def test_jobs_share_the_trials(data, finished, tmp_path):
    results = run(data, tmp_path, jobs=2)
    assert losses(results) == losses(finished[1])
    for row in results["rows"]:
        assert (tmp_path / "trials" / row["name"] / "output.txt").read_text().count("Checkpoint:") == 1


COMMAND = """
import sys
from pathlib import Path
from memory_mosaics.experiments import sweep
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.training.config import ModelArgs, Training
model, training = ModelArgs(**{model}), Training(**{training})
runtime = RuntimeConfig(device="cpu", samples=0)
sweep.run(Path(sys.argv[1]), Path(sys.argv[2]), model=model, training=training, runtime=runtime{more})
"""


@pytest.mark.slow
def test_killed_and_started_again_it_ends_the_same(data, tmp_path):
    import optuna

    slow = Training(**asdict(TRAINING) | {"steps": 24, "evaluate_every": 6})
    three = {"training": slow, "method": "grid", "space": Space(learning_rate=[1e-3, 2e-3, 5e-3])}
    whole = run(data, tmp_path / "whole", **three)
    out, second = tmp_path / "killed", whole["rows"][1]["name"]
    code = COMMAND.format(
        model=asdict(MODEL),
        training=asdict(slow),
        more=", method='grid', space=sweep.Space(learning_rate=[1e-3, 2e-3, 5e-3])",
    )
    # Before the second event after the one that puts its first checkpoint there.
    killed = f"from killing import kill_at; kill_at({str(out / 'trials' / second)!r}, 2, after='/step-')\n"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", killed + code, str(data), str(out)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.wait(HANG) == -signal.SIGKILL
    assert list((out / "trials" / second).glob("step-*"))
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out / "journal.log")))
    left = optuna.load_study(study_name="sweep", storage=storage).trials[1]
    assert left.state == optuna.trial.TrialState.RUNNING
    before = {file: log for file, log in logs(out).items() if file.parent.name != second}
    assert len(before) == 1
    assert losses(run(data, out, **three)) == losses(whole)
    assert before.items() <= logs(out).items()
    again = [json.loads(line) for line in (out / "trials" / second / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in again] == sorted(line["step"] for line in again)
    assert len(list((out / "trials").iterdir())) == 3


def test_ctrl_c_keeps_everything(data, tmp_path, monkeypatch):
    train, calls = sweep.trainer.train, []

    def interrupted(trial):
        calls.append(trial.out.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(trial)

    monkeypatch.setattr(sweep.trainer, "train", interrupted)
    results = run(data, tmp_path, method="grid", space=TWO)
    assert results["interrupted"]
    assert [row["status"] for row in results["rows"]] == ["finished", "unfinished"]
    results = run(data, tmp_path, method="grid", space=TWO)
    assert not results["interrupted"]
    assert [calls.count(row["name"]) for row in results["rows"]] == [1, 2]


def test_draws_depend_on_the_seed_alone(data, tmp_path):
    options = {"method": "random", "space": Space(learning_rate="1e-4..1e-2", steps="1..3")}
    first = run(data, tmp_path / "first", trials=2, **options)
    assert len(first["rows"]) == 2
    longer = run(data, tmp_path / "first", trials=3, **options)
    whole = run(data, tmp_path / "whole", trials=3, **options)
    assert losses(longer) == losses(whole)
    assert losses(first).items() <= losses(longer).items()
    for row in whole["rows"]:
        assert 1e-4 <= row["learning_rate"] <= 1e-2
        assert 1 <= row["steps"] <= 3
        assert row["dropout"] == 0.05


def test_trials_are_a_limit_for_the_table_and_for_grids(data, finished, tmp_path):
    table = run(data, tmp_path / "table", trials=2)
    assert [row["changed"] for row in table["rows"]] == [[], ["learning_rate"]]
    assert losses(table).items() <= losses(finished[1]).items()
    assert table["best"] in losses(table)
    grid = {"method": "grid", "space": Space(learning_rate=[1e-3, 5e-3], steps=[1, 2, 3])}
    first, more, whole = (run(data, tmp_path / "grid", trials=trials, **grid) for trials in (2, 4, None))
    assert [len(each["rows"]) for each in (first, more, whole)] == [2, 4, 6]
    assert losses(first).items() <= losses(more).items() <= losses(whole).items()
    assert {row["learning_rate"] for row in more["rows"]} == {1e-3, 5e-3}, "not the first four of the list"
    assert len({row["steps"] for row in first["rows"]}) == 2


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_an_exhausted_space_ends_the_sweep(data, tmp_path, method):
    results = run(data, tmp_path, method=method, space=Space(steps=[1, 2], warm_up="0..1"), trials=9)
    assert sorted((row["steps"], row["warm_up"]) for row in results["rows"]) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert main(["draw", str(tmp_path)]) == 0
    assert (tmp_path / "sweep.png").exists()


def test_a_trial_that_was_removed_is_trained_anew(data, tmp_path):
    options = {"method": "grid", "space": Space(steps=[1, 2])}
    before = run(data, tmp_path, **options)
    shutil.rmtree(tmp_path / "trials" / before["rows"][1]["name"])
    assert losses(run(data, tmp_path, **options)) == losses(before)
    (tmp_path / "trials" / before["rows"][0]["name"] / "outcome.json").write_text("damaged")
    with pytest.raises(UserError, match="remove it to train that run again"):
        run(data, tmp_path, **options)


def test_half_a_line_in_the_journal_does_no_harm(data, tmp_path):
    options = {"method": "grid", "space": Space(steps=[1])}
    before = run(data, tmp_path, **options)
    with (tmp_path / "journal.log").open("a") as journal:
        journal.write('{"op_code": 5, "wor')
    assert losses(run(data, tmp_path, **options)) == losses(before)


@pytest.mark.parametrize("damage", [b"garbage\n", b"[]\n", b'{"op_code": 99}\n', b'{"op_code": 4}\n'])
def test_a_damaged_journal_is_named(data, tmp_path, damage):
    (tmp_path / "journal.log").write_bytes(damage)
    with pytest.raises(UserError, match=r"journal.log is damaged: .*; remove it: finished trials are read from their"):
        run(data, tmp_path, method="grid", space=Space(dropout=[0.0]))


FAILED = '{"status": "fail", "reason": "", '


@pytest.mark.parametrize(
    "damage",
    [
        *("{", "[]", '{"status": "done"}', '{"status": "finished"}', '{"status": "fail"}'),
        *(FAILED + rest for rest in ('"valid_loss": "low"}', '"hardware": 1}', '"seconds": []}')),
    ],
)
def test_a_damaged_outcome_is_named(tmp_path, damage):
    (tmp_path / "outcome.json").write_text(damage)
    with pytest.raises(UserError, match=r"outcome.json is damaged.*remove it to train that run again"):
        read_outcome(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": 0}, "jobs must be at least 1, not 0"),
        ({"method": "tpe"}, "tpe needs a space"),
        ({"space": TWO}, "--method grid, random or tpe"),
        (
            {"method": "grid", "space": Space(dropout="0..0.1")},
            "grid takes lists, and space.dropout is the range 0.0..0.1",
        ),
        ({"method": "random", "space": Space(dropout="a lot")}, "space.dropout: 'a lot' is neither a list"),
        ({"method": "random", "space": Space(steps="9..3")}, "space.steps: '9..3'"),
        ({"method": "random", "space": Space(dropout="0..2")}, "dropout must be in"),
        ({"method": "random", "space": Space(learning_rate=[0.0])}, "learning_rate must be positive, not 0.0"),
        ({"runtime": RuntimeConfig(device="abacus")}, "no device 'abacus'"),
    ],
)
def test_mistakes_are_explained_before_anything_is_written(data, tmp_path, changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        run(data, tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_another_sweep_in_the_folder_is_refused(data, finished):
    out, _ = finished
    with pytest.raises(UserError, match=r"training\.batch 2, not 4; name another folder"):
        run(data, out, training=Training(**asdict(TRAINING) | {"batch": 4}))


def test_no_corpus(tmp_path):
    with pytest.raises(UserError, match=r"no manifest\.json"):
        run(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(("library", "extra"), [("optuna", "sweep"), ("ray", "ray")])
def test_a_missing_library_is_named(data, tmp_path, monkeypatch, library, extra):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=re.escape(f"pip install 'memory-mosaics[{extra}]'")):
        run(data, tmp_path, method="grid", space=TWO, cluster="ray")
    assert not (tmp_path / "trials").exists()


@pytest.mark.slow
def test_ray_gives_the_same(data, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed")
    results = {}
    for name, more in {"here": "", "there": ", cluster='ray', jobs=2"}.items():
        more = ", method='grid', space=sweep.Space(steps=[2, 4])" + more
        code = COMMAND.format(model=asdict(MODEL), training=asdict(TRAINING), more=more)
        subprocess.run([sys.executable, "-c", code, str(data), str(tmp_path / name)], check=True)
        results[name] = losses(json.loads(Path(tmp_path / name / "results.json").read_text()))
    assert results["here"] == results["there"]
