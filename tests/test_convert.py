"""The authors' checkpoints: their formulas, transcribed here over their own weights, give the logits of our models."""

import argparse
import json
import math
import os
import pickle
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from memory_mosaics.checkpoint import CheckpointError, load
from memory_mosaics.cli import main
from memory_mosaics.convert import convert, read_reference
from memory_mosaics.errors import UserError
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.text.tokenizer import byte_tokenizer
from memory_mosaics.trained import Trained

VOCABULARY, WIDTH, HEADS, SLOTS, BLOCKS, CONTEXT = 60, 24, 3, 5, 2, 64
D = WIDTH // HEADS
LAYOUTS = ("nano", "plain", "plain-convolution", "fast", "fast-convolution")
Weights = dict[str, Tensor]


# What the Library's trainer keeps besides the sizes, at its defaults: options of the model, then all others.
LIBRARY_ARGS: dict[str, Any] = dict(v_shift=1, v_kernel_size=2, k_kernel_size=1, k_fe_type="linearconv", pre_ln=True)
LIBRARY_ARGS |= dict(weight_tying=True, attn_only=False, skip_tokens=0, ic_dropout=0.05, hd_dropout=0.05, att_shift=0)
LIBRARY_ARGS |= dict(seed=1337, out_dir="out", backend="nccl", device="cuda", dtype="float16", compile=True, gamma=0.2)
LIBRARY_ARGS |= dict(eval_interval=1000, save_checkpoint_interval=1000, log_interval=100, eval_iters=10, batch_size=8)
LIBRARY_ARGS |= dict(learning_rate=5e-3, max_iters=80000, weight_decay=0.1, beta1=0.9, beta2=0.95, grad_clip=1.0)
LIBRARY_ARGS |= dict(decay_type="cosine", warmup_iters=2000, lr_decay_iters=80000, min_lr=1e-4, milestone=[10000])
LIBRARY_ARGS |= dict(gradient_accumulation_steps=1, dataset="BabiStories")


def checkpoint(
    layout: str, *, bias: bool = False, count: int = 1, prefix: str = "", seed: int = 0, **options: Any
) -> dict:
    """A file of the authors' code with everything random that training would move; `options` are of the Library."""
    random = torch.Generator().manual_seed(seed)
    args = dict(n_layer=BLOCKS, n_head=HEADS, n_embd=WIDTH, block_size=CONTEXT, bias=bias, vocab_size=VOCABULARY)
    args |= dict(pmem_count=count, pmem_size=SLOTS)
    if layout == "nano":
        args |= dict(dropout=0.05)
        model = nano_weights(bias, count, random)
    else:
        args |= LIBRARY_ARGS | dict(v_fe_type="linearconv" if "convolution" in layout else "lowrlinearconv") | options
        model = library_weights(layout, bias, count, random, args)
    return {"model": {prefix + name: tensor for name, tensor in model.items()}, "model_args": args, "iter_num": 7}


def normal(random: torch.Generator, *shape: int, std: float = 1.0) -> Tensor:
    return std * torch.randn(shape, generator=random)


def affine(weights: Weights, name: str, weight: Tensor, bias: bool, random: torch.Generator) -> None:
    weights[f"{name}.weight"] = weight
    if bias:
        weights[f"{name}.bias"] = normal(random, len(weight), std=0.3)


def matrix(random: torch.Generator, *kernel: int) -> Tensor:
    return normal(random, WIDTH, WIDTH, *kernel, std=WIDTH**-0.5)


def norm(random: torch.Generator) -> Tensor:
    return 1 + normal(random, WIDTH, std=0.2)


def leaks(random: torch.Generator) -> Tensor:
    return (0.02 + 0.2 * torch.rand(HEADS, generator=random)) * torch.tensor([1.0, -1.0, 1.0])


def scales(random: torch.Generator) -> Tensor:
    """A quiet last head: beyond the caps, rounding errors of scores near a tie are not small."""
    return normal(random, HEADS, std=0.05) - torch.tensor([0.0, 0.0, 0.4])


def coefficients(block: int) -> Tensor:
    return torch.tensor([[0.0, 1.0, -0.7], [1.8, 0.3, -0.1]][block % 2])


def slots(random: torch.Generator, *shape: int, beta: float) -> Tensor:
    """Keys of any length; short ones for the last head, whose sharpness is beyond the cap, so that it is no argmax."""
    return normal(random, *shape, HEADS, SLOTS, D) * torch.tensor([0.5, 1.0, 2 / beta])[:, None, None]


def nano_weights(bias: bool, count: int, random: torch.Generator) -> Weights:
    weights: Weights = {"mosaic.wte.weight": normal(random, VOCABULARY, WIDTH)}
    weights["lm_head.weight"] = weights["mosaic.wte.weight"]
    affine(weights, "mosaic.ln_f", norm(random), bias, random)
    for i in range(BLOCKS):
        block = f"mosaic.h.{i}"
        for name in ("ln_1", "ln_2"):
            affine(weights, f"{block}.{name}", norm(random), bias, random)
        for memory, sharpness in (("attn", [0.1, -0.02, 1.3]), ("mlp", [0.05, -0.02, 0.7])):
            key = f"{block}.{memory}.k_featurizer"
            affine(weights, f"{key}.W_k", matrix(random), bias, random)
            weights[f"{key}.leaky_avg.leaky_key_beta"] = leaks(random).view(1, HEADS, 1, 1)
            weights[f"{key}.leaky_avg.coef"] = normal(random, 1, 1, CONTEXT)
            weights[f"{key}.key_scale"] = torch.tensor(sharpness).view(1, HEADS, 1, 1)
            affine(weights, f"{block}.{memory}.c_proj", matrix(random), bias, random)
        value = f"{block}.attn.v_featurizer"
        affine(weights, f"{value}.W_v", matrix(random), bias, random)
        weights[f"{value}.coef"] = coefficients(i).view(1, HEADS, 1, 1)
        weights[f"{value}.val_scale"] = scales(random).view(1, HEADS, 1, 1)
        weights[f"{block}.attn.bias"] = torch.ones(1, 1, CONTEXT, CONTEXT).tril()
        weights[f"{block}.mlp.P_k"] = slots(random, count, 1, beta=65535.0)
        weights[f"{block}.mlp.P_v"] = normal(random, count, 1, HEADS, SLOTS, D, std=0.5)
        weights[f"{block}.mlp.out_scale"] = scales(random).view(1, HEADS, 1, 1)
    return weights


def library_weights(layout: str, bias: bool, count: int, random: torch.Generator, args: dict) -> Weights:
    weights: Weights = {"emb.weight": normal(random, VOCABULARY, WIDTH)}
    weights["head.weight"] = weights["emb.weight"]
    affine(weights, "ln_out", norm(random), bias, random)
    for i in range(BLOCKS):
        for name in ("ln1",) if args["attn_only"] else ("ln1", "ln2"):
            affine(weights, f"blocks.{i}.{name}", norm(random), bias, random)
        for memory in ("attn",) if args["attn_only"] else ("attn", "pmem"):
            at = f"blocks.{i}.{memory}"
            if layout.startswith("fast"):
                affine(weights, f"{at}.leaky_average.linear", matrix(random), bias, random)
                weights[f"{at}.leaky_average.leaky_beta_w_under"] = leaks(random)
                weights[f"{at}.leaky_average.leaky_beta_u_under"] = weights[f"{at}.leaky_average.leaky_beta_w_under"]
            else:
                if args["k_fe_type"] == "lowrlinearconv":
                    affine(weights, f"{at}.k_featurizer.linear", matrix(random), bias, random)
                    weights[f"{at}.k_featurizer.coef"] = coefficients(i)
                else:
                    affine(weights, f"{at}.k_featurizer.conv", matrix(random, args["k_kernel_size"]), bias, random)
                weights[f"{at}.leaky_key_beta"] = leaks(random)
            weights[f"{at}.kernel_beta"] = torch.tensor([0.1, -0.02, 0.62])
            weights[f"{at}.value_beta"] = scales(random)
            affine(weights, f"{at}.c_proj", matrix(random), bias, random)
        value = f"blocks.{i}.attn.v_featurizer"
        if "convolution" in layout:
            affine(weights, f"{value}.conv", matrix(random, args["v_kernel_size"]), bias, random)
        else:
            affine(weights, f"{value}.linear", matrix(random), bias, random)
            weights[f"{value}.coef"] = coefficients(i)
        for j in range(0 if args["attn_only"] else count):
            weights[f"blocks.{i}.pmem.pmem.M_k{j}"] = slots(random, 1, beta=math.exp(10))
            weights[f"blocks.{i}.pmem.pmem.M_v{j}"] = normal(random, 1, HEADS, SLOTS, D, std=0.5)
    return weights


# The formulas, in double precision and one position at a time. Rows of x are positions.


def apply(weights: Weights, name: str, x: Tensor) -> Tensor:
    matrix = weights[f"{name}.weight"]
    y = x @ (matrix[..., 0] if matrix.dim() == 3 else matrix).T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def layer_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def keys_of(mapped: Tensor, leak: Tensor) -> list[Tensor]:
    """k_t = m_t / |m_t| with m_t = sum_{s<=t} exp(-(t-s) |10 leak|) W_k x_s, each of (H, D)."""
    rows = mapped.view(-1, HEADS, D)
    keys = []
    for t in range(len(rows)):
        m = sum(torch.exp(-(t - s) * (10 * leak.flatten()).abs())[:, None] * rows[s] for s in range(t + 1))
        keys.append(m / (m.norm(dim=-1, keepdim=True) + 1e-10))
    return keys


def contextual(keys: list[Tensor], values: list[Tensor], factor: Tensor, scale: Tensor, shift: int = 1) -> Tensor:
    """Softmax over i <= t - shift of the dot products of the keys, each multiplied by `factor`; 0 if there is none."""
    answers = [torch.zeros(HEADS, D, dtype=torch.float64)] * min(shift, len(keys))
    values = [v / v.norm(dim=-1, keepdim=True) * torch.exp(10 * scale.flatten())[:, None] for v in values]
    for t in range(shift, len(keys)):
        seen = range(t - shift + 1)
        scores = torch.stack([(factor[:, None] * keys[t] * factor[:, None] * keys[i]).sum(-1) for i in seen])
        answers.append((scores.softmax(0)[..., None] * torch.stack(values[: len(seen)])).sum(0))
    return torch.stack(answers).flatten(1)


def persistent(keys: list[Tensor], pairs: list[tuple[Tensor, Tensor]], factor: Tensor, scale: Tensor) -> Tensor:
    answers = []
    for key in keys:
        query = factor[:, None] * key
        each = [(((p_k * query[:, None]).sum(-1)).softmax(-1)[..., None] * p_v).sum(-2) for p_k, p_v in pairs]
        answers.append(sum(each) / len(each) * torch.exp(10 * scale.flatten())[:, None])
    return torch.stack(answers).flatten(1)


def mixed(raw: Tensor, coefficient: Tensor, shift: int = 1) -> list[Tensor]:
    """The values c W x_t + (1 - c) W x_{t+shift}, of all positions that have one so much later."""
    c, pairs = coefficient.flatten()[:, None], zip(raw, raw[shift:], strict=False)
    return [c * now.view(HEADS, D) + (1 - c) * later.view(HEADS, D) for now, later in pairs]


def convolved(weights: Weights, name: str, h: Tensor, shift: int) -> list[Tensor]:
    """The values sum_j W_j x_{t + shift - j}, j from 0 (the last of the kernel) on; before the first x is nothing."""
    matrices = weights[f"{name}.weight"].unbind(dim=-1)[::-1]
    bias = weights.get(f"{name}.bias", torch.zeros(WIDTH, dtype=h.dtype))
    return [
        (bias + sum(matrix @ h[t + shift - j] for j, matrix in enumerate(matrices) if t + shift >= j)).view(HEADS, D)
        for t in range(len(h) - shift)
    ]


def nano_logits(weights: Weights, tokens: Tensor) -> Tensor:
    cap = math.log(65535)
    x = weights["mosaic.wte.weight"][tokens]
    for i in range(BLOCKS):
        at = f"mosaic.h.{i}"
        h = layer_norm(weights, f"{at}.ln_1", x)
        key, value = f"{at}.attn.k_featurizer", f"{at}.attn.v_featurizer"
        keys = keys_of(apply(weights, f"{key}.W_k", h), weights[f"{key}.leaky_avg.leaky_key_beta"])
        factor = torch.exp((1 * 10 * weights[f"{key}.key_scale"]).clamp(max=cap)).flatten()
        raw = apply(weights, f"{value}.W_v", h)
        values = mixed(raw, weights[f"{value}.coef"])
        answers = contextual(keys, values, factor, weights[f"{value}.val_scale"])
        x = x + apply(weights, f"{at}.attn.c_proj", answers)

        h = layer_norm(weights, f"{at}.ln_2", x)
        key = f"{at}.mlp.k_featurizer"
        keys = keys_of(apply(weights, f"{key}.W_k", h), weights[f"{key}.leaky_avg.leaky_key_beta"])
        factor = torch.exp((2 * 10 * weights[f"{key}.key_scale"]).clamp(max=cap)).flatten()
        pairs = [(k[0], v[0]) for k, v in zip(weights[f"{at}.mlp.P_k"], weights[f"{at}.mlp.P_v"], strict=True)]
        answers = persistent(keys, pairs, factor, weights[f"{at}.mlp.out_scale"])
        x = x + apply(weights, f"{at}.mlp.c_proj", answers)
    return layer_norm(weights, "mosaic.ln_f", x) @ weights["lm_head.weight"].T


def library_logits(weights: Weights, tokens: Tensor, args: dict) -> Tensor:
    shift, post_norm = args.get("v_shift", 1), not args.get("pre_ln", True)

    def keys_at(at: str, h: Tensor) -> list[Tensor]:
        if f"{at}.leaky_average.linear.weight" in weights:
            mapped = apply(weights, f"{at}.leaky_average.linear", h)
            return keys_of(mapped, weights[f"{at}.leaky_average.leaky_beta_w_under"])
        kind = "linear" if f"{at}.k_featurizer.linear.weight" in weights else "conv"
        return keys_of(apply(weights, f"{at}.k_featurizer.{kind}", h), weights[f"{at}.leaky_key_beta"])

    x = weights["emb.weight"][tokens]
    for i in range(BLOCKS):
        at, value = f"blocks.{i}.attn", f"blocks.{i}.attn.v_featurizer"
        h = layer_norm(weights, f"blocks.{i}.ln1", x)
        if f"{value}.conv.weight" in weights:
            values = convolved(weights, f"{value}.conv", h, shift)
        else:
            raw = apply(weights, f"{value}.linear", h)
            values = mixed(raw, weights[f"{value}.coef"], shift)
        factor = torch.exp((10 * weights[f"{at}.kernel_beta"]).clamp(max=5))
        answers = contextual(keys_at(at, h), values, factor, weights[f"{at}.value_beta"], shift)
        x = (h if post_norm else x) + apply(weights, f"{at}.c_proj", answers)
        if args.get("attn_only"):
            continue

        at = f"blocks.{i}.pmem"
        h = layer_norm(weights, f"blocks.{i}.ln2", x)
        factor = torch.exp(2 * (10 * weights[f"{at}.kernel_beta"]).clamp(max=5))
        count = sum(f"{at}.pmem.M_k" in name for name in weights)
        pairs = [(weights[f"{at}.pmem.M_k{j}"][0], weights[f"{at}.pmem.M_v{j}"][0]) for j in range(count)]
        answers = persistent(keys_at(at, h), pairs, factor, weights[f"{at}.value_beta"])
        x = (h if post_norm else x) + apply(weights, f"{at}.c_proj", answers)
    return layer_norm(weights, "ln_out", x) @ weights["head.weight"].T / WIDTH**0.5


def their_logits(contents: dict, tokens: Tensor) -> Tensor:
    names = (name.replace("_orig_mod.", "").replace("module.", "") for name in contents["model"])
    weights = dict(zip(names, (tensor.double() for tensor in contents["model"].values()), strict=True))
    if "mosaic.wte.weight" in weights:
        return torch.stack([nano_logits(weights, row) for row in tokens]).float()
    return torch.stack([library_logits(weights, row, contents["model_args"]) for row in tokens]).float()


def some_tokens(length: int) -> Tensor:
    """No token twice in a row of the batch: beyond the caps a memory takes the nearest key, and there are no ties."""
    random = torch.Generator().manual_seed(length)
    return torch.stack([torch.randperm(VOCABULARY, generator=random)[:length] for _ in range(2)])


@cache
def expected(layout: str, bias: bool, count: int, length: int) -> Tensor:
    return their_logits(checkpoint(layout, bias=bias, count=count), some_tokens(length))


def written(contents: object, folder: Path, **how: Any) -> Path:
    torch.save(contents, folder / "ckpt.pt", **how)
    return folder / "ckpt.pt"


@torch.no_grad()
def assert_same_logits(model: LanguageModel, contents: dict, length: int = 20, atol: float = 1e-4) -> None:
    tokens = some_tokens(length)
    torch.testing.assert_close(model(tokens)[0], their_logits(contents, tokens), atol=atol, rtol=0)


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


def quiet(contents: dict) -> dict:
    """Without the head that is beyond the cap, whose scores amplify rounding errors."""
    for name, tensor in contents["model"].items():
        if name.endswith("kernel_beta"):
            tensor.clamp_(max=0.15)
    return contents


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
def test_options_that_are_not_said_are_their_defaults(layout, tmp_path):
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


@pytest.mark.parametrize(("said", "equal"), [(False, False), (None, False), (False, True)])
def test_an_output_matrix_of_its_own(said, equal, tmp_path):
    contents = checkpoint("plain")
    contents["model_args"]["weight_tying"] = said
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


def refusal(source: Path, folder: Path) -> str:
    """The one line that says why not; nothing may be left behind."""
    before = sorted(folder.iterdir())
    with pytest.raises(CheckpointError) as caught:
        convert(source, folder / "out")
    assert sorted(folder.iterdir()) == before
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300 + len(str(source)) + 60
    assert message.startswith(str(source))
    return message.removeprefix(str(source))


def without(name: str):
    return lambda contents: contents["model"].pop(name)


def weight(name: str, value: object):
    return lambda contents: contents["model"].update({name: value})


def said(**changes: object):
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
    "no shift": ("fast", said(v_shift=0), "model_args say v_shift=0; convertible are 1 to 64"),
    "long shift": ("plain", said(v_shift=10**9), "model_args say v_shift=1000000000; convertible are 1 to 64"),
    "odd shift": ("plain", said(v_shift=1.5), "model_args say v_shift=1.5; convertible are 1 to 64"),
    "no norm": ("plain", said(pre_ln=None), "model_args say pre_ln=None; convertible are True or False"),
    "strange norm": ("plain", said(pre_ln="no"), "model_args say pre_ln='no'; convertible are True or False"),
    "attention only": ("plain", said(attn_only=True), "attn_only=True, the weights False"),
    "bias": ("plain", said(bias=True), "bias=True, the weights False"),
    "no bias": ("nano+bias", said(bias=False), "bias=False, the weights True"),
    "leaky values": ("plain", said(v_leaky=True), "model_args say v_leaky=True; convertible is False"),
    "leaky values, fast": ("fast", said(v_leaky=1), "model_args say v_leaky=1; convertible is False"),
    "unknown": ("plain", said(v_gate=True), "model_args say v_gate=True, an option whose meaning is not known here"),
    "unknown, fast": ("fast", said(gate="silu"), "model_args say gate='silu', an option whose"),
    "unknown, nano": ("nano", said(rope=None), "model_args say rope=None, an option whose"),
    "of the Library": ("nano", said(pre_ln=False), "model_args say pre_ln=False, an option whose"),
    "of nanoMosaics": ("plain", said(dropout=0.1), "model_args say dropout=0.1, an option whose"),
    "no name": ("nano", lambda contents: contents["model_args"].update({"a\x1bb": 1}), "model_args say 'a\\x1bb'=1"),
    "huge scale": ("plain", weight("blocks.0.attn.value_beta", torch.full((3,), 3.0)), "value_beta is above 2.218"),
    "depth": ("nano", said(n_layer=3), "n_layer=3, the weights 2"),
    "width": ("nano", said(n_embd=48), "n_embd=48, the weights 24"),
    "heads": ("nano", said(n_head=4), "n_head=4, the weights 3"),
    "vocabulary": ("fast", said(vocab_size=61), "vocab_size=61, the weights 60"),
    "slots": ("fast", said(pmem_size=6), "pmem_size=6, the weights 5"),
    "memories": ("nano", said(pmem_count=2), "pmem_count=2, the weights 1"),
    "no plain size": ("nano", said(n_head=torch.ones(2)), "n_head=tensor([1., 1.]), the weights 3"),
    "value type": ("plain", said(v_fe_type="mlp"), "v_fe_type='mlp', the weights 'lowrlinearconv'"),
    "other value type": ("plain", said(v_fe_type="linearconv"), "v_fe_type='linearconv', the weights 'lowrlinearconv'"),
    "key type": ("plain", said(k_fe_type="mlp"), "k_fe_type='mlp', the weights 'linearconv'"),
    "other key type": (
        "plain",
        said(k_fe_type="lowrlinearconv"),
        "k_fe_type='lowrlinearconv', the weights 'linearconv'",
    ),
    "value taps": ("plain", said(v_kernel_size=3), "v_kernel_size=3, the weights 2"),
    "tied": ("plain", weight("head.weight", torch.ones(VOCABULARY, WIDTH)), "weight_tying=True, the weights False"),
    "no length": (
        "nano",
        lambda contents: contents["model_args"].pop("block_size"),
        "a number as block_size, not None",
    ),
    "length": ("nano", said(block_size=0), "context must be at least 1, not 0"),
    "half a token": ("nano", said(block_size=8.5), "block_size=8.5, which is not a whole number"),
    "no end": ("nano", said(block_size=math.inf), "cannot convert float infinity"),
    "dropout": ("nano", said(dropout="much"), "a number as dropout, not 'much'"),
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
    said = refusal(tmp_path / name, tmp_path)
    assert "is damaged" in said or (name == "model.safetensors" and "no dictionary 'model'" in said)


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
    monkeypatch.setitem(globals(), "VOCABULARY", 300)
    source = written(checkpoint("nano"), tmp_path)
    with pytest.raises(UserError, match=r"out has no tokenizer.json: .* as mosaics convert --tokenizer does"):
        Trained.open(convert(source, tmp_path / "out"))
    assert main(["convert", str(source), str(tmp_path / "with"), "--tokenizer", "bytes"]) == 0
    opened = Trained.open(tmp_path / "with")
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
