"""Models that come with the package, opened by name: here tiny ones in a folder that stands for the package's."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

import memory_mosaics.apps.story_world  # noqa: F401 - registers stories:COUNT
from memory_mosaics import PRESETS, LanguageModel, Run, load, prepare, preset, pretrained, save, train
from memory_mosaics.apps.server import Server
from memory_mosaics.checkpoint import LoadedModel, read_config
from memory_mosaics.cli import COMMANDS, main
from memory_mosaics.errors import UserError
from memory_mosaics.language_model import weight_count
from memory_mosaics.models import Preset
from memory_mosaics.pretrained import MOSAIC, NAMES, TWIN
from memory_mosaics.text.tokenizer import byte_tokenizer

SIZES = {"width": 32, "blocks": 2, "heads": 2, "vocabulary": 257, "context": 64}
MAX_BYTES = 22_000_000  # of both models
MAX_WHEEL = 30_000_000
ROOT = Path(__file__).parents[1]
SPEC = spec_from_file_location("package", ROOT / "experiments/pretrained/package.py")
assert SPEC
assert SPEC.loader
package = module_from_spec(SPEC)
SPEC.loader.exec_module(package)
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


@pytest.fixture
def models(tmp_path, monkeypatch) -> Path:
    """Both models, tiny, in bfloat16."""
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path / "package")
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        built = save(LanguageModel(preset(name, **SIZES)), tmp_path / "float32" / name)
        save(load(built, dtype=torch.bfloat16), pretrained.FOLDER / name, tokenizer=byte_tokenizer())
    return pretrained.FOLDER


@pytest.fixture
def served(monkeypatch) -> list[str]:
    """The addresses that servers would have printed; they end at once."""
    addresses = []
    monkeypatch.setattr(Server, "run_until_interrupted", lambda server: addresses.append(server.on_ready("there")))
    return addresses


@pytest.mark.usefixtures("models")
def test_commands_without_a_run_take_the_models_of_the_package(served, capsys):
    assert main(["generate", "--prompt", "Once", "--length", "4", "--seed", "0"]) == 0
    assert capsys.readouterr().out.startswith("Once")
    assert main(["inspect", "--head", "1"]) == 0
    table = capsys.readouterr().out
    assert f"then {MOSAIC} expects" in table
    assert "head 0" not in table
    assert main(["inspect", "--text", "A cat."]) == 0
    assert capsys.readouterr().out.startswith("position 5 of 6, '.'")
    assert main(["explore", "--port", "0"]) == 0
    assert capsys.readouterr().out.startswith(f"{MOSAIC}, {TWIN}: open there")
    assert main(["serve", "--port", "0"]) == 0
    assert capsys.readouterr().out.startswith(f"{MOSAIC} is served at there")
    assert len(served) == 2


def test_names_stand_for_runs(models, tmp_path, undrawn, capsys):
    Path("notes.jsonl").write_text("".join(json.dumps(f"The cat number {n} sat down.") + "\n" for n in range(200)))
    Path("test").mkdir()
    assert main(["inspect", TWIN, "--head", "0", "A cat."]) == 0
    assert main(["generate", TWIN, "--prompt", "Once", "--length", "2"]) == 0
    assert main(["prepare", "notes.jsonl", "--out", "corpus", "--tokenizer", MOSAIC, "--valid_share", "0.2"]) == 0
    assert main(["evaluate", *NAMES, "--data", "corpus", "--length", "32", "--windows", "2", "--out", "losses"]) == 0
    assert [one["name"] for one in json.loads(Path("losses/results.json").read_text())["models"]] == list(NAMES)
    steps = ["--training.steps", "2", "--training.batch", "2", "--training.evaluate_windows", "2"]
    assert main(["train", "corpus", "--from", MOSAIC, *steps]) == 0
    assert read_config(tmp_path / f"runs/{MOSAIC}-finetuned/step-00000002") == read_config(models / MOSAIC)
    assert capsys.readouterr().err.count("mosaics:") == 0


def test_they_are_loaded_in_float32_and_a_folder_of_the_name_comes_first(models):
    first, second = load(MOSAIC), LoadedModel.open(Path(MOSAIC)).model
    stored = load(models / MOSAIC, dtype=torch.bfloat16).state_dict()
    assert {weight.dtype for weight in stored.values()} == {torch.bfloat16, torch.float32}
    for model in (first, second):
        assert all(weight.dtype == torch.float32 for weight in model.parameters())
        assert all(torch.equal(weight, stored[name].float()) for name, weight in model.state_dict().items())
    save(LanguageModel(preset("llama-tiny", **SIZES)), MOSAIC)
    assert load(MOSAIC).config == preset("llama-tiny", **SIZES)


@pytest.mark.parametrize("command", ["generate", "inspect", "explore", "serve"])
def test_without_weights_one_line_says_how_to_get_a_model(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    for words in ([command], [command, TWIN]):
        assert main(words) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"mosaics: the weights of {words[-1] if len(words) > 1 else MOSAIC} are not in")
        assert "mosaics demo" in message
        assert message.count("\n") == 1


@pytest.mark.parametrize("command", ["generate", "inspect", "explore", "serve"])
def test_help_and_errors_name_them(command, capsys):
    documented = " ".join((COMMANDS[command].__doc__ or "").split())
    assert all(name in documented for name in NAMES)
    assert main([command, "lama-stories"]) == 2
    assert "there is no run lama-stories; did you mean llama-stories?" in capsys.readouterr().err
    assert main([command, "runs/lama-stories"]) == 2
    assert "there is no run runs/lama-stories; mosaics train makes one" in capsys.readouterr().err


def test_both_have_the_same_size():
    mosaic, twin = (preset(name) for name in NAMES)
    assert abs(weight_count(mosaic) / weight_count(twin) - 1) < 0.01
    assert 2 * (weight_count(mosaic) + weight_count(twin)) < 0.95 * MAX_BYTES  # the rest: float32, tokenizers
    assert mosaic.context == twin.context == 512
    assert mosaic.vocabulary == twin.vocabulary == 4096


def test_the_weights_in_the_package_are_those_of_the_presets():
    if not (pretrained.FOLDER / MOSAIC).exists():
        pytest.skip("the weights are not in the package yet: experiments/QUEUE.md")
    files = [path for name in NAMES for path in (pretrained.FOLDER / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES
    for name in NAMES:
        opened = LoadedModel.open(Path(name))
        assert opened.model.config == preset(name)
        assert opened.tokenizer.vocabulary == opened.model.config.vocabulary
        results = json.loads((ROOT / "experiments/pretrained/results.json").read_text())
        assert (opened.folder / "README.md").read_text() == package.card(results, name)


def test_the_recipe_packages_the_better_run_with_a_card_of_its_numbers(tmp_path, monkeypatch, undrawn, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("memory_mosaics.apps.demo.PROBED", 3)
    monkeypatch.setattr(pretrained, "FOLDER", pretrained.FOLDER)
    tiny = {"width": 32, "blocks": 1, "heads": 2, "vocabulary": 300, "context": 1024}
    for name in NAMES:
        monkeypatch.setitem(PRESETS, name, Preset(partial(PRESETS[name].config, **tiny), None, {}))
    prepare(["stories:40:0"], valid=["stories:8:1"], out=Path("data/tokens"), tokenizer="bpe", vocabulary=300)
    prepare(["stories:8:2"], out=Path("data/report"), tokenizer="data/tokens", valid_share=0.0)
    few = {"steps": 3, "batch": 1, "warm_up": 1, "evaluate_windows": 2}
    losses = {
        name: train(Run.from_preset(name.rpartition("-")[0], data="data/tokens", out=f"runs/{name}", **few | rate))[
            "valid_loss"
        ]
        for name, rate in {
            f"{MOSAIC}-low": {"learning_rate": 1e-6, "final_learning_rate": 0.0},
            f"{MOSAIC}-high": {},
            f"{TWIN}-high": {},
        }.items()
    }
    package.main(Path("runs"), Path("data"), Path("out"))
    results = json.loads(Path("out/results.json").read_text())
    assert losses[f"{MOSAIC}-high"] < losses[f"{MOSAIC}-low"]
    assert {run["run"]: run["chosen"] for run in results["runs"]} == dict.fromkeys(losses, True) | {
        f"{MOSAIC}-low": False
    }
    card = Path(f"out/{MOSAIC}/README.md").read_text()
    for measured in (*results["evaluation"]["models"], *results["evaluation"]["anchors"]):
        assert f"| {measured['loss']:.3f} |" in card
    assert "on 8 other stories" in card
    assert results["recall"][MOSAIC]["asked"] > 0
    stored = load(f"out/{MOSAIC}", dtype=torch.bfloat16)
    assert stored.embedding.weight.dtype == torch.bfloat16
    assert torch.equal(load(MOSAIC).embedding.weight, stored.embedding.weight.float()), "the package is `out` now"

    for folder in Path("runs").glob("*/step-*"):
        shutil.rmtree(folder)
    Path(f"out/{MOSAIC}/README.md").unlink()
    package.main(Path("runs"), Path("data"), Path("out"))  # on another machine, which has no checkpoints
    assert Path(f"out/{MOSAIC}/README.md").read_text() == card
    with pytest.raises(UserError, match=f"no run of {MOSAIC} in nowhere has ended"):
        package.main(Path("nowhere"), Path("data"), Path("out"))


def test_the_wheel_has_them_and_is_small_enough(tmp_path):
    """Built from a copy, with untrained weights of the right size where there are no others, and used from there."""
    source, installed = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    folder = source / "src/memory_mosaics/pretrained"
    if not (folder / MOSAIC).exists():
        for name in NAMES:
            built = save(LanguageModel(preset(name)), tmp_path / "float32" / name)
            save(load(built, dtype=torch.bfloat16), folder / name, tokenizer=byte_tokenizer())
    subprocess.run([sys.executable, "-W", "ignore", "-c", BUILD, tmp_path], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size <= MAX_WHEEL
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    command = [sys.executable, "-m", "memory_mosaics.cli", "generate", "--prompt", "Once", "--length", "3"]
    ran = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(installed)}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("Once")
    files = {path.relative_to(source / "src") for path in folder.rglob("*")}
    assert all((installed / file).exists() for file in files), "the twin too"
