"""A model that has read prompts and reads on, one token of every row at a time: the engine of generation.

A prompt is read in parallel. Then its state gets room for what is to come, and each step is the same work on the same
tensors: on CUDA it is recorded once as a graph and replayed, so that nothing but the device itself takes time. What is
recorded is kept with the model, for the next that reads as many rows with as much room.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary, finalize

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.language_model import LanguageModel, map_state
from memory_mosaics.runtime import capture
from memory_mosaics.scales import fold_for_inference
from memory_mosaics.shapes import Bool, Float, Int

ROOM = 2048  # tokens that get room at once; beyond, room doubles
GRAIN = 256  # room comes in such pieces, so that a recorded step serves many lengths
KEPT = 4  # recorded steps of a model that wait for the next to read with it


class Reader:
    """A model that has read prompts and reads on. `logits` are of the token to come, `read` takes one token a row."""

    logits: Float[Tensor, "B vocabulary"]

    def __init__(self, model: LanguageModel, prompts: Sequence[Int[Tensor, " _"]], *, compiled: bool = False):
        """Prompts of different lengths are filled up on the left. `compiled` fuses each step: faster, after a wait."""
        if not prompts or any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt must have at least one token: there is nothing to predict from")
        self.desk = Desk.of(model)
        self.model = model = self.desk.model
        self.device = model.embedding.weight.device
        self.block_fn = self.desk.compiled(one_row=len(prompts) == 1) if compiled else None
        self.replay: Callable[[], None] | None = None
        self.leave: Callable[[], None] = lambda: None
        tokens, mask = left_padded([prompt.to(self.device) for prompt in prompts])
        self.count, self.room = tokens.shape[1], 0
        with torch.no_grad():
            features, self.state = model.features(model.embedding(tokens), None, mask)
            self.logits = model.logits(features[:, -1])
        self.tokens = tokens[:, -1:].clone()

    def read(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B vocabulary"]:
        """The logits after one more token of each row. They are overwritten by the next call."""
        self._make_room(self.count + 1)
        self.tokens.copy_(tokens[:, None])
        if self.replay is None:
            with torch.no_grad():
                if self.device.type == "cuda" and self.room:
                    self._record()
                else:
                    self._step()
        if self.replay is not None:
            self.replay()
        self.count += 1
        return self.logits

    def at_most(self, tokens: int) -> int:
        """So many more, or as many as a table of positions has left: what follows its last is still predicted."""
        return tokens if self.model.max_positions is None else min(tokens, self.model.max_positions - self.count + 1)

    def reserve(self, tokens: int) -> None:
        """Make room for so many more, at most ROOM at once."""
        self._make_room(min(self.count + tokens, max(self.count + 1, ROOM)))

    def repeat(self, times: int) -> None:
        """Each row so many times, one after the other. Before there is room: it would have to be made anew."""
        rows = torch.arange(len(self.logits), device=self.device).repeat_interleave(times)
        self.state = map_state(lambda tensor: tensor.index_select(0, rows), self.state)
        self.logits, self.tokens = self.logits.index_select(0, rows), self.tokens.index_select(0, rows)

    def reorder(self, rows: Int[Tensor, " B"]) -> None:
        """Go on from the states of these rows, in place: row b continues what row rows[b] has read."""
        map_state(lambda tensor: tensor.copy_(tensor.index_select(0, rows)), self.state)
        self.logits.copy_(self.logits.index_select(0, rows))

    def _make_room(self, tokens: int) -> None:
        if self.count >= self.desk.peek and tokens > self.room:
            self.room = -(-max(tokens, 2 * self.room) // GRAIN) * GRAIN
            self.state = self.model.to_fixed_capacity(self.state, self.room)
            self.replay = None  # was of other tensors

    def _record(self) -> None:
        """Sit down where someone has recorded this step before, or record it."""
        mine = (self.tokens, self.state, self.logits)
        kind = str([(tensor.shape, tensor.dtype) for tensor in _tensors(mine)])
        kind += str((self.block_fn is None, torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")))
        place = self.desk.take(kind)
        if place is None:
            place = Place(kind, mine, _recorded(self._step, self.state))
        else:
            _overwrite(place.tensors, mine)
        (self.tokens, self.state, self.logits), self.replay = place.tensors, place.replay
        self.leave()  # where it sat before
        self.leave = finalize(self, self.desk.free.append, place)

    def _step(self) -> None:
        """Read self.tokens. The logits change in place, and so does the state where it has room."""
        features, state = self.model.features(self.model.embedding(self.tokens), self.state, block_fn=self.block_fn)
        self.logits.copy_(self.model.logits(features[:, -1]))
        if self.room:
            _overwrite(self.state, state)
        else:
            self.state = state


class Place(NamedTuple):
    """A recorded step and the tensors that it reads and writes."""

    kind: str
    tensors: tuple[Tensor, Any, Tensor]
    replay: Callable[[], None]


class Desk:
    """A model to read with and its recorded steps that nobody uses now, as long as its parameters stay as they are."""

    desks: ClassVar[WeakKeyDictionary[nn.Module, "Desk"]] = WeakKeyDictionary()

    def __init__(self, model: LanguageModel, stamp: tuple):
        self.model, self.stamp = fold_for_inference(model).eval(), stamp
        self.peek = max(getattr(module, "peek", 0) for module in model.modules())  # shapes change before so many tokens
        self.free: deque[Place] = deque(maxlen=KEPT)
        self.steps: dict[bool, Callable[..., Any]] = {}  # compiled, for one row and for more

    @classmethod
    def of(cls, model: LanguageModel) -> "Desk":
        stamp, desk = _stamp(model), cls.desks.get(model)
        if desk is None or desk.stamp != stamp:
            desk = cls.desks[model] = cls(model, stamp)
        return desk

    def compiled(self, *, one_row: bool) -> Callable[..., Any]:
        """How a block is called. One row makes products of a matrix and a vector: searching for the best kernel of each
        pays there, and only there.
        """
        if one_row not in self.steps:
            options: Any = {"coordinate_descent_tuning": True} if one_row else None
            self.steps[one_row] = torch.compile(nn.Module.__call__, dynamic=False, options=options)
        return self.steps[one_row]

    def take(self, kind: str) -> Place | None:
        for i, place in enumerate(self.free):
            if place.kind == kind:
                del self.free[i]
                return place
        return None


@torch.no_grad()
def _stamp(model: LanguageModel) -> tuple:
    """What changes when training changes parameters: their addresses, autograd's counts of changes, and their sums,
    since a fused optimiser, a replayed graph and an inference tensor count none.
    """
    weights = list(model.parameters())
    counts = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    sums = [weight.sum(dtype=torch.promote_types(weight.dtype, torch.float32)) for weight in weights]
    return *counts, *torch.stack([each.double().to(weights[0].device) for each in sums]).tolist()


@contextmanager
def reading(model: LanguageModel) -> Iterator[None]:
    """Within: no dropout, no gradients."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def left_padded(prompts: Sequence[Int[Tensor, " _"]]) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"] | None]:
    """Prompts as one batch, ending together, and which tokens are real; None where all are."""
    longest = max(map(len, prompts))
    if all(len(prompt) == longest for prompt in prompts):
        return torch.stack(list(prompts)), None
    tokens = torch.stack([F.pad(prompt, (longest - len(prompt), 0)) for prompt in prompts])
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=tokens.device)
    return tokens, torch.arange(longest, device=tokens.device) >= longest - lengths[:, None]


def _overwrite(old: Any, new: Any) -> None:
    """Write a state over another, where a step has not done so itself: all tensors of a kind at once."""
    kinds: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for before, after in zip(_tensors(old), _tensors(new), strict=True):
        if before.data_ptr() != after.data_ptr() and before.numel():
            kinds.setdefault(before.dtype, []).append((before, after))
    for pairs in kinds.values():
        torch._foreach_copy_([before for before, _ in pairs], [after for _, after in pairs])


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    else:
        for part in state:
            yield from _tensors(part)


def _recorded(step: Callable[[], None], state: Any) -> Callable[[], None]:
    """What the step does to its tensors, as one CUDA graph to replay. Trying it out leaves the state as it was."""
    before = map_state(torch.clone, state)
    # What autocast keeps for later would be gone when the graph is replayed.
    uncached = torch.autocast("cuda", enabled=torch.is_autocast_enabled("cuda"), cache_enabled=False)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside), uncached:
        for _ in range(2):
            step()
            _overwrite(state, before)
    torch.cuda.current_stream().wait_stream(aside)
    with uncached:
        return capture(step)
