"""Recall: kernel smoothing over stored pairs, equations 2, 3 and 7 of the paper.

    y_t = sum_i  exp(beta q_t . k_i) v_i  /  sum_j exp(beta q_t . k_j)          over the pairs that query t may see

Time decides what a query may see, and one number says it: query 0 sees the first `known` pairs, query t the first
`known + t`. A contextual memory that peeks p steps ahead has known = 1 - p (plus what was stored earlier), attention
has known = 1, fixed pairs have known = None. A memory in which a query sees nothing answers zero.

`reference` is the definition. `recall` gives the same numbers on PyTorch's fused attention kernels, in memory linear
in T: the strict causal mask is an ordinary one on shifted tensors, and anything else goes block by block of queries.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from memory_mosaics.ops.precision import at_least_fp32, wide
from memory_mosaics.ops.triton import TRITON
from memory_mosaics.ops.triton.recall import DTYPES, EMPTY, FEW, WIDEST, recall_few
from memory_mosaics.shapes import Bool, Float, Int

BLOCK = 128  # queries at a time where a mask, dropout on the CPU, or the log-sum-exp is asked for
TILE, TILES = 128, 128  # pairs, and tiles of them that occupy a large GPU; docs/LOG.md has what was measured
FASTEST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

Sharpness = float | Float[Tensor, "..."]
Answer = TypeVar("Answer")


def recall(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B N H D"],
    values: Float[Tensor, "B N H V"],
    sharpness: Sharpness = 1.0,
    *,
    known: int | None = None,
    real: Bool[Tensor, "B N"] | None = None,
    held: Int[Tensor, " B"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "B T H V"]:
    """Answer every query from the pairs it may see; `real` is False where a pair is padding.

    `held` says, row by row, how many pairs there are at all: what follows them is room for more.
    `sharpness` (beta) is a number, or one per head (H), per time and head (T H), or per row too (B T H).
    `dropout` forgets that share of the retrieval weights.
    """
    time, pairs = queries.shape[1], keys.shape[1]
    if known is not None and time == 1:  # one query: all it may see, and nothing else, is there
        keys, values, known = keys[:, : max(known, 0)], values[:, : max(known, 0)], None
        real = None if real is None else real[:, : keys.shape[1]]
    if 0 in (time, pairs, keys.shape[1]):
        return _zeros(queries, values)
    few = len(queries) * time <= FEW and known is None and not (dropout or torch.is_grad_enabled())
    too_wide = max(queries.shape[-1], values.shape[-1]) > WIDEST
    if few and queries.is_cuda and TRITON and queries.dtype in DTYPES and not too_wide:
        beta = sharpness if isinstance(sharpness, Tensor) and sharpness.ndim == 1 else None
        queries = sharpened(queries, sharpness) if beta is None else queries
        return recall_few(queries, keys, values, beta, real, held)
    if held is not None:
        there = torch.arange(keys.shape[1], device=keys.device) < held[:, None]
        real = there if real is None else real & there
    queries = sharpened(queries, sharpness)
    fused = real is None and (dropout == 0.0 or queries.is_cuda)
    if fused and known is None:
        return _attend_in_rows(queries, keys, values, dropout=dropout)
    if fused and known is not None and known <= 1:
        ahead = 1 - known
        if time <= ahead:
            return _zeros(queries, values)
        last = time - ahead
        answers = _attend(queries[:, ahead:], keys[:, :last], values[:, :last], causal=True, dropout=dropout)
        return F.pad(answers, (0, 0, 0, 0, ahead, 0))
    return torch.cat(
        _in_blocks(lambda *block: _masked(*block, dropout=dropout), queries, keys, values, known, real), dim=1
    )


def recall_with_lse(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B N H D"],
    values: Float[Tensor, "B N H V"],
    sharpness: Sharpness = 1.0,
    *,
    known: int | None = None,
    real: Bool[Tensor, "B N"] | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """The answers and the logarithm of the total weight behind each (-inf where nothing was seen), for `merge`."""
    queries = sharpened(queries, sharpness)
    if 0 in (queries.shape[1], keys.shape[1]):
        return _zeros(queries, values), queries.new_full(queries.shape[:3], -torch.inf, dtype=wide(queries))
    ahead = 0 if known is None else 1 - known
    fused = real is None and ahead >= 0 and queries.device.type == "cpu" and not torch.is_grad_enabled()
    if fused and queries.shape[1] > ahead:  # the kernel knows its log-sum-exp, but has no gradient for it
        last = keys.shape[1] if known is None else queries.shape[1] - ahead
        answers, lse = _attend_with_lse(queries[:, ahead:], keys[:, :last], values[:, :last], causal=known is not None)
        return F.pad(answers, (0, 0, 0, 0, ahead, 0)), F.pad(lse, (0, 0, ahead, 0), value=-torch.inf)
    answers, lse = zip(*_in_blocks(_weighed, queries, keys, values, known, real), strict=True)
    return torch.cat(answers, dim=1), torch.cat(lse, dim=1)


def merge(
    *memories: tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """The answer of one memory that holds all the pairs, from the answers of several that hold some each."""
    lse = torch.stack([lse for _, lse in memories]).clamp(min=EMPTY)
    weights = lse.softmax(dim=0)
    answers = torch.stack([w[..., None].to(y.dtype) * y for w, (y, _) in zip(weights, memories, strict=True)]).sum(
        dim=0
    )
    total = lse.logsumexp(dim=0)
    return answers, total.masked_fill(total < EMPTY / 2, -torch.inf)


def reference(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B N H D"],
    values: Float[Tensor, "B N H V"],
    sharpness: Sharpness = 1.0,
    *,
    known: int | None = None,
    real: Bool[Tensor, "B N"] | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """The definition, query by query in float32. The empty sum is zero: a memory that holds nothing says nothing."""
    dtype = wide(queries)
    queries, keys, values = sharpened(queries.to(dtype), sharpness), keys.to(dtype), values.to(dtype)
    B, T = queries.shape[:2]
    i = torch.arange(keys.shape[1], device=keys.device)
    answers, lse = _zeros(queries, values), queries.new_zeros(queries.shape[:3])
    for b in range(B):
        for t in range(T):
            seen = torch.ones_like(i, dtype=torch.bool) if known is None else i < known + t
            seen = seen if real is None else seen & real[b]
            scores = torch.einsum("hd,nhd->hn", queries[b, t], keys[b, seen])
            answers[b, t] = torch.einsum("hn,nhv->hv", scores.softmax(dim=-1), values[b, seen])
            lse[b, t] = scores.logsumexp(dim=-1)
    return answers, lse


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


def sharpened(queries: Tensor, sharpness: Sharpness) -> Tensor:
    """Beta times the queries, rounded once: the product is taken in float32 whatever they are kept in."""
    if isinstance(sharpness, float | int):
        return queries if sharpness == 1.0 else queries * sharpness
    product = at_least_fp32(queries) * sharpness[..., None]
    if queries.dtype == torch.float16:  # a sharp memory may leave its narrow range
        product = product.clamp(-torch.finfo(torch.float16).max, torch.finfo(torch.float16).max)
    return product.to(queries.dtype)


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
    return answers.transpose(1, 2)[..., :width]


def _attend_in_rows(
    queries: Tensor, keys: Tensor, values: Tensor, *, dropout: float, rows: int | None = None
) -> Tensor:
    """The same from pairs that every query sees.

    Going back, a program of the kernels has one tile of pairs: where these are few the queries are taken for several
    rows, so that no multiprocessor is idle.
    """
    rows = _rows(queries, keys) if rows is None else rows
    if rows == 1:
        return _attend(queries, keys, values, dropout=dropout)
    keys, values = (x[:, None].expand(-1, rows, -1, -1, -1).flatten(0, 1) for x in (keys, values))
    answers = _attend(queries.unflatten(1, (rows, -1)).flatten(0, 1), keys, values, dropout=dropout)
    return answers.unflatten(0, (-1, rows)).flatten(1, 2)


def _rows(queries: Tensor, keys: Tensor) -> int:
    """As few as make enough tiles for a GPU, in training."""
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
    """As the kernels want them: (B H T D), and keys and values of one width."""
    width = max(queries.shape[-1], values.shape[-1])
    widened = (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (queries, keys, values))
    return [x.transpose(1, 2) for x in widened]


def _in_blocks(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], Answer],
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    known: int | None,
    real: Tensor | None,
) -> list[Answer]:
    """`answer(queries, keys, values, visible)` for each block, where visible is (B or 1, 1, block, N).

    Only one block's mask and weights are alive at a time: the backward pass computes them again.
    """

    def answer_from(start: int, queries: Tensor, keys: Tensor, values: Tensor) -> Answer:
        i = torch.arange(keys.shape[1], device=keys.device)
        t = torch.arange(start, start + queries.shape[1], device=keys.device)[:, None]
        visible = (i < known + t if known is not None else i >= 0 * t)[None, None]
        return answer(queries, keys, values, visible if real is None else visible & real[:, None, None])

    answers = []
    for start in range(0, queries.shape[1], BLOCK):
        block = queries[:, start : start + BLOCK]
        if torch.is_grad_enabled():
            answers.append(checkpoint(answer_from, start, block, keys, values, use_reentrant=False))
        else:
            answers.append(answer_from(start, block, keys, values))
    return answers


def _masked(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor, dropout: float) -> Tensor:
    """Kernels disagree on a row that sees nothing, so such a row sees everything and its answer is zeroed."""
    anything = visible.any(dim=-1, keepdim=True)  # (B, 1, block, 1)
    answers = _attend(queries, keys, values, mask=visible | ~anything, dropout=dropout)
    return answers * anything.transpose(1, 2)


def _weighed(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    dtype = wide(queries)
    scores = torch.einsum("bthd,bnhd->bhtn", queries.to(dtype), keys.to(dtype)).masked_fill(~visible, EMPTY)
    anything = visible.any(dim=-1).transpose(1, 2)  # (B, block, 1)
    answers = torch.einsum("bhtn,bnhv->bthv", scores.softmax(dim=-1).to(values.dtype), values)
    lse = scores.logsumexp(dim=-1).transpose(1, 2)  # (B, block, H)
    return answers * anything[..., None], lse.masked_fill(~anything, -torch.inf)
