"""A model reads a text that keeps changing, and what its memories hold may be changed too.

    Engine     a model whose memories are watched: what they are asked is kept, and their pairs can be edited
    Reading    a text as it was read, in stretches of GRID tokens: another text is read from the first stretch that
               differs, and edits from the first that they reach

Of each stretch the state before it is kept. What only grows in a state, the stored pairs, is kept once and cut to the
length that it had.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memory_mosaics.apps.explorer.edits import Changes, Edit, Edited, Layer, by_head
from memory_mosaics.errors import UserError
from memory_mosaics.inspection import residual_norms, spread
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.memory import PersistentMemory
from memory_mosaics.scales import fold_for_inference
from memory_mosaics.shapes import Float, Int
from memory_mosaics.stores import Pairs, Retrieval

GRID = 64  # tokens of a stretch: a letter typed at the end reads so many again, at most
BEST = 8  # next tokens kept of every position


@dataclass
class Step:
    """What was seen while a stretch of tokens was read."""

    features: Float[Tensor, "T W"]  # what the output matrix reads
    spreads: Float[Tensor, "T L"]  # what the norms divided by, those that the sum of all mixers goes through
    retrievals: dict[Layer, Retrieval]


class Engine:
    """A model to read with, one stretch at a time. Not for two threads at once."""

    def __init__(self, model: LanguageModel):
        self.model: LanguageModel = fold_for_inference(model).eval()
        self.device = model.embedding.weight.device
        self.average = self.model.output.detach().float().mean(dim=0)  # the output vector of the average token
        self.layers: dict[Layer, Any] = {}
        self.changes: dict[Layer, Changes] = {}
        self.stopped = False  # by another thread
        self._asked: dict[Layer, Retrieval] = {}
        self._spreads: list[Tensor] = []
        for number, block in enumerate(self.model.blocks):
            for kind in ("sequence", "channel"):
                mixer = getattr(block, f"{kind}_mixer")
                if hasattr(mixer, "prepare_retrieval"):
                    self.layers[number, kind] = mixer
                    mixer.prepare_retrieval = self._watched((number, kind), mixer.prepare_retrieval)
        for norm in residual_norms(self.model):
            norm.register_forward_pre_hook(lambda norm, x: self._spreads.append(spread(norm, x[0][0])))

    def peek(self, layer: Layer) -> int | None:
        """How far ahead the values of a layer look; None for pairs that are no part of the text."""
        mixer = self.layers[layer]
        return None if isinstance(mixer, PersistentMemory) else getattr(getattr(mixer, "value", None), "peek", 0)

    def heads(self, layer: Layer) -> int:
        """How many memories are side by side in a layer."""
        mixer = self.layers[layer]
        return mixer.keys.shape[2] if isinstance(mixer, PersistentMemory) else mixer.key.heads

    def slots(self, layer: Layer) -> int | None:
        """How many pairs a memory has that are no part of the text."""
        keys = self.layers[layer].keys if self.peek(layer) is None else None
        return None if keys is None else keys.shape[0] * keys.shape[1]

    def has(self, memory: tuple[int, str, int]) -> bool:
        """Whether there is this head in this layer of this block."""
        block, kind, head = memory
        return (block, kind) in self.layers and 0 <= head < self.heads((block, kind))

    def check(self) -> None:
        """That there is a reason to go on."""
        if self.stopped:
            raise UserError("the explorer has been stopped")

    @torch.no_grad()
    def read(self, tokens: Sequence[int], state: Any, changes: dict[Layer, Changes]) -> tuple[Step, Any]:
        self.check()
        self.changes, self._asked, self._spreads = changes, {}, []
        x = self.model.embedding(torch.tensor([tokens], device=self.device))
        features, state = self.model.features(x, state)
        return Step(features[0].float(), torch.stack(self._spreads, dim=-1), self._asked), state

    def _watched(self, layer: Layer, ask: Any) -> Any:
        def watched(x: Tensor, state: Any = None, mask: Any = None) -> Any:
            retrieval, state = ask(x, state, mask)
            self._asked[layer] = retrieval
            changes = self.changes.get(layer)
            return (retrieval if changes is None else Edited(retrieval, changes)), state

        return watched


@dataclass
class Stretch:
    """Some tokens of a text, the state before them, and what was seen. The pairs of retrievals are with the Reading."""

    tokens: Sequence[int]
    before: Any
    features: Tensor
    spreads: Tensor
    queries: dict[Layer, Tensor]
    causal_offset: dict[Layer, int | None]
    sharpness: dict[Layer, Any]
    best: "Best | None" = None  # once asked for


class Best(NamedTuple):
    """The most probable next tokens of every time, their probabilities, and the log-sum-exp of all logits."""

    tokens: Int[Tensor, "T top"]
    shares: Float[Tensor, "T top"]
    total: Float[Tensor, " T"]


class Reading:
    """A text and a model that has read it, perhaps with edits."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.tokens: list[int] = []
        self.edits: tuple[Edit, ...] = ()
        self.changes: dict[Layer, Changes] = {}
        self.stretches: list[Stretch] = []
        self.pairs: dict[Layer, Pairs] = {}
        self.read_again = 0  # tokens, the last time
        self._state: Any = None

    def read(self, tokens: Sequence[int], edits: Sequence[Edit] = (), plain: "Reading | None" = None) -> None:
        """Be at this text with these edits. `plain` has read the same text without any."""
        tokens, edits = list(tokens), tuple(edits)
        if (tokens, edits) == (self.tokens, self.edits):
            self.read_again = 0
            return
        same = common(self.tokens, tokens)
        for edit in set(edits) ^ set(self.edits):
            in_text = edit.place is not None and self.engine.peek(edit.layer) is not None
            same = min(same, edit.place if in_text and edit.place is not None else 0)
        self.changes = self._prepare(edits, plain)
        self.tokens, self.edits = tokens, edits
        first = min(same // GRID, len(self.stretches))
        if first < len(self.stretches):
            self._state = _whole(self.stretches[first].before, self._state)
        del self.stretches[first:]
        self.read_again = len(tokens) - first * GRID
        with one_thread():
            for start in range(first * GRID, len(tokens), GRID):
                self._read_on(tokens[start : start + GRID])

    def _read_on(self, tokens: Sequence[int]) -> None:
        before = self._state
        step, self._state = self.engine.read(tokens, before, self.changes)
        asked = step.retrievals
        self.stretches.append(
            Stretch(
                tokens,
                before and _thin(before, self._state),
                step.features,
                step.spreads,
                {layer: retrieval.queries for layer, retrieval in asked.items()},
                {layer: retrieval.pairs.causal_offset for layer, retrieval in asked.items()},
                {layer: retrieval.sharpness for layer, retrieval in asked.items()},
            )
        )
        self.pairs = {layer: retrieval.pairs for layer, retrieval in asked.items()}

    def retrieval(self, layer: Layer, stretch: int, times: slice) -> Retrieval:
        """What a layer was asked at some times of a stretch, each head a row, with the edits made."""
        self.engine.check()
        seen = self.stretches[stretch]
        causal_offset = seen.causal_offset[layer]
        pairs = self.pairs[layer]._replace(
            causal_offset=None if causal_offset is None else causal_offset + (times.start or 0)
        )
        retrieval = Retrieval(seen.queries[layer][:, times], pairs, seen.sharpness[layer])
        return by_head(retrieval, self.changes.get(layer))

    @torch.no_grad()
    def best(self, stretches: Sequence[int]) -> list[Best]:
        """What comes next after every time of some stretches. Those not asked for before go through one product."""
        chosen = [self.stretches[number] for number in stretches]
        new = [stretch for stretch in chosen if stretch.best is None]
        if new:
            features = torch.cat([stretch.features for stretch in new])
            logits = self.engine.model.logits(features.to(self.engine.model.output.dtype)).float()
            total = logits.logsumexp(dim=-1)
            top = logits.topk(min(BEST, logits.shape[-1]), dim=-1)
            parts = (top.indices, (top.values - total[:, None]).exp(), total)
            sizes = [len(stretch.tokens) for stretch in new]
            for stretch, best in zip(new, zip(*(part.split(sizes) for part in parts), strict=True), strict=True):
                stretch.best = Best(*best)
        return [stretch.best for stretch in chosen if stretch.best is not None]

    def value_as_if(self, layer: Layer, place: int, token: int) -> Float[Tensor, "H V"]:
        """The values of a pair if the text had gone on with `token`."""
        at = place + (self.engine.peek(layer) or 0)
        first = at // GRID
        state = _whole(self.stretches[first].before, self._state)
        step, _ = self.engine.read([*self.tokens[first * GRID : at], token], state, {})
        return step.retrievals[layer].pairs.values[0, place]

    def _prepare(self, edits: Sequence[Edit], plain: "Reading | None") -> dict[Layer, Changes]:
        changes: dict[Layer, Changes] = {}
        for edit in edits:
            of = changes.setdefault(edit.layer, Changes())
            if edit.place is None:
                of.off.append(edit.head)
            elif edit.token is None:
                of.removed.append((edit.head, edit.place))
            elif plain is not None:
                value = plain.value_as_if(edit.layer, edit.place, edit.token)[edit.head]
                of.written.append((edit.head, edit.place, value))
        return changes


@contextmanager
def one_thread() -> Iterator[None]:
    """For many small products: threads that wait for each other at every one of them take longer than one alone, and on
    a busy machine ten times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _thin(old: Any, new: Any) -> Any:
    """A state with what has grown since replaced by the length that it had."""
    if isinstance(old, Tensor):
        return old if old.shape == new.shape else old.shape[1]
    return tuple(_thin(*pair) for pair in zip(old, new, strict=True))


def _whole(thin: Any, newest: Any) -> Any:
    """Back from `_thin`, with the newest state there is."""
    if thin is None or isinstance(thin, Tensor):
        return thin
    if isinstance(thin, int):
        return newest[:, :thin]
    return tuple(_whole(*pair) for pair in zip(thin, newest, strict=True))
