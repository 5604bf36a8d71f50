import json
import os
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from memory_mosaics import checkpoint
from memory_mosaics.checkpoint import CheckpointError, load, save
from memory_mosaics.cli import main
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.presets import memory_mosaic, transformer

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


def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_flush", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save(LanguageModel(memory_mosaic(**SMALL)), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


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
    "index is not JSON": (lambda f: (f / "model.safetensors.index.json").write_text("x"), "index.json is damaged"),
    "index is a list": (lambda f: (f / "model.safetensors.index.json").write_text("[]"), "index.json is damaged"),
}


@pytest.mark.parametrize(("harm", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_one_line_and_exit_code_2(folder, harm, message, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    harm(folder)
    with pytest.raises(CheckpointError, match=message):
        load(folder)
    assert main(["info", str(folder)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert not (folder / "pwned").exists()
