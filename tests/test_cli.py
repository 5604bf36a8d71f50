import re
import subprocess
import sys
from contextlib import suppress
from inspect import cleandoc

import pytest
from jsonargparse import auto_parser

from memory_mosaics import __version__
from memory_mosaics.cli import COMMANDS, main
from memory_mosaics.experiments.regbench_models import ARCHITECTURES
from memory_mosaics.parser import QUICK, Parser, expected


def parsed(command, *words):
    """What the parser makes of the words after a command."""
    return auto_parser({command: COMMANDS[command]}, parser_class=Parser, allow_abbrev=True).parse_args(
        [command, *words]
    )[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_the_description(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    found = COMMANDS[command]
    description = found["_help"] if isinstance(found, dict) else cleandoc(found.__doc__ or "").partition("\nArgs:")[0]
    assert " ".join(description.split()) in " ".join(re.sub(r"-\n *", "-", capsys.readouterr().out).split())


@pytest.mark.parametrize(("arguments", "commands"), [([], COMMANDS), (["babistories"], COMMANDS["babistories"])])
def test_no_command_shows_the_help(arguments, commands, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(command in out for command in commands if command != "_help")


def test_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert __version__ in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dance"], "there is no command dance (see --help)"),
        (["tran"], "there is no command tran; did you mean train?"),
        (["babistories", "story"], "there is no command story; did you mean stories?"),
        (["prepare", "x", "--out", "c", "--tokeniser=bpe"], "--tokeniser=bpe; did you mean --tokenizer?"),
        (["train", "c", "--training.lerning-rate", "1"], "did you mean --training.learning_rate? (see mosaics train"),
        (["train", "c", "--import"], "--import: expected one argument"),
        (["info"], "required: model (see mosaics info --help)"),
        (["info", "memory-mosaic-tiny", "--depth", "3"], "--depth"),
        (["convert", "only-one"], "required"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("regbench --environments abc", "--environments must be whole numbers, not abc (see mosaics regbench --help)"),
        ("regbench --environments", "--environments: expected at least one argument"),
        ("regbench --choices.learning-rate 1e-3 nan", "--choices.learning_rate must be numbers, not nan"),
        ("regbench --sweep perhaps", "--sweep must be true or false, not perhaps"),
        ("sweep c --cluster slurm", "--cluster must be ray, not slurm (see mosaics sweep --help)"),
        ("train c --training.steps 1.5", "--training.steps must be a whole number, not 1.5"),
        ("train c --training.betas 0.9 x", "--training.betas must be 2 numbers, not x"),
        ('train c --training {"steps":"x"}', "--training.steps must be a whole number, not x"),
        ("train c --config {FOLDER}/text.yaml", "--training.steps must be a whole number, not text"),
        ("regbench --config {FOLDER}/numbers.yaml", "--architectures must be texts, not 1"),
        ("regbench --config {FOLDER}/path.yaml", "--out must be a path"),
        ("generate tiny --top_p abc", "--top_p must be a number, not abc (see mosaics generate --help)"),
        ("serve tiny --device", "--device: expected one argument"),
        ("babistories names --stream=loud", "--stream must be true or false, not loud (see mosaics babistories names"),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_the_type(arguments, message, tmp_path, capsys):
    (tmp_path / "text.yaml").write_text("training:\n  steps: text\n")
    (tmp_path / "numbers.yaml").write_text("architectures: [1, 2]\n")
    (tmp_path / "path.yaml").write_text("out: 3\n")
    with pytest.raises(SystemExit) as stop:
        main(arguments.replace("{FOLDER}", str(tmp_path)).split())
    assert stop.value.code == 2
    output = capsys.readouterr().err
    assert output.startswith(f"mosaics: {message.replace('{FOLDER}', str(tmp_path))}")
    assert output.count("\n") == 1
    assert "class" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train c --steps 10", "unrecognized arguments: --steps 10; did you mean --training.steps?"),
        ("moons --lr 1", "unrecognized arguments: --lr 1 (see"),
        ("train c --model.n_layers 2", "unrecognized arguments: --model.n_layers 2; did you mean --model.blocks?"),
        ("train c --training.lr 1", "unrecognized arguments: --training.lr 1; did you mean --training.learning_rate?"),
        ("train c --batch-size 8", "unrecognized arguments: --batch-size 8; did you mean --training.batch?"),
        ("train c --presett tiny", "unrecognized arguments: --presett tiny; did you mean --preset?"),
        ("train c --config nowhere.yaml", "--config: there is no file nowhere.yaml"),
        ("train c --config broken.yaml", "broken.yaml is damaged or not YAML"),
        ("train c --config unknown.yaml", "the configuration has an unknown key training.stepz; did you mean training"),
        (
            "train c --preset memory_mosaic",
            "no preset 'memory_mosaic'; did you mean memory-mosaic-tiny, memory-mosaic-",
        ),
        ("train c", "c does not exist; make it with mosaics prepare"),
        ("train notes.csv/corpus", "notes.csv/corpus does not exist"),
        ("evaluate run --data notes.csv", "notes.csv is a file and not a corpus; make one of it with mosaics prepare"),
        ("evaluate run", "the following arguments are required: --data (see"),
        ("anchors notes.csv --data notes.csv", "notes.csv is a file and not a corpus; make one of it with mosaics"),
        ("generate run Once", "unrecognized arguments: Once; a text comes after --prompt"),
        ("generate run --max_new_tokens 5", "unrecognized arguments: --max_new_tokens 5; did you mean --length?"),
        ("stories --count 0 --out s.jsonl", "count must be at least 1"),
    ],
)
def test_a_newcomers_mistake_names_the_remedy(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(QUICK, "1")  # which replaces no value that would be refused
    (tmp_path / "notes.csv").write_text("a, b")
    (tmp_path / "broken.yaml").write_text("a: [b")
    (tmp_path / "unknown.yaml").write_text("training:\n  stepz: 3\n")
    with suppress(SystemExit):
        assert main(arguments.split()) == 2
    assert f"mosaics: {message}" in capsys.readouterr().err


def test_quick_sizes_are_those_of_every_experiment_but_never_larger(monkeypatch, capsys):
    monkeypatch.setenv(QUICK, "1")
    found = parsed("regbench", "--held-out", "9")
    assert (found.epochs, found.held_out) == (1, 9)
    assert capsys.readouterr().err == f"{QUICK} is set: --epochs 1\n"


@pytest.mark.parametrize("command", ["", "train", "curves", "regbench", "babistories names"])
def test_a_help_fits_a_terminal(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        main([*command.split(), "--help"])
    output = capsys.readouterr().out
    assert output.startswith(f"usage: mosaics {command}".rstrip())
    assert max(map(len, output.splitlines())) <= 80


def test_a_configuration_that_is_no_text_is_one_line(tmp_path, capsys):
    (tmp_path / "latin.yaml").write_bytes(b"training:\n  steps: 2\n# caf\xe9\n")
    assert main(["train", "c", "--config", str(tmp_path / "latin.yaml")]) == 2
    assert "latin.yaml is not UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "message"), [("[1]", "[1]"), ("null", "None")])
def test_a_list_in_place_of_many_flags_is_one_line(tmp_path, capsys, given, message):
    (tmp_path / "list.yaml").write_text(f"training: {given}\n")
    with pytest.raises(SystemExit) as stop:
        main(["train", "c", "--config", str(tmp_path / "list.yaml")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(
        f"mosaics: --training must be a YAML file or JSON object, not {message} ("
    )


def test_no_type_of_any_flag_is_without_words():
    """A type that a command takes for the first time wants a noun in `NOUNS`."""
    parsers, texts = [auto_parser(COMMANDS, parser_class=Parser)], set()
    while parsers:
        for action in parsers.pop()._actions:
            parsers += (action.choices or {}).values() if isinstance(action.choices, dict) else ()
            texts |= {expected(action)} if hasattr(action, "_typehint") else set()
    assert len(texts) > 10


def test_the_beginning_of_a_flag_is_enough(capsys):
    assert parsed("regbench", "--arch", "gla", "lstm").architectures == ["gla", "lstm"]
    assert parsed("regbench", "--choices.wi=8").choices.width == [8]
    found = parsed("regbench", "--swe", "--in-d")
    assert (found.sweep, found.in_distribution) == (True, True)
    assert parsed("inspect", "tiny", "--", "--text").text == "--text"
    with pytest.raises(SystemExit):
        parsed("regbench", "--choices.w", "8")
    output = capsys.readouterr().err
    assert "ambiguous option: --choices.w could match --choices.width, --choices.weight_decay" in output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--json", "memory-mosaic-tiny"], True),
        (["memory-mosaic-tiny", "--json"], True),
        (["--json", "false", "memory-mosaic-tiny"], False),
        (["memory-mosaic-tiny", "--json=false"], False),
        (["memory-mosaic-tiny"], False),
    ],
)
def test_a_flag_may_stand_alone_or_have_a_value(words, expected):
    found = parsed("info", *words)
    assert (found.model, found.json) == ("memory-mosaic-tiny", expected)


def test_the_help_of_regbench_names_the_architectures(capsys):
    with pytest.raises(SystemExit):
        main(["regbench", "--help"])
    output = re.sub(r"-\s+", "-", capsys.readouterr().out)  # lines end at hyphens too
    assert set(ARCHITECTURES) <= set(re.split(r"[\s,;]+", output))


def test_modules_with_parts_of_your_own_are_imported_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_parts.py").write_text("print('imported')\n")
    assert main(["--import", "own_parts", "info", "memory-mosaic-tiny"]) == 0
    assert capsys.readouterr().out.startswith("imported\n{")
    del sys.modules["own_parts"]
    assert main(["info", "memory-mosaic-tiny", "--import", "own_parts"]) == 0
    assert capsys.readouterr().out.startswith("imported\n{")
    assert main(["--import", "no_parts", "info", "memory-mosaic-tiny"]) == 2
    assert "--import no_parts fails: ModuleNotFoundError: No module named" in capsys.readouterr().err


def test_an_unknown_model_is_one_line_and_exit_code_2(capsys):
    assert main(["info", "nothing"]) == 2
    output = capsys.readouterr().err
    assert "neither a folder nor a preset" in output
    assert output.count("\n") == 1


def test_info_counts(capsys):
    assert main(["info", "memory-mosaic-12"]) == 0
    assert "123,552,384" in capsys.readouterr().out


def test_a_file_of_info_is_read_back(tmp_path, capsys):
    main(["info", "memory-mosaic-tiny", "--json"])
    printed = capsys.readouterr().out
    (tmp_path / "mine.json").write_text(printed)
    assert main(["info", str(tmp_path / "mine.json"), "--json"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("arguments", [["info", "x" * 5000], ["convert", "y" * 300, "z"]])
def test_a_name_that_no_file_can_have(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("reader", "code", "message"), [("| head -1", 0, ""), ("> /dev/full", 2, "No space left")])
def test_a_reader_that_stops_or_a_full_disk(reader, code, message):
    """Of the command run as a module, in a process of its own."""
    command = f"set -o pipefail; {sys.executable} -m memory_mosaics.cli info memory-mosaic-tiny {reader}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert run.returncode == code
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stderr.count("\n") <= 1


def test_ctrl_c_prints_one_line(monkeypatch, capsys):
    def interrupt(model: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "info", interrupt)
    assert main(["info", "x"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "c", "--preset", "transformer-18"], {"name": "transformer-18", "steps": "80000"}),
        (
            ["train", "c", "--preset=transformer-small", "--training.steps", "7"],
            {"name": "transformer-small", "steps": "7"},
        ),
        (["train", "c", "--training.betas", "0.8", "0.9"], {"name": "null", "steps": "600"}),  # memory-mosaic-tiny
        (["sweep", "c", "--preset", "memory-mosaic-1"], {"name": "memory-mosaic-1", "steps": "80000"}),
    ],
)
def test_a_preset_gives_the_values_and_flags_change_them(arguments, expected, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--print_config"])
    assert stop.value.code == 0
    output = capsys.readouterr().out
    for name, value in expected.items():
        assert f"  {name}: {value}\n" in output


def test_a_preset_in_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("preset: transformer-tiny\n")
    assert main(["train", "c", "--config", str(tmp_path / "mine.yaml")]) == 2
    assert "give it as the flag --preset" in capsys.readouterr().err


def test_a_preset_is_applied_before_the_flags_wherever_it_is_given():
    found = parsed("train", "c", "--training.steps", "600", "--model.heads", "2", "--preset", "memory-mosaic-12")
    assert (found.training.steps, found.training.batch, found.model.heads) == (600, 512, 2)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (["--prompt", "🐉 loved", "[1,2]"], ["🐉 loved", "[1,2]"]),
        (["--prompt", '["a", "b"]'], ["a", "b"]),
        (["--prompt=-x"], ["-x"]),
        (['--prompt=["-x"]'], ["-x"]),
        (["--prompt", "[1]"], ["[1]"]),
        (["--prompt", "7", "true", "null"], ["7", "true", "null"]),
    ],
)
def test_texts_are_taken_as_they_are_written(given, texts):
    assert parsed("generate", "run", *given).prompt == texts


def test_lists_are_several_words_or_one_list():
    found = parsed("attention", "a", "b", "--data", "d", "--length", "512", "1536", "--batch", "2")
    assert (found.runs, found.length, found.batch) == (["a", "b"], [512, 1536], 2)
    assert parsed("moons", "--heads", "[1,3]").heads == [1, 3]
    for words in (["--training.betas=[0.8, 0.9]"], ["--training.betas", "[0.8,0.9]", "--out", "b"]):
        assert parsed("train", "c", *words).training.betas == [0.8, 0.9]
    for words in (["train"], ["--benchmarks", "train"], ["--cpu", "--benchmarks=train"]):
        assert parsed("bench", *words).benchmarks == ["train"]


def test_lists_in_groups_do_not_depend_on_the_source_file(monkeypatch):
    """jsonargparse derives the class of groups from the text of `add_argument`, which may change under a process."""
    monkeypatch.setattr("inspect.getsource", lambda _: "")
    assert parsed("regbench", "--choices.blocks", "2", "4").choices.blocks == [2, 4]


def test_ctrl_c_while_python_cleans_up_is_not_lost():
    """In a weakref's callback it cannot be raised: Python would print a traceback and go on."""
    lines = [
        "import signal, sys, weakref",
        "from memory_mosaics import cli",
        "class Thing: pass",
        "def interrupted():",
        "    thing = Thing()",
        "    there = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))",
        "    del thing",
        "    while True: pass",
        "cli.auto_cli = lambda *arguments, **options: interrupted()",
        "sys.exit(cli.main(['info', 'memory-mosaic-tiny']))",
    ]
    run = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (130, "mosaics: interrupted\n")


def test_a_null_where_a_value_is_needed_is_refused(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("training:\n  warm_up:\n")
    (tmp_path / "recipe.yaml").write_text("steps: null\n")
    with pytest.raises(SystemExit):
        main(["train", str(tmp_path), "--out", str(tmp_path / "out"), "--config", str(tmp_path / "config.yaml")])
    assert capsys.readouterr().err.startswith("mosaics: --training.warm_up must be a whole number, not null")
    with pytest.raises(SystemExit):
        main(["induction", "--out", str(tmp_path / "out"), "--recipe", str(tmp_path / "recipe.yaml")])
    assert capsys.readouterr().err.startswith("mosaics: --steps must be a whole number, not null")
    assert not (tmp_path / "out").exists()
