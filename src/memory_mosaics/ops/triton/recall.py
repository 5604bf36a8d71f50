"""Recall by few queries, as in a step of decoding:  y_t = softmax_i(sharpness q_t . k_i) v_i  over the visible pairs.

`recall_few` is the op; ops/recall.py has the definition. Few queries leave most of a GPU idle, were each head one
program: so the pairs of a head are split among several, and a second kernel merges what they found. Everything that
decides about a launch is a shape: a step can be recorded as a CUDA graph and goes on to be right as the memory fills.
"""

# pyright: reportIndexIssue=false, reportCallIssue=false, reportArgumentType=false
from typing import Any

import torch
from torch import Tensor

from memory_mosaics.ops.triton.leaky_average import multiprocessors, packed, runs_kernels
from memory_mosaics.shapes import Bool, Float, Int

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
WIDEST = 256  # of a key or value; any width up to it
EMPTY = -1e30  # a score that no pair can have; finite, so that an empty memory has gradients too
FEW = 64  # queries that one program answers, at most
BLOCK = 2**14  # bytes of keys and values taken together, or half of that where there is but one query


def recall_few(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B N H D"],
    values: Float[Tensor, "B N H V"],
    sharpness: Float[Tensor, " H"] | None = None,
    real: Bool[Tensor, "B N"] | None = None,
    count: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "B T H V"]:
    """Answer every query from the pairs that are `real`; without gradients. Made for at most FEW queries a row.

    With `count` no pair beyond the first so many is visible, and what lies there is never read: cheaper than `real`
    alone, and the programs share out what is there, not the room. A value that is not real must still be finite.
    """
    sharpness = None if sharpness is None else sharpness.float()
    return torch.ops.memory_mosaics.recall_few(queries, keys, values, sharpness, real, count)


def launch(T: int, D: int, V: int, size: int) -> dict[str, int]:
    """Tiles of a program: as large as stay in the registers (found by compiling for sm_90), with loads of 16 bytes."""
    WD, WV = (max(16, _power_of_two(width)) for width in (D, V))
    row = max(WD, WV) * size
    tile = 1 if T == 1 else min(max(16, _power_of_two(T)), FEW if row < 1024 else 16)
    block = min(64, max(16, (BLOCK // 2 if T == 1 else BLOCK) // (2 * row)))
    options = dict(num_warps=8, num_stages=2) if row >= 512 and T > 1 else dict(num_warps=4, num_stages=3)
    return dict(WD=WD, WV=WV, TILE=tile, BLOCK=block, **options)


def splits(programs: int, N: int, tile: int, block: int, device: torch.device) -> int:
    """Into how many the pairs of each head are split: so that each multiprocessor has a few programs to work on.

    The more queries, the more there is to write and to merge for each split, and the fewer of them.
    """
    resident = min(8, max(2, 64 // tile))
    return max(1, min(-(-resident * multiprocessors(device) // programs), -(-N // block)))


def forward_kernels(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    sharpness: Tensor | None,
    real: Tensor | None,
    count: Tensor | None,
    S: int | None = None,
    **options: Any,
) -> Tensor:
    """Answers. The number of splits `S` and `options` of the launch are for measurements."""
    from memory_mosaics.ops.triton import recall_kernels as kernels

    queries, keys, values = packed(queries), packed(keys), packed(values)
    sharpness, count = (None if given is None else given.contiguous() for given in (sharpness, count))
    (B, T, H, D), (N, V) = queries.shape, (values.shape[1], values.shape[-1])
    options = launch(T, D, V, keys.element_size()) | options
    tiles = -(-T // options["TILE"])
    S = splits(B * H * tiles, N, options["TILE"], options["BLOCK"], keys.device) if S is None else S
    y = torch.empty(B, T, H, V, dtype=queries.dtype, device=queries.device)
    parts, lse = y, None
    if S > 1:
        parts = torch.empty(B, H, S, T, V, dtype=torch.float32, device=queries.device)
        lse = torch.empty(B, H, S, T, dtype=torch.float32, device=queries.device)
    strides = [stride for x in (queries, keys, values) for stride in x.stride()[:3]]
    strides += (0, 0) if real is None else real.stride()
    marks = None if real is None else real.view(torch.uint8)
    kernels.recall_answer[(B * H, S, tiles)](
        queries, keys, values, sharpness, marks, count, parts, lse, *strides, T, N, H, S, D=D, V=V,
        HAS_SHARPNESS=sharpness is not None, HAS_REAL=real is not None, HAS_COUNT=count is not None, SPLIT=S > 1,
        **options,
    )  # fmt: skip
    if S > 1:
        together = min(_power_of_two(S), 2**12 // options["WV"])
        sizes = dict(V=V, WV=options["WV"], BLOCK=options["BLOCK"], PARTS=together)
        kernels.recall_merge[(B * H, T)](parts, lse, count, y, T, N, H, S, HAS_COUNT=count is not None, **sizes)
    return y


def _power_of_two(size: int) -> int:
    """The next one."""
    return 1 << (size - 1).bit_length()


SCHEMA = "(Tensor queries, Tensor keys, Tensor values, Tensor? sharpness, Tensor? real, Tensor? count) -> Tensor"


@torch.library.custom_op("memory_mosaics::recall_few", mutates_args=(), schema=SCHEMA)
def _forward(queries, keys, values, sharpness, real, count):
    if runs_kernels(queries) and queries.numel() and values.numel():
        _check(queries, keys, values)
        return forward_kernels(queries, keys, values, sharpness, real, count)
    return in_torch(queries, keys, values, sharpness, real, count)


@_forward.register_fake
def _(queries, keys, values, sharpness, real, count):
    return queries.new_empty(*queries.shape[:3], values.shape[-1])


def _check(queries: Tensor, keys: Tensor, values: Tensor) -> None:
    dtypes = [x.dtype for x in (queries, keys, values)]
    if len(set(dtypes)) > 1 or dtypes[0] not in DTYPES:
        raise ValueError(f"the kernel takes queries, keys and values of one dtype out of {DTYPES}; got {dtypes}")
    if max(keys.shape[-1], values.shape[-1]) > WIDEST:
        raise ValueError(f"the kernel takes heads of width up to {WIDEST}; got {keys.shape[-1]}, {values.shape[-1]}")


def in_torch(
    queries: Tensor, keys: Tensor, values: Tensor, sharpness: Tensor | None, real: Tensor | None, count: Tensor | None
) -> Tensor:
    """All scores at once, for devices without Triton."""
    dtype = torch.promote_types(queries.dtype, torch.float32)
    scores = torch.einsum("bthd,bnhd->bhtn", queries.to(dtype), keys.to(dtype))
    scores = scores if sharpness is None else scores * sharpness[:, None, None]
    seen = _visible(keys, real, count)[:, None, None]  # (B, 1, 1, N)
    weights = scores.masked_fill(~seen, EMPTY).softmax(dim=-1) * seen
    return torch.einsum("bhtn,bnhv->bthv", weights, values.to(dtype)).to(queries.dtype).contiguous()


def _visible(keys: Tensor, real: Tensor | None, count: Tensor | None) -> Bool[Tensor, "B N"]:
    seen = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device) if real is None else real
    return seen if count is None else seen & (torch.arange(keys.shape[1], device=keys.device) < count[:, None])
