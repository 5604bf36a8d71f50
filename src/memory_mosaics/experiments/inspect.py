"""Command `mosaics inspect`: what each memory of a model does at one position of a text, as a table and as JSON."""

from itertools import zip_longest
from math import isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memory_mosaics import pretrained
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.experiments.report import check_output_file
from memory_mosaics.inspection import MixerInspection, inspect_position, patterns
from memory_mosaics.results import write_results
from memory_mosaics.runtime import find_device
from memory_mosaics.text.tokenizer import Tokenizer

MAX_PATTERN_TOKENS = 128  # the JSON file has all weights of all heads of shorter texts
MAX_TOKEN_CHARACTERS = 16  # in the table
EXAMPLE = """Near a quiet lake lived a gentle girl named Anja. She had a white watch. Anja put the watch in the red \
suitcase near the fireplace. Then she helped in the kitchen. Where was the watch? It was in the red"""


def run(
    run: Path | None = None,
    text: str | None = None,
    *,
    block: int | None = None,
    head: int | None = None,
    top: int = 5,
    position: int = -1,
    json: Path | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Show what each head of a trained model retrieves at a position of a text, and what its answer predicts.

    Left: the pairs with the largest weights, by the position of their key, its token and the one after it; slots for a
    persistent memory. Right: the tokens that the head's answer alone makes most probable, and what it adds to their
    logits. Blocks, heads and positions are counted from 0; positions below 0 from the end.

    Args:
        run: the folder of a training run, a checkpoint folder, or a model that comes with the package:
            memory-mosaic-stories or llama-stories; null is the first of these
        text: what the model reads; null is a short story whose next word was told before
        block: only this block
        head: only this head
        top: number of pairs and tokens to show per head
        position: of the query
        json: also write everything to this file; for texts of at most 128 tokens with all weights
        device: cuda, mps or cpu; auto takes the first that is available
    """
    check_range(1, 100_000, top=top)
    check_output_file(json)
    trained = LoadedModel.open(run or Path(pretrained.MOSAIC), device=find_device(device))
    tokens = _encode(trained, EXAMPLE if text is None else text)
    mixers = _select(inspect_position(trained.model, tokens, position=position, top=top), block, head)
    at = position % len(tokens)
    found = {
        "study": "inspect",
        "model": trained.name,
        "checkpoint": str(trained.folder),
        "tokens": [trained.tokenizer.display(index) for index in tokens.tolist()],
        "position": at,
        "next": _predict(trained, tokens[: at + 1], top),
        "mixers": [_to_json(each, trained.tokenizer, head) for each in mixers],
    }
    print(table(found))
    if json is not None:
        short = len(tokens) <= MAX_PATTERN_TOKENS
        found["patterns"] = [weights.tolist() for weights in patterns(trained.model, tokens)] if short else None
        write_results(json, found)
    return found


def table(found: dict[str, Any]) -> str:
    """Return a table of at most 100 columns."""
    tokens, at = found["tokens"], found["position"]
    expected = ", ".join(f"{_short(token)} {share:.0%}" for token, share in found["next"][:3])
    lines = [f"position {at} of {len(tokens)}, {_short(tokens[at])}; then {found['model']} expects {expected}"]
    for each in found["mixers"]:
        lines += ["", f"block {each['block']}, {each['mixer']}"]
        for one in each["heads"]:
            average = "" if one["lambda"] is None else f"   lambda {one['lambda']:.3f}"
            beta = f"   beta {one['beta']:.4g}   {one['effective']:.1f} effective pairs"
            sees = f"   sees {one['sees']}" if "sees" in one else ""
            lines.append(f"  head {one['head']}{average}{beta}{sees}")
            lines += _rows(one, tokens, each["mixer"])
    return "\n".join(line[:100] for line in lines)


def _rows(head: dict[str, Any], tokens: list[str], mixer: str) -> list[str]:
    """Return retrieved pairs on the left, predicted tokens on the right."""
    left = []
    for index, weight in zip(head["indices"], head["weights"], strict=True):
        if index >= 0 and mixer == "persistent memory":
            left.append(f"{weight:.3f}  slot {index}")
        elif index >= 0:
            after = f" then {_short(tokens[index + 1])}" if mixer == "contextual memory" else ""
            left.append(f"{weight:.3f}  {index:>4} {_short(tokens[index])}{after}")
    right = [f"{value:+7.2f}  {_short(token)}" for token, value in head["predicts"]] if left else []
    rows = zip_longest(left or ["nothing is stored yet"], right, fillvalue="")
    return [f"    {retrieved:56} {predicted}".rstrip() for retrieved, predicted in rows]


def _short(token: str) -> str:
    """Return a token in quotes, which show its spaces, truncated if it is long."""
    quoted = repr(token)
    return quoted if len(quoted) <= MAX_TOKEN_CHARACTERS + 2 else quoted[:MAX_TOKEN_CHARACTERS] + ".."


def _encode(trained: LoadedModel, text: str) -> Tensor:
    tokens = torch.tensor(trained.tokenizer.encode(text), dtype=torch.long)
    if len(tokens) == 0:
        raise UserError("the text is empty: there is nothing to inspect")
    longest = trained.model.max_positions
    if longest is not None and len(tokens) > longest:
        raise UserError(f"the text has {len(tokens)} tokens, and {trained.name} has learned positions for {longest}")
    return tokens


def _select(mixers: list[MixerInspection], block: int | None, head: int | None) -> list[MixerInspection]:
    """Return the mixers of one block, if one is named, that have this head, if one is named."""
    if not mixers:
        raise UserError("this model has no mixer that retrieves anything")
    blocks = {each.block for each in mixers}
    if block is not None and block not in blocks:
        raise UserError(f"there is no block {block}; they are {min(blocks)} to {max(blocks)}")
    mixers = [each for each in mixers if block in (None, each.block)]
    heads = max(len(each.weights) for each in mixers)
    if head is not None and not 0 <= head < heads:
        raise UserError(f"there is no head {head}; they are 0 to {heads - 1}")
    return [each for each in mixers if head is None or head < len(each.weights)]


@torch.no_grad()
def _predict(trained: LoadedModel, tokens: Tensor, top: int) -> list[tuple[str, float]]:
    """Return the most probable next tokens of the whole model."""
    logits, _ = trained.model(tokens[None].to(trained.model.embedding.weight.device))
    best = logits[0, -1].float().softmax(-1).topk(min(top, logits.shape[-1]))
    tokens_and_shares = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(trained.tokenizer.display(index), share) for index, share in tokens_and_shares]


def _to_json(each: MixerInspection, tokenizer: Tokenizer, head: int | None) -> dict[str, Any]:
    heads = []
    for number in range(len(each.weights)) if head is None else [head]:
        decay = float(each.decay[number])
        predicted = zip(each.tokens[number].tolist(), each.logits[number].tolist(), strict=True)
        heads.append({
            "head": number,
            "lambda": None if isnan(decay) else decay,
            "beta": float(each.sharpness[number]),
            "effective": float(each.effective[number]),
            "indices": each.indices[number].tolist(),
            "weights": each.weights[number].tolist(),
            "predicts": [(tokenizer.display(index), value) for index, value in predicted],
        } | ({"sees": each.sees[number]} if each.sees else {}))  # fmt: skip
    return {"block": each.block, "mixer": each.mixer, "heads": heads}
