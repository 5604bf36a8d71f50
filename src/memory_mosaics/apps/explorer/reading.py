"""A model reads a text that keeps changing, and the pairs of its memories can be edited.

    InstrumentedModel    a model whose retrievals are captured, and edited on the way
    CachedText           a text that the model has read, in chunks of CHUNK_TOKENS: a changed text is read again from
                         the first chunk that differs, and edits from the first chunk that they affect

The state before each chunk is kept. The parts of a state that only grow, the stored pairs, are kept once.

What the page shows of a CachedText, as plain numbers and strings:

    predictions          the losses of tokens, and the most probable next tokens after each
    overview             every memory at some times: how many of its pairs count, what it contributes to a prediction,
                         and lambda and beta where they change from token to token
    detail               one memory at some times: the pairs with the largest weights, and the tokens it promotes
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from memory_mosaics.errors import UserError
from memory_mosaics.inspection import decay_and_sharpness, head_contributions, residual_norms, spread
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.scales import fold_for_inference
from memory_mosaics.shapes import Float, Int
from memory_mosaics.stores import MemoryInfo, Pairs, Retrieval, RetrievalMixer, map_state
from memory_mosaics.text.tokenizer import Tokenizer

MAX_PAIRS, MAX_PROMOTED = 24, 6  # shown of one memory
MIN_WEIGHT = 5e-4  # of a pair that is shown
CHUNK_TOKENS = 64  # at most so many are read again when a character is typed at the end
TOP_TOKENS = 8  # next tokens kept for each position

Kind = Literal["sequence", "channel"]
Layer = tuple[int, str]  # a block and the kind of its mixer
Memory = tuple[int, Kind, int]  # block, kind, head


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Switch off a memory (no pair), remove a pair or a slot (no token), or rewrite a pair.

    A rewritten pair has the value it would have if the text had continued with `token`; `text` is what was typed for
    the token, or how it is displayed. `checksum` is that of the text to which a pair belongs.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    block: int
    kind: Kind
    head: int
    pair: int | None = None
    token: int | None = None
    text: str | None = None
    checksum: int | None = None

    @property
    def layer(self) -> Layer:
        return self.block, self.kind


@dataclass
class LayerEdits:
    """The edits of one layer: heads switched off, and pairs by head and index."""

    off: list[int] = field(default_factory=list)
    removed: list[tuple[int, int]] = field(default_factory=list)
    rewritten: list[tuple[int, int, Tensor]] = field(default_factory=list)  # with their values


def one_head_per_row(retrieval: Retrieval, edits: LayerEdits | None = None) -> Retrieval:
    """Return a retrieval with every head of every memory as a row, so that each can have other pairs."""
    queries, pairs, sharpness, _ = retrieval
    memories, time, heads, _ = queries.shape
    keys, values = pairs.per_head(heads)[:2]
    if edits and edits.rewritten:
        values = values.clone()
        for head, pair, value in edits.rewritten:
            if pair < values.shape[1]:
                values[0, pair, head] = value.to(values.dtype)
    mask = None
    if edits and edits.removed:
        mask = torch.ones(memories, heads, keys.shape[1], dtype=torch.bool, device=keys.device)
        for head, pair in edits.removed:
            if pair < memories * keys.shape[1]:
                mask[pair // keys.shape[1], head, pair % keys.shape[1]] = False
        mask = mask.flatten(0, 1)
    beta = torch.as_tensor(sharpness, device=queries.device).expand(memories, time, heads)
    rows = [
        x.transpose(1, 2).flatten(0, 1)[:, :, None] for x in (queries, keys, values)
    ]  # (memories * H, T or N, 1, D)
    beta = beta.transpose(1, 2).flatten(0, 1)[:, :, None]
    return Retrieval(rows[0], Pairs(rows[1], rows[2], pairs.causal_offset, mask, window=pairs.window), beta)


class EditedRetrieval:
    """A retrieval with edits, in the place of a Retrieval."""

    def __init__(self, retrieval: Retrieval, edits: LayerEdits):
        self.retrieval, self.edits = retrieval, edits

    def answer(self, dropout: float = 0.0) -> Float[Tensor, "B T H V"]:
        answers = one_head_per_row(self.retrieval, self.edits).answer()
        answers = answers[:, :, 0].unflatten(0, (len(self.retrieval.queries), -1)).transpose(1, 2).contiguous()
        answers[:, :, self.edits.off] = 0
        return answers


class Capture(NamedTuple):
    """What was captured while a chunk was read."""

    features: Float[Tensor, "T W"]  # the input of the output matrix
    spreads: Float[Tensor, "T L"]  # the divisors of the norms on the residual stream
    retrievals: dict[Layer, Retrieval]
    parameters: dict[Layer, dict[str, Tensor]]  # lambda and beta: (H), or (T H) where they change from token to token


class InstrumentedModel:
    """A model that captures its retrievals. Not for two threads at once."""

    def __init__(self, model: LanguageModel):
        self.model: LanguageModel = fold_for_inference(model).eval()
        self.device = model.embedding.weight.device
        self.mean_output = self.model.output.detach().float().mean(dim=0)  # the output vector of the average token
        self.layers: dict[Layer, RetrievalMixer] = {}
        self.info: dict[Layer, MemoryInfo] = {}
        self.edits: dict[Layer, LayerEdits] = {}
        self.stopped = False  # set by another thread
        self._retrievals: dict[Layer, Retrieval] = {}
        self._parameters: dict[Layer, dict[str, Tensor]] = {}
        self._spreads: list[Tensor] = []
        for number, block in enumerate(self.model.blocks):
            for kind in ("sequence", "channel"):
                mixer = getattr(block, f"{kind}_mixer")
                if isinstance(mixer, RetrievalMixer):
                    self.layers[number, kind], self.info[number, kind] = mixer, mixer.memory_info()
                    mixer.prepare_retrieval = self._capture_retrievals((number, kind), mixer, mixer.prepare_retrieval)
        for norm in residual_norms(self.model):
            norm.register_forward_pre_hook(lambda norm, x: self._spreads.append(spread(norm, x[0][0])))

    def has(self, memory: tuple[int, str, int]) -> bool:
        """Return whether the model has this memory."""
        block, kind, head = memory
        return (block, kind) in self.layers and 0 <= head < self.info[block, kind].heads

    def check_running(self) -> None:
        """Raise an error if the explorer has been stopped."""
        if self.stopped:
            raise UserError("the explorer has been stopped")

    @torch.no_grad()
    def read(self, tokens: Sequence[int], state: Any, edits: dict[Layer, LayerEdits]) -> tuple[Capture, Any]:
        """Read tokens after a state, with edits; return what was captured, and the state after them."""
        self.check_running()
        self.edits, self._retrievals, self._parameters, self._spreads = edits, {}, {}, []
        x = self.model.embedding(torch.tensor([tokens], device=self.device))
        features, state = self.model.features(x, state)
        spreads = torch.stack(self._spreads, dim=-1) if self._spreads else x[0, :, :0]  # a model may have no norms
        return Capture(features[0].float(), spreads, self._retrievals, self._parameters), state

    def _capture_retrievals(self, layer: Layer, mixer: RetrievalMixer, prepare_retrieval: Any) -> Any:
        def captured(x: Tensor, state: Any = None, mask: Any = None) -> Any:
            retrieval, state = prepare_retrieval(x, state, mask)
            self._retrievals[layer] = retrieval
            decay, beta = decay_and_sharpness(mixer, retrieval, x)
            self._parameters[layer] = {"beta": beta} | ({} if decay is None else {"lambda": decay})
            edits = self.edits.get(layer)
            return (retrieval if edits is None else EditedRetrieval(retrieval, edits)), state

        return captured


class NextTokens(NamedTuple):
    """The most probable next tokens at every time, their probabilities, and the log-sum-exp of all logits."""

    tokens: Int[Tensor, "T top"]
    probabilities: Float[Tensor, "T top"]
    logsumexp: Float[Tensor, " T"]


@dataclass
class Chunk:
    """Some tokens of a text, the state before them without what grows, and what was captured without the pairs."""

    tokens: Sequence[int]
    state: Any
    features: Tensor
    spreads: Tensor
    queries: dict[Layer, tuple[Tensor, int | None, Any]]  # with causal offset and sharpness
    parameters: dict[Layer, dict[str, Tensor]]
    next_tokens: NextTokens | None = None  # computed on request


class CachedText:
    """A text that a model has read, perhaps with edits."""

    def __init__(self, model: InstrumentedModel):
        self.model = model
        self.tokens: list[int] = []
        self.edits: tuple[Edit, ...] = ()
        self.layer_edits: dict[Layer, LayerEdits] = {}
        self.chunks: list[Chunk] = []
        self.pairs: dict[Layer, Pairs] = {}
        self.recomputed = 0  # tokens of the last update
        self._state: Any = None

    def update(self, tokens: Sequence[int], edits: Sequence[Edit] = (), plain: "CachedText | None" = None) -> None:
        """Change to this text with these edits. `plain` is the same text without edits."""
        tokens, edits = list(tokens), tuple(edits)
        if (tokens, edits) == (self.tokens, self.edits):
            self.recomputed = 0
            return
        same = common_prefix(self.tokens, tokens)
        for edit in set(edits) ^ set(self.edits):
            same = 0 if edit.pair is None or self.model.info[edit.layer].lookahead is None else min(same, edit.pair)
        self.layer_edits = self._group_edits(edits, plain)
        self.tokens, self.edits = tokens, edits
        first = min(same // CHUNK_TOKENS, len(self.chunks))
        if first < len(self.chunks):
            self._state = _restore(self.chunks[first].state, self._state)
        del self.chunks[first:]
        self.recomputed = len(tokens) - first * CHUNK_TOKENS
        with single_thread():
            for start in range(first * CHUNK_TOKENS, len(tokens), CHUNK_TOKENS):
                self._read_chunk(tokens[start : start + CHUNK_TOKENS])

    def _read_chunk(self, tokens: Sequence[int]) -> None:
        before = self._state
        (features, spreads, retrievals, parameters), self._state = self.model.read(tokens, before, self.layer_edits)
        queries = {layer: (r.queries, r.pairs.causal_offset, r.sharpness) for layer, r in retrievals.items()}
        before = before and _without_growth(before, self._state)
        self.chunks.append(Chunk(tokens, before, features, spreads, queries, parameters))
        self.pairs = {layer: retrieval.pairs for layer, retrieval in retrievals.items()}

    def retrieval(self, layer: Layer, chunk: int, times: slice) -> Retrieval:
        """Return the retrieval of a layer at some times of a chunk, one head per row, with the edits."""
        self.model.check_running()
        queries, offset, sharpness = self.chunks[chunk].queries[layer]
        offset = None if offset is None else offset + (times.start or 0)
        if isinstance(sharpness, Tensor) and sharpness.ndim > 1:
            sharpness = sharpness[..., times, :]
        retrieval = Retrieval(queries[:, times], self.pairs[layer]._replace(causal_offset=offset), sharpness)
        return one_head_per_row(retrieval, self.layer_edits.get(layer))

    @torch.no_grad()
    def next_tokens(self, chunks: Sequence[int]) -> list[NextTokens]:
        """Return the most probable tokens after every time of some chunks, computed in one product where missing."""
        chosen = [self.chunks[number] for number in chunks]
        missing = [chunk for chunk in chosen if chunk.next_tokens is None]
        if missing:
            features = torch.cat([chunk.features for chunk in missing])
            logits = self.model.model.logits(features.to(self.model.model.output.dtype)).float()
            total = logits.logsumexp(dim=-1)
            top = logits.topk(min(TOP_TOKENS, logits.shape[-1]), dim=-1)
            parts = (top.indices, (top.values - total[:, None]).exp(), total)
            sizes = [len(chunk.tokens) for chunk in missing]
            for chunk, part in zip(missing, zip(*(part.split(sizes) for part in parts), strict=True), strict=True):
                chunk.next_tokens = NextTokens(*part)
        return [chunk.next_tokens for chunk in chosen if chunk.next_tokens is not None]

    def value_with_token(self, layer: Layer, pair: int, token: int) -> Float[Tensor, "H V"]:
        """Return the values that a pair would have if the text had continued with `token`."""
        at = pair + (self.model.info[layer].lookahead or 0)
        first = at // CHUNK_TOKENS
        state = _restore(self.chunks[first].state, self._state)
        capture, _ = self.model.read([*self.tokens[first * CHUNK_TOKENS : at], token], state, {})
        return capture.retrievals[layer].pairs.per_head(self.model.layers[layer].memory_info().heads).values[0, pair]

    def _group_edits(self, edits: Sequence[Edit], plain: "CachedText | None") -> dict[Layer, LayerEdits]:
        layers: dict[Layer, LayerEdits] = {}
        for edit in edits:
            of_layer = layers.setdefault(edit.layer, LayerEdits())
            if edit.pair is None:
                of_layer.off.append(edit.head)
            elif edit.token is None:
                of_layer.removed.append((edit.head, edit.pair))
            elif plain is not None:
                value = plain.value_with_token(edit.layer, edit.pair, edit.token)[edit.head]
                of_layer.rewritten.append((edit.head, edit.pair, value))
        return layers


@contextmanager
def single_thread() -> Iterator[None]:
    """Run many small products in one thread: synchronizing threads after each takes longer, on a busy machine ten
    times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of tokens that two texts have in common at their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _without_growth(old: Any, new: Any) -> Any:
    """Replace the tensors of a state that have grown since by the length they had."""
    return map_state(lambda old, new: old if old.shape == new.shape else old.shape[1], old, new)


def _restore(state: Any, newest: Any) -> Any:
    """Undo `_without_growth`, with the newest state."""
    if state is None:
        return None
    return map_state(lambda old, new: new[:, :old] if isinstance(old, int) else old, state, newest)


def describe_layers(model: InstrumentedModel) -> list[dict[str, Any]]:
    """Return the layers of a model: their position, name, and what is constant of their memories.

    `per_token` are the measures that change from token to token, of which an overview has the values.
    """
    parameters = model.read([0], None, {})[0].parameters
    return [
        {
            "block": layer[0],
            "kind": layer[1],
            "name": info.name,
            "heads": info.heads,
            "peek": info.lookahead,
            "slots": info.slots,
            "per_token": ["contribution", "effective", *_per_token(parameters[layer])],
        }
        | {name: _numbers(values) for name, values in parameters[layer].items() if values.ndim == 1}
        for layer, info in model.info.items()
    ]


def _per_token(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values for name, values in parameters.items() if values.ndim == 2}


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
    chunk, heads = first // CHUNK_TOKENS, text.model.info[layer].heads
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
    return flat, head_contributions(
        text.model.model, text.model.layers[layer], answers, text.chunks[chunk].spreads[times]
    )


def overview(text: CachedText, first: int, last: int, target: int | None = None) -> list[list[dict[str, Any]]]:
    """Return for every time and layer how many pairs count, the logit added to a token above the average token, and
    lambda and beta where they change from token to token.

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
        found = {"effective": torch.where(squares > 0, 1 / squares, 0.0)}
        found["contribution"] = torch.einsum("thw,tw->th", adds, direction.to(adds.dtype))
        parameters = _per_token(text.chunks[first // CHUNK_TOKENS].parameters[layer])
        layers.append(found | {name: values[times] for name, values in parameters.items()})
    return [
        [{name: _numbers(values[time]) for name, values in layer.items()} for layer in layers]
        for time in range(last - first)
    ]


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
