"""Looking inside: what every layer asks of its memories, and how much each stored pair has in the answer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from memory_mosaics.language_model import LanguageModel, mixer_inputs
from memory_mosaics.memory import ContextualMemory, PersistentMemory
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.shapes import Float, Int
from memory_mosaics.stores import Retrieval


@contextmanager
def eval_mode(model: LanguageModel) -> Iterator[None]:
    """Within: the model in eval mode, without gradients. Each module's mode is restored at the end."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@torch.no_grad()
def retrievals(model: LanguageModel, tokens: Int[Tensor, "B T"]) -> Iterator[tuple[int, str, nn.Module, Retrieval]]:
    """What the mixers ask while the model reads: block number, "sequence" or "channel", the mixer, its retrieval.

    The model runs as it always does and hooks see what comes to each mixer, so nothing here knows how a block
    computes. Mixers that recall nothing, such as an MLP, are passed over. Without dropout, whatever mode it is in.
    """
    with eval_mode(model), mixer_inputs(model) as inputs:
        model.features(model.embedding(tokens))
    while inputs:
        number, kind, mixer, given = inputs.pop(0)  # what has been looked at need not be kept
        yield number, kind, mixer, mixer.prepare_retrieval(*given)[0]  # type: ignore[operator]


@torch.no_grad()
def retrieval_weights(retrieval: Retrieval, times: Sequence[int]) -> Float[Tensor, "B H t N"]:
    """The softmax weights behind the answers at some `times` (below zero: from the end): `Retrieval.weights`.

    The retrieval of a persistent memory is one row of all B*T queries for each of its memories: time t of row b is
    b*T + t.
    """
    return retrieval.weights(times)


LONGEST = 1024  # tokens whose weights are still handed out whole: heads x T x T of every block


@dataclass(frozen=True)
class Look:
    """What the heads of one mixer do at one position, best first. Places without a pair are -1 and weigh nothing.

    What is retrieved: `places` are earlier positions, or the slots of a persistent memory (those of its second memory
    follow those of the first). What the answer predicts: `logits` are what the head adds to those of `tokens`, its
    answer through the combining map, the gains of the norms after it and the output matrix. Over all mixers, heads and
    the embedding these add up to the model's own logits, but for biases and for mixers that recall nothing.
    """

    block: int
    mixer: str
    places: np.ndarray  # (H, top)
    weights: np.ndarray  # (H, top)
    tokens: np.ndarray  # (H, top)
    logits: np.ndarray  # (H, top)
    effective: np.ndarray  # (H,): 1 / sum of squared weights, the number of pairs that count; 0 for an empty memory
    decay: np.ndarray  # (H,): lambda of the keys, NaN where they are no leaky average
    sharpness: np.ndarray  # (H,): beta


@torch.no_grad()
def look(model: LanguageModel, tokens: Int[Tensor, " T"], *, position: int = -1, top: int = 5) -> list[Look]:
    """What every head retrieves at `position` of a text (below zero: from the end), and what its answer predicts."""
    if not -len(tokens) <= position < len(tokens):
        raise ValueError(f"position {position} is outside a text of {len(tokens)} tokens")
    position %= len(tokens)
    tokens = tokens[: position + 1].to(model.embedding.weight.device)  # what comes later changes nothing
    spreads: list[Tensor] = []
    see = lambda norm, x: spreads.append(spread(norm, x[0][:, position]))  # noqa: E731
    hooks = [norm.register_forward_pre_hook(see) for norm in residual_norms(model)]
    try:
        return [
            _look(model, number, mixer, retrieval, position, top, torch.stack(spreads, dim=-1))
            for number, _, mixer, retrieval in retrievals(model, tokens[None])
        ]
    finally:
        for hook in hooks:
            hook.remove()


def patterns(model: LanguageModel, tokens: Int[Tensor, " T"]) -> list[np.ndarray]:
    """The weights of every block's sequence mixer, (1, H, T, T): from each position back to every earlier one.

    Made tensors, they are what bertviz.head_view takes; circuitsvis.attention.attention_patterns takes one block's
    without the first axis. A row adds up to one, the first of a memory to zero: it is empty then.
    """
    if len(tokens) > LONGEST:
        raise ValueError(f"{len(tokens)} tokens are too many to hand out all weights; take at most {LONGEST}")
    blocks = []
    for _, kind, _, retrieval in retrievals(model, tokens.to(model.embedding.weight.device)[None]):
        if kind == "sequence":
            weights = retrieval_weights(retrieval, range(len(tokens)))
            missing = len(tokens) - weights.shape[-1]  # pairs whose value waits for what comes next
            blocks.append(torch.nn.functional.pad(weights, (0, missing)).cpu().numpy())
    return blocks


def _look(
    model: LanguageModel,
    block: int,
    mixer: nn.Module,
    retrieval: Retrieval,
    position: int,
    top: int,
    spreads: Float[Tensor, "1 L"],
) -> Look:
    weights = retrieval_weights(retrieval, [position])[:, :, 0]  # (memories, H, N)
    answers = torch.einsum("mhn,mnhv->mhv", weights, retrieval.pairs.values.to(weights.dtype)).mean(dim=0)
    weights = weights.transpose(0, 1).flatten(1) / len(weights)  # (H, memories * N)
    heads, there = len(weights), min(top, weights.shape[1])
    best = weights.topk(there, dim=-1)
    places = best.indices.masked_fill(best.values == 0, -1)
    missing = (0, top - there)
    logits = added(model, mixer, answers[None], spreads)[0] @ at_least_fp32(model.output).T
    logits = logits.topk(min(top, model.config.vocabulary), dim=-1)
    decay = getattr(getattr(mixer, "key", None), "decay", None)
    squares = weights.square().sum(dim=-1)
    own: Any = getattr(mixer, "sharpness", None)  # a memory may have given it to its keys
    beta = at_least_fp32(torch.as_tensor(retrieval.sharpness if own is None else own()))
    beta = beta if beta.ndim < 2 else beta.reshape(-1, *beta.shape[-2:])[0, position]
    return Look(
        block=block,
        mixer=name_of(mixer),
        places=torch.nn.functional.pad(places, missing, value=-1).cpu().numpy(),
        weights=torch.nn.functional.pad(best.values, missing).cpu().numpy(),
        tokens=logits.indices.cpu().numpy(),
        logits=logits.values.cpu().numpy(),
        effective=torch.where(squares > 0, 1 / squares, 0.0).cpu().numpy(),
        decay=np.full(heads, np.nan, dtype=np.float32) if decay is None else decay().cpu().numpy(),
        sharpness=beta.expand(heads).cpu().numpy(),
    )


def residual_norms(model: LanguageModel) -> list[nn.LayerNorm]:
    """The norms that the sum of all mixers goes through, in order: the last one, and with post-norm those of blocks."""
    blocks = model.blocks if model.config.norm_placement == "post" else []
    norms = [norm for block in blocks for norm in (block.sequence_norm, block.channel_norm)]
    return [norm for norm in (*norms, model.norm) if isinstance(norm, nn.LayerNorm)]


def spread(norm: Any, x: Float[Tensor, "*B W"]) -> Float[Tensor, "*B"]:
    """What a layer norm divides x by."""
    return (at_least_fp32(x).var(dim=-1, correction=0) + norm.eps).sqrt()


def added(
    model: LanguageModel, mixer: nn.Module, answers: Float[Tensor, "T H V"], spreads: Float[Tensor, "T L"]
) -> Float[Tensor, "T H W"]:
    """What each head adds to what the output matrix reads: its answer with the other heads silent, under the norms
    after it as they were: `spreads` are what the `residual_norms` divided by.
    """
    combine: nn.Module = mixer.combine  # type: ignore[assignment]
    T, H, _ = answers.shape
    one_each = torch.einsum("hg,tgv->thgv", torch.eye(H).to(answers), answers).flatten(0, 1)[:, None]
    nothing = torch.zeros_like(one_each[:1])
    through = [x.flatten(2) if isinstance(combine, nn.Linear) else x for x in (one_each, nothing)]
    dtype = model.embedding.weight.dtype
    alone = at_least_fp32((combine(through[0].to(dtype)) - combine(through[1].to(dtype)))[:, 0]).unflatten(0, (T, H))
    norms = residual_norms(model)
    mixers = [
        part for block in model.blocks for part in (block.sequence_mixer, block.channel_mixer) if part is not None
    ]
    first = next(i for i, part in enumerate(mixers) if part is mixer) + 1 if len(norms) > 1 else 0
    for norm, divided in zip(norms[first:], spreads.unbind(dim=-1)[first:], strict=True):
        gain: Any = getattr(norm, "gain", norm.weight)
        alone = (alone - alone.mean(dim=-1, keepdim=True)) / divided[:, None, None] * at_least_fp32(gain)
    return alone


def name_of(mixer: nn.Module) -> str:
    names = {ContextualMemory: "contextual memory", PersistentMemory: "persistent memory"}
    return next((name for kind, name in names.items() if isinstance(mixer, kind)), type(mixer).__name__.lower())
