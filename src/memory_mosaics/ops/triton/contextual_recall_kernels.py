"""Triton kernels of recall from what came before. `contextual_recall.py` beside this file says what they compute.

A program owns a tile of queries, or going back of pairs, of one head of one row of the batch, and walks the tiles on
the other side: first or last the one on the diagonal, where a query sees some pairs only, and the others whole.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NOTHING = tl.constexpr(-1e30)  # a score that no pair has; finite, so that differences of two are numbers


@triton.jit
def rows_of(start, t, stride, d, end, WHOLE: tl.constexpr):
    """Rows t of a head (., D); zeros from row `end` on, or it is known that there are none."""
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
