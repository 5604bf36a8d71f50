"""Parallel scans: all prefixes of an associative product along time, in log2(T) levels."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.shapes import Float

Elements = Sequence[Tensor]


def bucket_length(count: int) -> int:
    """The length to pad a sequence of `count` elements to: under torch.compile the next of 1, 2, 3, 4, 6, 8, 12, ...

    A dynamic length compiles to slow code, and every new static one is compiled again.
    """
    if not torch.compiler.is_compiling():
        return count
    length = 1
    while length < count:
        length += length // 3 if length % 3 == 0 else (length + 1) // 2
    return length


def split_chunks(size: int, *tensors: Float[Tensor, "_ T H _"]) -> list[Tensor]:
    """Split time into chunks of `size` steps, padded with zeros: (B, N, C, H, _)."""
    T = tensors[0].shape[1]
    missing = bucket_length(-(-T // size)) * size - T
    return [F.pad(x, (0, 0, 0, 0, 0, missing)).unflatten(1, (-1, size)) for x in tensors]


def scan(combine: Callable[[Elements, Elements], Elements], elements: Elements) -> Elements:
    """x_0, x_0 * x_1, x_0 * x_1 * x_2, ... along axis 1, for an associative product `combine` of tuples of tensors."""
    T = elements[0].shape[1]
    missing = bucket_length(T) - T
    if missing == 0:
        return _scan(combine, elements)
    padded = [F.pad(x, [0, 0] * (x.ndim - 2) + [0, missing]) for x in elements]
    return [x[:, :T] for x in _scan(combine, padded)]


def _scan(combine: Callable[[Elements, Elements], Elements], elements: Elements) -> Elements:
    """Combine neighbours in pairs, scan half as many, and get every second prefix by one more product."""
    T = elements[0].shape[1]
    if T < 2:
        return elements
    pairs = combine([x[:, 0 : T - 1 : 2] for x in elements], [x[:, 1::2] for x in elements])
    odd, half = _scan(combine, pairs), (T - 1) // 2  # prefixes at 1, 3, 5, ...
    even = combine([x[:, :half] for x in odd], [x[:, 2::2] for x in elements])  # and at 2, 4, ...
    return [
        torch.cat([x[:, :1], torch.stack([a[:, :half], b], dim=2).flatten(1, 2), a[:, half:]], dim=1)
        for x, a, b in zip(elements, odd, even, strict=True)
    ]


def reference(
    a: Float[Tensor, "B T H _"], b: Float[Tensor, "B T H D"], h: Float[Tensor, "B H D"]
) -> Float[Tensor, "B T H D"]:
    """The definition of `recurrence`, one step at a time."""
    states = []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        h = a_t * h + b_t
        states.append(h)
    return torch.stack(states, dim=1)


def recurrence(
    a: Float[Tensor, "B T H _"], b: Float[Tensor, "B T H D"], h: Float[Tensor, "B H D"]
) -> Float[Tensor, "B T H D"]:
    """h_t = a_t h_{t-1} + b_t at every time, in a logarithmic number of operations.

    Two steps in a row are one such step, h_{t+1} = a_{t+1} a_t h_{t-1} + (a_{t+1} b_t + b_{t+1}): every second h is the
    same problem of half the length, and the others follow. There is no division, so nothing overflows.
    """
    time = a.shape[1]
    if time == 1:
        return torch.addcmul(b, a, h[:, None])
    if time % 2:
        a, b = F.pad(a, (0, 0, 0, 0, 0, 1)), F.pad(b, (0, 0, 0, 0, 0, 1))
    (a_0, a_1), (b_0, b_1) = (z.unflatten(1, (-1, 2)).unbind(2) for z in (a, b))
    second = recurrence(a_0 * a_1, torch.addcmul(b_1, a_1, b_0), h)
    first = torch.addcmul(b_0, a_0, torch.cat([h[:, None], second[:, :-1]], dim=1))
    return torch.stack([first, second], dim=2).flatten(1, 2)[:, :time]
