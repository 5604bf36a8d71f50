"""Several documents in one row, read apart: `starts` is True at the first token of each.

A mixer knows nothing of documents. `read_documents` gives each a row of its own and puts the outputs back:

    row           a a a b b b b b b b b c d d     starts at the first a, b, c, d
    batches       a a a    b b b b b b b b        rows of similar lengths, so that little is padding
                  c . .
                  d d .

No mixer needs a second form, none can see another document, and what holds for a row alone holds for a document:
learned positions count from its start, and limit its length, not that of the row. What it costs is padding, since the
rows of a batch differ in length by up to a factor of two, and shapes that differ from step to step.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.shapes import Bool, Int
from memory_mosaics.stores import Inputs, Mask, Outputs, State, map_state, state_tensors

SHORT = 16  # tokens: documents up to this length are one batch, and the next up to 32, 64, ...


def read_documents(
    mixer: Callable[..., Outputs],
    x: Inputs,
    state: State | None = None,
    mask: Mask = None,
    *,
    starts: Bool[Tensor, "B T"],
    keep_state: bool = True,
    by_length: bool = True,
) -> Outputs:
    """Return `mixer(x, state, mask)`, where the mixer begins with an empty state at every start.

    Before its first start a row continues from `state`. The new state is that of the last document of each row; without
    `keep_state` it is (), and costs nothing. If `by_length` is False all documents are one batch, so that the mixer is
    called equally often whatever their lengths.
    """
    device = x.device
    starts = starts.cpu()  # shapes depend on it
    if not (starts[:, 1:] if state is None else starts).any():
        return mixer(x, state, mask)
    if state is None:
        starts = F.pad(starts[:, 1:], (1, 0), value=True)
    flat, flat_mask, after = x.flatten(0, 1), None if mask is None else mask.flatten(), None
    outputs, numbers, computed = [], [], []  # numbers of tokens, row after row of x, and which outputs are theirs
    if state is not None:
        there = starts.int().cumsum(dim=1) == 0
        y, after = mixer(x, state, there.to(device) if mask is None else mask & there.to(device))
        outputs.append(y.flatten(0, 1))
        numbers.append(there.flatten().nonzero().flatten())
        computed.append(there.flatten())
    for first, lengths in _batches(starts, by_length=by_length):
        step = torch.arange(int(lengths.max()))
        there = step < lengths[:, None]
        index = (first[:, None] + step).clamp(max=starts.numel() - 1)  # what follows a document changes nothing in it
        mine = index.to(device)
        real = None if flat_mask is None else flat_mask[mine] & there.to(device)
        outputs.append(mixer(flat[mine], None, real)[0].flatten(0, 1))
        numbers.append(index[there])
        computed.append(there.flatten())
    source = torch.empty(starts.numel(), dtype=torch.long)
    source[torch.cat(numbers)] = torch.cat(computed).nonzero().flatten()
    y = torch.cat(outputs)[source.to(device)].unflatten(0, starts.shape)
    return y, _last_state(mixer, x, state, after, mask, starts) if keep_state else ()


def _batches(starts: Bool[Tensor, "B T"], *, by_length: bool) -> list[tuple[Int[Tensor, " D"], Int[Tensor, " D"]]]:
    """The number of the first token of each document, and its length, for documents of similar lengths together."""
    first, time = starts.flatten().nonzero().flatten(), starts.shape[1]
    end_of_row = (first // time + 1) * time
    lengths = torch.minimum(F.pad(first[1:], (0, 1), value=starts.numel()), end_of_row) - first
    kind = lengths.clamp(min=SHORT).log2().ceil() if by_length else torch.zeros_like(lengths)
    return [(first[kind == one], lengths[kind == one]) for one in kind.unique()]


def _last_state(
    mixer: Callable[..., Outputs],
    x: Inputs,
    before: State | None,
    after: State | None,
    mask: Mask,
    starts: Bool[Tensor, "B T"],
) -> State:
    """The state of the last document of each row, read once more behind padding.

    Rows without a start have that `after` x. Those beside them then begin in a state that is empty, but no smaller.
    """
    time, goes_on = starts.shape[1], ~starts.any(dim=1)
    first = (time - 1 - starts.flip(1).int().argmax(dim=1)).masked_fill(goes_on, time)
    begin, empty = int(first.min()), None
    if after is not None and goes_on.any():
        begin, empty = 0, _forget(mixer, x, before)
    there = (torch.arange(begin, time) >= first[:, None]).to(x.device)
    real = there if mask is None else mask[:, begin:] & there
    state = mixer(x[:, begin:], empty, None if bool(real.all()) else real)[1]
    if empty is None:
        return state
    rows = goes_on.to(x.device)
    return map_state(lambda one, other: one.where(rows.view(-1, *(1,) * (one.ndim - 1)), other), after, state)


def _forget(mixer: Callable[..., Outputs], x: Inputs, state: State | None) -> State:
    """An empty state of the shapes of this one: all that it stores is padding."""
    nothing = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    empty = mixer(x, None, nothing)[1]
    if len(list(state_tensors(empty))) != len(list(state_tensors(state))):
        raise ValueError("documents cannot start in some rows of a state of fixed capacity; start them in all")
    like = mixer(x[:, :0], state, nothing[:, :0])[1]  # with a mask, if it has none
    return map_state(_fit, like, empty)


def _fit(like: Tensor, empty: Tensor) -> Tensor:
    """As many steps, where a state grows with time."""
    if like.ndim < 2:
        return empty
    return F.pad(empty, (0, 0) * (like.ndim - 2) + (like.shape[1] - empty.shape[1], 0))
