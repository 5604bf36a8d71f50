"""Suites of the arena: those of the package, and files that are refused."""

from pathlib import Path

import pytest
import yaml

from experiments.arenas import TASK
from memory_mosaics.cli import main
from memory_mosaics.experiments import suite as suites
from memory_mosaics.models import ARCHITECTURES, count_without_embeddings

SEEDS = "contestants: [transformer]\nseeds: many\ntasks: {recall: {}}\n"
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


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


def test_the_packaged_suites_are_valid():
    for file in [*suites.SUITES.glob("*.yaml"), EXPERIMENTS / "arena/texts.yaml", *EXPERIMENTS.glob("*/suite.yaml")]:
        tasks, plain = suites.load_suite(str(file))
        for number, task in enumerate(tasks.values()):  # all contestants where there are many, or all tasks
            for name in plain["contestants"] if number % 4 == 0 else plain["contestants"][:6]:
                task.config(name, task.combinations()[0])
