"""What a layer has stored of what it read: a state that grows with every call, or one with room set aside.

    growing      keys (B, N, H, D), values (B, M, H, V), key_padding_mask (B, N), or (B, 0) while no padding has come
    with room    keys (B, C, H, D), values (B, C, H, V), key_padding_mask (B, C), count (B,)

A growing state takes any number of tokens at a time. One with room for C pairs takes one token at a time and writes it
in place: no tensor moves and no shape changes, so that a step can be captured once and replayed (decoding.py).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.ops.contextual_recall import contextual_recall
from memory_mosaics.ops.recall import Sharpness, recall
from memory_mosaics.shapes import Bool, Float, Int

State = tuple[Tensor, ...]


class Pairs(NamedTuple):
    """Stored pairs, and which of them a query sees, as `recall` wants it said."""

    keys: Float[Tensor, "B N H D"]
    values: Float[Tensor, "B N H V"]
    causal_offset: int | None = None
    key_padding_mask: Bool[Tensor, "B N"] | None = None
    lengths: Int[Tensor, " B"] | None = None


class Retrieval(NamedTuple):
    """What a layer asks of its memories: queries, one a head and time, the pairs to answer from, and beta.

    They are its `own` if the keys of the pairs are the queries, from the first on, and beta is 1.
    """

    queries: Float[Tensor, "B T H D"]
    pairs: Pairs
    sharpness: Sharpness
    queries_are_keys: bool = False

    def answer(self, dropout: float = 0.0) -> Float[Tensor, "B T H V"]:
        """What the memories say. `dropout` forgets that share of the retrieval weights."""
        keys, values, causal_offset, key_padding_mask, lengths = self.pairs
        if self.queries_are_keys and not dropout:
            return contextual_recall(self.queries, values)
        return recall(
            self.queries,
            keys,
            values,
            self.sharpness,
            causal_offset=causal_offset,
            key_padding_mask=key_padding_mask,
            lengths=lengths,
            dropout=dropout,
        )

    def weights(self, times: Sequence[int] | None = None) -> Float[Tensor, "B H t N"]:
        """The softmax weights behind the answers at all times, or at some (below zero: from the end).

        In float32 at least. They add up to one over the pairs that a query sees and are zero elsewhere, everywhere for
        an empty memory.
        """
        queries, (keys, _, causal_offset, key_padding_mask, lengths), sharpness, _ = self
        chosen = list(range(queries.shape[1])) if times is None else [range(queries.shape[1])[time] for time in times]
        queries, keys = at_least_fp32(queries[:, chosen]), at_least_fp32(keys)
        if isinstance(sharpness, Tensor):
            sharpness = (sharpness[..., chosen, :] if sharpness.ndim > 1 else sharpness)[..., None]
        scores = torch.einsum("bthd,bnhd->bhtn", sharpness * queries, keys)
        pair = torch.arange(keys.shape[1], device=keys.device)
        time = torch.tensor(chosen, dtype=torch.long, device=keys.device)[:, None]
        visible = (pair >= 0 * time if causal_offset is None else pair < causal_offset + time)[
            None, None
        ]  # (1, 1, t, N)
        if key_padding_mask is not None:
            visible = visible & key_padding_mask[:, None, None]
        if lengths is not None:
            visible = visible & (pair < lengths[:, None])[:, None, None]
        return scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(dim=-1) * visible


def append(
    stored: State | None,
    keys: Float[Tensor, "B T H D"],
    values: Float[Tensor, "B M H V"],
    mask: Bool[Tensor, "B T"] | None,
    *,
    peek: int,
) -> tuple[Pairs, State]:
    """The pairs stored earlier followed by the new, and the state that holds them.

    A value that depends on the next `peek` inputs completes a pair so much later: there are fewer values than keys.
    """
    if stored is not None and len(stored) == 4:
        return _fill(stored, keys, values, mask, peek)
    time = keys.shape[1]
    keys, values, key_padding_mask = stored = _append(stored, keys, values, mask)
    pairs = values.shape[1]
    seen = key_padding_mask[:, :pairs] if key_padding_mask.shape[1] > 0 else None
    return Pairs(keys[:, :pairs], values, keys.shape[1] - time + 1 - peek, seen), stored


def _append(
    stored: State | None, keys: Tensor, values: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Bool[Tensor, "B _"]]:
    if stored is None:
        key_padding_mask = keys.new_ones(len(keys), 0, dtype=torch.bool) if mask is None else mask
        # A compiled graph must not return views of its own: torch 2.13 restores their shapes wrongly from its cache.
        return (
            (keys.clone(), values.clone(), key_padding_mask)
            if torch.compiler.is_compiling()
            else (keys, values, key_padding_mask)
        )
    old_keys, old_values, key_padding_mask = stored
    if mask is not None or key_padding_mask.shape[1] > 0:
        old_real = key_padding_mask if key_padding_mask.shape[1] > 0 else key_padding_mask.new_ones(old_keys.shape[:2])
        key_padding_mask = torch.cat(
            [old_real, key_padding_mask.new_ones(keys.shape[:2]) if mask is None else mask], dim=1
        )
    return torch.cat([old_keys, keys], dim=1), torch.cat([old_values, values], dim=1), key_padding_mask


def _fill(stored: State, keys: Tensor, values: Tensor, mask: Tensor | None, peek: int) -> tuple[Pairs, State]:
    """One more token of every row, in place. The first `peek` tokens of a text complete no value."""
    if keys.shape[1] != 1:
        raise ValueError(f"a state with room takes one token at a time, not {keys.shape[1]}")
    all_keys, all_values, key_padding_mask, count = stored
    row = torch.arange(len(count), device=count.device)
    all_keys[row, count] = keys[:, 0].to(all_keys.dtype)
    if values.shape[1] > 0:
        all_values[row, count - peek] = values[:, 0].to(all_values.dtype)
    if mask is not None:
        key_padding_mask[row, count] = mask[:, 0]
    now = count + 1
    complete = count if peek == 1 else now - peek if peek else now  # no more tensors than it takes
    complete = complete if values.shape[1] > 0 else torch.zeros_like(count)
    return Pairs(all_keys, all_values, None, key_padding_mask, complete), (all_keys, all_values, key_padding_mask, now)


def to_fixed_capacity(stored: State, capacity: int) -> State:
    """The same pairs in room for `capacity` of them: from a state that has grown, or one whose room is used up."""
    keys, values, key_padding_mask = stored[:3]
    if keys.shape[1] > capacity:
        raise ValueError(f"{keys.shape[1]} pairs do not fit into room for {capacity}")
    count = stored[3] if len(stored) == 4 else torch.full((len(keys),), keys.shape[1], device=keys.device)
    keys, values = (F.pad(x, (0, 0, 0, 0, 0, capacity - x.shape[1])) for x in (keys, values))
    return keys, values, F.pad(key_padding_mask, (0, capacity - key_padding_mask.shape[1]), value=True), count


def stored_length(stored: State | None) -> int | Tensor:
    """How many tokens have been stored: a number, or one for each row where there is room."""
    if stored is None:
        return 0
    return stored[3] if len(stored) == 4 else stored[0].shape[1]
