"""The arena: the same search for all, tests read by the runs of the report alone, folders that can be extended."""

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from filelock import Timeout

from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import arena
from memory_mosaics.experiments import suite as suites
from memory_mosaics.experiments.figures import arena as figures
from memory_mosaics.experiments.figures.arena import best_anchor, best_transformer, difference, verdict
from memory_mosaics.experiments.runner import lock
from memory_mosaics.models import ARCHITECTURES, count_without_embeddings
from memory_mosaics.runtime import RuntimeConfig
from waiting import until

TASK = {
    "data": {"part": "mqar", "vocabulary": 32, "length": 16, "pairs": 2, "examples": 64, "held_out": 20},
    "model": {"width": 8, "blocks": 1, "heads": 1, "channel_mixer": False},
    "training": {"steps": 4, "batch": 8, "warm_up": 1, "evaluate_every": 2},
    "search": {"learning_rate": [0.001, 0.003, 0.01]},
}
LONGER = {"part": "mqar", "vocabulary": 32, "length": 32, "pairs": 4, "examples": 64, "held_out": 10}
MIXED = TASK | {"data": {"part": "mixture", "parts": [TASK["data"]], "tests": [TASK["data"], LONGER], "held_out": 20}}


SEEDS = "contestants: [transformer]\nseeds: many\ntasks: {recall: {}}\n"


@pytest.fixture
def suite(tmp_path) -> Path:
    file = tmp_path / "suite.yaml"
    plain = {"contestants": ["memory-mosaic", "transformer"], "seeds": 2, "tasks": {"recall": TASK, "mixed": MIXED}}
    plain["defaults"] = {"training": {"weight_decay": 0.0}}
    file.write_text(yaml.safe_dump(plain))
    return file


def run(suite: Path, *words: str, out: str = "out") -> dict:
    folder = suite.parent / out
    assert main(["arena", "--out", str(folder), "--suite", str(suite), "--runtime.device", "cpu", *words]) == 0
    return json.loads((folder / "results.json").read_text())


def outcomes(out: Path) -> dict[str, str]:
    return {str(file.relative_to(out)): file.read_text() for file in out.glob("*/trials/*/outcome.json")}


def test_every_contestant_has_the_same_search_and_seeds(suite):
    results = run(suite)
    assert list(results["tasks"]) == ["mixed", "mixed-longer", "recall"]
    for task in results["tasks"].values():
        for record in task["contestants"].values():
            if "unreadable" in record:
                continue
            assert len(record["scores"]) == 2
            assert {0.001, 0.003, 0.01} <= {one["learning_rate"] for one in record["searched"]}
            best = max(record["searched"], key=lambda one: (one["valid_score"], -one["valid_loss"]))
            assert record["chosen"] == {"learning_rate": best["learning_rate"]}
            assert record["score"] == pytest.approx(sum(record["scores"]) / 2, abs=1e-3)
            assert len(record["by_test"]) == len(task["tests"])
    assert results["tasks"]["mixed"]["tests"] == ["2 pairs in 16"]
    assert results["tasks"]["mixed-longer"]["tests"] == ["4 pairs in 32"]
    assert "score" not in results["tasks"]["mixed-longer"]["contestants"]["transformer"]  # it has 16 positions
    assert results["tasks"]["mixed"]["examples"] == 20
    out = suite.parent / "out"
    for name in ("overview.png", "recall.png", "mixed.png", "arena.html", "suite.yaml"):
        assert (out / name).stat().st_size
    assert "recall" in (out / "arena.html").read_text()


def test_only_runs_of_the_report_read_the_test(suite, monkeypatch):
    read = []
    test = arena.test
    monkeypatch.setattr(arena, "test", lambda data, model, here: read.append(1) or test(data, model, here))
    run(suite, "--tasks", "recall")
    assert len(read) == 4
    for name, text in outcomes(suite.parent / "out").items():
        assert ("tests" in json.loads(text)) == ("-seed0/" not in name)


def test_a_folder_is_extended_and_nothing_trained_twice(suite):
    run(suite, "--tasks", "recall", "--contestants", "transformer", "--seeds", "1")
    before = outcomes(suite.parent / "out")
    results = run(suite, "--seeds", "2")
    after = outcomes(suite.parent / "out")
    assert before.items() < after.items()
    assert results["tasks"].keys() == {"recall", "mixed", "mixed-longer"}
    whole = run(suite, "--seeds", "2", out="at-once")
    for name, task in results["tasks"].items():
        for contestant, record in task["contestants"].items():
            same = whole["tasks"][name]["contestants"][contestant]
            keys = ("scores", "unreadable", "chosen", "searched")
            assert {key: record.get(key) for key in keys} == {key: same.get(key) for key in keys}


def test_stopped_anywhere_the_same_command_continues_to_the_same_table(suite, monkeypatch):
    whole = run(suite, "--tasks", "recall", out="whole")
    train, count = arena.Contest.train, []

    def stop(self, settings, folder):
        count.append(1)
        if len(count) in (3, 6):
            raise KeyboardInterrupt
        return train(self, settings, folder)

    monkeypatch.setattr(arena.Contest, "train", stop)
    words = ["arena", "--out", str(suite.parent / "out"), "--suite", str(suite), "--tasks", "recall"]
    assert main([*words, "--runtime.device", "cpu"]) == 130
    assert main([*words, "--runtime.device", "cpu"]) == 130
    results = run(suite, "--tasks", "recall")
    keys = ("scores", "score", "within", "by_test", "chosen", "searched", "curves")
    for name, record in results["tasks"]["recall"]["contestants"].items():
        same = whole["tasks"]["recall"]["contestants"][name]
        assert [record[key] for key in keys] == [same[key] for key in keys]


def test_a_run_that_raises_ends_in_one_line_after_the_report_of_the_others(suite, monkeypatch, capsys):
    train = arena.Contest.train

    def fail(self, settings, folder):
        if settings["contestant"] == "transformer" and settings["seed"] == 2:
            raise RuntimeError("CUDA out of memory")
        return train(self, settings, folder)

    monkeypatch.setattr(arena.Contest, "train", fail)
    words = ["arena", "--out", str(suite.parent / "out"), "--suite", str(suite), "--tasks", "recall"]
    assert main([*words, "--runtime.device", "cpu"]) == 2
    output = capsys.readouterr()
    assert "1 of 2 seeds" in output.out
    assert re.search(
        r"\nmosaics: runs that ended with an error: transformer-\S+-seed2; the first with CUDA", output.err
    )
    monkeypatch.undo()
    assert run(suite, "--tasks", "recall")["tasks"]["recall"]["contestants"]["transformer"]["seeds"] == 2


def test_outcomes_in_a_file_are_all_that_another_machine_needs(suite):
    """Seeds, contestants and tasks are added on machines that have the suite and the file, and nothing else."""
    carried = suite.parent / "carried"
    first = ["--outcomes", str(carried), "--tasks", "recall", "--contestants", "transformer", "--seeds", "1"]
    run(suite, *first, out="first")
    shutil.rmtree(suite.parent / "first")
    before = {name: len(lines) for name, lines in lines_of(carried).items()}
    assert before.keys() == {"recall.jsonl"}
    run(suite, "--outcomes", str(carried), "--report_only", out="report")
    assert {name: len(lines) for name, lines in lines_of(carried).items()} == before, "a report adds nothing"
    results = run(suite, "--outcomes", str(carried), out="second")
    assert outcomes(suite.parent / "report").items() <= outcomes(suite.parent / "second").items(), "trained again"
    whole = run(suite, out="at-once")
    keys = ("scores", "score", "within", "by_test", "unreadable", "chosen", "searched", "curves", "verdict")
    for name, task in results["tasks"].items():
        for contestant, record in task["contestants"].items():
            same = whole["tasks"][name]["contestants"][contestant]
            assert {key: record.get(key) for key in keys} == {key: same.get(key) for key in keys}
    assert run(suite, "--outcomes", str(carried), "--report_only", out="third")["tasks"] == results["tasks"]
    assert outcomes(suite.parent / "third") == outcomes(suite.parent / "second")


def lines_of(folder: Path) -> dict[str, list[str]]:
    return {file.name: file.read_text().splitlines() for file in folder.glob("*.jsonl")}


def test_commands_with_folders_of_their_own_add_to_the_same_outcomes(suite, monkeypatch, capsys):
    """The second command runs, whole, while the first one trains its second seed."""
    carried, train = suite.parent / "carried", arena.Contest.train
    words = ["--outcomes", str(carried), "--tasks", "recall", "--seeds", "1", "--contestants"]

    def between(self, settings, folder):
        if settings["contestant"] == "transformer" and settings["seed"] == 1:
            run(suite, *words, "memory-mosaic", out="second")
        return train(self, settings, folder)

    monkeypatch.setattr(arena.Contest, "train", between)
    run(suite, *words, "transformer", out="first")
    written = list(map(json.loads, lines_of(carried)["recall.jsonl"][1:]))
    assert {("transformer", 1), ("memory-mosaic", 1)} <= {(one["contestant"], one["seed"]) for one in written}
    file = next((suite.parent / "first").glob("recall/trials/memory-mosaic-*/outcome.json"))
    file.write_text(file.read_text().replace('"seconds": ', '"seconds": 1'))
    before = (carried / "recall.jsonl").read_text()
    given = ["--out", str(suite.parent / "first"), "--suite", str(suite), "--runtime.device", "cpu"]
    capsys.readouterr()
    assert main(["arena", *given, *words, "transformer"]) == 2
    assert f"recall.jsonl has another outcome of {file.parent.name} than" in capsys.readouterr().err
    assert (carried / "recall.jsonl").read_text() == before


def test_outcomes_of_two_machines_are_merged(suite, capsys):
    """Each has trained a contestant without knowing of the other."""
    words, at = ["--tasks", "recall", "--seeds", "1"], {name: str(suite.parent / name) for name in ("mine", "theirs")}
    run(suite, *words, "--contestants", "transformer", "--outcomes", at["mine"], out="one")
    run(suite, *words, "--contestants", "memory-mosaic", "--outcomes", at["theirs"], out="two")
    for name in at:
        file = suite.parent / name / "recall.jsonl"
        setup, *found = map(json.loads, file.read_text().splitlines())
        found = [one | {"commit": "0123abc" if name == "mine" else None} for one in found]
        file.write_text("".join(json.dumps(one) + "\n" for one in [setup, *found]))
    before = lines_of(suite.parent / "mine")["recall.jsonl"][1:]
    words += ["--outcomes", at["mine"], "--merge", at["theirs"], "--report_only"]
    both = run(suite, *words, out="three")["tasks"]["recall"]["contestants"]
    assert "recall: its outcomes come from several commits: 0123abc, None\n" in capsys.readouterr().out
    assert [both[name]["commits"] for name in ("memory-mosaic", "transformer")] == [[None], ["0123abc"]]
    assert all(record["seeds"] == 1 for record in both.values())
    assert both.keys() == {"memory-mosaic", "transformer"}
    merged = lines_of(suite.parent / "mine")["recall.jsonl"][1:]
    assert sorted(merged) == sorted([*before, *lines_of(suite.parent / "theirs")["recall.jsonl"][1:]])
    file = suite.parent / "theirs" / "recall.jsonl"
    file.write_text(file.read_text().replace('"seconds": ', '"seconds": 1'))
    given = ["arena", "--out", str(suite.parent / "four"), "--suite", str(suite), "--merge", at["theirs"]]
    for more, message in (
        ([*words[:6], "--report_only"], "has another outcome of memory-mosaic-"),
        (["--tasks", "mixed", "--report_only"], "recall.jsonl is of none of the tasks mixed; name it too"),
        (["--estimate"], "--estimate and --merge exclude each other"),
        (["--report_only", "--merge", str(suite.parent / "nowhere")], "nowhere: it holds no file TASK.jsonl"),
    ):
        capsys.readouterr()
        assert main([*given, *more]) == 2
        assert message in capsys.readouterr().err


def test_outcomes_of_another_setup_and_damaged_ones_are_refused(suite, capsys):
    carried = suite.parent / "carried"
    run(suite, "--outcomes", str(carried), "--tasks", "recall", "--contestants", "transformer", "--seeds", "1")
    file, words = carried / "recall.jsonl", ["--outcomes", str(carried), "--runtime.device", "cpu"]
    whole = file.read_text()
    first, second, *others = whole.splitlines()
    tests = next(line for line in others if '"seed": 1' in line)
    bad_setup = json.dumps({"setup": json.loads(first)["setup"] | {"training": {"batch": 9}}})
    for lines, message in {
        (bad_setup, second): "recall.jsonl holds runs with training.",
        ("{}", second): "line 1 of",
        (): "line 1 of",
        (first, second[:-9]): "line 2 of",
        (first, second, "[]"): "line 3 of",
        (first, second, second): "line 3 of",
        (first, second.replace('"seed": 0', '"seed": "../../x"')): "line 2 of",
        (first, second.replace('"valid_loss"', '"other"')): "line 2 of",
        (first, tests.replace('"accuracy"', '"other"')): "line 2 of",
    }.items():
        file.write_text("".join(f"{line}\n" for line in lines))
        out = suite.parent / f"out-{message.split()[1]}-{len(lines)}"
        shutil.rmtree(out, ignore_errors=True)
        capsys.readouterr()
        assert main(["arena", "--out", str(out), "--suite", str(suite), "--tasks", "recall", *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert message in error
        assert not list(out.glob("*/trials/*")), "a damaged file changes nothing"
    loss = json.loads(second)["valid_loss"]
    file.write_text(whole.replace(f'"valid_loss": {loss}', '"valid_loss": 0.5', 1))
    words = ["arena", "--out", str(suite.parent / "out"), "--suite", str(suite), "--tasks", "recall", *words]
    assert main(words) == 2
    assert "has another outcome of" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_that_are_stopped_or_killed_continue_to_the_same_table(suite, number):
    """Two processes are stopped while they train; what has ended is in the file, and the same command goes on."""
    plain = yaml.safe_load(suite.read_text())
    plain["tasks"] = {"recall": TASK | {"training": TASK["training"] | {"steps": 60}}}
    suite.write_text(yaml.safe_dump(plain))
    out, carried = suite.parent / "out", suite.parent / "carried"
    words = ["--suite", str(suite), "--jobs", "2", "--runtime.device", "cpu", "--runtime.log_every", "2"]
    command = [sys.executable, "-m", "memory_mosaics.cli", "arena", "--out", str(out), "--outcomes", str(carried)]
    process = subprocess.Popen([*command, *words], stderr=subprocess.PIPE, start_new_session=True)
    until(lambda: len(outcomes(out)) >= 2)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    until(lambda: trainings(out) == 0)
    ended = outcomes(out)
    assert len(ended) < 10
    if number != signal.SIGKILL:
        assert len((carried / "recall.jsonl").read_text().splitlines()) == 1 + len(ended)
    results, whole = run(suite, *words[2:], "--outcomes", str(carried)), run(suite, out="whole")
    assert ended.items() <= outcomes(out).items()
    keys = ("scores", "score", "within", "by_test", "chosen", "searched", "curves")
    for name, record in results["tasks"]["recall"]["contestants"].items():
        same = whole["tasks"]["recall"]["contestants"][name]
        assert [record[key] for key in keys] == [same[key] for key in keys]


def trainings(out: Path) -> int:
    """How many runs of a folder some process trains: those whose locks are taken."""
    taken = 0
    for file in (out / "recall" / ".locks").iterdir():
        try:
            lock(out / "recall", file.name).acquire(timeout=0).lock.release()
        except Timeout:
            taken += 1
    return taken


def test_a_mixer_of_ones_own_is_a_contestant(suite, monkeypatch):
    (suite.parent / "my_module.py").write_text(
        "from memory_mosaics.config import part\n"
        "from memory_mosaics.mixers.attention import AttentionConfig\n"
        "from dataclasses import dataclass\n"
        "@part('my_mixer')\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class MyMixerConfig(AttentionConfig):\n    pass\n"
    )
    monkeypatch.chdir(suite.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    results = run(suite, "--tasks", "recall", "--contestants", "transformer", "--mine", "my_module.MyMixerConfig")
    mine = results["tasks"]["recall"]["contestants"]["my_module.MyMixerConfig"]
    assert mine["label"] == "MyMixer"
    assert len(mine["scores"]) == 2


def test_a_mixer_that_looks_ahead_is_refused(suite, monkeypatch, capsys):
    (suite.parent / "ahead.py").write_text(
        "from dataclasses import dataclass\n"
        "from torch import nn\n"
        "from memory_mosaics.config import MixerConfig, part\n"
        "class Ahead(nn.Module):\n    def forward(self, x, state=None, mask=None):\n        return x.roll(-1, 1), ()\n"
        "@part('ahead')\n"
        "@dataclass(frozen=True, kw_only=True)\n"
        "class AheadConfig(MixerConfig):\n    def build(self, width, **_):\n        return Ahead()\n"
    )
    monkeypatch.chdir(suite.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["arena", "--out", "out", "--suite", str(suite), "--mine", "ahead.AheadConfig"]) == 2
    assert "ahead.AheadConfig looks ahead" in capsys.readouterr().err
    assert not Path("out").exists()


def test_an_estimate_trains_nothing(suite, capsys):
    out = suite.parent / "out"
    words = ["arena", "--out", str(out), "--suite", str(suite), "--estimate", "--runtime.device", "cpu"]
    assert main([*words, "--tasks", "recall"]) == 0
    assert "all, one after the other" in capsys.readouterr().out
    assert [file.name for file in out.iterdir()] == ["estimate.json"]


def test_a_best_value_at_the_edge_is_searched_further():
    assert arena.beyond([0.001, 0.003, 0.01], 0.003) is None
    assert arena.beyond([0.001, 0.003, 0.01], 0.01) == pytest.approx(0.0333)
    assert arena.beyond([0.001, 0.003, 0.01], 0.001) == pytest.approx(0.000333)
    assert repr(arena.beyond([100, 200], 200)) == "400"
    assert arena.is_extensible("learning_rate", [0.001, 0.003])
    assert not arena.is_extensible("init", ["default", "authors"])
    assert arena.beyond([0.0, 0.1], 0.1) == pytest.approx(0.2)
    assert arena.beyond([0.0, 0.1], 0.0) is None
    assert not arena.is_extensible("dropout", [0.1])
    assert [arena.is_at_edge(value, [0.0, 0.1, 0.2]) for value in (0.0, 0.1, 0.2)] == [False, False, True]
    assert not arena.is_at_edge("a", ["a", "b"])


def contest(suite, **changes):
    task = next(iter(suites.load_suite(str(suite))[0].values()))
    out, runtime = suite.parent / "out", RuntimeConfig(device="cpu")
    return arena.Contest(out=out, task=replace(task, **changes), contestants=["transformer"], seeds=2, runtime=runtime)


def end(contest, run, status="finished", score=0.5):
    """Write an outcome without training."""
    folder = contest._grid([run]).folder(run)
    folder.mkdir(parents=True)
    found = {"valid_loss": 1 - score, "valid_score": score, "parameters": 9, "seconds": 1.0, "hardware": "CPU"}
    found |= {
        "parameters_without_embeddings": 5,
        "tests": [{"accuracy": score}] * 2,
        "curve": [[1, score]],
        "reason": "the loss is nan",
    }
    (folder / "outcome.json").write_text(json.dumps({"status": status} | run | found))


def test_a_model_that_is_good_enough_is_trained_no_further(suite):
    plain = yaml.safe_load(suite.read_text())
    easy = {"data": TASK["data"] | {"vocabulary": 4, "pairs": 1}, "search": {"learning_rate": [0.03]}}
    easy["training"] = TASK["training"] | {"steps": 40, "evaluate_every": 1, "stop_at": 0.4}
    plain["tasks"] = {"easy": TASK | easy}
    suite.write_text(yaml.safe_dump(plain))
    for record in run(suite)["tasks"]["easy"]["contestants"].values():
        assert record["reached"] == record["seeds"] == 2
        for curve in record["curves"]:
            *before, (step, score) = curve
            assert step < 40
            assert max((other for _, other in before), default=0) < 0.4 <= score


def test_seeds_are_trained_as_soon_as_the_search_of_their_contestant_has_ended(suite):
    one = replace(contest(suite), contestants=["transformer", "llama"])
    for run in one._search_runs("transformer"):
        assert one.report_grid.runs == []
        end(one, run, score=0.999)
    assert {run["contestant"] for run in one.report_grid.runs} == {"transformer"}


def test_values_beyond_the_edge_that_no_model_can_have_are_left_out(suite):
    one = contest(suite, search={"dropout": [0.1, 0.5]})
    for run in one._search_runs("transformer"):
        end(one, run, score=run["dropout"])
    assert [run["dropout"] for run in one._search_runs("transformer")] == [0.1, 0.5]
    assert one.results()["mixed"]["contestants"]["transformer"]["at_edge"] == ["dropout"]


@pytest.mark.parametrize("best", [1, 4])
def test_all_have_the_same_heads(suite, best):
    one = contest(suite, search={"heads": [1, 4], "learning_rate": [0.001, 0.003, 0.01]})
    for run in one._search_runs("transformer"):
        end(one, run, score=0.5 + 0.1 * (run["heads"] == best) + 0.1 * (run["learning_rate"] == 0.003))
    assert len(one._search_runs("transformer")) == 6
    assert one.chosen("transformer") == {"heads": best, "learning_rate": 0.003}


def test_seeds_that_failed_are_counted(suite):
    one = contest(suite)
    for run in one._search_runs("transformer"):
        end(one, run, status="fail")
    record = one.results()["mixed"]["contestants"]["transformer"]
    assert {run["status"] for run in record["searched"]} == {"fail"}
    assert arena._cell(record, 2) == record["cell"] == "failed"
    one = replace(one, out=suite.parent / "other")
    for run in one._search_runs("transformer"):
        end(one, run, score=0.999)
    for run, status in zip(one.report_grid.runs, ("finished", "fail"), strict=True):
        end(one, run, status=status)
    record = one.results()["mixed"]["contestants"]["transformer"]
    assert (arena._cell(record, 2), record["cell"]) == ("0.500, 1 failed", "0.500 (1/2)")
    shutil.rmtree(one.out / "trials" / arena.name_of(one.report_grid.runs[0]))
    record = one.results()["mixed"]["contestants"]["transformer"]
    assert arena._cell(record, 2) == record["cell"] == "-", "the other seed may still succeed"


def test_each_text_that_is_read_has_a_row_and_its_anchors(tmp_path):
    """Bits of the page and the figures are made from these fields."""
    text = {"part": "text", "train": ["stories:120"], "valid_share": 0.3, "length": 32, "windows": 4}
    text["read"] = {"others": ["stories:30:1"]}
    plain = {"contestants": ["memory-mosaic", "transformer"], "seeds": 2, "tasks": {"stories": TASK | {"data": text}}}
    plain["tasks"]["stories"]["search"] = {"learning_rate": [0.003]}
    plain["tasks"]["stories"]["model"] = {"width": 8, "blocks": 1, "heads": 1}
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump(plain))
    results = run(suite)
    assert list(results["tasks"]) == ["stories-valid", "stories-others"]
    for task in results["tasks"].values():
        assert task["anchors"].keys() == {"guess", "unigram", "unigram cache", "4-gram cache"}
        assert task["perfect"] == min(
            *task["anchors"].values(), *(one["score"] for one in task["contestants"].values())
        )
        for record in task["contestants"].values():
            assert record["measures"]["loss"] == [record["score"], record["within"]]
            assert record["measures"].keys() >= {"seen", "gain", "bits_per_byte", "by_position"}
            assert len(record["measures"]["by_position"]) == 6
    assert (tmp_path / "out" / "stories-others.png").stat().st_size
    assert run(suite) == results
    (tmp_path / "out" / "stories" / "data" / "train" / "train.bin").write_bytes(b"")
    words = ["arena", "--out", str(tmp_path / "out"), "--suite", str(suite), "--runtime.device", "cpu"]
    assert main(words) == 2


def test_a_report_trains_nothing_and_counts_the_seeds_that_are_missing(suite, capsys):
    words = ["arena", "--out", str(suite.parent / "out"), "--suite", str(suite), "--tasks", "recall"]
    words += ["--runtime.device", "cpu", "--report_only"]
    assert main(words) == 2
    assert "no run of these tasks and contestants has ended" in capsys.readouterr().err
    run(suite, "--tasks", "recall", "--contestants", "transformer", "--seeds", "1")
    before = outcomes(suite.parent / "out")
    capsys.readouterr()
    assert main(words) == 0
    assert "1 of 2 seeds" in capsys.readouterr().out
    assert outcomes(suite.parent / "out") == before
    results = json.loads((suite.parent / "out" / "results.json").read_text())
    assert list(results["tasks"]["recall"]["contestants"]) == ["transformer"]


@pytest.mark.parametrize("tests", [[0.5], [{"accuracy": "high"}] * 2, [{}] * 2, "none", [{"accuracy": 0.5}]])
def test_an_outcome_with_damaged_tests_is_named(suite, tests):
    one = contest(suite)
    for run in one._search_runs("transformer"):
        end(one, run, score=0.999)
    run = one.report_grid.runs[0]
    end(one, run)
    file = one._grid([run]).folder(run) / "outcome.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tests": tests}))
    with pytest.raises(UserError, match=r"outcome\.json is damaged: its tests are"):
        one.results()


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "-a"])
def test_names_that_are_no_names_of_files_are_refused(tmp_path, name, capsys):
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"contestants": ["transformer"], "seeds": 1, "tasks": {name: TASK}}))
    assert main(["arena", "--out", str(tmp_path / "out"), "--suite", str(suite)]) == 2
    assert f"the name {name!r} must consist of letters" in capsys.readouterr().err
    text = {"part": "text", "train": ["stories:10"], "read": {name: ["stories:10:1"]}}
    suite.write_text(yaml.safe_dump({"contestants": ["llama"], "seeds": 1, "tasks": {1: TASK | {"data": text}}}))
    assert main(["arena", "--out", str(tmp_path / "out"), "--suite", str(suite), "--tasks", "1"]) == 2
    assert f"the name {name!r} must consist of letters" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rows_of_one_name_are_refused(tmp_path, capsys):
    text = {"part": "text", "train": ["stories:10"]}
    suite = tmp_path / "suite.yaml"
    tasks = {"a": TASK | {"data": text}, "a-valid": TASK}
    suite.write_text(yaml.safe_dump({"contestants": ["llama"], "seeds": 1, "tasks": tasks}))
    assert main(["arena", "--out", str(tmp_path / "out"), "--suite", str(suite)]) == 2
    assert "two rows of the table would be called 'a-valid'" in capsys.readouterr().err


@pytest.mark.parametrize("suite", ["reduced", "tiny"])
def test_contestants_have_the_same_number_of_parameters(suite):
    """Within 1 % outside the embeddings, where there is a channel mixer to resize."""
    tasks, _ = suites.load_suite(suite)
    for task in (task for task in tasks.values() if task.channel_mixer and task.sizes["width"] >= 64):
        values = task.combinations()[0]
        counts = {name: count_without_embeddings(task.body(name, values)) for name in ARCHITECTURES}
        assert max(counts.values()) < 1.02 * min(counts.values()), (task.name, counts)
        assert all(abs(count / counts["transformer"] - 1) < 0.01 for count in counts.values()), (task.name, counts)


def test_names_of_runs_tell_the_fields_apart():
    first = arena.settings("a", {"learning_rate": 0.01, "weight_decay": 0.1}, 0)
    second = arena.settings("a", {"weight_decay": 0.01, "learning_rate": 0.1}, 0)
    assert arena.name_of(first) != arena.name_of(second)
    assert arena.name_of(first) == arena.name_of(dict(reversed(first.items())))


def test_a_folder_with_another_configuration_of_a_contestant_is_refused(suite, capsys):
    run(suite, "--tasks", "recall", "--seeds", "1", "--contestants", "transformer")
    file = suite.parent / "out" / "recall" / "setup.json"
    setup = json.loads(file.read_text())
    setup["transformer"]["tied"] = not setup["transformer"]["tied"]
    file.write_text(json.dumps(setup))
    words = ["arena", "--out", str(suite.parent / "out"), "--suite", str(suite), "--tasks", "recall"]
    assert main([*words, "--runtime.device", "cpu"]) == 2
    assert "holds runs with transformer.tied" in capsys.readouterr().err


def test_a_verdict_needs_a_difference_beyond_its_interval_and_all_seeds():
    def record(score, within, failed=0, seeds=5, valid=None):
        valid = score if valid is None else valid
        numbers = {"score": score, "within": within, "failed": failed, "seeds": seeds}
        return numbers | {"valid_score": valid, "reached": 0}

    known = {"transformer": record(0.5, 0.1), "llama": record(0.6, 0.05), "a": record(0.7, 0.2), "b": record(0.7, 0.05)}
    known |= {"transformer-rotary": record(0.55, 0.1), "transformer-alibi": {"unreadable": True}}
    known |= {"c": record(0.3, 0.1), "d": record(0.665, 0.05), "e": record(0.7, 0.05, failed=1)}
    known |= {"f": record(0.7, 0.05, seeds=4), "g": {"unreadable": True}}
    task = {"higher_is_better": True, "metric": "accuracy", "examples": 1_000_000, "seeds": 5, "contestants": known}
    assert best_transformer(task) == "llama"
    failed = task | {"contestants": known | {"transformer-alibi": record(0.9, 0.1, failed=1)}}
    assert best_transformer(failed) == "llama", "of those whose seeds all ended"
    assert verdict(failed, "b") == 0, "one transformer is not known"
    assert best_anchor(task | {"anchors": {"guess": 0.9, "a": 0.1, "b": 0.2, "ceiling: c": 1.0}}) == "b"
    assert best_anchor(task | {"anchors": {"guess": 0.9}}) is None
    assert [verdict(task, name) for name in "abcdefg"] == [0, 1, -1, 0, 0, 0, 0]
    assert verdict(task, "llama") == 0
    assert verdict(task | {"higher_is_better": False}, "c") == 1, "lower than that of the lowest transformer"
    assert verdict(task | {"examples": 30}, "b") == 0, "thirty examples do not tell 0.6 from 0.7"
    assert verdict(task | {"contestants": {name: known[name] for name in ("llama", "b")}}, "b") == 0, (
        "three are missing"
    )
    assert verdict(task | {"contestants": known | {"b": known["b"] | {"reached": 5}}}, "b") == 1
    both = {name: known[name] | {"reached": 5} for name in ("llama", "b")}
    assert verdict(task | {"contestants": known | both}, "b") == 0, "both stopped when they were good enough"
    by_validation = known | {"transformer": record(0.5, 0.1, valid=0.8)}
    assert best_transformer(task | {"contestants": by_validation}) == "transformer"


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({}, ["--tasks", "recal"], "no task 'recal' in the suite"),
        ({}, ["--contestants", "transfomer"], "no architecture 'transfomer'; did you mean transformer?"),
        ({}, ["--mine", "nowhere.Mixer"], "architecture nowhere.Mixer cannot be imported"),
        ({}, ["--mine", "pathlib.Path"], "architecture pathlib.Path is not a MixerConfig"),
        ({}, ["--seeds", "0"], "seeds must be at least 1"),
        ({"search": {"steps": [1]}}, [], "task recall: search.steps cannot be searched; these can: betas, clip"),
        ({"search": {"learning_rate": 0.001}}, [], "task recall: search.learning_rate must be a list of values"),
        ({"search": None}, [], "task recall: it must have the fields data, model, search, training"),
        ({"training": {"evaluate_windows": 3}}, [], "task recall: training.evaluate_windows cannot be given"),
        ({}, ["--estimate", "--report_only"], "--estimate and --report_only exclude each other"),
        ({}, ["--prepare_only", "--report_only"], "--report_only and --prepare_only exclude each other"),
        ({}, ["--prepare_only", "--outcomes", "some"], "--prepare_only trains nothing and reports nothing"),
        ({}, ["--contestants", "transformer+gat"], "no ingredient 'gat'; did you mean gate?"),
        ({}, ["--estimate", "--jobs", "2"], "--estimate trains one model after the other and keeps none: leave out"),
        ({}, ["--runtime.samples", "2"], "--runtime.samples 2: the arena writes no samples"),
        ({"search": {"learning_rate": []}}, [], "task recall: search.learning_rate must be a list of values"),
        ({"search": {"learning_rate": [-1.0]}}, [], "task recall: learning_rate must be positive"),
        ({"data": {"part": "mqar", "length": 7}}, [], "task recall: length must be even"),
        ({"data": {"part": "nothing"}}, [], "no part 'nothing'"),
        ({"model": {"width": 8, "blocks": 1, "heads": 3}}, [], "task recall: width 8 does not split into 3 heads"),
        ({"training": {"seed": 3}}, [], "task recall: training.seed cannot be given"),
        ({"training": {"learning_rate": "1e-3"}}, [], "Training.learning_rate wants float, not '1e-3'"),
        ({"extra": 1}, [], "task recall: it has no field 'extra'; it has data, model, search, training"),
    ],
)
def test_bad_input_is_one_line(suite, capsys, change, words, message):
    plain = yaml.safe_load(suite.read_text())
    plain["tasks"]["recall"] |= change
    suite.write_text(yaml.safe_dump(plain))
    out = suite.parent / "out"
    assert main(["arena", "--out", str(out), "--suite", str(suite), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("text", ["", "[]", "tasks: {}", "{", "contestants: [a]\nseeds: 1\ntasks: {}\n", SEEDS])
def test_a_damaged_suite_is_one_line(tmp_path, capsys, text):
    (tmp_path / "suite.yaml").write_text(text)
    assert main(["arena", "--out", str(tmp_path / "out"), "--suite", str(tmp_path / "suite.yaml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_the_packaged_suites_are_valid():
    for file in [*suites.SUITES.glob("*.yaml"), EXPERIMENTS / "arena/texts.yaml", *EXPERIMENTS.glob("*/suite.yaml")]:
        tasks, plain = suites.load_suite(str(file))
        for number, task in enumerate(tasks.values()):  # all contestants where there are many, or all tasks
            for name in plain["contestants"] if number % 4 == 0 else plain["contestants"][:6]:
                task.config(name, task.combinations()[0])


def test_the_ablation_in_small(tmp_path, monkeypatch):
    """What experiments/ablation/README.md does, two steps of some contestants: speed alone, then all tables."""
    monkeypatch.setattr(figures, "MANY", 2)  # contestants are lines of the overview
    plain = yaml.safe_load((EXPERIMENTS / "ablation/tiny.yaml").read_text())
    plain["contestants"] = ["memory-mosaic", "memory-mosaic+taps+gate", "llama+windows"]
    plain["tasks"] = {name: plain["tasks"][name] for name in ("story-world", "forgetting")}
    plain["tasks"]["story-world"]["data"] |= {"train": ["stories:150"], "valid_share": 0.4, "windows": 8}
    plain["tasks"]["forgetting"]["data"] |= {"examples": 64, "held_out": 20}
    plain["defaults"] |= {"search": {"learning_rate": [0.003]}}
    plain["defaults"]["training"] |= {"steps": 2, "warm_up": 1, "evaluate_every": 2}
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(plain))
    estimate = tmp_path / "out" / "estimate.json"
    words = ["arena", "--out", str(tmp_path / "out"), "--suite", str(tmp_path / "suite.yaml")]
    assert main([*words, "--prepare_only"]) == 0
    assert [str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").glob("*/*")] == ["story-world/data"]
    assert main([*words, "--runtime.device", "cpu", "--estimate"]) == 0
    alone = json.loads(estimate.read_text())["alone"]
    results = run(tmp_path / "suite.yaml")
    assert {*results["tasks"]} == {"story-world-valid", "story-world-valid-256", "forgetting"}
    for task in results["tasks"].values():
        assert task["contestants"].keys() == {*plain["contestants"]}
        for name, record in task["contestants"].items():
            assert record["alone"] == alone[task["task"]][name]
            assert record["alone"]["tokens_per_second"] > 0
    assert "disentanglement" in results["tasks"]["story-world-valid"]["contestants"]["llama+windows"]["measures"]
    tables = (tmp_path / "out/tables.md").read_text()
    label = "Memory Mosaic + taps, gate"
    records = [task["contestants"]["memory-mosaic+taps+gate"] for task in results["tasks"].values()]
    scores = [f"{one['score']:.3f} ± {one['within']:.3f}" for one in records]
    assert f"| {label} | {' | '.join(scores)} |" in tables.splitlines()
    assert tables.count(f"| {label} | ") == 5, "scores, two texts, two tasks"
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables.split("\n\n")[1:])
    assert (tmp_path / "out/ingredients.png").stat().st_size
    estimate.write_text("[]")
    assert main([*words, "--report_only"]) == 2


def test_a_difference_is_that_of_the_same_seeds():
    scores = {"one": [1.0, 2.0, 3.0], "other": [0.5, 1.5, 2.6]}
    one, other = ({"scores": each, "score": sum(each) / 3, "within": 2.0} for each in scores.values())
    mean, within = difference(*(record | {"seeds": 3, "failed": 0} for record in (one, other)))
    assert (mean, within) == (pytest.approx(1.4 / 3), pytest.approx(4.303 / 30))
    apart = difference(one | {"seeds": 3, "failed": 0}, other | {"seeds": 2, "failed": 1})
    assert apart == (pytest.approx(1.4 / 3), pytest.approx(8**0.5)), "which seed failed is not known"


@pytest.mark.parametrize("folder", ["ablation", "long_context"])
def test_committed_tables_are_those_of_the_committed_results(folder):
    if not (EXPERIMENTS / folder / "results.json").exists():
        pytest.skip(f"experiments/{folder} has not been run")
    results = json.loads((EXPERIMENTS / folder / "results.json").read_text())
    assert (EXPERIMENTS / folder / "tables.md").read_text() == arena.markdown(results)


@pytest.mark.parametrize("name", suites.load_suite("tiny")[0])
def test_every_task_of_the_tiny_suite_trains_and_is_tested(name, tmp_path):
    """Two steps of each: its loss, its validation and its tests are computed."""
    task = suites.load_suite("tiny")[0][name]
    task = replace(task, training=replace(task.training, steps=2, batch=4, warm_up=0, evaluate_every=1))
    runtime = RuntimeConfig(device="cpu", samples=0)
    contest = arena.Contest(out=tmp_path, task=task, contestants=["memory-mosaic"], seeds=1, runtime=runtime)
    contest.check()
    contest.prepare()
    outcome = contest.train(arena.settings("memory-mosaic", task.combinations()[0], 1), tmp_path / "run")
    assert outcome is not None
    tests = task.data.open(contest.data_folder).test_sets()
    assert len(outcome["tests"]) == len(tests)
    assert len(outcome["curve"]) == 2
    assert all("guess" in test.anchors() for test in tests)


@pytest.mark.slow
def test_the_tiny_suite_runs_whole(tmp_path):
    words = ["arena", "--out", str(tmp_path), "--jobs", "2", "--seeds", "1", "--runtime.device", "cpu"]
    assert main(words) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    scores = {name: task["contestants"]["memory-mosaic"]["score"] for name, task in results["tasks"].items()}
    assert scores["mqar"] > 0.9
    assert scores["needle"] > 0.9
    assert scores["linear-regression"] < 0.9
