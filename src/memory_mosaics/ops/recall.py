"""Recall: kernel smoothing over stored pairs, equations 2, 3 and 7 of the paper.

    y_t = sum_i  exp(beta q_t . k_i) v_i  /  sum_j exp(beta q_t . k_j)          over the pairs that query t may see

Visibility is an offset, and optionally a window and a shift. Query 0 sees the first `causal_offset` pairs, query t the
first `causal_offset + t`. For a contextual memory with values that depend on the next p inputs the offset is 1 - p
(plus the number of pairs stored earlier), for attention 1, for pairs that every query sees None. With a `window`, a
query sees only the newest that many of these. A `shift`, a number of at most `max_shift` that only the device knows, is
subtracted from the offset. A query that sees no pair is answered with zero.

`recall` runs on PyTorch's fused attention kernels, in memory linear in T: the strict causal mask is an ordinary one on
shifted tensors, a window is attention within chunks, and anything else goes block by block of queries. Few queries, as
in a step of decoding, would leave most of a GPU idle, were each head one program: the Triton form splits the pairs of a
head among several programs, and a second kernel merges what they found. Everything that decides about a launch is a
shape: a step can be captured as a CUDA graph and remains right as the memory fills.
"""

# pyright: reportInvalidTypeForm=false
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from memory_mosaics.ops.common import (
    at_least_fp32,
    at_least_fp32_dtype,
    can_use_triton,
    contiguous,
    contiguous_rows,
    custom_op,
    host_count,
    multiprocessors,
    tl,
    triton,
)
from memory_mosaics.shapes import Bool, Float, Int

BLOCK = 128  # queries at a time, for masks, dropout on the CPU and the log-sum-exp
MIN_CHUNK = 64  # queries, of attention within a window
TILE, TILES = 128, 128  # pairs, and tiles of them that occupy a large GPU; docs/LOG.md has what was measured
FASTEST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
MASKED = -1e30  # a score that no pair can have; finite, so that an empty memory has gradients too

MAX_QUERIES = 64  # queries that the Triton form answers, at most
MAX_WIDTH = 256  # of its keys and values; any width up to it
TILE_BYTES = 2**14  # of keys and values at a time, or half of that with a single query

Sharpness = float | Float[Tensor, "..."]
Answer = TypeVar("Answer")


def reference(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B N K D"],
    values: Float[Tensor, "B N K V"],
    sharpness: Sharpness = 1.0,
    *,
    causal_offset: int | None = None,
    key_padding_mask: Bool[Tensor, "B N"] | None = None,
    window: int | None = None,
    shift: Int[Tensor, ""] | None = None,
    max_shift: int = 0,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """The definition, query by query in float32. The empty sum is zero: an empty memory answers zero."""
    causal_offset = causal_offset if causal_offset is None or shift is None else causal_offset - int(shift)
    dtype = at_least_fp32_dtype(queries)
    keys, values = (repeat_heads(x.to(dtype), queries.shape[2]) for x in (keys, values))
    queries = scale_features(queries.to(dtype), sharpness)
    B, T = queries.shape[:2]
    i = torch.arange(keys.shape[1], device=keys.device)
    answers, lse = _zeros(queries, values), queries.new_zeros(queries.shape[:3])
    for b in range(B):
        for t in range(T):
            end = keys.shape[1] if causal_offset is None else causal_offset + t
            seen = (i < end) & (i >= (0 if window is None else end - window))
            seen = seen if key_padding_mask is None else seen & key_padding_mask[b]
            scores = torch.einsum("hd,nhd->hn", queries[b, t], keys[b, seen])
            answers[b, t] = torch.einsum("hn,nhv->hv", scores.softmax(dim=-1), values[b, seen])
            lse[b, t] = scores.logsumexp(dim=-1)
    return answers, lse


def recall(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B N K D"],
    values: Float[Tensor, "B N K V"],
    sharpness: Sharpness = 1.0,
    *,
    causal_offset: int | None = None,
    key_padding_mask: Bool[Tensor, "B N"] | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    window: int | None = None,
    shift: Int[Tensor, ""] | None = None,
    max_shift: int = 0,
    dropout: float = 0.0,
) -> Float[Tensor, "B T H V"]:
    """Answer every query from the pairs it may see; `key_padding_mask` is True for pairs that are not padding.

    `lengths` is the number of pairs stored in each row, all of them visible; what follows them is unused capacity.
    `sharpness` (beta) is a number, or one per head (H), per time and head (T H), or per row too (B T H).
    `dropout` is the probability of dropping a retrieval weight.
    Heads may share pairs, as in grouped-query attention: each of K memories answers H / K neighbouring heads.
    """
    time = queries.shape[1]
    count = None if lengths is None or can_use_triton(queries, keys, values) else host_count(lengths)
    if count is not None and causal_offset is None:  # nothing is read beyond what is stored, and no mask is needed
        stored = slice(0 if window is None else max(count - window, 0), max(count, 0))
        keys, values, lengths, window = keys[:, stored], values[:, stored], None, None
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[:, stored]
        if key_padding_mask is not None and key_padding_mask.all():
            key_padding_mask = None
    if causal_offset is not None and lengths is not None:
        raise ValueError("causal_offset and lengths both say which pairs are visible; give one of them")
    if shift is not None and causal_offset is not None and 0 not in (time, keys.shape[1]):
        # Of time + max_shift steps with the smallest offset, query t is at the step whose offset is its own.
        queries = _Moved.apply(scale_features(queries, sharpness), max_shift - shift, time + max_shift)
        options = {"causal_offset": causal_offset - max_shift, "key_padding_mask": key_padding_mask, "window": window}
        return _Moved.apply(recall(queries, keys, values, **options, dropout=dropout), shift - max_shift, time)
    if causal_offset is not None and time == 1:  # one query: all it may see, and nothing else, is there
        visible = slice(0 if window is None else max(causal_offset - window, 0), max(causal_offset, 0))
        keys, values, causal_offset, window = keys[:, visible], values[:, visible], None, None
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[:, visible]
    elif window is not None and causal_offset is None and lengths is None:  # all see the newest
        keys, values, newest = keys[:, -window:], values[:, -window:], slice(-window, None)
        key_padding_mask, window = None if key_padding_mask is None else key_padding_mask[:, newest], None
    if 0 in (time, keys.shape[1]):
        return _zeros(queries, values)
    if window is not None and lengths is not None:  # a copy of the window, so that the whole capacity is not read
        newest = lengths[:, None] - window + torch.arange(window, device=keys.device)
        there, newest = newest >= 0, newest.clamp(min=0)
        row = torch.arange(len(keys), device=keys.device)[:, None]
        keys, values = keys[row, newest], values[row, newest]
        key_padding_mask = there if key_padding_mask is None else key_padding_mask[row, newest] & there
        lengths = window = None
    if window is not None and causal_offset is not None and causal_offset + time - 1 <= window:
        window = None  # nobody sees more
    H, K = queries.shape[2], keys.shape[2]
    if H != K and time == 1 and causal_offset is None:  # heads that share pairs are as many queries of one head
        queries = scale_features(queries, sharpness)[:, 0].unflatten(1, (K, -1)).transpose(1, 2)
        options = {"key_padding_mask": key_padding_mask, "lengths": lengths, "window": window}
        return recall(queries, keys, values, **options, dropout=dropout).transpose(1, 2).flatten(1, 2)[:, None]
    keys, values = repeat_heads(keys, H), repeat_heads(values, H)
    few = len(queries) * time <= MAX_QUERIES and causal_offset is None and not (dropout or torch.is_grad_enabled())
    if few and max(queries.shape[-1], values.shape[-1]) <= MAX_WIDTH and can_use_triton(queries, keys, values):
        beta = sharpness.float() if isinstance(sharpness, Tensor) and sharpness.ndim == 1 else None
        queries = scale_features(queries, sharpness) if beta is None else queries
        return _recall_few(queries, keys, values, beta, key_padding_mask, lengths)
    if lengths is not None:
        there = torch.arange(keys.shape[1], device=keys.device) < lengths[:, None]
        key_padding_mask = there if key_padding_mask is None else key_padding_mask & there
    queries = scale_features(queries, sharpness)
    fused = key_padding_mask is None and (dropout == 0.0 or queries.is_cuda)
    if fused and window is None and causal_offset is None:
        return _attend_in_rows(queries, keys, values, rows=_rows(queries, keys), dropout=dropout)
    last = time if causal_offset is None else time + causal_offset - 1  # pairs that the last query sees
    if fused and causal_offset is not None and causal_offset <= 1 and (window is None or keys.shape[1] >= last):
        ahead = 1 - causal_offset
        if last <= 0:
            return _zeros(queries, values)
        shifted = (queries[:, ahead:], keys[:, :last], values[:, :last])
        if window is None:
            answers = _attend(*shifted, causal=True, dropout=dropout)
        else:
            answers = _attend_in_window(*shifted, window=window, dropout=dropout)
        return F.pad(answers, (0, 0, 0, 0, ahead, 0))
    options = (causal_offset, key_padding_mask, window)
    return torch.cat(_in_blocks(partial(_attend_masked, dropout=dropout), queries, keys, values, *options), dim=1)


def recall_with_lse(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B N K D"],
    values: Float[Tensor, "B N K V"],
    sharpness: Sharpness = 1.0,
    *,
    causal_offset: int | None = None,
    key_padding_mask: Bool[Tensor, "B N"] | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """The answers and the logarithm of the total weight behind each (-inf where nothing was seen), for `merge`."""
    queries = scale_features(queries, sharpness)
    keys, values = (repeat_heads(x, queries.shape[2]) for x in (keys, values))
    if 0 in (queries.shape[1], keys.shape[1]):
        return _zeros(queries, values), queries.new_full(
            queries.shape[:3], -torch.inf, dtype=at_least_fp32_dtype(queries)
        )
    ahead = 0 if causal_offset is None else 1 - causal_offset
    fused = key_padding_mask is None and ahead >= 0 and queries.device.type == "cpu" and not torch.is_grad_enabled()
    if fused and queries.shape[1] > ahead:  # the kernel knows its log-sum-exp, but has no gradient for it
        last = keys.shape[1] if causal_offset is None else queries.shape[1] - ahead
        answers, lse = _attend_with_lse(
            queries[:, ahead:], keys[:, :last], values[:, :last], causal=causal_offset is not None
        )
        return F.pad(answers, (0, 0, 0, 0, ahead, 0)), F.pad(lse, (0, 0, ahead, 0), value=-torch.inf)
    answers, lse = zip(
        *_in_blocks(_attend_weighted, queries, keys, values, causal_offset, key_padding_mask, None), strict=True
    )
    return torch.cat(answers, dim=1), torch.cat(lse, dim=1)


def recall_with_bias(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B N H D"],
    values: Float[Tensor, "B N H V"],
    sharpness: Sharpness = 1.0,
    *,
    bias: Float[Tensor, "B H T N"],
) -> Float[Tensor, "B T H V"]:
    """Answer every query with `bias` added to its scores: the logarithm of a pair's mass, -inf for one it cannot see.

    A pair of mass m counts as m equal pairs. The bias has a number for each query and pair: for few queries at a time.
    """
    if 0 in (queries.shape[1], keys.shape[1]):
        return _zeros(queries, values)
    anything = (bias > -torch.inf).any(dim=-1, keepdim=True)  # (B, H, T, 1)
    queries = scale_features(queries, sharpness)
    answers = _attend(queries, keys, values, mask=bias.masked_fill(~anything, 0.0).to(queries.dtype))
    return answers * anything.transpose(1, 2)


def merge(
    *memories: tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """The answer of one memory that holds all the pairs, from the answers of several that hold some each."""
    lse = torch.stack([lse for _, lse in memories]).clamp(min=MASKED)
    weights = lse.softmax(dim=0)
    answers = torch.stack([w[..., None].to(y.dtype) * y for w, (y, _) in zip(weights, memories, strict=True)]).sum(
        dim=0
    )
    total = lse.logsumexp(dim=0)
    return answers, total.masked_fill(total < MASKED / 2, -torch.inf)


def repeat_heads(x: Float[Tensor, "B N K D"], heads: int) -> Float[Tensor, "B N H D"]:
    """Copies of the keys or values of K memories, one per head that they answer."""
    K = x.shape[2]
    return x if K == heads else x[:, :, :, None].expand(-1, -1, -1, heads // K, -1).flatten(2, 3)


def dot_product(
    queries: Float[Tensor, "*B T D"], keys: Float[Tensor, "*B N D"], sharpness: float | Tensor
) -> tuple[Float[Tensor, "*B T D"], Float[Tensor, "*B N D"]]:
    """Kernel of equation 3, exp(beta q.k): for keys that share one norm."""
    return sharpness * queries, keys


def gaussian(
    queries: Float[Tensor, "*B T D"], keys: Float[Tensor, "*B N D"], sharpness: float | Tensor
) -> tuple[Float[Tensor, "*B T E"], Float[Tensor, "*B N E"]]:
    """Kernel of equation 2, exp(-beta |q - k|^2), for keys of any norm, written as a dot product with one more axis.

    -beta|q-k|^2 = 2 beta q.k - beta|k|^2 - beta|q|^2, and the last term, common to all pairs, cancels. On unit keys
    the same holds for |k|^2, so that equation 2 with beta is equation 3 with 2 beta.
    """
    centre = keys.mean(dim=-2, keepdim=True)  # distances do not move with the origin, rounding errors do
    queries, keys = queries - centre, keys - centre
    squares = keys.square().sum(dim=-1, keepdim=True)
    ones = torch.ones_like(queries[..., :1])
    return torch.cat([2 * sharpness * queries, -sharpness * ones], dim=-1), torch.cat([keys, squares], dim=-1)


def scale_features(x: Tensor, scale: Sharpness | None) -> Tensor:
    """Return x (B T H D) times a number, or one per head (H), time (T H) or row (B T H): in float32, rounded once."""
    if scale is None or isinstance(scale, float | int):
        return x if scale in (None, 1.0) else x * scale
    product = at_least_fp32(x) * scale[..., None]
    if x.dtype == torch.float16:  # a sharp memory may leave its narrow range
        product = product.clamp(-torch.finfo(torch.float16).max, torch.finfo(torch.float16).max)
    return product.to(x.dtype)


class _Moved(torch.autograd.Function):
    """Time t of x (B T H D) at time t + `steps` of `time` times, and zeros elsewhere.

    Its gradient is the same the other way, and reads each number once: that of `index_select` would add them up.
    """

    @staticmethod
    def forward(x: Tensor, steps: Tensor, time: int) -> Tensor:
        source = torch.arange(time, device=x.device) - steps
        outside = (source < 0) | (source >= x.shape[1])
        return x.index_select(1, source.clamp(0, x.shape[1] - 1)).masked_fill(outside[:, None, None], 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.time = inputs[0].shape[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Moved.apply(gradient, -ctx.saved_tensors[0], ctx.time), None, None


def _zeros(queries: Tensor, values: Tensor) -> Tensor:
    return queries.new_zeros(*queries.shape[:3], values.shape[-1])


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """PyTorch's fused attention on (B T H D) tensors."""
    width = values.shape[-1]
    queries, keys, values = _heads_first(queries, keys, values)
    # cuDNN is the fastest on CUDA, but plans for every new shape at length: it is for training, whose shapes stay.
    with sdpa_kernel(FASTEST, set_priority=True) if queries.is_cuda and torch.is_grad_enabled() else nullcontext():
        answers = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=1.0
        )
    answers = answers.transpose(1, 2)
    return answers if answers.shape[-1] == width else answers[..., :width]


def _attend_in_rows(queries: Tensor, keys: Tensor, values: Tensor, *, rows: int, dropout: float) -> Tensor:
    """The same from pairs that every query sees, with the queries of each row of the batch split into `rows`."""
    if rows == 1:
        return _attend(queries, keys, values, dropout=dropout)
    keys, values = (x[:, None].expand(-1, rows, -1, -1, -1).flatten(0, 1) for x in (keys, values))
    answers = _attend(queries.unflatten(1, (rows, -1)).flatten(0, 1), keys, values, dropout=dropout)
    return answers.unflatten(0, (-1, rows)).flatten(1, 2)


def _attend_in_window(queries: Tensor, keys: Tensor, values: Tensor, *, window: int, dropout: float) -> Tensor:
    """Query t sees the pairs t - window + 1 to t: in its chunk of at least `window` steps and the one before.

    Two calls of the kernel, for the first chunk and for all others at once, with one mask that all chunks share.
    """
    size, time = max(window, MIN_CHUNK), queries.shape[1]
    t, i = torch.arange(size, device=keys.device)[:, None], torch.arange(-size, size, device=keys.device)
    visible = (i <= t) & (i > t - window)
    head = min(size, time)
    within = {"causal": True} if window >= head else {"mask": visible[:head, size : size + head]}
    first = _attend(*(x[:, :head] for x in (queries, keys, values)), **within, dropout=dropout)
    if time <= size:
        return first
    chunks = [F.pad(x, (0, 0, 0, 0, 0, -time % size)).unflatten(1, (-1, size)) for x in (queries, keys, values)]
    both = [torch.cat([x[:, :-1], x[:, 1:]], dim=2).flatten(0, 1) for x in chunks[1:]]
    rest = _attend(chunks[0][:, 1:].flatten(0, 1), *both, mask=visible, dropout=dropout)
    rest = rest.unflatten(0, (len(queries), -1)).flatten(1, 2)
    return torch.cat([first, rest[:, : time - size]], dim=1)


def _rows(queries: Tensor, keys: Tensor) -> int:
    """As few as make enough tiles of pairs for a GPU, in training: a program of the backward kernels has one tile."""
    (B, T, H, _), rows = queries.shape, 1
    if queries.is_cuda and torch.is_grad_enabled():
        while B * H * -(-keys.shape[1] // TILE) * rows < TILES and T % (2 * rows) == 0:
            rows *= 2
    return rows


def _attend_with_lse(queries: Tensor, keys: Tensor, values: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    width = values.shape[-1]
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    answers, lse = kernel(*_heads_first(queries, keys, values), 0.0, causal, scale=1.0)
    return answers.transpose(1, 2)[..., :width], lse.transpose(1, 2)


def _heads_first(queries: Tensor, keys: Tensor, values: Tensor) -> list[Tensor]:
    """As the kernels want them: (B H T D), and keys and values of one width, on CUDA a multiple of 8."""
    width = max(queries.shape[-1], values.shape[-1])
    width = -(-width // 8) * 8 if queries.is_cuda else width  # with a mask no fused kernel takes another
    widened = (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (queries, keys, values))
    return [x.transpose(1, 2) for x in widened]


def _in_blocks(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], Answer],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    causal_offset: int | None,
    key_padding_mask: Tensor | None,
    window: int | None,
) -> list[Answer]:
    """`answer(queries, keys, values, visible)` for each block of queries, where visible is (B or 1, 1, block, N).

    Only one block's mask and weights are alive at a time: the backward pass computes them again. With a window, a block
    reads only the pairs that one of its queries sees.
    """

    def answer_from(start: int, queries: Tensor, keys: Tensor, values: Tensor) -> Answer:
        stop, near = start + queries.shape[1], slice(None)
        if window is not None:
            assert causal_offset is not None  # `recall` cuts the window of queries that see the same
            near = slice(max(start + causal_offset - window, 0), max(stop + causal_offset, 1))
        i = torch.arange(keys.shape[1], device=keys.device)[near]
        t = torch.arange(start, stop, device=keys.device)[:, None]
        end = 0 * t + keys.shape[1] if causal_offset is None else causal_offset + t
        visible = (i < end if window is None else (i < end) & (i >= end - window))[None, None]
        visible = visible if key_padding_mask is None else visible & key_padding_mask[:, None, None, near]
        return answer(queries, keys[:, near], values[:, near], visible)

    answers = []
    for start in range(0, queries.shape[1], BLOCK):
        block = queries[:, start : start + BLOCK]
        if torch.is_grad_enabled():
            answers.append(checkpoint(answer_from, start, block, keys, values, use_reentrant=False))
        else:
            answers.append(answer_from(start, block, keys, values))
    return answers


def _attend_masked(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor, dropout: float) -> Tensor:
    """Kernels disagree on a row that sees nothing, so such a row sees everything and its answer is zeroed."""
    anything = visible.any(dim=-1, keepdim=True)  # (B, 1, block, 1)
    answers = _attend(queries, keys, values, mask=visible | ~anything, dropout=dropout)
    return answers * anything.transpose(1, 2)


def _attend_weighted(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    dtype = at_least_fp32_dtype(queries)
    scores = torch.einsum("bthd,bnhd->bhtn", queries.to(dtype), keys.to(dtype)).masked_fill(~visible, MASKED)
    anything = visible.any(dim=-1).transpose(1, 2)  # (B, block, 1)
    answers = torch.einsum("bhtn,bnhv->bthv", scores.softmax(dim=-1).to(values.dtype), values)
    lse = scores.logsumexp(dim=-1).transpose(1, 2)  # (B, block, H)
    return answers * anything[..., None], lse.masked_fill(~anything, -torch.inf)


def launch_options(T: int, D: int, V: int, size: int) -> dict[str, int]:
    """Tiles of a program: as large as stay in the registers (found by compiling for sm_90), with loads of 16 bytes."""
    WD, WV = (max(16, _power_of_two(width)) for width in (D, V))
    row = max(WD, WV) * size
    tile = 1 if T == 1 else min(max(16, _power_of_two(T)), MAX_QUERIES if row < 1024 else 16)
    block = min(64, max(16, (TILE_BYTES // 2 if T == 1 else TILE_BYTES) // (2 * row)))
    options = dict(num_warps=8, num_stages=2) if row >= 512 and T > 1 else dict(num_warps=4, num_stages=3)
    return dict(WD=WD, WV=WV, TILE=tile, BLOCK=block, **options)


def splits(programs: int, N: int, tile: int, block: int, device: torch.device) -> int:
    """Into how many the pairs of each head are split: so that each multiprocessor has a few programs to work on.

    The more queries, the more there is to write and to merge for each split, and the fewer of them.
    """
    resident = min(8, max(2, 64 // tile))
    return max(1, min(-(-resident * multiprocessors(device) // programs), -(-N // block)))


def _power_of_two(size: int) -> int:
    """The next one."""
    return 1 << (size - 1).bit_length()


def _few(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    sharpness: Tensor | None,
    key_padding_mask: Tensor | None,
    lengths: Tensor | None,
) -> Tensor:
    """Answers from the pairs that are not padding, without gradients. Pairs beyond the first `lengths` are never read.

    This is cheaper than `key_padding_mask` alone: the programs split the stored pairs, not the capacity. Values of
    padding must still be finite.
    """
    (queries, keys, values), (sharpness, lengths) = (
        contiguous_rows(queries, keys, values),
        contiguous(sharpness, lengths),
    )
    (B, T, H, D), (N, V) = queries.shape, (values.shape[1], values.shape[-1])
    options: dict[str, Any] = launch_options(T, D, V, keys.element_size())
    tiles = -(-T // options["TILE"])
    S = splits(B * H * tiles, N, options["TILE"], options["BLOCK"], keys.device)
    y = torch.empty(B, T, H, V, dtype=queries.dtype, device=queries.device)
    parts, lse = y, None
    if S > 1:
        parts = torch.empty(B, H, S, T, V, dtype=torch.float32, device=queries.device)
        lse = torch.empty(B, H, S, T, dtype=torch.float32, device=queries.device)
    strides = [stride for x in (queries, keys, values) for stride in x.stride()[:3]]
    strides += (0, 0) if key_padding_mask is None else key_padding_mask.stride()
    marks = None if key_padding_mask is None else key_padding_mask.view(torch.uint8)
    recall_answer[(B * H, S, tiles)](
        queries, keys, values, sharpness, marks, lengths, parts, lse, *strides, T, N, H, S, D=D, V=V,
        HAS_SHARPNESS=sharpness is not None, HAS_REAL=key_padding_mask is not None, HAS_COUNT=lengths is not None,
        SPLIT=S > 1, **options,
    )  # fmt: skip
    if S > 1:
        together = min(_power_of_two(S), 2**12 // options["WV"])
        sizes = dict(V=V, WV=options["WV"], BLOCK=options["BLOCK"], PARTS=together)
        recall_merge[(B * H, T)](parts, lse, lengths, y, T, N, H, S, HAS_COUNT=lengths is not None, **sizes)
    return y


_recall_few = custom_op(
    "recall_few",
    _few,
    fake=lambda queries, keys, values, *_: queries.new_empty(*queries.shape[:3], values.shape[-1]),
)


# The kernels. A program has some of the pairs of one head of one row of the batch, and up to TILE queries. It iterates
# over its pairs in blocks and stores answers, and the base-2 logarithm of the total weight of each, for `recall_merge`.
#
# The highest score so far is initially LOWEST, below any score but above the -inf of a pair that is not seen: so
# nothing is ever -inf minus -inf, and what saw no pair has no weight beside what saw one.
LOWEST = tl.constexpr(-1e30)
LOG2E = tl.constexpr(1.4426950408889634)
STAGES = tl.constexpr(3)  # of loads: without a product in a loop the compiler must be told
MASK_BLOCK = tl.constexpr(1024)  # marks of pairs looked at together


@triton.jit
def split_bounds(count, b, N, S, BLOCK: tl.constexpr, HAS_COUNT: tl.constexpr):
    """How many pairs can be visible, and how many of them each of S splits gets: whole blocks, evenly."""
    last = tl.minimum(tl.maximum(tl.load(count + b), 0), N) if HAS_COUNT else N
    return last, tl.cdiv(tl.cdiv(last, BLOCK), S) * BLOCK


@triton.jit
def visible_range(key_padding_mask, rn, start, stop):
    """The range from the first pair that is not padding to the last, within start to stop, at one byte per pair."""
    first, last = stop, start
    for at in range(start, stop, MASK_BLOCK):
        n = at + tl.arange(0, MASK_BLOCK)
        seen = tl.load(key_padding_mask + n * rn, mask=n < stop, other=0) != 0
        first = tl.minimum(first, tl.min(tl.where(seen, n, stop), axis=0))
        last = tl.maximum(last, tl.max(tl.where(seen, n + 1, start), axis=0))
    return first, last


@triton.jit
def answer_query(
    q, keys, values, key_padding_mask, kn, vn, rn, start, stop, scale,
    D: tl.constexpr, V: tl.constexpr, WD: tl.constexpr, WV: tl.constexpr, BLOCK: tl.constexpr, HAS_REAL: tl.constexpr,
):  # fmt: skip
    """One query: a tensor core would do sixteen. Each slot in a block has a softmax of its own, and they are merged
    only once, at the end: inside the loop no warp waits for another.
    """
    slot, d, w = tl.arange(0, BLOCK), tl.arange(0, WD), tl.arange(0, WV)
    q = tl.load(q + d, mask=d < D, other=0.0).to(tl.float32) * scale
    at_key, at_value = slot[:, None] * kn + d[None, :], slot[:, None] * vn + w[None, :]
    top, total = tl.full([BLOCK], LOWEST, tl.float32), tl.zeros([BLOCK], tl.float32)
    answer = tl.zeros([BLOCK, WV], tl.float32)
    for at in tl.range(start, stop, BLOCK, num_stages=STAGES):
        seen = at + slot < stop
        k = tl.load(keys + at * kn + at_key, mask=seen[:, None] & (d < D)[None, :], other=0.0)
        v = tl.load(values + at * vn + at_value, mask=seen[:, None] & (w < V)[None, :], other=0.0)
        if HAS_REAL:
            seen = tl.load(key_padding_mask + at * rn + slot * rn, mask=seen, other=0) != 0
        scores = tl.where(seen, tl.sum(k.to(tl.float32) * q[None, :], axis=1), float("-inf"))
        new_top = tl.maximum(top, scores)
        rescale, weight = tl.exp2(top - new_top), tl.exp2(scores - new_top)
        total = total * rescale + weight
        answer = answer * rescale[:, None] + weight[:, None] * v.to(tl.float32)
        top = new_top
    highest = tl.max(top, axis=0)
    rescale = tl.exp2(top - highest)
    total = tl.sum(total * rescale, axis=0)
    answer = tl.sum(answer * rescale[:, None], axis=0)
    one = tl.zeros([1], tl.float32)
    return answer[None, :], one + total, one + highest


@triton.jit
def answer_tile(
    q, keys, values, key_padding_mask, qt, kn, vn, rn, T, start, stop, scale,
    D: tl.constexpr, V: tl.constexpr, WD: tl.constexpr, WV: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_REAL: tl.constexpr,
):  # fmt: skip
    """Up to TILE queries, on the tensor cores."""
    t, slot, d, w = tl.arange(0, TILE), tl.arange(0, BLOCK), tl.arange(0, WD), tl.arange(0, WV)
    inside = (t < T)[:, None] & (d < D)[None, :]
    q = tl.load(q + t[:, None] * qt + d[None, :], mask=inside, other=0.0)
    at_key, at_value = slot[None, :] * kn + d[:, None], slot[:, None] * vn + w[None, :]
    top, total = tl.full([TILE], LOWEST, tl.float32), tl.zeros([TILE], tl.float32)
    answer = tl.zeros([TILE, WV], tl.float32)
    for at in range(start, stop, BLOCK):
        seen = at + slot < stop
        k = tl.load(keys + at * kn + at_key, mask=seen[None, :] & (d < D)[:, None], other=0.0)
        v = tl.load(values + at * vn + at_value, mask=seen[:, None] & (w < V)[None, :], other=0.0)
        if HAS_REAL:
            seen = tl.load(key_padding_mask + at * rn + slot * rn, mask=seen, other=0) != 0
        scores = tl.dot(q, k, input_precision="tf32x3") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        rescale, weights = tl.exp2(top - new_top), tl.exp2(scores - new_top[:, None])
        total = total * rescale + tl.sum(weights, axis=1)
        answer = tl.dot(weights.to(v.dtype), v, answer * rescale[:, None], input_precision="tf32x3")
        top = new_top
    return answer, total, top


@triton.jit
def recall_answer(
    queries, keys, values, sharpness, key_padding_mask, count, y, lse,
    qb, qt, qh, kb, kn, kh, vb, vn, vh, rb, rn, T, N, H, S,
    D: tl.constexpr, V: tl.constexpr, WD: tl.constexpr, WV: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_SHARPNESS: tl.constexpr, HAS_REAL: tl.constexpr, HAS_COUNT: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """The answers y (B T H V) of one head; of one split of its pairs y (B H S T V) and lse (B H S T)."""
    row, s, first = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2) * TILE
    b, h = row // H, row % H
    last, share = split_bounds(count, b, N, S, BLOCK, HAS_COUNT)
    start, stop = s * share, tl.minimum((s + 1) * share, last)
    if SPLIT:  # noqa: SIM102 (the compiler drops the branch)
        if start >= stop:  # `recall_merge` does not read this split
            return
    if HAS_REAL:
        key_padding_mask += b * rb
        if not HAS_COUNT:
            start, stop = visible_range(key_padding_mask, rn, start, stop)
    scale = LOG2E
    if HAS_SHARPNESS:
        scale *= tl.load(sharpness + h)
    queries += b * qb + h * qh + first.to(tl.int64) * qt
    keys += b * kb + h * kh
    values += b * vb + h * vh
    if TILE == 1:
        answer, total, top = answer_query(
            queries, keys, values, key_padding_mask, kn, vn, rn, start, stop, scale, D, V, WD, WV, BLOCK, HAS_REAL
        )
    else:
        answer, total, top = answer_tile(
            queries, keys, values, key_padding_mask, qt, kn, vn, rn, T - first, start, stop, scale,
            D, V, WD, WV, TILE, BLOCK, HAS_REAL,
        )  # fmt: skip
    total = tl.where(total > 0, total, 1.0)
    answer = answer / total[:, None]
    t, w = first + tl.arange(0, TILE), tl.arange(0, WV)
    inside = (t < T)[:, None] & (w < V)[None, :]
    if SPLIT:
        offset = (row * S + s) * T + t
        tl.store(lse + offset, top + tl.log2(total), mask=t < T)
    else:
        offset = (b * T + t) * H + h
    tl.store(y + offset[:, None] * V + w[None, :], answer.to(y.dtype.element_ty), mask=inside)


@triton.jit
def recall_merge(
    answers, lse, count, y, T, N, H, S,
    V: tl.constexpr, WV: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, HAS_COUNT: tl.constexpr,
):  # fmt: skip
    """One answer to one query, from those of the splits that had any pairs."""
    b, t, h = tl.program_id(0).to(tl.int64) // H, tl.program_id(1), tl.program_id(0) % H
    last, share = split_bounds(count, b, N, S, BLOCK, HAS_COUNT)
    splits = tl.cdiv(last, tl.maximum(share, 1))
    part, w = tl.arange(0, PARTS), tl.arange(0, WV)
    top, total, answer = LOWEST, 0.0, tl.zeros([WV], tl.float32)
    for first in range(0, splits, PARTS):
        s = first + part
        there = ((b * H + h) * S + s) * T + t
        behind = tl.load(lse + there, mask=s < splits, other=float("-inf"))
        some = (s < splits)[:, None] & (w < V)[None, :]
        x = tl.load(answers + there[:, None] * V + w[None, :], mask=some, other=0.0)
        new_top = tl.maximum(top, tl.max(behind, axis=0))
        rescale, weights = tl.exp2(top - new_top), tl.exp2(behind - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        answer = answer * rescale + tl.sum(weights[:, None] * x, axis=0)
        top = new_top
    answer = answer / tl.where(total > 0, total, 1.0)
    tl.store(y + ((b * T + t) * H + h) * V + w, answer.to(y.dtype.element_ty), mask=w < V)
