"""What the page shows of a CachedText, as plain numbers and strings.

predictions    the losses of tokens, and the most probable next tokens after each
overview       every memory at some times: how many of its pairs count, and what it contributes to a prediction
detail         one memory at some times: the pairs with the largest weights, and the tokens that its answer promotes
"""

from typing import Any

import torch
from torch import Tensor

from memory_mosaics.apps.explorer.reading import CHUNK_TOKENS, CachedText, InstrumentedModel, Layer
from memory_mosaics.inspection import added
from memory_mosaics.shapes import Float
from memory_mosaics.text.tokenizer import Tokenizer

MAX_PAIRS, MAX_PROMOTED = 24, 6  # shown of one memory
MIN_WEIGHT = 5e-4  # of a pair that is shown


def describe_layers(model: InstrumentedModel) -> list[dict[str, Any]]:
    """Return the layers of a model: their position, name, and the constants of their memories."""
    layers = []
    for layer, mixer in model.layers.items():
        info, decay = mixer.memory_info(), mixer.decays()
        layers.append({
            "block": layer[0],
            "kind": layer[1],
            "name": info.name,
            "heads": info.heads,
            "peek": info.lookahead,
            "slots": info.slots,
            "lambda": None if decay is None else _numbers(decay),
            "beta": None if info.sharpness is None else _numbers(info.sharpness),
        })  # fmt: skip
    return layers


@torch.no_grad()
def predictions(text: CachedText, tokenizer: Tokenizer, first: int, last: int) -> dict[str, Any]:
    """Return the losses of the tokens in [first, last), and the best next tokens after each: text, probability, id."""
    chunks = range(max(first - 1, 0) // CHUNK_TOKENS, -(-last // CHUNK_TOKENS))
    ids, probabilities, logsumexp = (torch.cat(parts) for parts in zip(*text.next_tokens(chunks), strict=True))
    start = chunks.start * CHUNK_TOKENS
    times = torch.arange(max(first, 1), last) - 1 - start  # nothing predicts the first token
    features = torch.cat([text.chunks[number].features for number in chunks])[times]
    tokens = torch.tensor(text.tokens[max(first, 1) : last], dtype=torch.long, device=features.device)
    logits = (features * text.model.model.output[tokens].float()).sum(dim=-1)
    losses = [round(loss, 4) for loss in (logsumexp[times] - logits).clamp(min=0).tolist()]
    after = slice(first - start, last - start)
    best = [
        [[tokenizer.display(index), round(probability, 4), index] for index, probability in zip(*row, strict=True)]
        for row in zip(ids[after].tolist(), probabilities[after].tolist(), strict=True)
    ]
    return {"losses": [None] * (last - first - len(losses)) + losses, "best": best}


@torch.no_grad()
def retrieved(
    text: CachedText, layer: Layer, first: int, last: int
) -> tuple[Float[Tensor, "T H N"], Float[Tensor, "T H W"]]:
    """Return the weights of a layer at the times in [first, last), and what each memory adds to the features.

    The times are within one chunk. The slots of several persistent memories of a layer follow each other.
    """
    chunk, heads = first // CHUNK_TOKENS, text.model.heads(layer)
    times = slice(first % CHUNK_TOKENS, (last - 1) % CHUNK_TOKENS + 1)
    retrieval = text.retrieval(layer, chunk, times)
    weights = retrieval.weights()[:, 0]  # (memories * H, T, N)
    answers = torch.einsum("rtn,rnv->rtv", weights, retrieval.pairs.values[:, :, 0].to(weights.dtype))
    weights = weights.unflatten(0, (-1, heads))
    answers = answers.unflatten(0, (-1, heads)).mean(dim=0).transpose(0, 1)  # (T, H, V)
    if layer in text.layer_edits:
        answers = answers.contiguous()
        answers[:, text.layer_edits[layer].off] = 0
    flat = weights.permute(2, 1, 0, 3).flatten(2) / len(weights)
    return flat, added(text.model.model, text.model.layers[layer], answers, text.chunks[chunk].spreads[times])


def overview(text: CachedText, first: int, last: int, target: int | None = None) -> list[dict[str, Any]]:
    """Return for every layer and time how many pairs count, and the logit added to a token above the average token.

    The token is `target`, or the most probable one at that time.
    """
    times = slice(first % CHUNK_TOKENS, (last - 1) % CHUNK_TOKENS + 1)
    best = text.next_tokens([first // CHUNK_TOKENS])[0].tokens[times, 0]
    targets = best if target is None else torch.full_like(best, target)
    direction = text.model.model.output[targets].float() - text.model.mean_output  # (T, W)
    layers = []
    for layer in text.model.layers:
        weights, adds = retrieved(text, layer, first, last)
        squares = weights.square().sum(dim=-1)
        effective = torch.where(squares > 0, 1 / squares, 0.0)
        layers.append({
            "effective": [_numbers(row) for row in effective],
            "contribution": [_numbers(row) for row in torch.einsum("thw,tw->th", adds, direction.to(adds.dtype))],
        })  # fmt: skip
    return layers


def detail(
    text: CachedText, tokenizer: Tokenizer, layer: Layer, head: int, first: int, last: int
) -> list[dict[str, Any]]:
    """Return for each time the pairs of one memory with their weights, and the tokens that its answer promotes."""
    weights, adds = (x[:, head] for x in retrieved(text, layer, first, last))
    logits = adds @ text.model.model.output.float().T - (adds @ text.model.mean_output)[:, None]
    promoted = logits.topk(min(MAX_PROMOTED, logits.shape[-1]), dim=-1)
    best = weights.topk(min(MAX_PAIRS, weights.shape[-1]), dim=-1)
    times = []
    for row in range(last - first):
        pairs = zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True)
        tokens = zip(promoted.indices[row].tolist(), promoted.values[row].tolist(), strict=True)
        times.append({
            "pairs": [[pair, round(weight, 4)] for pair, weight in pairs if weight >= MIN_WEIGHT],
            "promoted": [[tokenizer.display(index), round(logit, 3)] for index, logit in tokens],
        })  # fmt: skip
    return times


def _numbers(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
