"""Changes to what memories hold: switched off, pairs removed, pairs written anew."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from memory_mosaics.ops.recall import recall
from memory_mosaics.shapes import Float
from memory_mosaics.stores import Pairs, Retrieval

Layer = tuple[int, str]  # a block and "sequence" or "channel"


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One change to one memory: switched off (no place), a pair removed (no token), or a pair written anew.

    Written anew, it has the value that it would have had if the text had gone on with `token`.
    """

    block: int
    kind: str
    head: int
    place: int | None = None
    token: int | None = None

    @property
    def layer(self) -> Layer:
        return self.block, self.kind


@dataclass
class Changes:
    """The edits of one layer, as its retrievals need them."""

    off: list[int] = field(default_factory=list)
    removed: list[tuple[int, int]] = field(default_factory=list)  # heads and places
    written: list[tuple[int, int, Tensor]] = field(default_factory=list)  # heads, places, values


def by_head(retrieval: Retrieval, changes: Changes | None = None) -> Retrieval:
    """The same retrieval with every head of every memory a row of its own, so that each may see other pairs."""
    queries, (keys, values, causal_offset, _, _), sharpness, _ = retrieval
    memories, time, heads, _ = queries.shape
    if changes and changes.written:
        values = values.clone()
        for head, place, value in changes.written:
            if place < values.shape[1]:
                values[0, place, head] = value.to(values.dtype)
    key_padding_mask = None
    if changes and changes.removed:
        key_padding_mask = torch.ones(memories, heads, keys.shape[1], dtype=torch.bool, device=keys.device)
        for head, place in changes.removed:
            if place < memories * keys.shape[1]:
                key_padding_mask[place // keys.shape[1], head, place % keys.shape[1]] = False
        key_padding_mask = key_padding_mask.flatten(0, 1)
    beta = torch.as_tensor(sharpness, device=queries.device).expand(memories, time, heads)
    rows = [
        x.transpose(1, 2).flatten(0, 1)[:, :, None] for x in (queries, keys, values)
    ]  # (memories * H, T or N, 1, D)
    return Retrieval(
        rows[0],
        Pairs(rows[1], rows[2], causal_offset, key_padding_mask),
        beta.transpose(1, 2).flatten(0, 1)[:, :, None],
    )


class Edited:
    """A retrieval whose answer heeds changes: stands in for a Retrieval where a layer answers."""

    def __init__(self, retrieval: Retrieval, changes: Changes):
        self.retrieval, self.changes = retrieval, changes

    def answer(self, dropout: float = 0.0) -> Float[Tensor, "B T H V"]:
        queries, (keys, values, causal_offset, key_padding_mask, _), sharpness, _ = by_head(
            self.retrieval, self.changes
        )
        answers = recall(
            queries, keys, values, sharpness, causal_offset=causal_offset, key_padding_mask=key_padding_mask
        )
        answers = answers[:, :, 0].unflatten(0, (len(self.retrieval.queries), -1)).transpose(1, 2).contiguous()
        answers[:, :, self.changes.off] = 0
        return answers
