"""Recall by a memory that starts empty and whose queries are the keys that it stores, equation 7 of the paper:

    y_t = sum_{s<t} exp(beta_t k_t . k_s) v_s / sum_{s<t} exp(beta_t k_t . k_s)

A stock kernel needs queries shifted by one step, scaled by beta, and a zero in front of its answers; and it returns two
gradients for one tensor of keys. The Triton form shifts nothing, multiplies the scores by beta in float32, and adds the
gradients of a key as a query and as a key where they are computed.
"""

# pyright: reportInvalidTypeForm=false
from functools import partial

import torch
from torch import Tensor

from memory_mosaics.ops.causal_recall import can_keep_weights, causal_recall
from memory_mosaics.ops.common import can_use_triton, contiguous, contiguous_rows, differentiable_op, tl, triton
from memory_mosaics.ops.recall import Sharpness, recall
from memory_mosaics.ops.recall import reference as recall_reference
from memory_mosaics.shapes import Float

HALF = (torch.bfloat16, torch.float16)
MAX_LENGTH = {16: 2**20, 32: 2**20, 64: 4096}  # tokens by the width of a head; cuDNN is faster with more of them
TILE = 64
FORWARD = dict(M=TILE, N=64, num_warps=4, num_stages=2)
QUERIES = dict(M=TILE, N=32, num_warps=4, num_stages=3)
PAIRS = dict(M=TILE, N=TILE, num_warps=4, num_stages=3)


def reference(
    keys: Float[Tensor, "B T H D"], values: Float[Tensor, "B M H V"], sharpness: Sharpness = 1.0
) -> Float[Tensor, "B T H V"]:
    """The definition, query by query in float32."""
    pairs = values.shape[1]
    offset = 1 + pairs - keys.shape[1]
    return recall_reference(keys, keys[:, :pairs], values, sharpness, causal_offset=offset)[0].to(keys.dtype)


def contextual_recall(
    keys: Float[Tensor, "B T H D"], values: Float[Tensor, "B M H V"], sharpness: Sharpness = 1.0
) -> Float[Tensor, "B T H V"]:
    """The answer to each key from the pairs before it; the last keys, T - M of them, have no value yet.

    `sharpness` (beta) is a number, or one per head (H), per time (T H), or per row (B T H).
    """
    if _fits(keys, values) and can_use_triton(keys, values, dtypes=HALF):
        if not isinstance(sharpness, Tensor):  # filled on the device: a CUDA graph cannot capture a copy from the host
            sharpness = torch.full((), sharpness, dtype=torch.float32, device=keys.device)
        beta = sharpness.to(keys.device, torch.float32)
        return _contextual_recall(keys, values, beta if beta.ndim else beta.expand(keys.shape[2]))[0]
    pairs = values.shape[1]
    one_per_head = not isinstance(sharpness, Tensor) or sharpness.ndim < 2
    if one_per_head and 1 <= pairs < keys.shape[1] and can_keep_weights(keys, keys, values):
        return causal_recall(None, keys, values, ahead=keys.shape[1] - pairs, scale=sharpness)
    return recall(keys, keys[:, :pairs], values, sharpness, causal_offset=1 + pairs - keys.shape[1])


def _fits(keys: Tensor, values: Tensor) -> bool:
    """Whether the kernels are made for such shapes, and faster than any other."""
    B, T, H, D = keys.shape
    shapes = keys[:, 1:].shape == values.shape and 1 < T <= MAX_LENGTH.get(D, 0)
    rows, steps = B * H < 2**16, max(map(_span, (keys, values))) < 2**31  # of a grid; of a head, in 32 bits
    return shapes and rows and steps


def _span(x: Tensor) -> int:
    """Numbers that lie between the first and the last step of a head, here and in a copy without gaps."""
    return x.shape[1] * max(x.stride(1), x.shape[2] * x.shape[3])


def _forward(keys: Tensor, values: Tensor, sharpness: Tensor) -> tuple[Tensor, Tensor]:
    """Answers and the logarithms of their total weights, to base 2."""
    (keys, values), (sharpness,) = contiguous_rows(keys, values), contiguous(sharpness)
    B, T, H, D = keys.shape
    answers, lse = _empty_outputs(keys, values, sharpness)
    contextual_forward[(-(-T // FORWARD["M"]), B * H)](
        keys, values, sharpness, answers, lse, *keys.stride()[:3], *values.stride()[:3], *_strides(sharpness), T, H,
        D=D, WHOLE=T % TILE == 0, **FORWARD,
    )  # fmt: skip
    return answers, lse


def _strides(sharpness: Tensor) -> tuple[int, int]:
    """Of rows and times: beta is (H), (T H) or (B T H) without gaps, heads the last."""
    rows, times = (0, 0, *sharpness.stride())[-3:-1]
    return rows, times


def _backward(
    d_answers: Tensor, keys: Tensor, values: Tensor, sharpness: Tensor, answers: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of keys, values and sharpness."""
    (d_answers, keys, values), (sharpness,) = contiguous_rows(d_answers, keys, values), contiguous(sharpness)
    d_answers = d_answers if _span(d_answers) < 2**31 else d_answers.contiguous()
    B, T, H, D = keys.shape
    empty = partial(torch.empty, dtype=keys.dtype, device=keys.device)
    d_queries, d_keys, d_values = empty(B, T, H, D), empty(B, T, H, D), empty(B, T - 1, H, D)
    delta, d_sharpness = torch.empty_like(lse), torch.empty(B, T, H, dtype=torch.float32, device=keys.device)
    strides = (stride for x in (keys, values, d_answers) for stride in x.stride()[:3])
    sizes = (*strides, *_strides(sharpness), T, H)
    whole = dict(D=D, WHOLE=T % TILE == 0)
    contextual_backward_queries[(-(-T // QUERIES["M"]), B * H)](
        keys, values, sharpness, answers, d_answers, lse, delta, d_queries, d_sharpness, *sizes, **whole, **QUERIES
    )
    contextual_backward_pairs[(-(-T // PAIRS["N"]), B * H)](
        keys, values, sharpness, d_answers, lse, delta, d_queries, d_keys, d_values, *sizes,
        PER_TIME=sharpness.ndim > 1, **whole, **PAIRS,
    )  # fmt: skip
    return d_keys, d_values, d_sharpness.sum_to_size(sharpness.shape)


def _empty_outputs(keys, values, sharpness):
    B, T, H, _ = keys.shape
    return keys.new_empty(keys.shape), keys.new_empty(B, H, T, dtype=torch.float32)


_contextual_recall = differentiable_op(
    "contextual_recall",
    _forward,
    _backward,
    fake=_empty_outputs,
    fake_backward=lambda d_answers, *saved: tuple(x.new_empty(x.shape) for x in saved[:3]),
    saved=lambda inputs, outputs: (*inputs, *outputs),
)


# The kernels. A program has a tile of queries, or in the backward pass of pairs, of one head of one row of the batch,
# and iterates over the tiles of the others. Only the tile on the diagonal has a mask: there a query sees some pairs.
LOG2E = tl.constexpr(1.4426950408889634)
MASKED = tl.constexpr(-1e30)  # a score that no pair has; finite, so that differences of two are numbers


@triton.jit
def rows_of(start, t, stride, d, end, WHOLE: tl.constexpr):
    """Rows t of a head (., D); zeros from row `end` on, unless WHOLE promises that there are none."""
    if WHOLE:
        return tl.load(start + t[:, None] * stride + d[None, :])
    else:
        return tl.load(start + t[:, None] * stride + d[None, :], mask=(t < end)[:, None], other=0.0)


@triton.jit
def update_softmax(scores, v, top, total, answers):
    """Running softmax: the largest score, the total weight and the weighted sum, with some more pairs."""
    highest = tl.maximum(top, tl.max(scores, 1))
    fade = tl.exp2(top - highest)
    weights = tl.exp2(scores - highest[:, None])
    answers = tl.dot(weights.to(v.dtype), v, answers * fade[:, None])
    return highest, total * fade + tl.sum(weights, 1), answers


@triton.jit
def contextual_forward(
    keys, values, sharpness, answers, lse,
    kb, kt, kh, vb, vt, vh, sb, st, T, H,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """The answers to M queries, and the logarithm of the total weight behind each, to base 2; 0 where it is nothing."""
    tile, row = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1).to(tl.int64)  # the longest first
    b, h = row // H, row % H
    keys += b * kb + h * kh
    values += b * vb + h * vh
    t, d, j = tile * M + tl.arange(0, M), tl.arange(0, D), tl.arange(0, N)
    q = rows_of(keys, t, kt, d, T, WHOLE)
    beta = (tl.load(sharpness + b * sb + t * st + h, mask=t < T, other=0.0) * LOG2E)[:, None]
    top, total, found = tl.full([M], MASKED, tl.float32), tl.zeros([M], tl.float32), tl.zeros([M, D], tl.float32)
    for start in range(0, tile * M, N):
        k = rows_of(keys, start + j, kt, d, T, True)
        v = rows_of(values, start + j, vt, d, T, True)
        top, total, found = update_softmax(tl.dot(q, tl.trans(k)) * beta, v, top, total, found)
    for start in range(tile * M, tl.minimum(tile * M + M, T - 1), N):
        s = start + j
        k = rows_of(keys, s, kt, d, T - 1, False)
        v = rows_of(values, s, vt, d, T - 1, False)
        before = s[None, :] < t[:, None]
        scores = tl.where(before, tl.dot(q, tl.trans(k)) * beta, MASKED)
        top, total, found = update_softmax(scores, v, tl.maximum(top, MASKED / 2), total, found)
    anything = total > 0
    total = tl.where(anything, total, 1.0)
    inside = t < T
    own = ((b * T + t) * H + h)[:, None] * D + d[None, :]
    tl.store(answers + own, (found / total[:, None]).to(answers.dtype.element_ty), mask=inside[:, None])
    tl.store(lse + row * T + t, tl.where(anything, top + tl.log2(total), 0.0), mask=inside)


@triton.jit
def contextual_backward_queries(
    keys, values, sharpness, answers, d_answers, lse, delta, d_queries, d_sharpness,
    kb, kt, kh, vb, vt, vh, ab, at, ah, sb, st, T, H,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Gradients of M keys as queries and of their beta, and delta_t = y_t . dy_t, which the pairs need too."""
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
    beta = tl.load(sharpness + b * sb + t * st + h, mask=inside, other=0.0)
    sharp = (beta * LOG2E)[:, None]
    tl.store(delta + row * T + t, along, mask=inside)
    found = tl.zeros([M, D], tl.float32)
    for start in range(0, tile * M, N):
        k = rows_of(keys, start + j, kt, d, T, True)
        v = rows_of(values, start + j, vt, d, T, True)
        weights = tl.exp2(tl.dot(q, tl.trans(k)) * sharp - z[:, None])
        d_scores = weights * (tl.dot(dy, tl.trans(v)) - along[:, None])
        found = tl.dot(d_scores.to(k.dtype), k, found)
    for start in range(tile * M, tl.minimum(tile * M + M, T - 1), N):
        s = start + j
        k = rows_of(keys, s, kt, d, T - 1, False)
        v = rows_of(values, s, vt, d, T - 1, False)
        before = s[None, :] < t[:, None]
        weights = tl.exp2(tl.where(before, tl.dot(q, tl.trans(k)) * sharp - z[:, None], MASKED))
        d_scores = weights * (tl.dot(dy, tl.trans(v)) - along[:, None])
        found = tl.dot(d_scores.to(k.dtype), k, found)
    own = ((b * T + t) * H + h)[:, None] * D + d[None, :]
    tl.store(d_queries + own, (found * beta[:, None]).to(d_queries.dtype.element_ty), mask=inside[:, None])
    tl.store(d_sharpness + (b * T + t) * H + h, tl.sum(found * q.to(tl.float32), 1), mask=inside)


@triton.jit
def contextual_backward_pairs(
    keys, values, sharpness, d_answers, lse, delta, d_queries, d_keys, d_values,
    kb, kt, kh, vb, vt, vh, ab, at, ah, sb, st, T, H,
    D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WHOLE: tl.constexpr, PER_TIME: tl.constexpr,
):  # fmt: skip
    """Gradients of N pairs; those of their keys with their gradients as queries added."""
    tile, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = row // H, row % H
    keys += b * kb + h * kh
    d_answers += b * ab + h * ah
    sharpness += b * sb + h
    beta = tl.load(sharpness)  # of all times, unless each has its own
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
        beta_t = tl.load(sharpness + t * st, mask=t < T, other=0.0) if PER_TIME else beta + tl.zeros([M], tl.float32)
        weights = tl.exp2(tl.where(seen, tl.dot(k, tl.trans(q)) * (beta_t * LOG2E)[None, :] - z[None, :], MASKED))
        d_scores = weights * (tl.dot(v, tl.trans(dy)) - along[None, :])
        if PER_TIME:
            d_scores *= beta_t[None, :]
        to_values = tl.dot(weights.to(dy.dtype), dy, to_values)
        to_keys = tl.dot(d_scores.to(q.dtype), q, to_keys)
    for start in range(tile * N + N, T, M):
        t = start + i
        q = rows_of(keys, t, kt, d, T, WHOLE)
        dy = rows_of(d_answers, t, at, d, T, WHOLE)
        if WHOLE:
            z, along = tl.load(lse + t), tl.load(delta + t)
        else:  # beside an infinite total no pair has any weight
            z, along = tl.load(lse + t, mask=t < T, other=-MASKED), tl.load(delta + t, mask=t < T, other=0.0)
        scores, d_weights = tl.dot(k, tl.trans(q)), tl.dot(v, tl.trans(dy))  # both before either is used
        beta_t = tl.load(sharpness + t * st, mask=t < T, other=0.0) if PER_TIME else beta + tl.zeros([M], tl.float32)
        weights = tl.exp2(scores * (beta_t * LOG2E)[None, :] - z[None, :])
        to_values = tl.dot(weights.to(dy.dtype), dy, to_values)
        d_scores = weights * (d_weights - along[None, :])
        if PER_TIME:
            d_scores *= beta_t[None, :]
        to_keys = tl.dot(d_scores.to(q.dtype), q, to_keys)
    if not PER_TIME:
        to_keys *= beta
    own = ((b * T + s) * H + h)[:, None] * D + d[None, :]
    to_keys += tl.load(d_queries + own, mask=(s < T)[:, None], other=0.0).to(tl.float32)
    tl.store(d_keys + own, to_keys.to(d_keys.dtype.element_ty), mask=(s < T)[:, None])
    pair = ((b * (T - 1) + s) * H + h)[:, None] * D + d[None, :]
    tl.store(d_values + pair, to_values.to(d_values.dtype.element_ty), mask=(s < T - 1)[:, None])
