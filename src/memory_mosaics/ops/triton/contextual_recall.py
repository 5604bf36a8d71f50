"""Recall by a memory that starts empty and asks with the keys that it stores, equation 7 in one kernel:

    y_t = sum_{s<t} exp(k_t . k_s) v_s / sum_{s<t} exp(k_t . k_s)

`contextual_recall` is the op; `reference` its definition. A stock kernel has to be given queries a step ahead of the
pairs and an answer of zero before the first; and two gradients come back for what is one tensor of keys. Here nothing
is shifted, and what reaches a key as a query and as a key is added where it is found.
"""

# pyright: reportIndexIssue=false, reportCallIssue=false, reportArgumentType=false
from math import log

import torch
from torch import Tensor

from memory_mosaics.ops.recall import reference as recall_reference
from memory_mosaics.ops.triton import TRITON
from memory_mosaics.ops.triton.leaky_average import packed, runs_kernels
from memory_mosaics.shapes import Float

DTYPES = (torch.bfloat16, torch.float16)
LONGEST = {16: 2**20, 32: 2**20, 64: 4096}  # tokens by the width of a head; cuDNN is faster with more of them
TILE = 64
FORWARD = dict(M=TILE, N=64, num_warps=4, num_stages=2)
QUERIES = dict(M=TILE, N=32, num_warps=4, num_stages=3)
PAIRS = dict(M=TILE, N=TILE, num_warps=4, num_stages=3)


def takes(keys: Tensor, values: Tensor) -> bool:
    """Whether the kernels are for such keys (B T H D) and values (B T-1 H D), and faster than any other."""
    return keys.is_cuda and TRITON and _fit(keys, values) and 1 < keys.shape[1] <= LONGEST[keys.shape[-1]]


def _fit(keys: Tensor, values: Tensor) -> bool:
    shapes = keys.shape[-1] in LONGEST and keys[:, 1:].shape == values.shape
    launched = keys.shape[0] * keys.shape[2] < 2**16  # no more rows in a grid
    launched = launched and max(map(_span, (keys, values))) < 2**31  # steps of a head are counted in 32 bits
    return shapes and launched and keys.dtype in DTYPES and values.dtype == keys.dtype


def _span(x: Tensor) -> int:
    """Numbers that lie between the first and the last step of a head, here and in a copy without gaps."""
    return x.shape[1] * max(x.stride(1), x.shape[2] * x.shape[3])


def contextual_recall(keys: Float[Tensor, "B T H D"], values: Float[Tensor, "B M H D"]) -> Float[Tensor, "B T H D"]:
    """What each key recalls of the pairs before it; M = T - 1, since the last key has no value yet."""
    return torch.ops.memory_mosaics.contextual_recall(keys, values)[0]


def reference(keys: Float[Tensor, "B T H D"], values: Float[Tensor, "B M H D"]) -> Float[Tensor, "B T H D"]:
    """The definition, query by query in float32."""
    return recall_reference(keys, keys[:, :-1], values, known=0)[0].to(keys.dtype)


def forward_kernels(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Answers and logarithms of total weights."""
    from memory_mosaics.ops.triton import contextual_recall_kernels as kernels

    keys, values = packed(keys), packed(values)
    B, T, H, D = keys.shape
    answers = torch.empty(B, T, H, D, dtype=keys.dtype, device=keys.device)
    lse = torch.empty(B, H, T, dtype=torch.float32, device=keys.device)
    kernels.contextual_forward[(-(-T // FORWARD["M"]), B * H)](
        keys, values, answers, lse, *keys.stride()[:3], *values.stride()[:3], T, H, D=D, WHOLE=T % TILE == 0, **FORWARD
    )
    return answers, lse


def backward_kernels(
    d_answers: Tensor, keys: Tensor, values: Tensor, answers: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of keys and values."""
    from memory_mosaics.ops.triton import contextual_recall_kernels as kernels

    d_answers, keys, values = packed(d_answers), packed(keys), packed(values)
    d_answers = d_answers if _span(d_answers) < 2**31 else d_answers.contiguous()
    B, T, H, D = keys.shape
    empty = lambda *shape: torch.empty(*shape, dtype=keys.dtype, device=keys.device)  # noqa: E731
    d_queries, d_keys, d_values = empty(B, T, H, D), empty(B, T, H, D), empty(B, T - 1, H, D)
    delta = torch.empty_like(lse)
    strides = [stride for x in (keys, values, d_answers) for stride in x.stride()[:3]]
    sizes = (*strides, T, H)
    whole = dict(D=D, WHOLE=T % TILE == 0)
    kernels.contextual_backward_queries[(-(-T // QUERIES["M"]), B * H)](
        keys, values, answers, d_answers, lse, delta, d_queries, *sizes, **whole, **QUERIES
    )
    kernels.contextual_backward_pairs[(-(-T // PAIRS["N"]), B * H)](
        keys, values, d_answers, lse, delta, d_queries, d_keys, d_values, *sizes, **whole, **PAIRS
    )
    return d_keys, d_values


@torch.library.custom_op(
    "memory_mosaics::contextual_recall", mutates_args=(), schema="(Tensor keys, Tensor values) -> (Tensor, Tensor)"
)
def _forward(keys, values):
    if keys.is_cuda and not _fit(keys, values):
        raise ValueError(f"the kernels are not for {keys.dtype} {tuple(keys.shape)} and {tuple(values.shape)}")
    if runs_kernels(keys) and values.numel():
        return forward_kernels(keys, values)
    weights, lse = _weights(keys)
    answers = torch.einsum("bhts,bshv->bthv", weights, values.to(weights.dtype))
    return answers.to(keys.dtype).contiguous(), lse


def _weights(keys: Tensor) -> tuple[Float[Tensor, "B H T M"], Float[Tensor, "B H T"]]:
    """All at once, for devices without Triton; and their logarithms to base 2."""
    x = keys.to(torch.promote_types(keys.dtype, torch.float32))
    scores = torch.einsum("bthd,bshd->bhts", x, x[:, :-1])
    unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=keys.device).triu()
    lse = scores.masked_fill(unseen, -torch.inf).logsumexp(dim=-1)
    lse = lse.where(lse > -torch.inf, 0.0)
    return (scores - lse[..., None]).exp().masked_fill(unseen, 0.0), lse / log(2)


@_forward.register_fake
def _(keys, values):
    B, T, H, _ = keys.shape
    dtype = torch.promote_types(keys.dtype, torch.float32)
    return keys.new_empty(keys.shape), keys.new_empty(B, H, T, dtype=dtype)


BACKWARD_SCHEMA = "(Tensor d_answers, Tensor keys, Tensor values, Tensor answers, Tensor lse) -> (Tensor, Tensor)"


@torch.library.custom_op("memory_mosaics::contextual_recall_backward", mutates_args=(), schema=BACKWARD_SCHEMA)
def _backward(d_answers, keys, values, answers, lse):
    if runs_kernels(keys) and values.numel():
        return backward_kernels(d_answers, keys, values, answers, lse)
    weights, _ = _weights(keys)
    dy, x, v = (given.to(weights.dtype) for given in (d_answers, keys, values))
    d_weights = torch.einsum("bthv,bshv->bhts", dy, v)
    d_scores = weights * (d_weights - (weights * d_weights).sum(dim=-1, keepdim=True))
    d_keys = torch.einsum("bhts,bshd->bthd", d_scores, x[:, :-1])
    d_keys[:, :-1] += torch.einsum("bhts,bthd->bshd", d_scores, x)
    d_values = torch.einsum("bhts,bthv->bshv", weights, dy)
    return d_keys.to(keys.dtype).contiguous(), d_values.to(values.dtype).contiguous()


@_backward.register_fake
def _(d_answers, keys, values, answers, lse):
    return keys.new_empty(keys.shape), values.new_empty(values.shape)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs, *output)


def _gradients(ctx, d_answers, _):
    return torch.ops.memory_mosaics.contextual_recall_backward(d_answers, *ctx.saved_tensors)


_forward.register_autograd(_gradients, setup_context=_save)
