"""Checkpoints as the authors' code writes them, and their formulas, transcribed over their own weights."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from memory_mosaics.checkpoint import CheckpointError
from memory_mosaics.convert import convert
from memory_mosaics.language_model import LanguageModel

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


def quiet(contents: dict) -> dict:
    """Without the head that is beyond the cap, whose scores amplify rounding errors."""
    for name, tensor in contents["model"].items():
        if name.endswith("kernel_beta"):
            tensor.clamp_(max=0.15)
    return contents


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
