"""The outcomes of many runs in one file: continued, added to and merged on other machines."""

import json
import shutil
from pathlib import Path

from experiments.arenas import outcomes, run
from memory_mosaics.cli import main
from memory_mosaics.experiments.contest import Contest


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
    carried, train = suite.parent / "carried", Contest.train
    words = ["--outcomes", str(carried), "--tasks", "recall", "--seeds", "1", "--contestants"]

    def between(self, settings, folder):
        if settings["contestant"] == "transformer" and settings["seed"] == 1:
            run(suite, *words, "memory-mosaic", out="second")
        return train(self, settings, folder)

    monkeypatch.setattr(Contest, "train", between)
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
