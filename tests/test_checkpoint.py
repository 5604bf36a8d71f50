import json
import os
import pickle
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from memory_mosaics.checkpoint import CheckpointError, load, save
from memory_mosaics.cli import main
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.models import memory_mosaic, transformer

SMALL = {"width": 16, "blocks": 2, "heads": 2, "vocabulary": 30, "context": 32}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    return save(LanguageModel(memory_mosaic(**SMALL)), tmp_path / "model")


@pytest.mark.parametrize("config", [memory_mosaic(**SMALL), transformer(**SMALL)], ids=["mosaic", "transformer"])
def test_what_is_saved_is_what_is_loaded(config, tmp_path):
    model = LanguageModel(config).eval()
    loaded = load(save(model, tmp_path / "deep" / "model"))
    tokens = torch.randint(0, 30, (2, 10))
    assert loaded.config == config
    assert not loaded.training
    assert_close(loaded(tokens)[0], model(tokens)[0])
    loaded(tokens)[0].sum().backward()  # it can be trained on


def test_loading_in_bfloat16_keeps_scales_in_float32(folder):
    model = load(folder, dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (torch.float32 if name.endswith(("theta", "rate", "taps")) else torch.bfloat16), name
    assert model(torch.randint(0, 30, (1, 9)))[0].isfinite().all()


def test_all_files_may_be_read_by_the_same_people(folder):
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1


def test_several_weight_files_are_one_model(folder):
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    pieces = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    before = load(folder)
    for file, part in pieces.items():
        save_file({name: weights[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, part in pieces.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_close(load(folder).state_dict(), before.state_dict())


def test_an_existing_folder_is_left_alone(folder):
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="exists already"):
        save(LanguageModel(memory_mosaic(**SMALL)), folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_an_index_left_over_from_an_earlier_save_does_not_matter(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "gone.safetensors"}}')
    load(folder)


def test_a_disk_that_fills_leaves_nothing(tmp_path):
    """In a process that may write files of 8 kB only."""
    code = """
import resource, signal, sys
from memory_mosaics import LanguageModel, memory_mosaic, save
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
try:
    save(LanguageModel(memory_mosaic(width=16, blocks=2, heads=2, vocabulary=30)), sys.argv[1])
except ValueError as error:
    print(type(error).__name__, error)
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "deep" / "model")], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("CheckpointError cannot write")
    assert "File too large" in run.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["whole", "block"])
def test_a_compiled_model_is_saved_as_itself(where, tmp_path):
    model = LanguageModel(memory_mosaic(**SMALL))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if where == "block":
        model.blocks[0] = torch.compile(model.blocks[0])
    loaded = load(save(torch.compile(model) if where == "whole" else model, tmp_path / "model"))
    assert_close(loaded.state_dict(), before)


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    model = LanguageModel(memory_mosaic(**SMALL))
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match=r"cannot write .*does not have: extra\.weight"):
        save(model, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [".", "link", "ünïcode and space"])
def test_any_empty_or_new_folder_will_do(name, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty" if name == "." else tmp_path)
    save(LanguageModel(memory_mosaic(**SMALL)), name)
    load(tmp_path / "empty" if name == "." else tmp_path / name)


class Evil:
    def __reduce__(self):
        return (os.system, ("touch pwned",))


def edit_config(folder, **changes):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["language_model"] |= changes
    file.write_text(json.dumps(config))


def resave(folder, **changes):
    weights = load_file(folder / "model.safetensors") | changes
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "model.safetensors")


def only_index(folder, text):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)


EMBEDDING = "language_model.embedding.weight"
DAMAGE = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "config is not JSON": (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
    "config is not UTF-8": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), "config.json cannot be read"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "nameless model"),
    "another kind of model": (lambda f: (f / "config.json").write_text('{"model_type": "gpt2"}'), "a gpt2 model"),
    "unknown field": (lambda f: edit_config(f, colour="red"), "no field 'colour'"),
    "unknown part": (lambda f: edit_config(f, sequence_mixer={"part": "x"}), "no part 'x'"),
    "a part in the wrong place": (lambda f: edit_config(f, sequence_mixer={"part": "linear"}), "config.json"),
    "a width that does not split": (lambda f: edit_config(f, width=15), "width 15 does not split into 2 heads"),
    "another width": (lambda f: edit_config(f, width=18), r"embedding.weight is \(30, 16\).*\(30, 18\)"),
    "truncated": (lambda f: os.truncate(f / "model.safetensors", 3000), "damaged or not a safetensors file"),
    "empty": (lambda f: os.truncate(f / "model.safetensors", 0), "damaged or not a safetensors file"),
    "noise": (lambda f: (f / "model.safetensors").write_bytes(os.urandom(5000)), "damaged or not a safetensors"),
    "a pickle": (lambda f: (f / "model.safetensors").write_bytes(pickle.dumps(Evil())), "damaged or not a safeten"),
    "a weight missing": (lambda f: resave(f, **{EMBEDDING: None}), "lacks the weight embedding.weight"),
    "a weight too many": (lambda f: resave(f, extra=torch.zeros(1)), "does not have: extra"),
    "index is not JSON": (lambda f: only_index(f, "x"), "index.json is damaged"),
    "index is a list": (lambda f: only_index(f, "[]"), "index.json is damaged"),
    "index without end": (lambda f: only_index(f, "[" * 100_000), "index.json is damaged"),
    "config without end": (lambda f: (f / "config.json").write_text("[" * 100_000), "config.json cannot be read"),
    "a width without end": (lambda f: edit_config(f, width=10**18), "config.json"),
    "whole numbers": (lambda f: resave(f, **{EMBEDDING: torch.zeros(30, 16, dtype=torch.int)}), "holds torch.int32"),
    "a name without prefix": (lambda f: resave(f, **{"norm.weight": torch.ones(16)}), "does not have: norm.weight"),
    "a key that peeks": (
        lambda f: edit_config(
            f, sequence_mixer={"part": "attention", "heads": 2, "key": {"part": "linear", "peek": 1}}
        ),
        "a key cannot depend",
    ),
}


@pytest.mark.parametrize(("harm", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_one_line_and_exit_code_2(folder, harm, message, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    harm(folder)
    with pytest.raises(CheckpointError, match=message):
        load(folder)
    assert main(["info", str(folder)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert not (folder / "pwned").exists()
