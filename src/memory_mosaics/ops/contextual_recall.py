"""Recall by a memory that starts empty and asks with the keys that it stores, equation 7 of the paper:

    y_t = sum_{s<t} exp(k_t . k_s) v_s / sum_{s<t} exp(k_t . k_s)

A stock kernel has to be given queries a step ahead of the pairs and an answer of zero before the first; and it returns
two gradients for what is one tensor of keys. In the Triton form nothing is shifted, and the gradients of a key as a
query and as a key are added where they are computed.
"""

# pyright: reportInvalidTypeForm=false
from functools import partial

import torch
from torch import Tensor

from memory_mosaics.ops.common import can_use_triton, contiguous_rows, custom_op, tl, triton
from memory_mosaics.ops.recall import recall
from memory_mosaics.ops.recall import reference as recall_reference
from memory_mosaics.shapes import Float

HALF = (torch.bfloat16, torch.float16)
LONGEST = {16: 2**20, 32: 2**20, 64: 4096}  # tokens by the width of a head; cuDNN is faster with more of them
TILE = 64
FORWARD = dict(M=TILE, N=64, num_warps=4, num_stages=2)
QUERIES = dict(M=TILE, N=32, num_warps=4, num_stages=3)
PAIRS = dict(M=TILE, N=TILE, num_warps=4, num_stages=3)


def reference(keys: Float[Tensor, "B T H D"], values: Float[Tensor, "B M H V"]) -> Float[Tensor, "B T H V"]:
    """The definition, query by query in float32."""
    pairs = values.shape[1]
    return recall_reference(keys, keys[:, :pairs], values, causal_offset=1 + pairs - keys.shape[1])[0].to(keys.dtype)


def contextual_recall(keys: Float[Tensor, "B T H D"], values: Float[Tensor, "B M H V"]) -> Float[Tensor, "B T H V"]:
    """What each key recalls of the pairs before it; the last keys, T - M of them, have no value yet."""
    if _fits(keys, values) and can_use_triton(keys, values, dtypes=HALF):
        return _contextual_recall(keys, values)[0]
    pairs = values.shape[1]
    return recall(keys, keys[:, :pairs], values, causal_offset=1 + pairs - keys.shape[1])


def _fits(keys: Tensor, values: Tensor) -> bool:
    """Whether the kernels are made for such shapes, and faster than any other."""
    B, T, H, D = keys.shape
    shapes = keys[:, 1:].shape == values.shape and 1 < T <= LONGEST.get(D, 0)
    return (
        shapes and B * H < 2**16 and max(map(_span, (keys, values))) < 2**31
    )  # rows of a grid; 32-bit steps of a head


def _span(x: Tensor) -> int:
    """Numbers that lie between the first and the last step of a head, here and in a copy without gaps."""
    return x.shape[1] * max(x.stride(1), x.shape[2] * x.shape[3])


def _forward(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Answers and the logarithms of their total weights, to base 2."""
    keys, values = contiguous_rows(keys, values)
    B, T, H, D = keys.shape
    answers = torch.empty(B, T, H, D, dtype=keys.dtype, device=keys.device)
    lse = torch.empty(B, H, T, dtype=torch.float32, device=keys.device)
    contextual_forward[(-(-T // FORWARD["M"]), B * H)](
        keys, values, answers, lse, *keys.stride()[:3], *values.stride()[:3], T, H, D=D, WHOLE=T % TILE == 0, **FORWARD
    )
    return answers, lse


def _backward(d_answers: Tensor, keys: Tensor, values: Tensor, answers: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of keys and values."""
    d_answers, keys, values = contiguous_rows(d_answers, keys, values)
    d_answers = d_answers if _span(d_answers) < 2**31 else d_answers.contiguous()
    B, T, H, D = keys.shape
    empty = partial(torch.empty, dtype=keys.dtype, device=keys.device)
    d_queries, d_keys, d_values = empty(B, T, H, D), empty(B, T, H, D), empty(B, T - 1, H, D)
    delta = torch.empty_like(lse)
    sizes = (*(stride for x in (keys, values, d_answers) for stride in x.stride()[:3]), T, H)
    whole = dict(D=D, WHOLE=T % TILE == 0)
    contextual_backward_queries[(-(-T // QUERIES["M"]), B * H)](
        keys, values, answers, d_answers, lse, delta, d_queries, *sizes, **whole, **QUERIES
    )
    contextual_backward_pairs[(-(-T // PAIRS["N"]), B * H)](
        keys, values, d_answers, lse, delta, d_queries, d_keys, d_values, *sizes, **whole, **PAIRS
    )
    return d_keys, d_values


def _fake(keys, values):
    B, T, H, _ = keys.shape
    return keys.new_empty(keys.shape), keys.new_empty(B, H, T, dtype=torch.float32)


_contextual_recall_backward = custom_op(
    "contextual_recall_backward",
    _backward,
    fake=lambda d_answers, keys, values, *_: (keys.new_empty(keys.shape), values.new_empty(values.shape)),
)
_contextual_recall = custom_op(
    "contextual_recall",
    _forward,
    fake=_fake,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output),
    backward=lambda ctx, d_answers, _: _contextual_recall_backward(d_answers, *ctx.saved_tensors),
)


# The kernels. A program owns a tile of queries, or in the backward pass of pairs, of one head of one row of the batch,
# and walks the tiles on the other side: first or last the one on the diagonal, where a query sees some pairs only, and
# the others whole.
LOG2E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e30)  # a score that no pair has; finite, so that differences of two are numbers


@triton.jit
def rows_of(start, t, stride, d, end, WHOLE: tl.constexpr):
    """Rows t of a head (., D); zeros from row `end` on, unless WHOLE promises that there are none."""
    if WHOLE:
        return tl.load(start + t[:, None] * stride + d[None, :])
    else:
        return tl.load(start + t[:, None] * stride + d[None, :], mask=(t < end)[:, None], other=0.0)


@triton.jit
def heard(scores, v, top, total, answers):
    """Running softmax: the largest score, the total weight and the weighted sum, with some more pairs."""
    highest = tl.maximum(top, tl.max(scores, 1))
    fade = tl.exp2(top - highest)
    weights = tl.exp2(scores - highest[:, None])
    answers = tl.dot(weights.to(v.dtype), v, answers * fade[:, None])
    return highest, total * fade + tl.sum(weights, 1), answers


@triton.jit
def contextual_forward(
    keys, values, answers, lse,
    kb, kt, kh, vb, vt, vh, T, H,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The answers to M queries, and the logarithm of the total weight behind each, to base 2; 0 where it is nothing."""
    tile, row = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)  # the longest first
    b, h = row // H, row % H
    keys += b * kb + h * kh
    values += b * vb + h * vh
    t, d, j = tile * M + tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    q = rows_of(keys, t, kt, d, T, WHOLE)
    top, total, found = tl.full([M], NOTHING, tl.float32), tl.zeros([M], tl.float32), tl.zeros([M, D], tl.float32)
    for start in range(0, tile * M, N):
        k = rows_of(keys, start + j, kt, d, T, True)
        v = rows_of(values, start + j, vt, d, T, True)
        top, total, found = heard(tl.dot(q, tl.trans(k)) * LOG2E, v, top, total, found)
    for start in range(tile * M, tl.minimum(tile * M + M, T - 1), N):
        s = start + j
        k = rows_of(keys, s, kt, d, T - 1, False)
        v = rows_of(values, s, vt, d, T - 1, False)
        before = s[None, :] < t[:, None]
        scores = tl.where(before, tl.dot(q, tl.trans(k)) * LOG2E, NOTHING)
        top, total, found = heard(scores, v, tl.maximum(top, NOTHING / 2), total, found)
    anything = total > 0
    total = tl.where(anything, total, 1.0)
    inside = t < T
    own = ((b * T + t) * H + h)[:, None] * D + d[None, :]
    tl.store(answers + own, (found / total[:, None]).to(answers.dtype.element_ty), mask=inside[:, None])
    tl.store(lse + row * T + t, tl.where(anything, top + tl.log2(total), 0.0), mask=inside)


@triton.jit
def contextual_backward_queries(
    keys, values, answers, d_answers, lse, delta, d_queries,
    kb, kt, kh, vb, vt, vh, ab, at, ah, T, H,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """What reaches M keys as queries, and delta_t = y_t . dy_t, which the pairs want too."""
    tile, row = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = row // H, row % H
    keys += b * kb + h * kh
    values += b * vb + h * vh
    t, d, j = tile * M + tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    inside = t < T
    q = rows_of(keys, t, kt, d, T, WHOLE)
    dy = rows_of(d_answers + b * ab + h * ah, t, at, d, T, WHOLE)
    y = rows_of(answers + (b * T * H + h) * D, t, H * D, d, T, WHOLE)
    along = tl.sum(y.to(tl.float32) * dy.to(tl.float32), 1)
    z = tl.load(lse + row * T + t, mask=inside, other=0.0)
    tl.store(delta + row * T + t, along, mask=inside)
    found = tl.zeros([M, D], tl.float32)
    for start in range(0, tile * M, N):
        k = rows_of(keys, start + j, kt, d, T, True)
        v = rows_of(values, start + j, vt, d, T, True)
        weights = tl.exp2(tl.dot(q, tl.trans(k)) * LOG2E - z[:, None])
        d_scores = weights * (tl.dot(dy, tl.trans(v)) - along[:, None])
        found = tl.dot(d_scores.to(k.dtype), k, found)
    for start in range(tile * M, tl.minimum(tile * M + M, T - 1), N):
        s = start + j
        k = rows_of(keys, s, kt, d, T - 1, False)
        v = rows_of(values, s, vt, d, T - 1, False)
        before = s[None, :] < t[:, None]
        weights = tl.exp2(tl.where(before, tl.dot(q, tl.trans(k)) * LOG2E - z[:, None], NOTHING))
        d_scores = weights * (tl.dot(dy, tl.trans(v)) - along[:, None])
        found = tl.dot(d_scores.to(k.dtype), k, found)
    own = ((b * T + t) * H + h)[:, None] * D + d[None, :]
    tl.store(d_queries + own, found.to(d_queries.dtype.element_ty), mask=inside[:, None])


@triton.jit
def contextual_backward_pairs(
    keys, values, d_answers, lse, delta, d_queries, d_keys, d_values,
    kb, kt, kh, vb, vt, vh, ab, at, ah, T, H,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """What reaches N pairs; that of their keys together with what reached them as queries."""
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = row // H, row % H
    keys += b * kb + h * kh
    d_answers += b * ab + h * ah
    lse += row * T
    delta += row * T
    s, d, i = tile * N + tl.arange(0, N), tl.arange(0, D), tl.arange(0, M)
    k = rows_of(keys, s, kt, d, T - 1, False)
    v = rows_of(values + b * vb + h * vh, s, vt, d, T - 1, False)
    to_keys, to_values = tl.zeros([N, D], tl.float32), tl.zeros([N, D], tl.float32)
    for start in range(tile * N, tl.minimum(tile * N + N, T), M):
        t = start + i
        q = rows_of(keys, t, kt, d, T, False)
        dy = rows_of(d_answers, t, at, d, T, False)
        z = tl.load(lse + t, mask=t < T, other=0.0)
        along = tl.load(delta + t, mask=t < T, other=0.0)
        seen = (s[:, None] < t[None, :]) & (t < T)[None, :]
        weights = tl.exp2(tl.where(seen, tl.dot(k, tl.trans(q)) * LOG2E - z[None, :], NOTHING))
        d_scores = weights * (tl.dot(v, tl.trans(dy)) - along[None, :])
        to_values = tl.dot(weights.to(dy.dtype), dy, to_values)
        to_keys = tl.dot(d_scores.to(q.dtype), q, to_keys)
    for start in range(tile * N + N, T, M):
        t = start + i
        q = rows_of(keys, t, kt, d, T, WHOLE)
        dy = rows_of(d_answers, t, at, d, T, WHOLE)
        if WHOLE:
            z, along = tl.load(lse + t), tl.load(delta + t)
        else:  # with a total of everything, no pair weighs anything
            z, along = tl.load(lse + t, mask=t < T, other=-NOTHING), tl.load(delta + t, mask=t < T, other=0.0)
        scores, d_weights = tl.dot(k, tl.trans(q)), tl.dot(v, tl.trans(dy))  # both before either is wanted
        weights = tl.exp2(scores * LOG2E - z[None, :])
        to_values = tl.dot(weights.to(dy.dtype), dy, to_values)
        d_scores = weights * (d_weights - along[None, :])
        to_keys = tl.dot(d_scores.to(q.dtype), q, to_keys)
    own = ((b * T + s) * H + h)[:, None] * D + d[None, :]
    to_keys += tl.load(d_queries + own, mask=(s < T)[:, None], other=0.0).to(tl.float32)
    tl.store(d_keys + own, to_keys.to(d_keys.dtype.element_ty), mask=(s < T)[:, None])
    pair = ((b * (T - 1) + s) * H + h)[:, None] * D + d[None, :]
    tl.store(d_values + pair, to_values.to(d_values.dtype.element_ty), mask=(s < T - 1)[:, None])
