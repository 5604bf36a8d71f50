"""Checkpoints of the authors that are not converted, and why; what is written beside the weights."""

import argparse
import json
import math
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch

import reference_checkpoints
from memory_mosaics.checkpoint import CheckpointError, LoadedModel
from memory_mosaics.cli import main
from memory_mosaics.convert import convert, read_reference
from memory_mosaics.errors import UserError
from memory_mosaics.text.tokenizer import byte_tokenizer
from reference_checkpoints import (
    CONTEXT,
    HEADS,
    SLOTS,
    VOCABULARY,
    WIDTH,
    D,
    assert_same_logits,
    checkpoint,
    quiet,
    refusal,
    written,
)


def without(name: str):
    return lambda contents: contents["model"].pop(name)


def weight(name: str, value: object):
    return lambda contents: contents["model"].update({name: value})


def with_model_args(**changes: object):
    return lambda contents: contents["model_args"].update(changes)


NANO_BLOCK, LIBRARY_BLOCK = "mosaic.h.1.", "blocks.1."
REFUSED = {
    "no model": ("nano", lambda contents: contents.pop("model"), "no dictionary 'model'"),
    "no model_args": ("nano", lambda contents: contents.pop("model_args"), "no dictionary 'model_args'"),
    "no weights": ("nano", lambda contents: contents["model"].clear(), "none at all"),
    "not a tensor": ("nano", weight("mosaic.ln_f.weight", [1.0]), "mosaic.ln_f.weight is not a dense tensor"),
    "sparse": ("nano", weight("mosaic.ln_f.weight", torch.ones(WIDTH).to_sparse()), "not a dense tensor"),
    "integers": ("nano", weight("mosaic.ln_f.weight", torch.ones(WIDTH, dtype=torch.int)), "holds torch.int32"),
    "not finite": (
        "fast",
        weight("ln_out.weight", torch.full((WIDTH,), math.nan)),
        "ln_out.weight contains NaN or Inf",
    ),
    "twice": ("nano", weight("_orig_mod.mosaic.ln_f.weight", torch.ones(WIDTH)), "mosaic.ln_f.weight twice"),
    "no embedding": ("nano", without("mosaic.wte.weight"), "lacks the weight mosaic.wte.weight"),
    "no matrix": ("nano", without(NANO_BLOCK + "attn.c_proj.weight"), "lacks the weight mosaic.h.1.attn.c_proj.weight"),
    "no leak": ("fast", without(LIBRARY_BLOCK + "pmem.leaky_average.leaky_beta_w_under"), "lacks the weight blocks.1"),
    "no slots": ("plain", without("blocks.0.pmem.pmem.M_k0"), "lacks the weight blocks.0.pmem.pmem.M_k0"),
    "one memory less": ("plain*3", without("blocks.1.pmem.pmem.M_v2"), "lacks the weight blocks.1.pmem.pmem.M_v2"),
    "a gap": ("plain*3", without("blocks.0.pmem.pmem.M_k1"), "model_args say pmem_count=3, the weights 2"),
    "one more": ("nano", weight("mosaic.wpe.weight", torch.ones(2)), "layout does not have: mosaic.wpe.weight"),
    "a head bias": ("plain+bias", weight("head.bias", torch.ones(VOCABULARY)), "does not have: head.bias"),
    "foreign mask": (
        "plain+bias",
        weight("blocks.0.attn.bias", torch.ones(1, 1, 2, 2)),
        "does not have: blocks.0.attn.bias",
    ),
    "both values": (
        "plain",
        weight("blocks.1.attn.v_featurizer.conv.weight", torch.ones(1)),
        "does not have: blocks.1",
    ),
    "two leaks": ("fast", weight("blocks.0.attn.leaky_average.leaky_beta_u_under", torch.ones(3)), "not the same as"),
    "shape": ("nano", weight("mosaic.ln_f.weight", torch.ones(7)), "mosaic.ln_f.weight is (7,), where the other"),
    "transposed": ("nano", weight("mosaic.h.0.mlp.P_v", torch.ones(1, 1, HEADS, D, SLOTS)), "P_v is (1, 1, 3, 8, 5)"),
    "flat scale": ("nano", weight("mosaic.h.0.attn.k_featurizer.key_scale", torch.ones(3)), "not of 4 dimensions"),
    "odd heads": ("plain", weight("blocks.0.attn.kernel_beta", torch.ones(5)), "n_head=3, the weights 5"),
    "no head": ("plain", weight("blocks.0.attn.kernel_beta", torch.ones(0)), "it has 0 heads"),
    "key kernel": (
        "plain",
        weight("blocks.0.attn.k_featurizer.conv.weight", torch.ones(WIDTH, WIDTH, 3)),
        "k_kernel_size=1, the weights 3",
    ),
    "one key kernel": (
        "plain",
        weight("blocks.1.attn.k_featurizer.conv.weight", torch.ones(WIDTH, WIDTH, 3)),
        "(24, 24, 3), where the other weights want (24, 24, 1)",
    ),
    "value kernel": (
        "plain-convolution",
        weight("blocks.0.attn.v_featurizer.conv.weight", torch.ones(WIDTH, WIDTH, 3)),
        "v_kernel_size=2, the weights 3",
    ),
    "one value kernel": (
        "plain-convolution",
        weight("blocks.1.attn.v_featurizer.conv.weight", torch.ones(WIDTH, WIDTH, 3)),
        "v_featurizer.conv.weight is (24, 24, 3), where the other weights want (24, 24, 2)",
    ),
    "no shift": ("fast", with_model_args(v_shift=0), "model_args say v_shift=0; convertible are 1 to 64"),
    "long shift": (
        "plain",
        with_model_args(v_shift=10**9),
        "model_args say v_shift=1000000000; convertible are 1 to 64",
    ),
    "odd shift": ("plain", with_model_args(v_shift=1.5), "model_args say v_shift=1.5; convertible are 1 to 64"),
    "no norm": ("plain", with_model_args(pre_ln=None), "model_args say pre_ln=None; convertible are True or False"),
    "strange norm": (
        "plain",
        with_model_args(pre_ln="no"),
        "model_args say pre_ln='no'; convertible are True or False",
    ),
    "attention only": ("plain", with_model_args(attn_only=True), "attn_only=True, the weights False"),
    "bias": ("plain", with_model_args(bias=True), "bias=True, the weights False"),
    "no bias": ("nano+bias", with_model_args(bias=False), "bias=False, the weights True"),
    "leaky values": ("plain", with_model_args(v_leaky=True), "model_args say v_leaky=True; convertible is False"),
    "leaky values, fast": ("fast", with_model_args(v_leaky=1), "model_args say v_leaky=1; convertible is False"),
    "unknown": (
        "plain",
        with_model_args(v_gate=True),
        "model_args say v_gate=True, an option whose meaning is not known here",
    ),
    "unknown, fast": ("fast", with_model_args(gate="silu"), "model_args say gate='silu', an option whose"),
    "unknown, nano": ("nano", with_model_args(rope=None), "model_args say rope=None, an option whose"),
    "of the Library": ("nano", with_model_args(pre_ln=False), "model_args say pre_ln=False, an option whose"),
    "of nanoMosaics": ("plain", with_model_args(dropout=0.1), "model_args say dropout=0.1, an option whose"),
    "no name": ("nano", lambda contents: contents["model_args"].update({"a\x1bb": 1}), "model_args say 'a\\x1bb'=1"),
    "huge scale": ("plain", weight("blocks.0.attn.value_beta", torch.full((3,), 3.0)), "value_beta is above 2.218"),
    "depth": ("nano", with_model_args(n_layer=3), "n_layer=3, the weights 2"),
    "width": ("nano", with_model_args(n_embd=48), "n_embd=48, the weights 24"),
    "heads": ("nano", with_model_args(n_head=4), "n_head=4, the weights 3"),
    "vocabulary": ("fast", with_model_args(vocab_size=61), "vocab_size=61, the weights 60"),
    "slots": ("fast", with_model_args(pmem_size=6), "pmem_size=6, the weights 5"),
    "memories": ("nano", with_model_args(pmem_count=2), "pmem_count=2, the weights 1"),
    "no plain size": ("nano", with_model_args(n_head=torch.ones(2)), "n_head=tensor([1., 1.]), the weights 3"),
    "value type": ("plain", with_model_args(v_fe_type="mlp"), "v_fe_type='mlp', the weights 'lowrlinearconv'"),
    "other value type": (
        "plain",
        with_model_args(v_fe_type="linearconv"),
        "v_fe_type='linearconv', the weights 'lowrlinearconv'",
    ),
    "key type": ("plain", with_model_args(k_fe_type="mlp"), "k_fe_type='mlp', the weights 'linearconv'"),
    "other key type": (
        "plain",
        with_model_args(k_fe_type="lowrlinearconv"),
        "k_fe_type='lowrlinearconv', the weights 'linearconv'",
    ),
    "value taps": ("plain", with_model_args(v_kernel_size=3), "v_kernel_size=3, the weights 2"),
    "tied": ("plain", weight("head.weight", torch.ones(VOCABULARY, WIDTH)), "weight_tying=True, the weights False"),
    "no length": (
        "nano",
        lambda contents: contents["model_args"].pop("block_size"),
        "a number as block_size, not None",
    ),
    "length": ("nano", with_model_args(block_size=0), "context must be at least 1, not 0"),
    "half a token": ("nano", with_model_args(block_size=8.5), "block_size=8.5, which is not a whole number"),
    "no end": ("nano", with_model_args(block_size=math.inf), "cannot convert float infinity"),
    "dropout": ("nano", with_model_args(dropout="much"), "a number as dropout, not 'much'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case, tmp_path):
    layout, spoil, reason = REFUSED[case]
    contents = checkpoint(layout.split("+")[0].split("*")[0], bias="+" in layout, count=3 if "*" in layout else 1)
    spoil(contents)
    message = refusal(written(contents, tmp_path), tmp_path)
    assert message.startswith(" cannot be converted: ")
    assert reason in message


def test_keys_of_several_tokens_are_refused(tmp_path):
    message = refusal(written(checkpoint("plain", k_kernel_size=3), tmp_path), tmp_path)
    assert "k_kernel_size=3: keys that read several tokens" in message


def test_the_fast_form_does_not_look_at_options_of_keys(tmp_path):
    contents = quiet(checkpoint("fast", k_fe_type="mlp", k_kernel_size=3))
    assert_same_logits(read_reference(written(contents, tmp_path)), contents, atol=1e-5)


def test_other_models_are_refused(tmp_path):
    gpt2 = {"transformer.wte.weight": torch.ones(2, 2), "transformer.h.0.attn.c_attn.weight": torch.ones(6, 2)}
    assert "nanoGPT transformer" in refusal(written({"model": gpt2, "model_args": {}}, tmp_path), tmp_path)
    rwkv = {"emb.weight": torch.ones(2, 2), "blocks.0.ln1.weight": torch.ones(2)}
    assert "emb.weight, blocks.0" in refusal(written({"model": rwkv, "model_args": {}}, tmp_path), tmp_path)
    for bare in (gpt2, torch.ones(3), [1, 2], None):
        assert "no dictionary 'model'" in refusal(written(bare, tmp_path), tmp_path)


def test_a_width_that_does_not_split_is_refused(tmp_path):
    contents = checkpoint("plain")
    contents["model_args"] = {"block_size": CONTEXT}
    contents["model"]["blocks.0.attn.kernel_beta"] = torch.ones(5)
    assert "width 24 does not split into 5 heads" in refusal(written(contents, tmp_path), tmp_path)


def test_what_is_no_file_is_refused(tmp_path):
    assert "does not exist" in refusal(tmp_path / "nothing.pt", tmp_path)
    assert "is not a file" in refusal(tmp_path, tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "ckpt.pt"])
def test_safetensors_are_refused(name, tmp_path):
    """Later versions of torch.load open them by their name; then it is the dictionaries that are missing."""
    safetensors.torch.save_file({"mosaic.ln_f.weight": torch.ones(WIDTH)}, tmp_path / name)
    found = refusal(tmp_path / name, tmp_path)
    assert "is damaged" in found or (name == "model.safetensors" and "no dictionary 'model'" in found)


def test_damaged_files_are_refused(tmp_path):
    source = written(checkpoint("nano"), tmp_path)
    whole = source.read_bytes()
    for part in (0, 1, 4, 100, len(whole) // 2, len(whole) - 1):
        source.write_bytes(whole[:part])
        assert "damaged" in refusal(source, tmp_path)
    for text in (b"hello world\n", b"{}", b"PK\x03\x04" + bytes(100), bytes(1000)):
        source.write_bytes(text)
        assert "damaged" in refusal(source, tmp_path)


def test_one_flipped_bit_inside_a_weight_is_refused(tmp_path):
    contents = checkpoint("nano")
    source = written(contents, tmp_path)
    needle = contents["model"]["mosaic.wte.weight"].numpy().tobytes()[:64]
    whole = bytearray(source.read_bytes())
    whole[whole.index(needle)] ^= 1
    source.write_bytes(whole)
    assert "checksum" in refusal(source, tmp_path)


def test_an_archive_of_something_else_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "not a torch.save file" in refusal(tmp_path / "photos.zip", tmp_path)


class Trap:
    """Pickles as a call that makes a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("form", ["zip", "old format", "pickle 2", "pickle 5"])
def test_code_in_a_file_is_not_run(form, tmp_path):
    sprung = tmp_path / "sprung"
    contents = checkpoint("nano") | {"extra": Trap(sprung)}
    source = tmp_path / "ckpt.pt"
    if form.startswith("pickle"):
        source.write_bytes(pickle.dumps({"model": {}, "extra": Trap(sprung)}, protocol=int(form[-1])))
    else:
        torch.save(contents, source, _use_new_zipfile_serialization=form == "zip")
    message = refusal(source, tmp_path)
    assert not sprung.exists()
    assert message.endswith("; nothing in it was run")
    assert form == "pickle 5" or ".mkdir); nothing in it was run" in message

    if form == "zip":  # the trap is a real one
        torch.load(source, weights_only=False)
        assert sprung.exists()


def test_objects_are_named(tmp_path):
    contents = checkpoint("plain")
    contents["model_args"] = argparse.Namespace(**contents["model_args"])
    assert "objects (argparse.Namespace)" in refusal(written(contents, tmp_path), tmp_path)


def test_a_tokenizer_goes_into_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(reference_checkpoints, "VOCABULARY", 300)
    source = written(checkpoint("nano"), tmp_path)
    with pytest.raises(UserError, match=r"out has no tokenizer.json: .* as mosaics convert --tokenizer does"):
        LoadedModel.open(convert(source, tmp_path / "out"))
    assert main(["convert", str(source), str(tmp_path / "with"), "--tokenizer", "bytes"]) == 0
    opened = LoadedModel.open(tmp_path / "with")
    assert opened.tokenizer.fingerprint == byte_tokenizer().fingerprint
    assert json.loads((tmp_path / "with" / "generation_config.json").read_text())["eos_token_id"] == 256
    convert(source, tmp_path / "copied", tokenizer=str(tmp_path / "with"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "copied" / name).read_bytes() == (tmp_path / "with" / name).read_bytes()


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path, capsys):
    source = written(checkpoint("nano"), tmp_path)
    for name, reason in [("bytes", "tokenizer bytes has 257 tokens, and the model 60; "), ("nothing", "no tokenizer")]:
        assert main(["convert", str(source), str(tmp_path / "out"), "--tokenizer", name]) == 2
        assert reason in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["ckpt.pt"]


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="exists already"):
        convert(written(checkpoint("nano"), tmp_path), tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
