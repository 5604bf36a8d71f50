"""Recipes: the files of the package are the defaults, and every committed one is a command that parses.

Runs that raise, and measurements that are no numbers, concern themselves alone.
"""

import json
from pathlib import Path

import pytest
import yaml

from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.experiments.grid import Grid
from memory_mosaics.experiments.outcomes import merge_environments
from memory_mosaics.experiments.runner import RECIPES, failures, raise_errors, ray_share, run_grids, show_progress
from memory_mosaics.results import environment_info, write_results
from waiting import until

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
COMMANDS = {
    "three_moons": "moons",
    "induction": "induction",
    "stories": "curves",
    "sweep": "sweep",
    "regbench": "regbench",
}
COMMITTED = [(COMMANDS[name], file) for name in COMMANDS for file in sorted((EXPERIMENTS / name).rglob("*.yaml"))]
PACKAGED = [(name, RECIPES / f"{name}.yaml") for name in COMMANDS.values()]


@pytest.mark.parametrize(("command", "file"), [*COMMITTED, *PACKAGED], ids=lambda value: str(value))
def test_recipes_are_accepted(command, file, capsys):
    data = ["corpus"] if command in ("curves", "sweep") else []
    with pytest.raises(SystemExit) as ended:
        main([command, *data, "--recipe", str(file), "--print_config"])
    assert ended.value.code == 0
    given, found = yaml.safe_load(file.read_text()), yaml.safe_load(capsys.readouterr().out)
    for name, value in given.items():
        for key, inner in value.items() if isinstance(value, dict) else ():
            assert found[name][key] == inner
        assert isinstance(value, dict) or found[name] == value


def test_a_flag_wins_over_the_recipe_which_is_written_beside_the_results(tmp_path):
    (tmp_path / "recipe.yaml").write_text("steps: 3\nsequences: 1\nheads: [1]\n")
    words = ["moons", "--steps", "2", "--recipe", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    used = yaml.safe_load((tmp_path / "out" / "recipe.yaml").read_text())
    expected = yaml.safe_load((RECIPES / "moons.yaml").read_text())
    assert used == expected | {"steps": 2, "sequences": 1, "heads": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz: 3", "recipe.yaml has an unknown key stepz; did you mean steps?"),
        ("steps: many", "--steps must be a whole number"),
    ],
)
def test_a_wrong_recipe_is_one_line(text, message, tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text(text)
    try:
        code = main(["moons", "--recipe", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "out")])
    except SystemExit as ended:
        code = ended.code
    output = capsys.readouterr().err
    assert (code, output.count("\n")) == (2, 1)
    assert message in output
    assert not (tmp_path / "out").exists()


def name_of(settings: dict) -> str:
    return f"run{settings['number']}"


def train(settings: dict, folder: Path) -> dict:
    """Raise in the second run, unless it may end now; measure NaN in the third."""
    with (folder / "tried").open("a") as file:
        file.write("x")
    if settings["number"] == 1 and not (folder / "works").exists():
        raise RuntimeError("CUDA out of memory")
    return {
        "train_loss": 1.0,
        "valid_loss": 2.0,
        "tests": [{"score": float("nan") if settings["number"] == 2 else 1.0}],
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_raises_is_left_out_and_the_others_are_trained(processes, tmp_path, capsys):
    grid = Grid(out=tmp_path, name_of=name_of, train=train, settings=[{"number": number} for number in range(4)])
    assert not run_grids([grid], processes=processes)
    assert "run1: error, CUDA out of memory\n" in capsys.readouterr().err
    ended = {folder.name: outcome["status"] for folder in grid.folders() if (outcome := grid.outcome(folder))}
    assert ended == {"run0": "finished", "run2": "fail", "run3": "finished"}
    assert json.loads((tmp_path / "trials/run2/outcome.json").read_text())["reason"] == "tests: a number is NaN or Inf"
    assert "Traceback" in (tmp_path / "trials/run1/output.txt").read_text()
    with pytest.raises(
        UserError, match=r"ended with an error: run1; the first with CUDA out of memory; see .*run1/output"
    ):
        raise_errors([grid])
    (tmp_path / "trials/run1/works").touch()
    assert run_grids([grid], processes=processes)
    raise_errors([grid])
    assert [len((folder / "tried").read_text()) for folder in grid.folders()] == [1, 2, 1, 1]


@pytest.mark.parametrize("quiet", [True, False])
def test_a_measure_that_is_nan_is_a_fail(quiet, tmp_path):
    grid = Grid(out=tmp_path, name_of=name_of, train=train, settings=[{"number": 2}], quiet=quiet)
    assert run_grids([grid])
    assert failures(grid) == {"run2": "tests: a number is NaN or Inf"}


def test_the_environment_is_that_of_the_runs(tmp_path):
    grid = Grid(out=tmp_path, name_of=name_of, train=train, settings=[{"number": 0}])
    run_grids([grid])
    own = grid.outcome(tmp_path / "trials/run0")
    torch_version = own["versions"]["torch"]
    assert merge_environments([dict(own)]) == environment_info()
    other = {"versions": own["versions"] | {"torch": "2.9"}, "commit": "abc", "hardware": "B"}
    outcomes = [own, other | {"hardware": "A"}, other, {"status": "unfinished"}]
    merged = merge_environments(outcomes)
    assert merged["hardware"] == "; ".join(sorted(["A", "B", environment_info()["hardware"]]))
    assert merged["versions"]["torch"] == "; ".join(sorted(["2.9", torch_version]))
    assert merged["versions"]["numpy"] == environment_info()["versions"]["numpy"]
    assert merged["commit"] == "; ".join(sorted(["abc", str(environment_info()["commit"])]))
    assert outcomes[1]["commit"] == "abc"
    assert merge_environments([dict(other)]) == other


@pytest.mark.parametrize(
    ("nodes", "processes", "share"),
    [
        ([{"CPU": 8.0}], 2, (4, 0.0)),
        ([{"CPU": 8.0}], 16, (1, 0.0)),
        ([{"CPU": 4.0}, {"CPU": 6.0}], 1, (6, 0.0)),
        ([{"CPU": 32.0}, {"CPU": 4.0, "GPU": 2.0}], 2, (4, 1.0)),
        ([{"CPU": 16.0, "GPU": 1.0}], 4, (4, 0.25)),
    ],
)
def test_a_process_on_ray_fits_a_node(nodes, processes, share):
    assert ray_share(nodes, processes) == share


def test_a_save_that_fails_is_said_once_and_tried_again(tmp_path, capsys):
    grid, tries = Grid(out=tmp_path, name_of=name_of, train=train, settings=[{"number": 0}]), []

    def save():
        tries.append(1)
        if len(tries) < 3:
            raise UserError("cannot write outcomes: No space left on device")

    with show_progress([grid], save):
        (tmp_path / "trials/run0").mkdir(parents=True)
        write_results(tmp_path / "trials/run0/outcome.json", {"status": "finished", "train_loss": 1, "valid_loss": 2})
        until(lambda: len(tries) == 3)
    output = capsys.readouterr().err
    assert output.count("run0: valid loss 2.0000") == 1
    assert output.count("No space left on device") == 1
    assert "Traceback" not in output
    assert len(tries) == 3, "saved"
