import subprocess
import sys

import pytest

from memory_mosaics import __version__
from memory_mosaics.cli import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_it_does(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    first_line = (COMMANDS[command].__doc__ or "").splitlines()[0]
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
