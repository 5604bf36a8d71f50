"""A model reads a text that keeps changing, and the pairs of its memories can be edited.

    InstrumentedModel    a model whose retrievals are captured, and edited on the way
    CachedText           a text that the model has read, in chunks of CHUNK_TOKENS: a changed text is read again from
                         the first chunk that differs, and edits from the first chunk that they affect

The state before each chunk is kept. The parts of a state that only grow, the pairs of exact stores, are kept once; of
a store that evicts pairs every chunk keeps its own, and chunks end where it does.

The text may follow others that were read into memory files. Pairs are named by the position of their key in the text:
those of the memory files, which were stored before, are below zero.

What the page shows of a CachedText, as plain numbers and strings:

    predictions          the losses of tokens, and the most probable next tokens after each
    overview             every memory at some times: how many of its pairs count, what it contributes to a prediction,
                         lambda and beta where they change from token to token, and the share of the memory files
    detail               one memory at some times: the pairs with the largest weights, the tokens it promotes, and which
                         pairs it sees
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf
from operator import eq
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError
from memory_mosaics.inspection import (
    decay_and_sharpness,
    head_contributions,
    heaviest_pairs,
    residual_norms,
    spread,
    through_norms,
    weight_by_text,
)
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.memory_files import Memory as TextMemory
from memory_mosaics.scales import fold_for_inference
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.stores import (
    GrowingStore,
    MemoryInfo,
    Pairs,
    PairTimes,
    Retrieval,
    RetrievalMixer,
    State,
    map_state,
    state_tensors,
    stores_of,
    tokens_at_once,
)

MAX_PAIRS, MAX_PROMOTED = 24, 6  # shown of one memory
MIN_WEIGHT = 5e-4  # of a pair that is shown
CHUNK_TOKENS = 64  # at most so many are read again when a character is typed at the end
MAX_KEPT = 1 << 29  # bytes of stores that evict pairs, of which every chunk keeps its own
TOP_TOKENS = 8  # next tokens kept for each position

Kind = Literal["sequence", "channel"]
Layer = tuple[int, Kind]  # a block and the kind of its mixer
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


LayerEdits = list[tuple[Edit, Tensor | None]]  # the edits of one layer, with the value of a pair that is rewritten


class EditedRetrieval:
    """A retrieval with edits, in the place of a Retrieval. Edited pairs are named by the times at which they were
    stored.

    In `rows`, one retrieval for each group of heads, every head of every memory is a row of its own, so that each can
    have other pairs.
    """

    def __init__(self, retrieval: Retrieval, edits: LayerEdits):
        queries, pairs, sharpness, _, gate = retrieval
        self.memories, time, heads, _ = queries.shape
        self.off = [edit.head for edit, _ in edits if edit.pair is None]
        keys, values = pairs.per_head(heads)[:2]
        values, size = values.clone() if edits else values, values.shape[1]
        mask = torch.ones(self.memories, heads, size, dtype=torch.bool, device=keys.device)
        for edit, value in edits:
            if edit.pair is None:
                continue
            memory, at = divmod(edit.pair, size) if self.memories > 1 else (0, edit.pair)
            there = pairs.times(edit.head) == at  # nowhere, if it has been evicted
            if value is None:
                mask[memory, edit.head, there] = False
            else:
                values[memory, there, edit.head] = value.to(values.dtype)
        beta = torch.as_tensor(sharpness, device=queries.device).expand(self.memories, time, heads)
        whole = Retrieval(queries, Pairs(keys, values, None, pairs.seen, pairs.stored), beta, gate=gate)
        self.rows = [_rows_of(*each) for each in zip(whole.groups(), mask.chunk(len(pairs.seen), dim=1), strict=True)]

    def answers(self, *dropout: Any) -> Float[Tensor, "B T H V"]:
        """The answers without dropout: nothing is trained here."""
        return self._merge_heads([rows.answers() for rows in self.rows])

    def weights_and_answers(self, times: Sequence[int]) -> tuple[Float[Tensor, "B H t N"], Float[Tensor, "B t H V"]]:
        """Return the weights of the pairs at some times, and the answers: zero for a head that is switched off."""
        weights, answers = zip(*(rows.weights_and_answers(times) for rows in self.rows), strict=True)
        weights = torch.cat([each[:, 0].unflatten(0, (self.memories, -1)) for each in weights], dim=1)
        return weights, self._merge_heads(answers)

    def _merge_heads(self, groups: Sequence[Tensor]) -> Tensor:
        answers = torch.cat([rows[:, :, 0].unflatten(0, (self.memories, -1)) for rows in groups], dim=1)
        answers = answers.transpose(1, 2).contiguous()
        answers[:, :, self.off] = 0
        return answers


def _rows_of(retrieval: Retrieval, mask: Bool[Tensor, "M H N"]) -> Retrieval:
    """Return a retrieval in which every head of every memory is a row, and sees what the mask leaves of its pairs."""
    queries, pairs, beta, _, gate = retrieval
    assert isinstance(beta, Tensor)
    rows = lambda x: x.transpose(1, 2).flatten(0, 1)[:, :, None]  # noqa: E731
    some = None if mask.all() else mask.flatten(0, 1)
    stored = pairs.stored
    if stored is not None:
        times, mass = (rows(x[..., None])[..., 0] for x in (stored.times, stored.mass))
        stored = PairTimes(times, mass, stored.query_times.expand(len(times), -1))
    pairs = Pairs(rows(pairs.keys), rows(pairs.values), some, pairs.seen, stored)
    return Retrieval(rows(queries), pairs, rows(beta[..., None])[..., 0], gate=None if gate is None else rows(gate))


class NextTokens(NamedTuple):
    """The most probable next tokens at every time, their probabilities, and the log-sum-exp of all logits."""

    tokens: Int[Tensor, "T top"]
    probabilities: Float[Tensor, "T top"]
    logsumexp: Float[Tensor, " T"]


@dataclass
class Chunk:
    """Some tokens of a text, and what was captured while they were read.

    Their pairs are kept by the CachedText, except where some have been evicted since.
    """

    tokens: Sequence[int]
    start: int = 0  # their position in the text
    full: int = CHUNK_TOKENS  # tokens that can be read at once from the state before
    features: Tensor = field(init=False)  # (T W), the input of the output matrix
    spreads: Tensor = field(init=False)  # (T L), the divisors of the norms on the residual stream
    retrievals: dict[Layer, Retrieval] = field(default_factory=dict)  # without the pairs of exact stores
    parameters: dict[Layer, dict[str, Tensor]] = field(
        default_factory=dict
    )  # lambda and beta: (H) or, per token, (T H)
    outputs: dict[Layer, Tensor] = field(default_factory=dict)  # (T W), of mixers that retrieve nothing
    state: Any = None  # before the chunk, without what grows
    next_tokens: NextTokens | None = None  # computed on request

    def per_token(self, layer: Layer) -> dict[str, Tensor]:
        """Return lambda and beta of a layer where they change from token to token."""
        return {name: values for name, values in self.parameters[layer].items() if values.ndim == 2}


class InstrumentedModel:
    """A model with its tokenizer that captures its retrievals. Not for two threads at once.

    It reads texts after those of `memory`, which are those of `state`.
    """

    def __init__(self, loaded: LoadedModel, *, state: State | None = None, memory: TextMemory | None = None):
        self.name, self.tokenizer = loaded.name, loaded.tokenizer
        self.state, self.memory = state, memory
        first = next(stores_of(state), None)
        self.store = None if first is None or isinstance(first, GrowingStore) else str(getattr(first, "policy", first))
        self.before = int(torch.as_tensor(getattr(first, "length", 0)).max())  # tokens read before a text
        self.model: LanguageModel = fold_for_inference(loaded.model).eval()
        self.device = loaded.model.embedding.weight.device
        self.mean_output = self.model.output.detach().float().mean(dim=0)  # the output vector of the average token
        self.layers: dict[Layer, RetrievalMixer] = {}
        self.info: dict[Layer, MemoryInfo] = {}
        self.others: dict[Layer, nn.Module] = {}  # mixers that retrieve nothing, such as an MLP
        self.stopped = False  # set by another thread
        self._edits: dict[Layer, LayerEdits] = {}
        self._chunk = Chunk([])  # that is being read
        self._pairs: dict[Layer, Pairs] = {}
        self._spreads: list[Tensor] = []
        for number, block in enumerate(self.model.blocks):
            for kind in get_args(Kind):
                mixer = getattr(block, f"{kind}_mixer")
                if isinstance(mixer, RetrievalMixer):
                    self.layers[number, kind], self.info[number, kind] = mixer, mixer.memory_info()
                    mixer.prepare_retrieval = self._capture_retrievals((number, kind), mixer, mixer.prepare_retrieval)
                elif mixer is not None:
                    self.others[number, kind] = mixer
                    mixer.forward = self._capture_output((number, kind), mixer.forward)
        for norm in residual_norms(self.model):
            norm.register_forward_pre_hook(lambda norm, x: self._spreads.append(spread(norm, x[0][0])))

    def has(self, memory: Memory) -> bool:
        """Return whether the model has this memory."""
        block, kind, head = memory
        return (block, kind) in self.layers and 0 <= head < self.info[block, kind].heads

    def in_files(self, layer: Layer) -> bool:
        """Return whether a layer has pairs of memory files."""
        return self.memory is not None and self.info[layer].peek is not None

    def time(self, layer: Layer, pair: int) -> int:
        """Return when a pair was stored, given the position of its key."""
        return pair if self.info[layer].peek is None else pair + self.before

    def check_running(self) -> None:
        """Raise an error if the explorer has been stopped."""
        if self.stopped:
            raise UserError("the explorer has been stopped")

    @torch.no_grad()
    def read(
        self, tokens: Sequence[int], state: Any, edits: dict[Layer, LayerEdits]
    ) -> tuple[Chunk, dict[Layer, Pairs], Any]:
        """Read tokens after a state, with edits; return what was captured, all pairs, and the state after them."""
        self.check_running()
        self._edits, self._chunk, self._pairs, self._spreads = edits, Chunk(tokens), {}, []
        x = self.model.embedding(torch.tensor([tokens], device=self.device))
        features, state = self.model.features(x, state)
        self._chunk.features = features[0].float()
        self._chunk.spreads = (
            torch.stack(self._spreads, dim=-1) if self._spreads else x[0, :, :0]
        )  # there may be no norms
        return self._chunk, self._pairs, state

    def _capture_retrievals(self, layer: Layer, mixer: RetrievalMixer, prepare_retrieval: Callable[..., Any]) -> Any:
        def captured(x: Tensor, state: Any = None, mask: Any = None) -> Any:
            retrieval, state = prepare_retrieval(x, state, mask)
            kept = pairs = self._pairs[layer] = retrieval.pairs
            if pairs.stored is None:
                kept = pairs._replace(keys=pairs.keys[:, :0], values=pairs.values[:, :0])
            self._chunk.retrievals[layer] = retrieval._replace(pairs=kept, queries_are_keys=False)
            decay, beta = decay_and_sharpness(mixer, retrieval, x)
            self._chunk.parameters[layer] = {"beta": beta} | ({} if decay is None else {"lambda": decay})
            edits = self._edits.get(layer)
            return (retrieval if edits is None else EditedRetrieval(retrieval, edits)), state

        return captured

    def _capture_output(self, layer: Layer, forward: Callable[..., Any]) -> Any:
        def captured(x: Tensor, state: Any = None, mask: Any = None) -> Any:
            y, state = forward(x, state, mask)
            self._chunk.outputs[layer] = y[0]
            return y, state

        return captured  # in place of a hook: copies of a module share its hooks

    def describe_layers(self) -> list[dict[str, Any]]:
        """Return the layers: their position, name, and what is constant of their memories.

        Those that retrieve nothing come last and are `closed`: of them there is a contribution and no detail.
        `per_token` are the measures that change from token to token, of which an overview has the values.
        """
        chunk, _, _ = self.read([0], self.state, {})
        described = []
        for (block, kind), info in self.info.items():
            layer = {"block": block, "kind": kind, "name": info.name, "heads": info.heads, "peek": info.peek}
            parameters, per_token = chunk.parameters[block, kind], chunk.per_token((block, kind))
            layer |= {name: _numbers(values) for name, values in parameters.items() if name not in per_token}
            if info.sees:
                heads = info.heads // len(info.visibility)
                terms = ["long" if each.window is None else "short" for each in info.visibility for _ in range(heads)]
                layer |= {"sees": info.sees} | ({"terms": terms} if len(set(terms)) > 1 else {})
            measures = ["contribution", "effective", *per_token, *(["files"] if self.in_files((block, kind)) else [])]
            described.append(layer | {"per_token": measures})
        for (block, kind), mixer in self.others.items():
            layer = {"block": block, "kind": kind, "name": type(mixer).__name__, "heads": 1, "peek": None}
            described.append(layer | {"per_token": ["contribution"], "closed": True})
        return described


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
        self._state: Any = model.state

    def update(self, tokens: Sequence[int], edits: Sequence[Edit] = (), plain: "CachedText | None" = None) -> None:
        """Change to this text with these edits. `plain` is the same text without edits."""
        tokens, edits = list(tokens), tuple(edits)
        if (tokens, edits) == (self.tokens, self.edits):
            self.recomputed = 0
            return
        same = sum(takewhile(bool, map(eq, self.tokens, tokens)))
        for edit in set(edits) ^ set(self.edits):
            of_text = edit.pair is not None and self.model.info[edit.layer].peek is not None
            same = max(0, min(same, edit.pair or 0)) if of_text else 0
        self.layer_edits = {}
        for edit in edits:
            value = None if edit.token is None or plain is None else plain.rewritten_value(edit)
            stored = edit if edit.pair is None else replace(edit, pair=self.model.time(edit.layer, edit.pair))
            self.layer_edits.setdefault(edit.layer, []).append((stored, value))
        self.tokens, self.edits = tokens, edits
        first = sum(1 for _ in takewhile(lambda chunk: chunk.start + chunk.full <= same, self.chunks))
        if first < len(self.chunks):
            self._state = _restore(self.chunks[first].state, self._state)
        del self.chunks[first:]
        start = self.chunks[-1].start + self.chunks[-1].full if self.chunks else 0
        self.recomputed = len(tokens) - start
        with single_thread():
            while start < len(tokens):
                before, full = self._state, int(min(CHUNK_TOKENS, tokens_at_once(self._state or ())))
                part = tokens[start : start + full]
                chunk, self.pairs, self._state = self.model.read(part, before, self.layer_edits)
                chunk.start, chunk.full = start, full
                chunk.state = before and _without_growth(before, self._state)
                self.chunks.append(chunk)
                start += full
                if chunk.state is before and start < len(tokens):
                    self._check_size(start)

    def _check_size(self, read: int) -> None:
        """Raise an error if the stores that the chunks keep are too large to read on, after `read` tokens."""
        kept = sum(x.nbytes for chunk in self.chunks for x in state_tensors(chunk.state))
        if kept > MAX_KEPT:
            self.tokens = self.tokens[:read]
            raise UserError(f"with the store {self.model.store} {self.model.name} reads at most {read:,} tokens here")

    def rewritten_value(self, edit: Edit) -> Float[Tensor, " V"]:
        """Return the value that the pair of an edit would have if the text had continued with its token."""
        assert edit.pair is not None
        assert edit.token is not None
        info = self.model.info[edit.layer]
        at = edit.pair + (info.peek or 0)
        chunk = self._chunk_of(at)
        state = _restore(chunk.state, self._state)
        _, read, _ = self.model.read([*self.tokens[chunk.start : at], edit.token], state, {})
        pairs = read[edit.layer].per_head(info.heads)
        (index,) = (pairs.times(edit.head) == self.model.time(edit.layer, edit.pair)).nonzero()[0].tolist()
        return pairs.values[0, index, edit.head]

    @torch.no_grad()
    def next_tokens(self, chunks: Sequence[Chunk]) -> list[NextTokens]:
        """Return the most probable tokens after every time of some chunks, computed in one product where missing."""
        missing = [chunk for chunk in chunks if chunk.next_tokens is None]
        if missing:
            features = torch.cat([chunk.features for chunk in missing])
            logits = self.model.model.logits(features.to(self.model.model.output.dtype)).float()
            total = logits.logsumexp(dim=-1)
            top = logits.topk(min(TOP_TOKENS, logits.shape[-1]), dim=-1)
            parts = (top.indices, (top.values - total[:, None]).exp(), total)
            sizes = [len(chunk.tokens) for chunk in missing]
            for chunk, part in zip(missing, zip(*(part.split(sizes) for part in parts), strict=True), strict=True):
                chunk.next_tokens = NextTokens(*part)
        return [chunk.next_tokens for chunk in chunks if chunk.next_tokens is not None]

    def most_probable(self, first: int, last: int) -> Int[Tensor, " T"]:
        """Return the most probable token after each time in [first, last), which are within one chunk."""
        chunk, times = self._within_chunk(first, last)
        return self.next_tokens([chunk])[0].tokens[times, 0]

    @torch.no_grad()
    def predictions(self, first: int, last: int) -> dict[str, Any]:
        """Return the losses of the tokens in [first, last), and the next tokens after each: text, probability, id."""
        start = self._chunk_of(max(first - 1, 0)).start
        chunks = [chunk for chunk in self.chunks if start <= chunk.start < last]
        ids, probabilities, logsumexp = (torch.cat(parts) for parts in zip(*self.next_tokens(chunks), strict=True))
        times = torch.arange(max(first, 1), last) - 1 - start  # nothing predicts the first token
        features = torch.cat([chunk.features for chunk in chunks])[times]
        tokens = torch.tensor(self.tokens[max(first, 1) : last], dtype=torch.long, device=features.device)
        logits = (features * self.model.model.output[tokens].float()).sum(dim=-1)
        losses = [round(loss, 4) for loss in (logsumexp[times] - logits).clamp(min=0).tolist()]
        after, display = slice(first - start, last - start), self.model.tokenizer.display
        best = [
            [[display(index), round(probability, 4), index] for index, probability in zip(*row, strict=True)]
            for row in zip(ids[after].tolist(), probabilities[after].tolist(), strict=True)
        ]
        return {"losses": [None] * (last - first - len(losses)) + losses, "best": best}

    @torch.no_grad()
    def retrieved(self, layer: Layer, first: int, last: int) -> tuple[Float[Tensor, "T H N"], Float[Tensor, "T H W"]]:
        """Return the weights of a layer at the times in [first, last), and what each memory adds to the features.

        The times are within one chunk. The slots of several persistent memories of a layer follow each other.
        """
        self.model.check_running()
        chunk, times = self._within_chunk(first, last)
        retrieval, edits = self._retrieval(layer, chunk), self.layer_edits.get(layer)
        edited = retrieval if edits is None else EditedRetrieval(retrieval, edits)
        weights, answers = edited.weights_and_answers(times)
        flat = weights.permute(2, 1, 0, 3).flatten(2) / len(weights)
        mixer, spreads = self.model.layers[layer], chunk.spreads[times]
        return flat, head_contributions(self.model.model, mixer, answers.mean(dim=0), spreads)

    def overview(self, first: int, last: int, target: int | None = None) -> list[list[dict[str, Any]]]:
        """Return for every time and layer how many pairs count, the logit added to a token above the average token,
        lambda and beta where they change from token to token, and the share of memory files in the weights.

        The times are within one chunk. The token is `target`, or the most probable one at that time.
        """
        chunk, times = self._within_chunk(first, last)
        best = self.most_probable(first, last)
        targets = best if target is None else torch.full_like(best, target)
        direction = self.model.model.output[targets].float() - self.model.mean_output  # (T, W)
        layers = []
        for layer in self.model.layers:
            weights, adds = self.retrieved(layer, first, last)
            squares = weights.square().sum(dim=-1)
            found = {"effective": torch.where(squares > 0, 1 / squares, 0.0)}
            found["contribution"] = torch.einsum("thw,tw->th", adds, direction.to(adds.dtype))
            if self.model.in_files(layer):
                pairs = self._retrieval(layer, chunk).pairs
                found["files"] = weight_by_text(pairs, weights, [0, self.model.before])[..., 0]
            layers.append(found | {name: values[times] for name, values in chunk.per_token(layer).items()})
        for layer, mixer in self.model.others.items():
            alone = chunk.outputs[layer][times].float()[:, None]
            adds = through_norms(self.model.model, mixer, alone, chunk.spreads[times])
            layers.append({"contribution": torch.einsum("thw,tw->th", adds, direction.to(adds.dtype))})
        return [
            [{name: _numbers(values[time]) for name, values in layer.items()} for layer in layers]
            for time in range(last - first)
        ]

    def detail(self, memory: Memory, first: int, last: int) -> list[dict[str, Any]]:
        """Return for each time the pairs of one memory with their weights and the tokens that its answer promotes.

        Of pairs that were stored while reading also which of them it sees: their number `seen`, on which beta(n)
        depends, and those of the text as ranges. Merged pairs come with the number of pairs that they stand for; with
        memory files, `shares` has the part of the weight that is on each of their texts, and last of this text.
        """
        block, kind, head = memory
        layer = block, kind
        chunk, times = self._within_chunk(first, last)
        weights, adds = self.retrieved(layer, first, last)
        logits = adds[:, head] @ self.model.model.output.float().T - (adds[:, head] @ self.model.mean_output)[:, None]
        display, pairs = self.model.tokenizer.display, self._retrieval(layer, chunk).pairs
        earlier = self.model.time(layer, 0)
        details: list[dict[str, Any]] = []
        heaviest = heaviest_pairs(pairs, weights[:, head], head, MAX_PAIRS)
        for retrieved, promoted in zip(heaviest, _top(logits, MAX_PROMOTED), strict=True):
            shown = [
                [pair.time - earlier, round(pair.weight, 6), *([round(pair.mass, 1)] if pair.mass != 1 else [])]
                for pair in retrieved
                if pair.weight > min(MIN_WEIGHT, retrieved[0].weight / 10)
            ]
            details.append(
                {"pairs": shown, "promoted": [[display(token), round(logit, 3)] for token, logit in promoted]}
            )
        if self.model.info[layer].peek is not None:
            for detail, seen in zip(details, self._seen(layer, head, chunk, times), strict=True):
                detail |= seen
        if self.model.in_files(layer) and self.model.memory is not None:
            starts = [text["start"] for text in self.model.memory.texts] + [self.model.before]
            shares = weight_by_text(pairs, weights, starts)[:, head]
            for detail, share in zip(details, shares, strict=True):
                detail["shares"] = _numbers(share)
        return details

    def _seen(self, layer: Layer, head: int, chunk: Chunk, times: list[int]) -> list[dict[str, Any]]:
        """Return for some times of a chunk which pairs a memory sees."""
        retrieval = self._retrieval(layer, chunk)
        size = retrieval.queries.shape[2] // len(retrieval.pairs.seen)
        group = retrieval.pairs.groups()[head // size]
        counts = group.visible_counts(retrieval.queries.shape[1]).reshape(-1, retrieval.queries.shape[1])[0]
        visible = group.visible(torch.tensor(times, device=counts.device))[0]
        visible = visible[head % size if len(visible) > 1 else 0]
        stored = group.times(head % size) - self.model.before
        found = []
        for time, row in zip(times, visible, strict=True):
            there = stored[row]
            ranges: list[list[int]] = []
            for position in there[there >= 0].tolist():
                if ranges and ranges[-1][1] == position:
                    ranges[-1][1] += 1
                else:
                    ranges.append([position, position + 1])
            found.append({"seen": round(float(counts[time]), 1), "ranges": ranges})
        return found

    def _retrieval(self, layer: Layer, chunk: Chunk) -> Retrieval:
        """Return the retrieval of a chunk with its pairs."""
        retrieval = chunk.retrievals[layer]
        if retrieval.pairs.stored is not None:
            return retrieval
        return retrieval._replace(pairs=self.pairs[layer]._replace(seen=retrieval.pairs.seen))

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Divide [first, last) into parts that are within one chunk."""
        for chunk in self.chunks:
            start, end = max(first, chunk.start), min(last, chunk.start + len(chunk.tokens))
            if start < end:
                yield start, end

    def _chunk_of(self, time: int) -> Chunk:
        return self.chunks[bisect_right(self.chunks, time, key=lambda chunk: chunk.start) - 1]

    def _within_chunk(self, first: int, last: int) -> tuple[Chunk, list[int]]:
        """Return the chunk that has the times in [first, last), and these times relative to it."""
        chunk = self._chunk_of(first)
        return chunk, [time - chunk.start for time in range(first, last)]


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


def _without_growth(old: Any, new: Any) -> Any:
    """Replace the tensors of a state that have grown since by the length they had, unless pairs are evicted."""
    if tokens_at_once(old) < inf:
        return old
    return map_state(lambda old, new: old if old.shape == new.shape else old.shape[1], old, new)


def _restore(state: Any, newest: Any) -> Any:
    """Undo `_without_growth`, with the newest state."""
    if state is None:
        return None
    return map_state(lambda old, new: new[:, :old] if isinstance(old, int) else old, state, newest)


def _top(values: Float[Tensor, "T N"], count: int) -> list[list[tuple[int, float]]]:
    """Return the indices and values of the largest numbers of each row."""
    top = values.topk(min(count, values.shape[-1]), dim=-1)
    return [list(zip(*row, strict=True)) for row in zip(top.indices.tolist(), top.values.tolist(), strict=True)]


def _numbers(values: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]
