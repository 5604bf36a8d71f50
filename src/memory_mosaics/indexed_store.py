"""A store of all pairs, of which each query reads few: an index of the older ones, and the newest one by one.

    IndexPolicy      how many lists of pairs a query reads: "indexed", "indexed:16", ...; also the empty store
    IndexedStore     an index of every row and head (ops/indexed_recall.py), and a GrowingStore of the newest pairs
    IndexedPairs     what queries see of an index

Up to 65,536 pairs it is an exact store. Then they are sorted into lists of similar keys, and later pairs are added to
these whenever they are a 64th of all. When that happens depends on nothing but the number of pairs: a text read at
once, in parts or token by token leaves the same store. Memories within a window read their newest pairs, exactly.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memory_mosaics.config import Part, PositiveInt, part
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.ops.indexed_recall import READ, Index, OtherPairs, check_unit, default_lists
from memory_mosaics.ops.recall import Sharpness, recall_with_lse
from memory_mosaics.shapes import Float, Int
from memory_mosaics.stores import AnswersWithBounds, GrowingStore, Pairs, PairTimes, Retrieval, Visibility

INDEXED = "indexed"
FIRST, LEAST, SHARE = 65536, 1024, 64  # pairs that are indexed first; later at least so many, or that share of them


@part("index_policy")
class IndexPolicy(Part):
    """Read `read` lists of pairs for each query, of `lists`; by default of more as there are more pairs.

    It is also the empty store: the first tokens added to it make an IndexedStore.
    """

    read: PositiveInt = READ
    lists: PositiveInt | None = None

    @classmethod
    def parse(cls, text: str) -> "IndexPolicy":
        """The policy of "indexed", "indexed:READ" or "indexed:READ:LISTS"."""
        numbers = text.split(":")[1:]
        if len(numbers) > 2 or not all(x.isascii() and x.isdigit() and len(x) < 12 for x in numbers):
            raise UserError(
                f"the store {text!r} may name how many lists a query reads, and of how many: {INDEXED}:16:1000"
            )
        names = ("lists to read", "lists")
        values = [int(x) for x in numbers]
        for name, value in zip(names, values, strict=False):
            check_range(1, 1 << 20, **{f"{name} of a store {INDEXED}": value})
        return cls(**dict(zip(("read", "lists"), values, strict=False)))

    def __str__(self) -> str:
        default = self.lists is None and self.read == READ
        return INDEXED if default else ":".join(str(x) for x in (INDEXED, self.read, self.lists) if x is not None)

    @property
    def kind(self) -> str:
        return INDEXED

    @property
    def tokens_at_once(self) -> int:
        return FIRST

    def add(
        self, keys: Tensor, values: Tensor, mask: Tensor | None, visibility: tuple[Visibility, ...]
    ) -> tuple[Pairs, "IndexedStore"]:
        check_unit(keys.detach().flatten(0, 1).flatten(0, 1) if mask is None else keys.detach()[mask].flatten(0, 1))
        return IndexedStore.empty(self, keys, values, visibility).add(keys, values, mask, visibility)

    def evict(self, retrieval: Retrieval) -> "IndexPolicy":
        return self


class IndexedPairs(NamedTuple):
    """The pairs of an index, and how many lists of them each of `time` queries reads."""

    indexed: Index  # of rows and heads
    read: int
    time: int

    def groups(self, count: int) -> list["IndexedPairs"]:
        """The index of each of `count` groups of heads."""
        fields = zip(*(x.chunk(count, dim=1) for x in self.indexed), strict=True)
        return [self._replace(indexed=Index(*each)) for each in fields]

    def counts(self) -> Float[Tensor, "B 1"]:
        """The number of pairs in each row."""
        return self.indexed.counts[:, 0].sum(dim=-1, keepdim=True).float()

    def answers(self, queries: Tensor, sharpness: Sharpness, newest: Pairs) -> AnswersWithBounds:
        """The answers from these pairs and the newest ones, which are read one by one. They have no gradient."""
        B, T, H, _ = queries.shape
        (seen,), values = newest.seen, newest.values
        options = {"causal_offset": seen.causal_offset, "key_padding_mask": newest.key_padding_mask}
        with torch.no_grad():
            answers, lse = recall_with_lse(queries, newest.keys, values, sharpness, **options)
            value_norm = float(values.norm(dim=-1).amax()) if values.numel() else 0.0
            beta = torch.as_tensor(sharpness, device=queries.device).expand(B, T, H)
            rows = 1 if self.indexed.keys.stride(0) == 0 else B  # rows that continue one state share its index
            given = [x.reshape(rows, B // rows * T, *x.shape[2:]) for x in (queries, beta, answers, lse)]
            found: Any = [
                [self._answer(b, h, value_norm, *(x[b, :, h] for x in given)) for h in range(H)] for b in range(rows)
            ]
        by_head: Any = [[torch.stack(parts, dim=1) for parts in zip(*row, strict=True)] for row in found]
        answers, bounds, guaranteed = (
            torch.stack(x).reshape(B, T, *x[0].shape[1:]) for x in zip(*by_head, strict=True)
        )
        return AnswersWithBounds(answers.to(queries.dtype), bounds, guaranteed)

    def _answer(
        self, row: int, head: int, value_norm: float, queries: Tensor, beta: Tensor, answers: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of one row and head: answers, bounds, and whether they guarantee anything."""
        index = Index(*(x[row, head] for x in self.indexed))
        found = index.answers(queries, beta, read=self.read, others=OtherPairs(answers, lse, value_norm))
        return found.answers, found.bounds, found.guaranteed

    def joined(self, newest: Pairs) -> Pairs:
        """These pairs, in each head in the order of its lists, and the newest ones, with the time of each."""
        keys, values, times = (x.transpose(1, 2) for x in (self.indexed.keys, self.indexed.values, self.indexed.times))
        B, N, H = times.shape
        real = newest.key_padding_mask
        shape, here = (B, newest.keys.shape[1], H), keys.device
        mass = torch.ones(shape, device=here) if real is None else real[..., None].expand(shape).float()
        later = N + torch.arange(shape[1], device=here)[:, None].expand(shape)
        stored = PairTimes(
            torch.cat([times, later], dim=1),
            torch.cat([(times >= 0).float(), mass], dim=1),
            N + torch.arange(self.time, device=here).expand(B, -1),
        )
        keys, values = torch.cat([keys, newest.keys], dim=1), torch.cat([values, newest.values], dim=1)
        return Pairs(keys, values, None, newest.seen, stored)


class IndexedStore(NamedTuple):
    """An index of the older pairs of each row and head, and the newest pairs in the order of time.

    The newest `recent` pairs are those that some head is not to see yet, or sees within a window.
    """

    policy: IndexPolicy
    indexed: Index | None
    newest: GrowingStore
    recent: Int[Tensor, " B"]

    @classmethod
    def empty(
        cls, policy: IndexPolicy, keys: Tensor, values: Tensor, visibility: Sequence[Visibility]
    ) -> "IndexedStore":
        """A store for keys and values of this form."""
        if keys.device.type == "mps":
            raise UserError("an index needs float64, which mps does not have; use --device cpu")
        newest = GrowingStore(keys[:, :0], values[:, :0], keys.new_ones(len(keys), 0, dtype=torch.bool))
        recent = max(each.delay + (each.window or 0) for each in visibility)
        return cls(policy, None, newest, torch.full((len(keys),), recent, device=keys.device))

    @property
    def num_indexed(self) -> int:
        """The number of pairs in the index, in each row and head."""
        return 0 if self.indexed is None else self.indexed.keys.shape[2]

    @property
    def complete(self) -> int:
        """The number of pairs whose value has come."""
        return self.num_indexed + self.newest.values.shape[1]

    @property
    def limit(self) -> int:
        """With how many of the newest pairs they move into the index."""
        return (max(LEAST, self.num_indexed // SHARE) if self.num_indexed else FIRST) + int(self.recent[0])

    @property
    def tokens_at_once(self) -> int:
        return max(1, self.limit - self.newest.values.shape[1])

    def add(
        self, keys: Tensor, values: Tensor, mask: Tensor | None, visibility: tuple[Visibility, ...]
    ) -> tuple[Pairs, "IndexedStore"]:
        """Store more tokens; return the pairs as these tokens see them, and the new store."""
        store = self._replace(newest=self.newest.append(keys, values, mask))
        return store.pairs(keys.shape[1], visibility), store

    def pairs(self, time: int, visibility: tuple[Visibility, ...]) -> Pairs:
        """As the last `time` tokens see them."""
        pairs = self.newest.pairs(time, visibility)
        if self.indexed is None or all(each.window is not None for each in visibility):
            return pairs
        return pairs._replace(indexed=IndexedPairs(self.indexed, self.policy.read, time))

    def evict(self, retrieval: Retrieval) -> "IndexedStore":
        """The store once these queries have been answered: nothing is lost, pairs may move into the index."""
        return self if self.newest.values.shape[1] < self.limit else self.indexing()

    def indexing(self) -> "IndexedStore":
        """The store with all its pairs in the index, but the recent ones."""
        move, old = self.newest.values.shape[1] - int(self.recent[0]), self.num_indexed
        if move <= 0:
            return self
        lists = self.policy.lists or default_lists(old + move)
        keys, values, mask = self.newest
        times = (old + torch.arange(move, device=keys.device)).expand(len(keys), -1)
        times = times if mask.shape[1] == 0 else torch.where(mask[:, :move], times, -1 - times)
        rows: list[Any] = []
        for b in range(len(keys)):
            for h in range(keys.shape[2]):
                new = keys[b, :move, h], values[b, :move, h], times[b]
                if self.indexed is None:
                    rows.append(Index.build(*new, lists=lists))
                else:
                    rows.append(Index(*(x[b, h] for x in self.indexed)).extended(*new, lists=lists))
        fields = [[row[number] for row in rows] for number in range(len(Index._fields))]
        stacked = (torch.stack(x) if len(x) > 1 else x[0][None] for x in fields)  # a single one is not copied
        index = Index(*(x.unflatten(0, keys.shape[:3:2]) for x in stacked))
        newest = GrowingStore(*(x[:, move:].clone() for x in self.newest))  # a view would keep all of them
        return self._replace(indexed=index, newest=newest)

    def exact(self) -> GrowingStore:
        """All pairs in the order of time."""
        if self.indexed is None:
            return self.newest
        times = self.indexed.times
        order = torch.where(times < 0, -1 - times, times).argsort(dim=2)
        keys, values = (
            x.gather(2, order[..., None].expand_as(x)).transpose(1, 2) for x in (self.indexed.keys, self.indexed.values)
        )
        mask = times[:, 0].gather(1, order[:, 0]) >= 0
        padded = self.newest.key_padding_mask.shape[1] > 0 or not mask.all()
        real = [mask, self.newest.key_padding_mask if padded else mask[:, :0]]
        keys, values = torch.cat([keys, self.newest.keys], dim=1), torch.cat([values, self.newest.values], dim=1)
        return GrowingStore(keys, values, torch.cat(real, dim=1) if padded else mask[:, :0])

    @property
    def keys(self) -> Float[Tensor, "B N H D"]:
        return self.exact().keys

    @property
    def values(self) -> Float[Tensor, "B M H V"]:
        return self.exact().values

    @classmethod
    def of(
        cls, policy: IndexPolicy, store: "GrowingStore | IndexedStore", visibility: Sequence[Visibility]
    ) -> "IndexedStore":
        """The pairs of another store in one of this policy."""
        store = store.exact() if isinstance(store, IndexedStore) else store
        return cls.empty(policy, store.keys, store.values, visibility).holding(store)

    def holding(self, pairs: GrowingStore) -> "IndexedStore":
        """A store of the same kind with these pairs."""
        store = self._replace(indexed=None, newest=pairs)
        return store.indexing() if store.newest.values.shape[1] >= store.limit else store

    def extend(self, keys: Tensor, values: Tensor) -> "IndexedStore":
        """Store pairs that every later query sees: any number of them at once."""
        store = self._replace(newest=self.newest.append(keys, values, None))
        return store.indexing() if store.newest.values.shape[1] >= store.limit else store

    def union(self, later: "IndexedStore") -> "IndexedStore":
        """The pairs of both, those of `later` as if stored after those of this one."""
        return self.holding(self.exact().union(later.exact()))


torch.serialization.add_safe_globals([IndexedStore, IndexPolicy, Index])
