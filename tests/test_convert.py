"""The authors' checkpoints: their formulas over their own weights give the logits of our models."""

import math
from typing import Any

import pytest
import torch

from memory_mosaics.checkpoint import load
from memory_mosaics.convert import convert, read_reference
from reference_checkpoints import (
    CONTEXT,
    LAYOUTS,
    LIBRARY_ARGS,
    VOCABULARY,
    WIDTH,
    assert_same_logits,
    checkpoint,
    expected,
    quiet,
    refusal,
    some_tokens,
    their_logits,
    written,
)


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_theirs(layout, bias, count, prefix, tmp_path):
    model = read_reference(written(checkpoint(layout, bias=bias, count=count, prefix=prefix), tmp_path))
    for length in (1, 2, 40):
        with torch.no_grad():
            ours, _ = model(some_tokens(length))
        torch.testing.assert_close(ours, expected(layout, bias, count, length), atol=1e-4, rtol=0)


OPTIONS: dict[str, dict[str, Any]] = {
    "post-norm": {"pre_ln": False},
    "shift 2": {"v_shift": 2},
    "shift 5": {"v_shift": 5},
    "post-norm, shift 3": {"pre_ln": False, "v_shift": 3},
    "no persistent memory": {"attn_only": True},
    "no persistent memory, post-norm": {"attn_only": True, "pre_ln": False},
    "of early versions": {"v_leaky": False},
    "not of the logits": {"skip_tokens": 3, "att_shift": 2, "ic_dropout": 0.3, "dtype": "bfloat16", "seed": 1},
}
KERNELS: dict[str, dict[str, Any]] = {
    "kernel 3": {"v_kernel_size": 3},
    "kernel 4, shift 2": {"v_kernel_size": 4, "v_shift": 2},
    "kernel 3, shift 2": {"v_kernel_size": 3, "v_shift": 2},
    "kernel 2, shift 4": {"v_kernel_size": 2, "v_shift": 4},
    "kernel 1": {"v_kernel_size": 1},
}
KEYS: dict[str, dict[str, Any]] = {"keys of two coefficients": {"k_fe_type": "lowrlinearconv", "k_kernel_size": 2}}


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize(
    ("layout", "option"),
    [(layout, option) for layout in LAYOUTS if layout != "nano" for option in OPTIONS]
    + [(layout, option) for layout in ("plain-convolution", "fast-convolution") for option in KERNELS]
    + [(layout, option) for layout in ("plain", "plain-convolution", "fast") for option in KEYS],
)
def test_options_of_the_library(layout, option, bias, tmp_path):
    options = (OPTIONS | KERNELS | KEYS)[option]
    contents = quiet(checkpoint(layout, bias=bias, **options))
    source = written(contents, tmp_path)
    args = contents["model_args"]
    if "convolution" in layout and args["v_kernel_size"] <= args["v_shift"] and not bias:
        reason = f"v_kernel_size={args['v_kernel_size']} is not above v_shift={args['v_shift']}: their logits are NaN"
        assert reason in refusal(source, tmp_path)
        return
    model = load(convert(source, tmp_path / "out"))
    for length in (3, 20):
        assert_same_logits(model, contents, length, atol=1e-5)


def test_every_option_of_theirs_counts():
    tokens = some_tokens(20)[:1]
    for layout, option in [("plain", option) for option in OPTIONS] + [("plain-convolution", "kernel 4, shift 2")]:
        contents = checkpoint(layout, **(OPTIONS | KERNELS)[option])
        plain = contents | {"model_args": LIBRARY_ARGS | {"attn_only": contents["model_args"]["attn_only"]}}
        moved = (their_logits(contents, tokens) - their_logits(plain, tokens)).abs().max() > 0.05
        assert moved == any(name in OPTIONS[option] if option in OPTIONS else True for name in ("pre_ln", "v_shift"))


def test_a_shifted_post_norm_model_reads_on_as_it_reads_at_once(tmp_path):
    contents = quiet(checkpoint("fast", v_shift=3, pre_ln=False, bias=True))
    model, tokens = read_reference(written(contents, tmp_path)), some_tokens(20)
    state, steps = None, []
    with torch.no_grad():
        for token in tokens.split(1, dim=1):
            logits, state = model(token, state)
            steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), their_logits(contents, tokens), atol=1e-5, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_options_have_their_defaults(layout, tmp_path):
    contents = quiet(checkpoint(layout))
    for name in LIBRARY_ARGS:
        contents["model_args"].pop(name, None)
    assert_same_logits(read_reference(written(contents, tmp_path)), contents, atol=1e-4 if layout == "nano" else 1e-5)


@pytest.mark.parametrize("kept", ["ln", "k_featurizer leaky_average", "c_proj"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_some_maps_have_a_bias(layout, kept, tmp_path):
    contents = checkpoint(layout, bias=True)
    model = contents["model"]
    for name in [name for name in model if name.endswith(".bias") and "attn.bias" not in name]:
        if not any(part in name for part in kept.split()):
            del model[name]
    assert_same_logits(read_reference(written(contents, tmp_path)), contents)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_number_of_theirs_counts(layout):
    """The comparison above is worth something: each weight moves the logits by far more than it tolerates."""
    contents = checkpoint(layout, bias=True, count=3)
    tokens = some_tokens(40)[:1]
    before = their_logits(contents, tokens)
    for kind in ("coef", "conv.weight", "scale", "value_beta", "P_v", "M_v2", "k_featurizer.W_k.bias", "leaky"):
        names = [name for name in contents["model"] if kind in name and "leaky_avg.coef" not in name]
        changed = {name: contents["model"][name] * 1.1 + 0.01 for name in names}
        after = their_logits(contents | {"model": contents["model"] | changed}, tokens)
        assert not names or (after - before).abs().max() > 1e-3, kind


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sharpness_is_capped_as_theirs(layout, tmp_path):
    contents = checkpoint(layout)
    block = read_reference(written(contents, tmp_path)).blocks[1]
    if layout == "nano":
        key_scale = [contents["model"][f"mosaic.h.1.{memory}.k_featurizer.key_scale"] for memory in ("attn", "mlp")]
        wanted = [2 * (10 * key_scale[0]).clamp(max=math.log(65535)), (20 * key_scale[1]).clamp(max=math.log(65535))]
    else:
        wanted = [2 * (10 * contents["model"][f"blocks.1.{at}.kernel_beta"]).clamp(max=5) for at in ("attn", "pmem")]
    for memory, log_beta in zip((block.sequence_mixer, block.channel_mixer), wanted, strict=True):
        torch.testing.assert_close(20 * memory.sharpness.theta, log_beta.flatten(), atol=0, rtol=1e-6)
        torch.testing.assert_close(memory.sharpness(), log_beta.flatten().exp(), atol=0, rtol=5e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_convert_writes_a_folder_that_opens_as_the_same_model(layout, tmp_path):
    contents = checkpoint(layout, bias=True, count=3)
    folder = convert(written(contents, tmp_path), tmp_path / "out")
    model = load(folder)
    assert folder == tmp_path / "out"
    assert (model.config.context, model.config.dropout, model.config.tied) == (CONTEXT, 0.05, True)
    assert_same_logits(model, contents)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sizes_come_from_the_weights_where_model_args_are_silent(layout, tmp_path):
    contents = checkpoint(layout, bias=True, count=3)
    silent = "dropout" if layout == "nano" else "hd_dropout"
    contents["model_args"] = {"block_size": CONTEXT, "vocab_size": None, silent: None}
    assert_same_logits(read_reference(written(contents, tmp_path)), contents)


@pytest.mark.parametrize(("message", "equal"), [(False, False), (None, False), (False, True)])
def test_an_output_matrix_of_its_own(message, equal, tmp_path):
    contents = checkpoint("plain")
    contents["model_args"]["weight_tying"] = message
    if not equal:
        contents["model"]["head.weight"] = torch.randn(VOCABULARY, WIDTH, generator=torch.Generator().manual_seed(3))
    model = load(convert(written(contents, tmp_path), tmp_path / "out"))
    assert not model.config.tied
    assert_same_logits(model, contents)


def test_the_head_may_be_left_out_where_it_is_tied(tmp_path):
    contents = checkpoint("nano")
    full = dict(contents["model"])
    del contents["model"]["lm_head.weight"]
    assert_same_logits(read_reference(written(contents, tmp_path)), contents | {"model": full})


@pytest.mark.parametrize("how", [{"_use_new_zipfile_serialization": False}, {}], ids=["old format", "zip"])
def test_half_precision_and_formats(how, tmp_path):
    contents = checkpoint("fast", bias=True)
    contents["model"] = {name: tensor.bfloat16() for name, tensor in contents["model"].items()}
    model = read_reference(written(contents, tmp_path, **how))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert_same_logits(model, contents)
