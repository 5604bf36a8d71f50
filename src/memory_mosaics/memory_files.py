"""Memory files: what a model stored of texts that it has read, to continue from them without reading them again.

    Memory          the stores of all layers, the rest of the state, the tokens of the texts, and where they are from
    read            the memory of a text; continues one that has read its beginning
    union           the pairs of several memories, as if each text had been read alone

A memory is of one model: it holds keys that only its weights make. A file names the model by a checksum of them.

The union of two memories holds the pairs of both texts, and beta(n) is that of all of them together. Reading one text
after the other is something else: there, from the second layer on, the pairs of the second text depend on what was
retrieved from the first, and leaky averages of its first tokens contain the last tokens before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memory_mosaics.bounded_stores import UNBOUNDED, AnyPolicy, BoundedStore, StorePolicy
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError
from memory_mosaics.indexed_store import IndexedStore
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.shapes import Int
from memory_mosaics.store_files import AnyStore, load_stores, newest_pairs, save_stores
from memory_mosaics.stores import RetrievalMixer, State, Visibility, head_groups, map_state, stores_of

CHUNK = 1024  # tokens read at a time, so that a text read in parts is read as at once
PREFIX = 256  # tokens after which a state has the form it keeps
TEXT_FIELDS = {"name": str, "sha256": str, "tokens": int, "read": int, "start": int}


class Excerpt(NamedTuple):
    """Where a pair was stored: in which text, at which token of it, and the tokens around it."""

    text: dict[str, Any]
    position: int
    before: list[int]  # the last one is that of the key
    after: list[int]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a model has stored of texts. A text is named, with its tokens in all and those read; its first pair was
    stored at the time `start`.
    """

    stores: list[AnyStore]
    carry: list[Tensor]  # the other tensors of the state, after the last text
    tokens: Int[Tensor, " N"]  # of all texts, as far as they have been read
    texts: list[dict[str, Any]]
    model: str  # its fingerprint
    visibility: tuple[tuple[int, int | None], ...]  # delay and window of each group of heads
    file: Path | None = None

    @classmethod
    def load(cls, file: Path) -> "Memory":
        """Read a file that `save` wrote. Its pairs stay on the disk until they are used."""
        stores, about, others = load_stores(file)
        try:
            *carry, tokens = (others[name] for name in [f"carry.{i}" for i in range(len(others) - 1)] + ["tokens"])
            texts, visibility = about["texts"], tuple((delay, window) for delay, window in about["visibility"])
            for text in texts:
                for field, kind in TEXT_FIELDS.items():
                    if type(text[field]) is not kind or (kind is int and not 0 <= text[field] < 1 << 48):
                        raise ValueError(f"{field} of a text is {text[field]!r}")
            read = sum(text["read"] for text in texts)
            if tokens.dtype != torch.int32 or tokens.shape != (read,) or not all(text["read"] for text in texts):
                raise ValueError(f"its texts have {read:,} tokens, and it {tuple(tokens.shape)} {tokens.dtype}")
            if texts[0]["start"] or not isinstance(about["model"], str) or not all(x.isfinite().all() for x in carry):
                raise ValueError("its state is NaN or Inf, of no model or of no text")
            (rows, _, heads, _), seen = (
                newest_pairs(stores[0]).keys.shape,
                [Visibility(delay=d, window=w) for d, w in visibility],
            )
            if head_groups(tuple(seen), heads) and rows != 1:
                raise ValueError(f"it has {rows} rows of pairs, not one")
            found = {"texts": texts, "model": about["model"], "visibility": visibility}
            return cls(stores=stores, carry=carry, tokens=tokens, file=file, **found)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is damaged or not a memory of a model: {error}") from error

    def save(self, file: Path) -> None:
        """Write it atomically."""
        others = {f"carry.{number}": x for number, x in enumerate(self.carry)} | {"tokens": self.tokens}
        about = {"model": self.model, "texts": self.texts, "visibility": self.visibility}
        save_stores(file, self.stores, about, others)

    @property
    def policy(self) -> AnyPolicy | None:
        return getattr(self.stores[0], "policy", None)

    @property
    def pairs(self) -> int:
        """The number of pairs in each head of each layer."""
        return self.stores[0].complete

    @property
    def complete(self) -> bool:
        return all(text["read"] == text["tokens"] for text in self.texts)

    def check_complete(self) -> "Memory":
        for text in self.texts:
            if text["read"] < text["tokens"]:
                counts = f"the first {text['read']:,} of {text['tokens']:,} tokens of {text['name']}"
                raise UserError(f"{self.file} holds {counts}; finish it with mosaics read")
        return self

    def check_model(self, trained: LoadedModel, mine: str) -> None:
        """Refuse the memory of another model than this one, whose fingerprint is `mine`, and tokens that it lacks."""
        if mine != self.model:
            raise UserError(
                f"{self.file} is a memory of model {self.model[:12]}, and {trained.folder} is model {mine[:12]}; "
                "read the text with it: mosaics read"
            )
        if self.tokens.min() < 0 or self.tokens.max() >= trained.tokenizer.vocabulary:
            raise UserError(f"{self.file} is damaged: it holds tokens that {trained.folder} does not have")

    def state(self, model: LanguageModel) -> State:
        """The state of the model after the last text, with the pairs of all texts."""
        template, device = self._template(model), model.embedding.weight.device
        shape = lambda state: [_form(store) for store in stores_of(state)]  # noqa: E731
        rest = lambda tensors: [(x.shape, x.dtype) for x in tensors]  # noqa: E731
        newest = [newest_pairs(store) for store in (*stores_of(template), *self.stores)]
        pending = [store.keys.shape[1] - store.values.shape[1] for store in newest]
        same = shape(template) == shape(tuple(self.stores)) and rest(carried(template)) == rest(self.carry)
        if not same or len(set(pending)) > 1:
            raise UserError(f"{self.file} is damaged: its tensors do not have the shapes of this model's")
        state = _fill(template, iter(self.stores), iter(self.carry))
        return state if device.type == "cpu" else map_state(lambda x: x.to(device), state)

    def trim(self, policy: AnyPolicy | None, device: str | torch.device = "cpu") -> "Memory":
        """The same with its pairs in another store, made on a device, one layer at a time; None is exact.

        An exact store after a bounded one keeps the pairs of that, and all that are added to it.
        """
        seen = tuple(Visibility(delay=delay, window=window) for delay, window in self.visibility)
        if isinstance(self.policy, StorePolicy) and not isinstance(policy, StorePolicy):
            if policy is not None:
                kept = f"{self.file} has a store {self.policy}, and what it has forgotten"
                raise UserError(f"{kept} cannot become {policy.kind} again")
            policy = UNBOUNDED

        def changed(store: Any) -> AnyStore:
            if policy is None:
                return store.exact() if isinstance(store, IndexedStore) else store
            if isinstance(policy, StorePolicy):
                return BoundedStore.of(policy, store, seen)
            return IndexedStore.of(policy, store, seen)

        there = (map_state(lambda x: x.to(device), store) for store in self.stores)
        return replace(self, stores=[map_state(lambda x: x.cpu(), changed(store)) for store in there])

    def place(self, time: int) -> tuple[dict[str, Any], int, int]:
        """Of the pair stored at this time: its text, the position of its key, and where that is in all tokens."""
        number = max(i for i, text in enumerate(self.texts) if text["start"] <= time)
        position = time - self.texts[number]["start"]
        return self.texts[number], position, position + sum(text["read"] for text in self.texts[:number])

    def excerpt(self, time: int, around: int, following: Sequence[int] = ()) -> Excerpt:
        """The pair stored at this time in its text, with `around` tokens on both sides.

        `following` are tokens read after the texts, which continue the last one.
        """
        text, position, index = self.place(time)
        start, read = index - position, text["read"]
        tokens = self.tokens[start + max(0, position - around) : start + min(read, position + around + 1)].tolist()
        if text is self.texts[-1]:
            tokens += following[: max(0, position + around + 1 - read)]
        key = min(position, around)
        return Excerpt(text, position, tokens[: key + 1], tokens[key + 1 :])

    @torch.no_grad()
    def _template(self, model: LanguageModel) -> State:
        """A state of the same form, after the first tokens of no text."""
        read = min(PREFIX, self.texts[-1]["read"])
        tokens = torch.zeros(1, read, dtype=torch.long, device=model.embedding.weight.device)
        return map_state(lambda x: x.cpu(), model.features(model.embedding(tokens), model.empty_state(self.policy))[1])


def read(
    trained: LoadedModel,
    tokens: Int[Tensor, " N"],
    text: dict[str, Any],
    *,
    policy: AnyPolicy | None,
    memory: Memory | None,
) -> Iterator[Memory]:
    """Yield the memory of a text after every part of it, going on from one that has read its beginning.

    `text` has its name and checksum.
    """
    model = trained.model.eval()
    state = model.empty_state(policy) if memory is None else memory.state(model)
    start = 0 if memory is None else len(memory.tokens)
    mixer = model.blocks[0].sequence_mixer
    if not isinstance(mixer, RetrievalMixer) or mixer.memory_info().peek in (None, 0):
        raise UserError(f"{trained.name} has no contextual memories, and a memory file is made of their pairs")
    visibility = tuple((each.delay, each.window) for each in mixer.memory_info().visibility)
    fingerprint = trained.fingerprint() if memory is None else memory.model
    for at in range(start, len(tokens), CHUNK):
        part = tokens[None, at : at + CHUNK].to(model.embedding.weight.device)
        with torch.no_grad():
            _, state = model.features(model.embedding(part), state)
        done = at + part.shape[1]
        yield Memory(
            stores=list(stores_of(state)),
            carry=list(carried(state)),
            tokens=tokens[:done].int(),
            texts=[text | {"tokens": len(tokens), "read": done, "start": 0}],
            model=fingerprint,
            visibility=visibility,
        )


def union(memories: Sequence[Memory]) -> Memory:
    """The pairs of several memories of one model, in this order; what follows continues the last."""
    first, *others = (memory.check_complete() for memory in memories)
    for other in others:
        if other.model != first.model:
            names = f"{first.file} and {other.file} are memories of models"
            raise UserError(
                f"{names} {first.model[:12]!r} and {other.model[:12]!r}; only those of one model can be merged"
            )
        kinds = [None if each.policy is None else each.policy.kind for each in (first, other)]
        if kinds[0] != kinds[1]:
            stores = " and ".join(
                f"{each.file} has a store {kind or 'exact'}" for each, kind in zip((first, other), kinds, strict=True)
            )
            raise UserError(f"{stores}: trim one with mosaics memory trim, so that both are alike")
        last = first.stores[0]
        shift = int(last.now[0]) if isinstance(last, BoundedStore) else last.complete  # an exact store has no times
        first = replace(
            other,
            stores=[mine.union(theirs) for mine, theirs in zip(first.stores, other.stores, strict=True)],  # type: ignore[arg-type]
            tokens=torch.cat([first.tokens, other.tokens]),
            texts=[*first.texts, *(text | {"start": text["start"] + shift} for text in other.texts)],
        )
    return first


def load_memories(trained: LoadedModel, files: Sequence[Path], store: str | None = None) -> Memory:
    """The union of the memories in files, which must be of this model, with such a store."""
    memories, fingerprint = [Memory.load(file) for file in files], trained.fingerprint()
    for memory in memories:
        memory.check_model(trained, fingerprint)
    memory = union(memories)
    return memory if store is None else memory.trim(StorePolicy.parse(store), trained.model.embedding.weight.device)


def start_state(trained: LoadedModel, files: Sequence[Path], store: str | None = None) -> State | None:
    """The state in which a model starts, after the texts of memory files and with such a store."""
    return start_with_memory(trained, files, store)[0]


def start_with_memory(
    trained: LoadedModel, files: Sequence[Path], store: str | None = None
) -> tuple[State | None, Memory | None]:
    """Return the start state, and the memory that it comes from: None without files."""
    if not files:
        return trained.model.empty_state(None if store is None else StorePolicy.parse(store)), None
    memory = load_memories(trained, files, store)
    return memory.state(trained.model), memory


def _form(store: AnyStore) -> list[Any]:
    """What stores of one model have in common."""
    newest, recent = newest_pairs(store), getattr(store, "recent", None)
    form = [type(store), newest.keys.shape[2:], newest.values.shape[2:], newest.keys.dtype]
    return [*form, None if recent is None else recent.tolist()]


def carried(state: Any) -> Iterator[Tensor]:
    """The tensors of a state that are not of a store."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, tuple) and not hasattr(state, "evict"):
        for part in state:
            yield from carried(part)


def _fill(state: Any, stores: Iterator[AnyStore], carry: Iterator[Tensor]) -> Any:
    """A state of the same form with these stores and other tensors."""
    if hasattr(state, "evict"):
        return next(stores)
    return next(carry) if isinstance(state, Tensor) else tuple(_fill(part, stores, carry) for part in state)
