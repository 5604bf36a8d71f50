"""Causal recall in training on a CPU: blocks of queries, whose weights are kept for the backward pass.

    y_t = sum_{s<=t-ahead} exp(beta q_t . k_s) v_s / sum_{s<=t-ahead} exp(beta q_t . k_s),    0 where there is no s

PyTorch's fused kernel for CPUs computes masked scores beside the diagonal, and all weights again in the backward
pass. Here a block of queries is answered from the pairs up to its last query by products over all heads and
rows at once, and its weights are kept, so that gradients take four products in place of five. That is memory quadratic
in T: it is for short sequences, and `recall` takes PyTorch's kernel for longer ones.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from memory_mosaics.shapes import Float

BLOCK = 64  # queries at a time
MAX_TIME = 1024  # queries of a row
MAX_BYTES = 2**26  # of kept weights, in each call


def reference(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B N H D"],
    values: Float[Tensor, "B N H V"],
    *,
    ahead: int = 0,
    scale: float | Tensor = 1.0,
) -> Float[Tensor, "B T H V"]:
    """The definition, with all scores at once."""
    beta = torch.as_tensor(scale, dtype=queries.dtype).reshape(-1, 1)
    scores = torch.einsum("bthd,bnhd->bhtn", beta * queries, keys)
    t, s = (torch.arange(length)[:, None] for length in scores.shape[-2:])
    weights = scores.masked_fill(s.T > t - ahead, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
    return torch.einsum("bhtn,bnhv->bthv", weights, values)


def can_keep_weights(queries: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether these are the inputs of a training step on a CPU whose weights are few enough to be kept."""
    (B, T, H, _), tensors = queries.shape, (queries, keys, values)
    return (
        queries.device.type == "cpu"
        and torch.is_grad_enabled()
        and any(x.requires_grad for x in tensors)
        and queries.dtype in (torch.float32, torch.float64)
        and all(x.dtype == queries.dtype and x.numel() > 0 for x in tensors)
        and T <= MAX_TIME
        and B * H * T * (T + BLOCK) // 2 * queries.element_size() <= MAX_BYTES
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def causal_recall(
    queries: Float[Tensor, "B T H D"] | None,
    keys: Float[Tensor, "B N H D"],
    values: Float[Tensor, "B M H V"],
    *,
    ahead: int = 0,
    scale: float | Tensor = 1.0,
) -> Float[Tensor, "B T H V"]:
    """Answer query t from the first t + 1 - ahead pairs. Without queries these are the keys; the last `ahead` of them
    then have no value. `scale` is beta, a number or one per head.
    """
    beta = scale if isinstance(scale, Tensor) else keys.new_tensor(scale)
    return cast(Tensor, _KeptWeights.apply(queries, keys, values, beta.to(keys.dtype), ahead))


class _KeptWeights(torch.autograd.Function):
    """Products over all rows and heads at once: (B*H, T, D)."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor | None, keys: Tensor, values: Tensor, scale: Tensor, ahead: int) -> Tensor:
        B, _, H, _ = keys.shape
        beta = scale.expand(B, H).reshape(B * H, 1, 1)
        k, v = _heads_first(keys), _heads_first(values)
        raw = k if queries is None else _heads_first(queries)
        q, time = raw * beta, raw.shape[1]
        answers = keys.new_empty(B, time, H, v.shape[-1])
        answers[:, :ahead] = 0
        weights, hidden = [], q.new_full((BLOCK, BLOCK), -torch.inf).triu(1)
        for start, stop, end in _blocks(time, ahead):
            w = torch.bmm(q[:, start:stop], k[:, :end].transpose(1, 2))
            w[:, :, end - (stop - start) :].add_(hidden[: stop - start, : stop - start])
            torch.softmax(w, dim=-1, out=w)
            answers[:, start:stop].transpose(1, 2).copy_(torch.bmm(w, v[:, :end]).unflatten(0, (B, H)))
            weights.append(w)
        ctx.save_for_backward(None if queries is None else raw, k, v, q, beta, *weights)
        ctx.rows, ctx.ahead, ctx.scale_shape = B, ahead, scale.shape
        return answers

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        raw, k, v, q, beta, *weights = ctx.saved_tensors
        g, B = _heads_first(gradients[0]), ctx.rows
        d_q, d_k, d_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for w, (start, stop, end) in zip(weights, _blocks(q.shape[1], ctx.ahead), strict=True):
            d = torch.bmm(g[:, start:stop], v[:, :end].transpose(1, 2))
            d_v[:, :end].baddbmm_(w.transpose(1, 2), g[:, start:stop])
            torch._softmax_backward_data(d, w, -1, d.dtype, grad_input=d)
            d_q[:, start:stop] = torch.bmm(d, k[:, :end])
            d_k[:, :end].baddbmm_(d.transpose(1, 2), q[:, start:stop])
        found = torch.linalg.vecdot(d_q, k if raw is None else raw).sum(dim=1).view(B, -1)
        d_scale = found.sum_to_size(ctx.scale_shape)
        if raw is None:
            return None, _time_first(d_k.addcmul_(d_q, beta), B), _time_first(d_v, B), d_scale, None
        return _time_first(d_q.mul_(beta), B), _time_first(d_k, B), _time_first(d_v, B), d_scale, None


def _blocks(time: int, ahead: int) -> list[tuple[int, int, int]]:
    """The first query of each block, the one after its last, and how many pairs the last one sees."""
    starts = range(ahead, time, BLOCK)
    return [(start, min(time, start + BLOCK), min(time, start + BLOCK) - ahead) for start in starts]


def _heads_first(x: Float[Tensor, "B T H D"]) -> Tensor:
    return x.transpose(1, 2).flatten(0, 1).contiguous()


def _time_first(x: Tensor, rows: int) -> Float[Tensor, "B T H D"]:
    return x.unflatten(0, (rows, -1)).transpose(1, 2)
