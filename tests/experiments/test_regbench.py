import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from experiments.conftest import SETTINGS
from experiments.conftest import small_regbench as run
from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import regbench
from memory_mosaics.experiments.figures import tasks as figures
from memory_mosaics.experiments.grid import Grid
from memory_mosaics.experiments.regbench import Choices, make_grid
from memory_mosaics.experiments.regbench_models import ARCHITECTURES, ELEVEN
from memory_mosaics.experiments.runner import load_packaged, run_queues, run_trial
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.tasks.regbench import RegBenchData

pytestmark = pytest.mark.usefixtures("undrawn")
PUBLISHED = load_packaged("regbench_published")["figure_9"]
SHORT = {"data_seed": 7}  # of no other test: processes keep the sequences of a seed


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """All eleven on eight languages, two of them on forty, and two in distribution, on sequences of few strings."""
    out = tmp_path_factory.mktemp("regbench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memory_mosaics.tasks.regbench.STRINGS", (3, 5))
        run(out, **SHORT, architectures=None, environments=[8])
        run(out, **SHORT, architectures=["lstm", "lstm-as-published"], environments=[40])
        return out, run(out, **SHORT, architectures=["memory-mosaic", "rwkv-as-published"], in_distribution=True)


def test_results_are_complete_and_of_all_commands(finished):
    out, results = finished
    assert json.loads((out / "results.json").read_text()) == results
    cases = [(best["architecture"], best["environments"], best["in_distribution"]) for best in results["best"]]
    assert {name for name, number, inside in cases if number == 8 and not inside} == set(ELEVEN)
    assert ("lstm-as-published", 40, False) in cases
    assert ("memory-mosaic", 8, True) in cases
    assert len(results["runs"]) == len(cases) == 15
    assert set(results["versions"]) == {"memory-mosaics", "python", "torch", "numpy"}
    assert "cores" in results["hardware"]
    for one in results["runs"]:
        assert one["status"] == "finished"
        assert all(len(curve) == 2 for curve in one["curve"].values())
        assert set(one["tested"]) == {"loss", "accuracy", "tvd"}
        assert 0 < one["accuracy"] < 1
        assert 0 < one["tvd"] < 1
        assert one["parameters"] > 0


def test_the_epoch_is_chosen_on_validation(finished):
    for one in finished[1]["runs"]:
        curve = one["curve"]
        epochs = {by: tested["epoch"] for by, tested in one["tested"].items()}
        assert curve["valid_loss"][epochs["loss"] - 1] == min(curve["valid_loss"])
        assert curve["valid_accuracy"][epochs["accuracy"] - 1] == max(curve["valid_accuracy"])
        assert curve["valid_tvd"][epochs["tvd"] - 1] == min(curve["valid_tvd"])
        assert one["selected_by"] == "loss"
        assert (one["accuracy"], one["tvd"]) == (one["tested"]["loss"]["accuracy"], one["tested"]["loss"]["tvd"])


def test_tables_and_figures(finished):
    out, results = finished
    text = (out / "tables.md").read_text()
    assert "| accuracy / TVD, new languages | 8 | 40 |" in text
    assert "| new sequences of known languages |" in text
    assert all(f"| {results['labels'][name]} |" in text for name in ELEVEN)
    assert "| 3-gram | " in text
    for figure in ("regbench.png", "in_distribution.png"):
        assert (out / figure).stat().st_size > 10_000
    (out / "regbench.png").unlink()
    assert main(["draw", str(out)]) == 0
    assert (out / "regbench.png").exists()


def test_what_is_finished_is_not_repeated(finished, monkeypatch):
    out, results = finished
    monkeypatch.setattr(regbench, "train", lambda *_: pytest.fail("trained again"))
    again = run(out, **SHORT, architectures=None, environments=[8])
    assert again["best"] == results["best"]
    assert not again["interrupted"]


def test_published_numbers_stand_beside_ours():
    best = {"architecture": "s4d", "environments": 1000, "in_distribution": False, "accuracy": 0.5, "tvd": 0.25}
    best |= {"name": "s4d-1000-l2", "configurations": 3, "tested": {"loss": {"epoch": 7}}, "valid_loss": 1.25}
    best |= {"parameters": 12_345, "seconds": 90}
    results = {"best": [best], "labels": {"s4d": "S4D"}, "anchors": {}, "published": PUBLISHED, "runs": []}
    lines = regbench.tables(results).splitlines()
    assert lines[2:4] == ["| S4D | 0.500 / 0.250 |", "| *published* | 0.515 / 0.630 |"]
    assert lines[-1] == "| S4D | 1,000 | l2 | 3 | 7 | 1.2500 | 12,345 | 1.5 |"


@pytest.mark.slow  # a sweep in two processes is below
def test_processes_share_the_runs(tmp_path):
    alone, results = (run(tmp_path / str(jobs), architectures=["lstm", "gla"], jobs=jobs) for jobs in (1, 2))
    expected = {one["name"]: one["valid_loss"] for one in alone["runs"]}
    for one in results["runs"]:
        assert one["valid_loss"] == pytest.approx(expected[one["name"]], rel=1e-5)
    assert len(results["runs"]) == 2


def ended(out):
    """Runs, and when they were written."""
    return {(file, file.stat().st_mtime_ns) for file in out.glob("trials/*/outcome.json")}


def killed_after_one_run(words, out):
    """What had ended when the command was killed."""
    command = [sys.executable, "-m", "memory_mosaics.cli", *words]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while not ended(out):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    return ended(out)


@pytest.mark.slow  # a sweep that was killed is below
def test_killed_and_started_again_it_goes_on(tmp_path):
    words = ["regbench", "--out", str(tmp_path), "--architectures", "lstm", "--environments", "8", "40"]
    words += ["--choices.width", "16", "--choices.blocks", "1", "--epochs", "3", "--held-out", "6", "--device", "cpu"]
    before = killed_after_one_run(words, tmp_path)
    assert main(words) == 0
    assert before <= ended(tmp_path)
    assert len(json.loads((tmp_path / "results.json").read_text())["best"]) == 2
    assert not list(tmp_path.glob("trials/*/step-*"))
    assert len(list(tmp_path.glob("trials/*/model/model.safetensors"))) == 2


@pytest.mark.parametrize("commit", ["abc", None], ids=["in a repository", "installed"])
def test_a_run_that_diverges_is_a_fail(commit, tmp_path, monkeypatch):
    monkeypatch.setattr("memory_mosaics.results.commit", lambda: commit)
    measures = {"valid_loss": float("nan"), "accuracy": 0.0, "tvd": 1.0}
    monkeypatch.setattr(regbench.RegBench, "evaluate", lambda *_: measures)
    with pytest.raises(UserError, match="none of 1 runs finished; the valid loss is nan"):
        run(tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["runs"][0]["status"] == "fail"
    assert results["best"] == []
    assert "| lstm-8-l1-d16-" in (tmp_path / "tables.md").read_text()


def test_ctrl_c_keeps_everything(tmp_path, monkeypatch):
    train, calls = regbench.train, []

    def interrupted(runtime, settings, folder):
        calls.append(settings["environments"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(runtime, settings, folder)

    monkeypatch.setattr(regbench, "train", interrupted)
    results = run(tmp_path, environments=[8, 9])
    assert results["interrupted"]
    assert [one["environments"] for one in results["runs"]] == [8]
    assert not run(tmp_path, environments=[8, 9])["interrupted"]
    assert calls == [8, 9, 9]


def test_the_papers_search():
    cases = [SETTINGS | {"architecture": name} for name in ("memory-mosaic", "s4d", "lstm-as-published")]
    options = {"sweep": True, "trials": None}
    grids = [make_grid(Path("nowhere"), RuntimeConfig(), case, Choices(), **options) for case in cases]
    assert [grid.count for grid in grids] == [54, 18, 6]
    names = [grid.name_of(settings) for grid in grids for settings in grid.runs]
    assert len(set(names)) == 78
    assert "memory-mosaic-40-l2-h8-d64-decay0.01-lr0.0005-seed0" in names


def test_a_sweep_is_kept_in_a_journal_and_goes_on(tmp_path):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    choices = Choices(blocks=[1], width=[8], weight_decay=[0.01, 0.1, 0.2])
    first = run(tmp_path, sweep=True, trials=2, choices=choices)
    assert len(first["runs"]) == 2
    assert (tmp_path / "journal.log").exists()
    again = run(tmp_path, sweep=True, trials=2, choices=choices)
    assert again["runs"] == first["runs"]
    whole = run(tmp_path, sweep=True, choices=choices)
    assert len(whole["runs"]) == 3
    assert all(one in whole["runs"] for one in first["runs"])
    choices = Choices(blocks=[1], width=[8], weight_decay=[0.01, 0.1])
    other = tmp_path / "grid"
    results = run(other, sweep=True, choices=choices, environments=[8, 9], jobs=2)
    assert [best["configurations"] for best in results["best"]] == [2, 2]
    for best in results["best"]:
        losses = [one["valid_loss"] for one in results["runs"] if one["environments"] == best["environments"]]
        assert best["valid_loss"] == min(losses)


def test_a_sweep_grows(tmp_path, monkeypatch):
    """Another space takes what is there of it, and trains the rest; so does a list without a sweep, and a draw."""
    pytest.importorskip("optuna", reason="Optuna is not installed")
    train, trained = regbench.train, []

    def counted(runtime, settings, folder):
        trained.append((settings["blocks"], settings["width"]))
        return train(runtime, settings, folder)

    monkeypatch.setattr(regbench, "train", counted)
    first = run(tmp_path, sweep=True, choices=Choices(blocks=[1], width=[8], weight_decay=[0.1]))
    grown = Choices(blocks=[1, 2], width=[8], weight_decay=[0.1])
    second = run(tmp_path, sweep=True, choices=grown)
    assert trained == [(1, 8), (2, 8)]
    assert first["runs"][0] in second["runs"]
    assert second["best"][0]["configurations"] == 2
    run(tmp_path, sweep=True, choices=Choices(blocks=[1], width=[8], weight_decay=[0.1]))
    run(tmp_path, choices=Choices(blocks=[2], width=[8, 16]))
    run(tmp_path, sweep=True, choices=Choices(blocks=[1, 2], width=[8, 16], weight_decay=[0.1]))
    assert trained == [(1, 8), (2, 8), (2, 16), (1, 16)]
    run(tmp_path, sweep=True, trials=3, choices=Choices(blocks=[2, 1], width=[16, 8], weight_decay=[0.1]))
    assert len(trained) == 4


def test_a_grown_sweep_goes_on_with_what_was_killed_in_the_smaller(tmp_path):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    words = ["regbench", "--sweep", "--out", str(tmp_path), "--architectures", "lstm", "--environments", "8"]
    words += ["--choices.width", "8", "--choices.weight_decay", "0.1", "--epochs", "3", "--held-out", "6"]
    words += ["--device", "cpu", "--choices.blocks", "1", "2"]
    before = killed_after_one_run(words, tmp_path)
    assert main([*words, "3"]) == 0
    assert before <= ended(tmp_path)
    assert main(words) == 0
    assert len(json.loads((tmp_path / "results.json").read_text())["runs"]) == 3
    assert not list(tmp_path.glob("trials/*/step-*"))
    assert len(list(tmp_path.glob("trials/*/model/model.safetensors"))) == 3


def test_two_searches_do_not_train_the_same_at_once(tmp_path):
    started, end, measured = threading.Event(), threading.Event(), {"train_loss": 1.0, "valid_loss": 1.0}

    def train(settings, folder):
        started.set()
        end.wait()
        return measured

    def fail(settings, folder):
        pytest.fail("trained twice")

    grids = [
        Grid(out=tmp_path, name_of=lambda _: "one", train=each, settings=[{}], quiet=False) for each in (train, fail)
    ]
    found = []
    first, second = (threading.Thread(target=lambda g=grid: found.append(run_trial(g, {}))) for grid in grids)
    first.start()
    started.wait()
    second.start()
    second.join(0.2)
    assert second.is_alive()
    end.set()
    first.join()
    second.join()
    assert [{name: one[name] for name in ("status", *measured)} for one in found] == [
        {"status": "finished"} | measured
    ] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["transfomer"]}, "no architecture 'transfomer'; did you mean transformer?"),
        (
            {"architectures": ["nothing.Here"]},
            "architecture nothing.Here cannot be imported: No module named 'nothing'",
        ),
        ({"architectures": ["math.pi"]}, "architecture math.pi is not a MixerConfig: 3.14"),
        ({"architectures": [".."]}, "architecture .. cannot be imported"),
        ({"cluster": "ray"}, "--cluster ray needs Ray"),
        ({"environments": [0]}, "environments must be at least 1, not 0"),
        ({"environments": [10**13]}, "environments must be at most 10,000,000, not 10000000000000"),
        ({"held_out": 0}, "held_out must be at least 1, not 0"),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"jobs": 0}, "jobs must be at least 1, not 0"),
        ({"trials": 3}, "--trials 3 draws from a sweep"),
        ({"device": "abacus"}, "no device 'abacus'"),
        ({"architectures": ["gla"], "choices": Choices(heads=[3])}, "gla: width 128 does not split into 3 heads"),
        ({"choices": Choices(width=[0])}, "lstm: width must be at least 1, not 0"),
        ({"choices": Choices(blocks=[0])}, "lstm: blocks must be at least 1, not 0"),
        ({"architectures": ["gla"], "choices": Choices(heads=[0])}, "gla: heads must be at least 1, not 0"),
        ({"choices": Choices(seed=[-1])}, "seed must be at least 0, not -1"),
        ({"choices": Choices(learning_rate=[0.0])}, "learning_rate must be positive, not 0.0"),
    ],
)
def test_mistakes_are_explained_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(UserError, match=re.escape(message)):
        run(tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_damaged_files_are_named(tmp_path, capsys):
    run(tmp_path)
    (outcome,) = tmp_path.glob("trials/*/outcome.json")
    for text in ("{", "{}", "[]", '{"status": "finished", "train_loss": 1, "valid_loss": 2}', "[" * 99_999):
        outcome.write_text(text)
        with pytest.raises(UserError, match=r"outcome\.json is damaged: .*remove it to train that run again"):
            run(tmp_path)
    outcome.unlink()
    (tmp_path / "setup.json").write_text("[1]")
    with pytest.raises(UserError, match=r"setup\.json is damaged"):
        run(tmp_path)


def test_other_languages(tmp_path):
    first, second = (run(tmp_path / str(seed), data_seed=seed) for seed in (0, 1))
    plain, other = first["runs"][0], second["runs"][0]
    assert plain["data_seed"] == 0
    assert plain["valid_loss"] != other["valid_loss"]
    assert first["anchors"]["2-gram"] != second["anchors"]["2-gram"]  # of the same test


def test_distinct_languages_are_those_of_the_ngrams_too(tmp_path, monkeypatch):
    drawn, sequences = set(), RegBenchData.sequences
    monkeypatch.setattr(
        RegBenchData, "sequences", lambda data, split: drawn.add((data.distinct, split)) or sequences(data, split)
    )
    run(tmp_path, distinct=True)
    assert drawn == {(True, "train"), (True, "validation"), (True, "test")}


def test_figures_show_the_papers_numbers_of_as_many_languages_alone():
    best = {"architecture": "s4d", "environments": 100, "in_distribution": True, "accuracy": 0.5, "tvd": 0.25}
    others = best | {"environments": 32}, best | {"in_distribution": False, "environments": 32}
    results = {"best": [best, *others], "labels": {"s4d": "S4D"}, "anchors": {}}
    results |= {"published": PUBLISHED, "published_in_distribution": {"s4d": [0.846, 0.35]}}
    inside, outside = figures.in_distribution(results), figures.regbench(results)
    assert [text.get_text() for text in inside.axes[0].get_yticklabels()] == ["S4D, 100", "S4D, 32"]
    rings = [line for line in inside.axes[0].lines if line.get_markerfacecolor() == "none"]
    assert [tuple(line.get_xydata()[0]) for line in rings] == [(0.846, 0)]
    assert [text.get_text() for text in outside.legends[0].get_texts()] == ["S4D"]


def test_a_sweep_draws_as_many_as_were_asked_for(tmp_path, monkeypatch):
    """Also where TPE would draw the same again and again, and where the space ends."""
    pytest.importorskip("optuna")

    def train(runtime, settings, folder):
        size = settings["blocks"] + settings["width"] / 64 + settings["heads"] / 8
        losses = {"train_loss": size, "valid_loss": size + 10 * settings["weight_decay"]}
        return dict.fromkeys(regbench.BEST) | losses

    monkeypatch.setattr(regbench, "train", train)
    case = SETTINGS | {"architecture": "memory-mosaic"}
    choices = Choices(blocks=[2, 4], heads=[2, 4, 8], width=[64, 128])
    for trials in (6, 16, 24):  # TPE's first ten are random
        grid = make_grid(tmp_path, RuntimeConfig(), case, choices, sweep=True, trials=trials)
        queue = grid.queue()
        queue.study.ask()  # a process that was killed before it drew the values leaves this
        assert run_queues([grid])
        ended = [trial for trial in queue.study.get_trials() if trial.state.name == "COMPLETE"]
        assert len({str(trial.params) for trial in ended}) == len(ended) == trials


def test_another_setup_in_the_folder_is_refused(tmp_path):
    run(tmp_path)
    others = {"epochs": (2, 3), "patience": (None, 3), "distinct": (False, True), "precision": ("float32", "bfloat16")}
    for name, (here, other) in others.items():
        message = f"holds runs with {name} {here}, not {other}; name another folder with --out"
        with pytest.raises(UserError, match=message):
            run(tmp_path, **{name: other})
    before = json.loads((tmp_path / "setup.json").read_text())
    del before["precision"]  # a folder that is older than the rule
    (tmp_path / "setup.json").write_text(json.dumps(before))
    run(tmp_path, precision="bfloat16")


def test_the_languages_of_a_small_set_are_the_first_of_a_larger():
    small, large = (RegBenchData(environments=number, held_out=2).sequences("train") for number in (3, 5))
    length = small.tokens.shape[1]
    assert (large.tokens[:3, :length] == small.tokens).all()


def test_every_architecture_has_a_label_of_its_own():
    labels = [kind.label for kind in ARCHITECTURES.values()]
    assert len(set(labels)) == len(labels) == 14
