"""Triton kernels of recall by few queries. `recall.py` beside this file says what they compute.

A program owns some of the pairs of one head of one row of the batch, and up to TILE queries. It walks its pairs in
blocks and leaves answers, and the base-2 logarithm of the total weight behind each, for `recall_merge` to merge.

The highest score so far begins at LOWEST, below any score but above the -inf of a pair that is not seen: so nothing is
ever -inf minus -inf, and what saw no pair has no weight beside what saw one.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e30)
LOG2E = tl.constexpr(1.4426950408889634)
STAGES = tl.constexpr(3)  # of loads: without a product in a loop the compiler must be told
LOOK = tl.constexpr(1024)  # marks of pairs looked at together


@triton.jit
def shares(count, b, N, S, BLOCK: tl.constexpr, HAS_COUNT: tl.constexpr):
    """How many pairs can be visible, and how many of them each of S splits gets: whole blocks, evenly."""
    last = tl.minimum(tl.maximum(tl.load(count + b), 0), N) if HAS_COUNT else N
    return last, tl.cdiv(tl.cdiv(last, BLOCK), S) * BLOCK


@triton.jit
def narrowed(real, rn, start, stop):
    """From the first real pair between start and stop to the last: room that is not filled costs a byte a pair."""
    first, last = stop, start
    for at in range(start, stop, LOOK):
        n = at + tl.arange(0, LOOK)
        seen = tl.load(real + n * rn, mask=n < stop, other=0) != 0
        first = tl.minimum(first, tl.min(tl.where(seen, n, stop), axis=0))
        last = tl.maximum(last, tl.max(tl.where(seen, n + 1, start), axis=0))
    return first, last


@triton.jit
def by_sums(
    q, keys, values, real, kn, vn, rn, start, stop, scale,
    D: tl.constexpr, V: tl.constexpr, WD: tl.constexpr, WV: tl.constexpr, BLOCK: tl.constexpr, HAS_REAL: tl.constexpr,
):  # fmt: skip
    """One query: a tensor core would do sixteen. Each place in a block keeps a softmax of its own, and they meet only
    once, at the end: inside the loop no warp waits for another.
    """
    place, d, w = tl.arange(0, BLOCK), tl.arange(0, WD), tl.arange(0, WV)
    q = tl.load(q + d, mask=d < D, other=0.0).to(tl.float32) * scale
    at_key, at_value = place[:, None] * kn + d[None, :], place[:, None] * vn + w[None, :]
    top, total = tl.full([BLOCK], LOWEST, tl.float32), tl.zeros([BLOCK], tl.float32)
    mixed = tl.zeros([BLOCK, WV], tl.float32)
    for at in tl.range(start, stop, BLOCK, num_stages=STAGES):
        seen = at + place < stop
        k = tl.load(keys + at * kn + at_key, mask=seen[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(values + at * vn + at_value, mask=seen[:, None] & (w < V)[None, :], other=0.0)
        if HAS_REAL:
            seen = tl.load(real + at * rn + place * rn, mask=seen, other=0) != 0
        scores = tl.where(seen, tl.sum(k.to(tl.float32) * q[None, :], axis=1), float("-inf"))
        higher = tl.maximum(top, scores)
        fade, weight = tl.exp2(top - higher), tl.exp2(scores - higher)
        total = total * fade + weight
        mixed = mixed * fade[:, None] + weight[:, None] * v.to(tl.float32)
        top = higher
    highest = tl.max(top, axis=0)
    fade = tl.exp2(top - highest)
    total = tl.sum(total * fade, axis=0)
    mixed = tl.sum(mixed * fade[:, None], axis=0)
    one = tl.zeros([1], tl.float32)
    return mixed[None, :], one + total, one + highest


@triton.jit
def by_products(
    q, keys, values, real, qt, kn, vn, rn, T, start, stop, scale,
    D: tl.constexpr, V: tl.constexpr, WD: tl.constexpr, WV: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_REAL: tl.constexpr,
):  # fmt: skip
    """Up to TILE queries, on the tensor cores."""
    t, place, d, w = tl.arange(0, TILE), tl.arange(0, BLOCK), tl.arange(0, WD), tl.arange(0, WV)
    asked = (t < T)[:, None] & (d < D)[None, :]
    q = tl.load(q + t[:, None] * qt + d[None, :], mask=asked, other=0.0)
    at_key, at_value = place[None, :] * kn + d[:, None], place[:, None] * vn + w[None, :]
    top, total = tl.full([TILE], LOWEST, tl.float32), tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, WV], tl.float32)
    for at in range(start, stop, BLOCK):
        seen = at + place < stop
        k = tl.load(keys + at * kn + at_key, mask=seen[None, :] & (d < D)[:, None], other=0.0)
        v = tl.load(values + at * vn + at_value, mask=seen[:, None] & (w < V)[None, :], other=0.0)
        if HAS_REAL:
            seen = tl.load(real + at * rn + place * rn, mask=seen, other=0) != 0
        scores = tl.dot(q, k, input_precision="tf32x3") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        fade, weights = tl.exp2(top - higher), tl.exp2(scores - higher[:, None])
        total = total * fade + tl.sum(weights, axis=1)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * fade[:, None], input_precision="tf32x3")
        top = higher
    return mixed, total, top


@triton.jit
def recall_answer(
    queries, keys, values, sharpness, real, count, y, lse,
    qb, qt, qh, kb, kn, kh, vb, vn, vh, rb, rn, T, N, H, S,
    D: tl.constexpr, V: tl.constexpr, WD: tl.constexpr, WV: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_SHARPNESS: tl.constexpr, HAS_REAL: tl.constexpr, HAS_COUNT: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The answers y (B T H V) of one head; of one split of its pairs y (B H S T V) and lse (B H S T)."""
    row, s, first = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2) * TILE
    b, h = row // H, row % H
    last, share = shares(count, b, N, S, BLOCK, HAS_COUNT)
    start, stop = s * share, tl.minimum((s + 1) * share, last)
    if SPLIT:  # noqa: SIM102 (the compiler drops the branch)
        if start >= stop:  # `recall_merge` will not look here
            return
    if HAS_REAL:
        real += b * rb
        if not HAS_COUNT:
            start, stop = narrowed(real, rn, start, stop)
    scale = LOG2E
    if HAS_SHARPNESS:
        scale *= tl.load(sharpness + h)
    queries += b * qb + h * qh + first.to(tl.int64) * qt
    keys += b * kb + h * kh
    values += b * vb + h * vh
    if TILE == 1:
        mixed, total, top = by_sums(
            queries, keys, values, real, kn, vn, rn, start, stop, scale, D, V, WD, WV, BLOCK, HAS_REAL
        )
    else:
        mixed, total, top = by_products(
            queries, keys, values, real, qt, kn, vn, rn, T - first, start, stop, scale,
            D, V, WD, WV, TILE, BLOCK, HAS_REAL,
        )  # fmt: skip
    total = tl.where(total > 0, total, 1.0)
    mixed = mixed / total[:, None]
    t, w = first + tl.arange(0, TILE), tl.arange(0, WV)
    wanted = (t < T)[:, None] & (w < V)[None, :]
    if SPLIT:
        place = (row * S + s) * T + t
        tl.store(lse + place, top + tl.log2(total), mask=t < T)
    else:
        place = (b * T + t) * H + h
    tl.store(y + place[:, None] * V + w[None, :], mixed.to(y.dtype.element_ty), mask=wanted)


@triton.jit
def recall_merge(
    answers, lse, count, y, T, N, H, S,
    V: tl.constexpr, WV: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, HAS_COUNT: tl.constexpr,
):  # fmt: skip
    """One answer to one query, from those of the splits that had any pairs."""
    b, t, h = tl.program_id(0).to(tl.int64) // H, tl.program_id(1), tl.program_id(0) % H
    last, share = shares(count, b, N, S, BLOCK, HAS_COUNT)
    splits = tl.cdiv(last, tl.maximum(share, 1))
    part, w = tl.arange(0, PARTS), tl.arange(0, WV)
    top, total, mixed = LOWEST, 0.0, tl.zeros([WV], tl.float32)
    for first in range(0, splits, PARTS):
        s = first + part
        there = ((b * H + h) * S + s) * T + t
        behind = tl.load(lse + there, mask=s < splits, other=float("-inf"))
        some = (s < splits)[:, None] & (w < V)[None, :]
        x = tl.load(answers + there[:, None] * V + w[None, :], mask=some, other=0.0)
        higher = tl.maximum(top, tl.max(behind, axis=0))
        fade, weights = tl.exp2(top - higher), tl.exp2(behind - higher)
        total = total * fade + tl.sum(weights, axis=0)
        mixed = mixed * fade + tl.sum(weights[:, None] * x, axis=0)
        top = higher
    mixed = mixed / tl.where(total > 0, total, 1.0)
    tl.store(y + ((b * T + t) * H + h) * V + w, mixed.to(y.dtype.element_ty), mask=w < V)
