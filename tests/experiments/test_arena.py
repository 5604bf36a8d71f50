"""The arena: the same search for all, tests read by the runs of the report alone, folders that can be extended."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from filelock import Timeout

from experiments.arenas import TASK, outcomes, run
from memory_mosaics.cli import main
from memory_mosaics.experiments import arena, contest
from memory_mosaics.experiments.figures import arena as figures
from memory_mosaics.experiments.grid import lock
from waiting import until

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


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
    test = contest.test
    monkeypatch.setattr(contest, "test", lambda data, model, here: read.append(1) or test(data, model, here))
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
    train, count = contest.Contest.train, []

    def stop(self, settings, folder):
        count.append(1)
        if len(count) in (3, 6):
            raise KeyboardInterrupt
        return train(self, settings, folder)

    monkeypatch.setattr(contest.Contest, "train", stop)
    words = ["arena", "--out", str(suite.parent / "out"), "--suite", str(suite), "--tasks", "recall"]
    assert main([*words, "--runtime.device", "cpu"]) == 130
    assert main([*words, "--runtime.device", "cpu"]) == 130
    results = run(suite, "--tasks", "recall")
    keys = ("scores", "score", "within", "by_test", "chosen", "searched", "curves")
    for name, record in results["tasks"]["recall"]["contestants"].items():
        same = whole["tasks"]["recall"]["contestants"][name]
        assert [record[key] for key in keys] == [same[key] for key in keys]


def test_a_run_that_raises_ends_in_one_line_after_the_report_of_the_others(suite, monkeypatch, capsys):
    train = contest.Contest.train

    def fail(self, settings, folder):
        if settings["contestant"] == "transformer" and settings["seed"] == 2:
            raise RuntimeError("CUDA out of memory")
        return train(self, settings, folder)

    monkeypatch.setattr(contest.Contest, "train", fail)
    words = ["arena", "--out", str(suite.parent / "out"), "--suite", str(suite), "--tasks", "recall"]
    assert main([*words, "--runtime.device", "cpu"]) == 2
    output = capsys.readouterr()
    assert "1 of 2 seeds" in output.out
    assert re.search(
        r"\nmosaics: runs that ended with an error: transformer-\S+-seed2; the first with CUDA", output.err
    )
    monkeypatch.undo()
    assert run(suite, "--tasks", "recall")["tasks"]["recall"]["contestants"]["transformer"]["seeds"] == 2


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


def test_a_folder_with_another_configuration_of_a_contestant_is_refused(suite, capsys):
    run(suite, "--tasks", "recall", "--seeds", "1", "--contestants", "transformer")
    file = suite.parent / "out" / "recall" / "setup.json"
    setup = json.loads(file.read_text())
    setup["transformer"]["tied"] = not setup["transformer"]["tied"]
    file.write_text(json.dumps(setup))
    words = ["arena", "--out", str(suite.parent / "out"), "--suite", str(suite), "--tasks", "recall"]
    assert main([*words, "--runtime.device", "cpu"]) == 2
    assert "holds runs with transformer.tied" in capsys.readouterr().err


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


@pytest.mark.parametrize("folder", ["ablation", "long_context"])
def test_committed_tables_are_those_of_the_committed_results(folder):
    if not (EXPERIMENTS / folder / "results.json").exists():
        pytest.skip(f"experiments/{folder} has not been run")
    results = json.loads((EXPERIMENTS / folder / "results.json").read_text())
    assert (EXPERIMENTS / folder / "tables.md").read_text() == arena.markdown(results)


@pytest.mark.slow
def test_the_tiny_suite_runs_whole(tmp_path):
    words = ["arena", "--out", str(tmp_path), "--jobs", "2", "--seeds", "1", "--runtime.device", "cpu"]
    assert main(words) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    scores = {name: task["contestants"]["memory-mosaic"]["score"] for name, task in results["tasks"].items()}
    assert scores["mqar"] > 0.9
    assert scores["needle"] > 0.9
    assert scores["linear-regression"] < 0.9
