"""Look inside a model: what every layer retrieves, and the weight of each stored pair in the answers."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from memory_mosaics.errors import UserError
from memory_mosaics.language_model import LanguageModel, mixer_inputs
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.shapes import Float, Int
from memory_mosaics.stores import Pairs, Retrieval, RetrievalMixer, State


class LayerRetrieval(NamedTuple):
    """What one layer of a model retrieves, and the input that it was given."""

    block: int
    kind: str  # "sequence" or "channel"
    mixer: RetrievalMixer
    retrieval: Retrieval
    x: Float[Tensor, "B T W"]


@torch.no_grad()
def retrievals(
    model: LanguageModel, tokens: Int[Tensor, "B T"], state: State | None = None
) -> Iterator[LayerRetrieval]:
    """What the layers of a model retrieve while it reads; layers that retrieve nothing, such as an MLP, are left out.

    The model runs in eval mode, without gradients, and hooks capture the inputs of each mixer. The retrieval of a
    persistent memory is one row of all B*T queries for each of its memories: time t of row b is b*T + t.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with mixer_inputs(model) as inputs:
            model.features(model.embedding(tokens), state)
    finally:
        for module in training:
            module.training = True
    while inputs:
        number, kind, mixer, given = inputs.pop(0)  # what has been inspected need not be kept
        yield LayerRetrieval(number, kind, mixer, mixer.prepare_retrieval(*given)[0], given[0])


class RetrievedPair(NamedTuple):
    """A stored pair and its weight in an answer."""

    time: int  # when it was stored; of a persistent memory, the number of its slot
    weight: float
    mass: float  # how many pairs it stands for


def heaviest_pairs(pairs: Pairs, weights: Float[Tensor, "t N"], head: int, top: int) -> list[list[RetrievedPair]]:
    """The pairs of a head with the largest `weights`, in each row of these, best first."""
    best = weights.topk(min(top, weights.shape[1]), dim=-1)
    times, masses = best.indices, torch.ones_like(best.values)
    if pairs.stored is not None:
        times, masses = (x[0, :, head][best.indices] for x in (pairs.stored.times, pairs.stored.mass))
    rows = zip(times.tolist(), best.values.tolist(), masses.tolist(), strict=True)
    return [[RetrievedPair(*one) for one in zip(*row, strict=True)] for row in rows]


def weight_by_text(pairs: Pairs, weights: Float[Tensor, "t H N"], starts: Sequence[int]) -> Float[Tensor, "t H _"]:
    """How much of the weights of all heads lies on the pairs of each text, given the times at which these start."""
    times = torch.arange(weights.shape[-1], device=weights.device)
    times = times if pairs.stored is None else pairs.stored.times[0].T.contiguous()
    text = torch.bucketize(times, torch.tensor(starts[1:], device=weights.device), right=True)
    return weights.new_zeros(*weights.shape[:2], len(starts)).scatter_add(-1, text.expand_as(weights), weights)


MAX_PATTERN_LENGTH = 1024  # tokens: the weights are heads x T x T for every block


@dataclass(frozen=True)
class MixerInspection:
    """What the heads of one mixer do at one position, best first. Indices without a pair are -1 and weigh nothing.

    What is retrieved: `indices` are earlier positions, or the slots of a persistent memory (those of its second memory
    follow those of the first). What the answer predicts: `logits` are what the head adds to those of `tokens`, its
    answer through the combining map, the gains of the norms after it and the output matrix. Over all mixers, heads and
    the embedding these add up to the model's own logits, but for biases and for mixers that recall nothing.
    """

    block: int
    mixer: str
    indices: np.ndarray  # (H, top)
    weights: np.ndarray  # (H, top)
    tokens: np.ndarray  # (H, top)
    logits: np.ndarray  # (H, top)
    effective: np.ndarray  # (H,): 1 / sum of squared weights, the effective number of pairs; 0 for an empty memory
    decay: np.ndarray  # (H,): lambda of the keys, NaN where they are no leaky average
    sharpness: np.ndarray  # (H,): beta
    sees: list[str]  # (H): which pairs it sees, where heads differ; else empty


@torch.no_grad()
def inspect_position(
    model: LanguageModel, tokens: Int[Tensor, " T"], *, position: int = -1, top: int = 5
) -> list[MixerInspection]:
    """What every head retrieves at `position` of a text (below zero: from the end), and what its answer predicts."""
    if not -len(tokens) <= position < len(tokens):
        raise UserError(f"position must be between {-len(tokens)} and {len(tokens) - 1} in this text, not {position}")
    position %= len(tokens)
    tokens = tokens[: position + 1].to(model.embedding.weight.device)  # what comes later changes nothing
    with residual_spreads(model) as spreads:
        return [
            _inspect_mixer(model, layer, position, top, _stacked(spreads, tokens[None])[:, position])
            for layer in retrievals(model, tokens[None])
        ]


def patterns(model: LanguageModel, tokens: Int[Tensor, " T"]) -> list[np.ndarray]:
    """The weights of every block's sequence mixer, (1, H, T, T): from each position back to every earlier one.

    As tensors they are the input of bertviz.head_view; circuitsvis.attention.attention_patterns takes those of one
    block, without the first axis. A row adds up to one, the first of a memory to zero: it is empty then.
    """
    if len(tokens) > MAX_PATTERN_LENGTH:
        raise ValueError(f"{len(tokens)} tokens are too many to return all weights; take at most {MAX_PATTERN_LENGTH}")
    blocks = []
    for layer in retrievals(model, tokens.to(model.embedding.weight.device)[None]):
        if layer.kind == "sequence":
            weights = layer.retrieval.weights().detach()
            missing = len(tokens) - weights.shape[-1]  # pairs whose value waits for what comes next
            blocks.append(torch.nn.functional.pad(weights, (0, missing)).cpu().numpy())
    return blocks


@torch.no_grad()
def disentanglement(model: LanguageModel, windows: Int[Tensor, "B N"]) -> float | None:
    """How much it depends on the token which memory of a layer predicts it: 0 if not at all, 1 if each has one of them.

    c_h(t) is what head h of a sequence mixer adds to the logit of the token that follows t, less the mean over the
    vocabulary; its share is p_h(t) = |c_h(t)| / sum of all |c|. The score is the mutual information of head and token,
    the entropy of the mean of p less the mean entropy of p, over log H: the mean over blocks. A head that dominates
    all tokens adds nothing to it. Independent normal c have 0.16 with 4 heads and 0.10 with 16. None for a model
    without layers of several heads that retrieve.
    """
    rows: dict[int, list[Tensor]] = {}
    mean_output = at_least_fp32(model.output).mean(dim=0)
    for row in windows.to(model.embedding.weight.device):
        gained = at_least_fp32(model.output)[row[1:]] - mean_output
        with residual_spreads(model) as spreads:
            for layer in retrievals(model, row[None, :-1]):
                if layer.kind == "sequence" and layer.retrieval.queries.shape[2] > 1:
                    answers, divided = layer.retrieval.answers()[0], _stacked(spreads, row[None, :-1])[0]
                    added = head_contributions(model, layer.mixer, answers, divided)
                    rows.setdefault(layer.block, []).append(torch.einsum("thw,tw->th", added, gained))
    scores = [head_information(torch.cat(parts)) for parts in rows.values()]
    return sum(scores) / len(scores) if scores else None


def head_information(contributions: Float[Tensor, "T H"]) -> float:
    """The mutual information of head and token over log H, for the shares of heads in what they contribute."""
    p = contributions.abs()
    p = p[p.sum(dim=-1) > 0]  # not of an empty memory
    p = p / p.sum(dim=-1, keepdim=True)
    mean = p.mean(dim=0)
    entropy, conditional = (-torch.special.xlogy(q, q).sum(dim=-1).mean() for q in (mean, p))
    return ((entropy - conditional) / math.log(p.shape[1])).item()


def _inspect_mixer(
    model: LanguageModel, layer: LayerRetrieval, position: int, top: int, spreads: Float[Tensor, "1 L"]
) -> MixerInspection:
    _, _, mixer, retrieval, x = layer
    weights, answers = retrieval.weights_and_answers([position])  # (memories, H, 1, N), (memories, 1, H, V)
    weights = weights[:, :, 0].transpose(0, 1).flatten(1) / len(weights)  # (H, memories * N)
    heads, there = len(weights), min(top, weights.shape[1])
    best = weights.topk(there, dim=-1)
    indices = best.indices.masked_fill(best.values == 0, -1)
    missing = (0, top - there)
    logits = head_contributions(model, mixer, answers.mean(dim=0), spreads)[0] @ at_least_fp32(model.output).T
    logits = logits.topk(min(top, model.config.vocabulary), dim=-1)
    squares = weights.square().sum(dim=-1)
    decay, beta = decay_and_sharpness(mixer, retrieval, x)
    decay = None if decay is None else decay.expand(x.shape[1], heads)[position]
    beta = beta.expand(x.shape[1], heads)[position]
    return MixerInspection(
        block=layer.block,
        mixer=mixer.memory_info().name,
        indices=torch.nn.functional.pad(indices, missing, value=-1).cpu().numpy(),
        weights=torch.nn.functional.pad(best.values, missing).cpu().numpy(),
        tokens=logits.indices.cpu().numpy(),
        logits=logits.values.cpu().numpy(),
        effective=torch.where(squares > 0, 1 / squares, 0.0).cpu().numpy(),
        decay=np.full(heads, np.nan, dtype=np.float32) if decay is None else decay.cpu().numpy(),
        sharpness=beta.cpu().numpy(),
        sees=mixer.memory_info().sees,
    )


def decay_and_sharpness(
    mixer: RetrievalMixer, retrieval: Retrieval, x: Float[Tensor, "B T W"]
) -> tuple[Tensor | None, Tensor]:
    """Lambda and beta of each head: (H), or (T, H) of the first row where they change from token to token."""
    decay, info = mixer.decays(x), mixer.memory_info()
    beta = retrieval.sharpness if info.sharpness is None else info.sharpness
    beta = at_least_fp32(torch.as_tensor(beta, device=x.device))
    beta = beta.reshape(-1, *beta.shape[-2:])[0] if beta.ndim > 1 else beta.expand(info.heads)
    if decay is not None:  # heads that share a memory have its decay
        decay = decay.repeat_interleave(info.heads // decay.shape[-1], dim=-1)
    return decay if decay is None or decay.ndim == 1 else decay[0], beta


def residual_norms(model: LanguageModel) -> list[nn.LayerNorm | nn.RMSNorm]:
    """The norms that the sum of all mixers goes through, in order: the last one, and with post-norm those of blocks."""
    blocks = model.blocks if model.config.norm_placement == "post" else []
    norms = [norm for block in blocks for norm in (block.sequence_norm, block.channel_norm)]
    return [norm for norm in (*norms, model.norm) if isinstance(norm, nn.LayerNorm | nn.RMSNorm)]


def spread(norm: Any, x: Float[Tensor, "*B W"]) -> Float[Tensor, "*B"]:
    """What a norm divides x by: its standard deviation, or its root mean square."""
    return (centre(norm, at_least_fp32(x)).square().mean(dim=-1) + norm.eps).sqrt()


@contextmanager
def residual_spreads(model: LanguageModel) -> Iterator[list[Tensor]]:
    """Within, collect what each of the `residual_norms` divides by, (B, T), while the model reads."""
    spreads: list[Tensor] = []
    see = lambda norm, x: spreads.append(spread(norm, x[0]))  # noqa: E731
    hooks = [norm.register_forward_pre_hook(see) for norm in residual_norms(model)]
    try:
        yield spreads
    finally:
        for hook in hooks:
            hook.remove()


def _stacked(spreads: list[Tensor], tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T L"]:
    """What norms divide by, side by side; nothing of a model without norms."""
    return torch.stack(spreads, dim=-1) if spreads else torch.empty(*tokens.shape, 0, device=tokens.device)


def centre(norm: nn.Module, x: Float[Tensor, "*B W"]) -> Float[Tensor, "*B W"]:
    """What a norm divides: for a layer norm x less its mean, for RMSNorm x itself."""
    return x - x.mean(dim=-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x


def head_contributions(
    model: LanguageModel, mixer: nn.Module, answers: Float[Tensor, "T H V"], spreads: Float[Tensor, "T L"]
) -> Float[Tensor, "T H W"]:
    """What each head adds to the input of the output matrix.

    That is its answer alone, through the combining map and the norms after it. Each of these `residual_norms` divides
    it by what it divided the whole sum by: `spreads`.
    """
    combine: nn.Module = mixer.combine  # type: ignore[assignment]
    T, H, _ = answers.shape
    one_each = torch.einsum("hg,tgv->thgv", torch.eye(H).to(answers), answers).flatten(0, 1)[:, None]
    nothing = torch.zeros_like(one_each[:1])
    through = [x.flatten(2) if isinstance(combine, nn.Linear) else x for x in (one_each, nothing)]
    dtype = model.embedding.weight.dtype
    alone = at_least_fp32((combine(through[0].to(dtype)) - combine(through[1].to(dtype)))[:, 0]).unflatten(0, (T, H))
    return through_norms(model, mixer, alone, spreads)


def through_norms(
    model: LanguageModel, mixer: nn.Module, alone: Float[Tensor, "T H W"], spreads: Float[Tensor, "T L"]
) -> Float[Tensor, "T H W"]:
    """What parts of the output of a mixer add to the input of the output matrix, as `head_contributions` says."""
    norms = residual_norms(model)
    mixers = [
        part for block in model.blocks for part in (block.sequence_mixer, block.channel_mixer) if part is not None
    ]
    first = next(i for i, part in enumerate(mixers) if part is mixer) + 1 if len(norms) > 1 else 0
    for norm, divided in zip(norms[first:], spreads.unbind(dim=-1)[first:], strict=True):
        gain: Any = getattr(norm, "gain", norm.weight)
        alone = centre(norm, alone) / divided[:, None, None] * at_least_fp32(gain)
    return alone
