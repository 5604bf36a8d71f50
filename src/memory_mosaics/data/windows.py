"""Windows of a token file: the batch of any step is a pure function of (seed, step), whoever asks for which rows.

An epoch tiles the tokens with windows of one length, from an offset and in an order drawn for that epoch: each token is
trained on once an epoch, each time at another place of a window. Nothing has to be remembered to go on at any step, and
the rows of a batch can be dealt to any number of processes.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from memory_mosaics.data.batches import Batch
from memory_mosaics.errors import UserError


@runtime_checkable
class Tokens(Protocol):
    """An array of ids, or a file of them."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> np.ndarray: ...


class Windows:
    """`length` tokens and what follows each of them, out of a long row of tokens. T is that length."""

    def __init__(self, tokens: Tokens, length: int, *, seed: int = 0, name: str = "the corpus"):
        self.tokens, self.length, self.seed = tokens, length, seed
        if len(tokens) <= length:
            raise UserError(
                f"{name} has {len(tokens):,} tokens, and a window of {length} wants at least {length + 1:,}; "
                f"take more text or a shorter context"
            )
        self.in_epoch = max(1, (len(tokens) - length) // length)  # at any offset
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def batch(self, step: int, size: int, rows: slice = slice(None)) -> Batch:
        """Some `rows` of the `size` windows of one step."""
        numbers = range(step * size, (step + 1) * size)[rows]
        return self._at([self._start(number) for number in numbers])

    def in_order(self, numbers: Iterable[int]) -> Batch:
        """Windows by number, one after the other from the beginning: `in_file` of them predict every token once."""
        return self._at([number * self.length for number in numbers])

    @property
    def in_file(self) -> int:
        return (len(self.tokens) - 1) // self.length

    def _start(self, number: int) -> int:
        epoch, place = divmod(number, self.in_epoch)
        offset, order = self._epoch(epoch)
        return offset + int(order[place]) * self.length

    def _draw_epoch(self, epoch: int) -> tuple[int, np.ndarray]:
        random = np.random.default_rng([self.seed, epoch])
        offsets = min(self.length, len(self.tokens) - self.in_epoch * self.length)
        return int(random.integers(offsets)), random.permutation(self.in_epoch)

    def _at(self, starts: list[int]) -> Batch:
        rows = np.stack([self.tokens[start : start + self.length + 1] for start in starts])
        rows = torch.from_numpy(rows.astype(np.int64))
        return Batch(rows[:, :-1], rows[:, 1:], torch.ones_like(rows[:, 1:], dtype=torch.bool))


def openings(tokens: Tokens, end: int, *, count: int, length: int = 12) -> list[torch.Tensor]:
    """How the first documents begin: at the first token, and after each `end`."""
    tokens = np.asarray(tokens[:1_000_000], dtype=np.int64)
    starts = [0, *np.flatnonzero(tokens[: len(tokens) - length] == end) + 1]
    rows = (tokens[start : start + length] for start in starts if tokens[start] != end)
    found = (row[: np.argmax(row == end)] if (row == end).any() else row for row in rows)
    return [torch.from_numpy(row.copy()) for row in islice(found, count)]
