import subprocess
import sys

import pytest

from memory_mosaics import __version__
from memory_mosaics.cli import COMMANDS, gather_lists, main


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_it_does(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    told = COMMANDS[command]
    first_line = told["_help"] if isinstance(told, dict) else (told.__doc__ or "").splitlines()[0]
    assert first_line in " ".join(capsys.readouterr().out.split())


def test_no_command_shows_the_help(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dance"], "invalid choice: 'dance'"),
        (["info"], "required: info.model"),
        (["info", "memory-mosaic-tiny", "--depth", "3"], "--depth"),
        (["convert", "only-one"], "required"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_an_unknown_model_is_one_line_and_exit_code_2(capsys):
    assert main(["info", "nothing"]) == 2
    said = capsys.readouterr().err
    assert "neither a folder nor a preset" in said
    assert said.count("\n") == 1


def test_info_counts(capsys):
    assert main(["info", "memory-mosaic-12"]) == 0
    assert "123,552,384" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["info", "x" * 5000], ["convert", "y" * 300, "z"]])
def test_a_name_that_no_file_can_have(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("reader", "code", "said"), [("| head -1", 0, ""), ("> /dev/full", 2, "No space left")])
def test_a_reader_that_stops_or_a_full_disk(reader, code, said):
    command = f"set -o pipefail; {sys.executable} -m memory_mosaics.cli info memory-mosaic-tiny {reader}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert run.returncode == code
    assert said in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stderr.count("\n") <= 1


def test_ctrl_c_is_quiet(monkeypatch, capsys):
    def interrupt(model: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "info", interrupt)
    assert main(["info", "x"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_the_command_runs_as_a_module():
    run = subprocess.run([sys.executable, "-m", "memory_mosaics.cli", "--version"], capture_output=True, text=True)
    assert run.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "c", "--preset", "transformer-18"], {"name": "transformer-18", "steps": "80000"}),
        (
            ["train", "c", "--preset=transformer-small", "--training.steps", "7"],
            {"name": "transformer-12", "steps": "7"},
        ),
        (["train", "c", "--training.betas", "0.8", "0.9"], {"name": "memory-mosaic-tiny", "steps": "600"}),
        (["sweep", "c", "--preset", "memory-mosaic-1"], {"name": "memory-mosaic-1", "steps": "80000"}),
    ],
)
def test_a_preset_gives_the_values_and_flags_change_them(arguments, expected, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--print_config"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    for name, value in expected.items():
        assert f"  {name}: {value}\n" in said


def test_a_preset_in_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("preset: transformer-tiny\n")
    assert main(["train", "c", "--config", str(tmp_path / "mine.yaml")]) == 2
    assert "give it as the flag --preset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "gathered"),
    [
        (["--prompt", "🐉 loved", "[1,2]"], ["--prompt", '["🐉 loved", "[1,2]"]']),
        (["--prompt", '["a", "b"]'], ["--prompt", '["a", "b"]']),
        (["--prompt=-x"], ['--prompt=["-x"]']),
        (['--prompt=["-x"]'], ['--prompt=["-x"]']),
    ],
)
def test_texts_are_taken_as_they_are_written(given, gathered):
    assert gather_lists(["generate", "run", *given]) == ["generate", "run", *gathered]


def test_numbers_are_gathered():
    given = ["attention", "a", "b", "--data", "d", "--length", "512", "1536", "--batch", "2"]
    gathered = ["attention", '["a", "b"]', "--data", "d", "--length", "[512,1536]", "--batch", "2"]
    assert gather_lists(given) == gathered
