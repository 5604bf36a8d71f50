"""What a Reading shows, as plain numbers and texts: JSON for the page.

page        the tokens of a text with their losses, and what was expected after each
overview    every memory at some times: how many of its pairs count, and what it adds to a prediction
detail      one memory at some times: the pairs with the largest weights, and what its answer says in tokens
"""

from typing import Any

import torch
from torch import Tensor

from memory_mosaics.apps.explorer.edits import Layer
from memory_mosaics.apps.explorer.reading import GRID, Engine, Reading
from memory_mosaics.inspection import added, name_of, retrieval_weights
from memory_mosaics.shapes import Float
from memory_mosaics.text.tokenizer import Tokenizer

PAIRS, SAYS = 24, 6  # of a memory: pairs that are drawn, and tokens that its answer makes most probable
LEAST = 5e-4  # weight of a pair that is drawn


def describe_layers(engine: Engine) -> list[dict[str, Any]]:
    """The layers of a model: where they are, what they are called, and what is fixed of their memories."""
    layers = []
    for layer, mixer in engine.layers.items():
        decay = getattr(getattr(mixer, "key", None), "decay", None)
        sharpness = getattr(mixer, "sharpness", None)
        heads = engine.heads(layer)
        layers.append({
            "block": layer[0],
            "kind": layer[1],
            "name": name_of(mixer),
            "heads": heads,
            "peek": engine.peek(layer),
            "slots": engine.slots(layer),
            "lambda": _numbers(decay().expand(heads)) if decay is not None else None,
            "beta": _numbers(torch.as_tensor(sharpness()).expand(heads)) if callable(sharpness) else None,
        })  # fmt: skip
    return layers


@torch.no_grad()
def predictions(reading: Reading, tokenizer: Tokenizer, first: int, last: int) -> dict[str, Any]:
    """Losses of the tokens from `first` to before `last`, and the best next tokens after each: text, share, id."""
    stretches = range(max(first - 1, 0) // GRID, -(-last // GRID))
    ids, shares, total = (torch.cat(parts) for parts in zip(*reading.best(stretches), strict=True))
    start = stretches.start * GRID
    times = torch.arange(max(first, 1), last) - 1 - start  # the first token is predicted by nothing
    features = torch.cat([reading.stretches[number].features for number in stretches])[times]
    tokens = torch.tensor(reading.tokens[max(first, 1) : last], dtype=torch.long, device=features.device)
    logits = (features * reading.engine.model.output[tokens].float()).sum(dim=-1)
    losses = [round(loss, 4) for loss in (total[times] - logits).clamp(min=0).tolist()]
    after = slice(first - start, last - start)
    best = [
        [[tokenizer.display(index), round(share, 4), index] for index, share in zip(*row, strict=True)]
        for row in zip(ids[after].tolist(), shares[after].tolist(), strict=True)
    ]
    return {"losses": [None] * (last - first - len(losses)) + losses, "best": best}


@torch.no_grad()
def retrieved(
    reading: Reading, layer: Layer, first: int, last: int
) -> tuple[Float[Tensor, "T H N"], Float[Tensor, "T H W"]]:
    """The weights of a layer at the times from `first` to before `last`, and what each memory adds to the features.

    The times lie within one stretch. A layer of several persistent memories has their slots one after the other.
    """
    stretch, engine = first // GRID, reading.engine
    times = slice(first % GRID, (last - 1) % GRID + 1)
    retrieval = reading.retrieval(layer, stretch, times)
    weights = retrieval_weights(retrieval, range(last - first))[:, 0]  # (memories * H, T, N)
    answers = torch.einsum("rtn,rnv->rtv", weights, retrieval.pairs.values[:, :, 0].to(weights.dtype))
    weights = weights.unflatten(0, (-1, engine.heads(layer)))
    answers = answers.unflatten(0, (-1, engine.heads(layer))).mean(dim=0).transpose(0, 1)  # (T, H, V)
    if layer in reading.changes:
        answers = answers.contiguous()
        answers[:, reading.changes[layer].off] = 0
    flat = weights.permute(2, 1, 0, 3).flatten(2) / len(weights)
    return flat, added(engine.model, engine.layers[layer], answers, reading.stretches[stretch].spreads[times])


def overview(reading: Reading, first: int, last: int, target: int | None = None) -> list[dict[str, Any]]:
    """Of every layer and each of the times: pairs that count, and logits added to a token above the average token.

    The token is `target`, or the one expected most at that time.
    """
    best = reading.best([first // GRID])[0].tokens[first % GRID : (last - 1) % GRID + 1, 0]
    wanted = best if target is None else torch.full_like(best, target)
    direction = reading.engine.model.output[wanted].float() - reading.engine.average  # (T, W)
    found = []
    for layer in reading.engine.layers:
        weights, adds = retrieved(reading, layer, first, last)
        squares = weights.square().sum(dim=-1)
        effective = torch.where(squares > 0, 1 / squares, 0.0)
        found.append({
            "effective": [_numbers(row) for row in effective],
            "adds": [_numbers(row) for row in torch.einsum("thw,tw->th", adds, direction.to(adds.dtype))],
        })  # fmt: skip
    return found


def detail(
    reading: Reading, tokenizer: Tokenizer, layer: Layer, head: int, first: int, last: int
) -> list[dict[str, Any]]:
    """Of one memory at each of the times: places and weights of its pairs, largest first, and what its answer says."""
    weights, adds = retrieved(reading, layer, first, last)
    weights, adds = weights[:, head], adds[:, head]
    output = reading.engine.model.output.float()
    logits = adds @ output.T - (adds @ reading.engine.average)[:, None]
    says = logits.topk(min(SAYS, logits.shape[-1]), dim=-1)
    best = weights.topk(min(PAIRS, weights.shape[-1]), dim=-1)
    found = []
    for row in range(last - first):
        pairs = zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True)
        tokens = zip(says.indices[row].tolist(), says.values[row].tolist(), strict=True)
        found.append({
            "pairs": [[place, round(weight, 4)] for place, weight in pairs if weight >= LEAST],
            "says": [[tokenizer.display(index), round(logit, 3)] for index, logit in tokens],
        })  # fmt: skip
    return found


def _numbers(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
