"""The delta rule: a matrix S per head that is corrected towards each new pair, and decays.

    S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,    y_t = S_t q_t

One step of gradient descent on |S k_t - v_t|^2 with rate beta_t: what S had stored under a key of norm one is replaced
by the new value, where linear attention would add it (Schlag et al. 2021). Without alpha this is DeltaNet's, with it
Gated DeltaNet's.

`delta_rule` computes chunks of time in parallel (Yang et al. 2024, arXiv:2406.06484 and 2412.06464). Within a chunk,
with the errors e_t = alpha_t S_{t-1} k_t - v_t, the steps w_t = -beta_t k_t and g_t = alpha_1 ... alpha_t,

    S_t = g_t S_0 + sum_{s <= t} (g_t / g_s) e_s w_s^T

and the errors solve a unit triangular system, the UT transform of the WY representation of the products:

    e_t - sum_{s < t} (g_t / g_s) (k_t . w_s) e_s = g_t S_0 k_t - v_t

Its matrix is inverted in all chunks at once. With X the inverse, K and V the keys and values as rows and W the rows
(g_C / g_t) w_t, the errors X g K S_0^T - X V are affine in S_0, and so is the last S of the chunk:

    S_C = S_0 M + Z,    M = g_C I + (X g K)^T W,    Z = -(X V)^T W

Only this goes from chunk to chunk: one product each. The backward pass reads the same inverse and has the same form.
On CUDA in half precision the kernels of flash-linear-attention compute the same, if the package is installed and Triton
compiles them rightly.

Letters in shapes: B batch, T time, H heads, D key width, V value width; N chunks of C steps; M = B H and P = N B H.
"""

import re
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.ops.common import (
    at_least_fp32,
    at_least_fp32_dtype,
    differentiable_op,
    flash_kernel,
    full_precision,
)
from memory_mosaics.shapes import Float

CHUNK = 64
WIDEST = 256  # keys that the kernels of flash-linear-attention take
FLASH_KERNELS = ("delta_rule", "chunk_delta_rule"), ("gated_delta_rule", "chunk_gated_delta_rule")


def reference(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B T H D"],
    values: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"],
    log_alpha: Float[Tensor, "B T H"] | None = None,
    memory: Float[Tensor, "B H V D"] | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H V D"]]:
    """The definition, one step at a time in float32: outputs y, and the last S."""
    q, k, v, beta, log_alpha, S = _to_fp32(queries, keys, values, beta, log_alpha, memory)
    outputs = [v[:, :0]]
    for t in range(q.shape[1]):
        S = log_alpha[:, t, :, None, None].exp() * S
        error = v[:, t] - torch.einsum("bhvd,bhd->bhv", S, k[:, t])
        S = S + torch.einsum("bh,bhv,bhd->bhvd", beta[:, t], error, k[:, t])
        outputs.append(torch.einsum("bhvd,bhd->bhv", S, q[:, t])[:, None])
    return torch.cat(outputs, dim=1).to(values.dtype), S


def delta_rule(
    queries: Float[Tensor, "B T H D"],
    keys: Float[Tensor, "B T H D"],
    values: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"],
    log_alpha: Float[Tensor, "B T H"] | None = None,
    memory: Float[Tensor, "B H V D"] | None = None,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H V D"]]:
    """Outputs y in the dtype of the values, and the last S, to continue from, in float32. No `log_alpha`: no decay.

    Keys should have norm one at most, so that no factor I - beta k k^T is larger than one.
    """
    T, dtype = queries.shape[1], values.dtype
    if T < 2:
        with full_precision(queries.device):
            return reference(queries, keys, values, beta, log_alpha, memory)
    half = queries.is_cuda and dtype in (torch.bfloat16, torch.float16) and queries.shape[-1] <= WIDEST
    kernel = None
    if half and not torch.compiler.is_compiling():
        kernel = flash_kernel(*FLASH_KERNELS[log_alpha is not None])
    capability = torch.cuda.get_device_capability(queries.device) if kernel else (0, 0)
    if kernel and (log_alpha is None or not triton_miscompiles(capability)):
        start = None if memory is None else memory.mT.float().contiguous()
        options = {"scale": 1.0, "initial_state": start, "output_final_state": True}
        gates = (beta.to(dtype),) if log_alpha is None else (log_alpha.float(), beta.float())
        y, S = kernel(queries.to(dtype), keys.to(dtype), values, *gates, **options)
        return y, S.mT.contiguous()
    shared = torch.promote_types(torch.promote_types(queries.dtype, keys.dtype), dtype)
    y, S, *_ = _chunked(queries.to(shared), keys.to(shared), values.to(shared), beta, log_alpha, memory)
    return y.to(dtype), S


def _chunk_length(T: Any) -> Any:
    """The power of two that holds T steps, or CHUNK."""
    length = 2
    while length < CHUNK and length < T:
        length *= 2
    return length


def _to_chunks(x: Tensor, chunks: Tensor) -> Tensor:
    """Copy (B, T, H, _) to (N, B, H, C, _), with zeros after the end."""
    N, C = chunks.shape[0], chunks.shape[3]
    missing = N * C - x.shape[1]
    x = F.pad(x, (0, 0, 0, 0, 0, missing)) if missing else x
    return chunks.copy_(x.unflatten(1, (N, C)).permute(1, 0, 3, 2, 4))


def _from_chunks(chunks: Tensor, T: int, dtype: torch.dtype) -> Tensor:
    """(B, T, H, _) from (N, B, H, C, _)."""
    x = chunks.permute(1, 0, 3, 2, 4).to(dtype, memory_format=torch.contiguous_format, copy=True)
    return x.flatten(1, 2)[:, :T].contiguous()


def _invert(padded: Tensor) -> None:
    """Replace N, strictly lower triangular, by (I - N)^-1 in place: the first C rows of (P, C + 1, C).

    Blocks of the diagonal are inverted in pairs of equal size, then as one of twice the size:

        inverse of [[A, 0], [-N, B]] = [[A^-1, 0], [B^-1 N A^-1, B^-1]]

    No power of N is formed, whose terms can be large where those of the inverse are not. Thanks to the row that is not
    read, the blocks of all P matrices are equally far apart in memory and make one batch, without copies.
    """
    P, _, C = padded.shape
    padded.diagonal(dim1=1, dim2=2).fill_(1)
    size, start = 2, padded.storage_offset()  # blocks [[1, 0], [n, 1]] are inverted already
    while size < C:
        shape, strides = (P * C // (2 * size), size, size), (2 * size * (C + 1), C, 1)
        first, below, second = (
            padded.as_strided(shape, strides, start + offset) for offset in (0, size * C, size * (C + 1))
        )
        torch.bmm(second @ below, first, out=below)
        size *= 2


def _forward(
    queries: Tensor, keys: Tensor, values: Tensor, beta: Tensor, log_alpha: Tensor | None, memory: Tensor | None
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
]:  # fmt: skip
    """Outputs, the last S, and what the backward pass reads.

    That is: keys and queries, values and outputs, -beta and g, g_t / g_s, w, W, g times keys and queries, X and the
    weights of the errors in the outputs, the errors, X g K, M, and S between chunks.
    """
    (B, T, H, D), V, C = queries.shape, values.shape[-1], _chunk_length(queries.shape[1])
    N, dtype = -(-T // C), at_least_fp32_dtype(queries)
    M, P = B * H, N * B * H
    new = partial(torch.empty, dtype=dtype, device=queries.device)
    pair, known, rates = new(N, B, H, 2, C, D), new(N, B, H, 2, C, V), new(2, N, B, H, C, 1)
    _to_chunks(keys, pair[:, :, :, 0])
    _to_chunks(queries, pair[:, :, :, 1])
    _to_chunks(values, known[:, :, :, 0])
    torch.neg(_to_chunks(beta[..., None], rates[0]), out=rates[0])
    if log_alpha is None:
        rates[1].fill_(1)
        ratio = torch.ones(P, C, C, dtype=dtype, device=queries.device).tril_()
    else:
        log_g = _to_chunks(log_alpha[..., None], rates[1]).cumsum(dim=3).view(P, C, 1)
        torch.exp(log_g, out=rates[1].view(P, C, 1))
        ratio = (log_g - log_g.mT).exp_().tril_()  # what overflows is above the diagonal
    pair, known, rates = pair.view(P, 2, C, D), known.view(P, 2, C, V), rates.view(2, P, C, 1)
    with full_precision(queries.device):
        step = pair[:, 0] * rates[0]
        late = ratio[:, -1, :, None] * step
        decayed = pair * rates[1][:, None]
        scores = (pair.view(P, 2 * C, D) @ step.mT).view(P, 2, C, C)
        squares = new(2, P, C + 1, C)
        torch.mul(scores, ratio[:, None], out=squares[:, :, :C].transpose(0, 1))
        _invert(squares[0])
        inverse, weights = squares[:, :, :C]
        error = torch.baddbmm(known[:, 0], inverse, known[:, 0], beta=0, alpha=-1)
        response = inverse @ decayed[:, 0]
        states, transition = new(N + 1, M, V, D), response.mT @ late
        transition.diagonal(dim1=1, dim2=2).add_(rates[1, :, -1])
        torch.bmm(error.mT, late, out=states[1:].view(P, V, D))
        states[0].zero_() if memory is None else states[0].copy_(memory.flatten(0, 1))
        for before, after, change in zip(states, states[1:], transition.view(N, M, D, D), strict=False):
            after.baddbmm_(before, change)
        start = states[:-1].view(P, V, D).mT
        error.baddbmm_(response, start)
        outputs = torch.bmm(weights, error, out=known[:, 1]).baddbmm_(decayed[:, 1], start)
    y = _from_chunks(outputs.view(N, B, H, C, V), T, values.dtype)
    last = states[-1].view(B, H, V, D).clone()
    return y, last, pair, known, rates, ratio, step, late, decayed, squares, error, response, transition, states


def _backward(
    d_outputs: Tensor, d_memory: Tensor | None, pair: Tensor, known: Tensor, rates: Tensor, ratio: Tensor,
    step: Tensor, late: Tensor, decayed: Tensor, squares: Tensor, error: Tensor, response: Tensor,
    transition: Tensor, states: Tensor, log_alpha: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys, values, beta, log alpha and the first S."""
    (B, T, H, V), (P, _, C, D), (N, M) = d_outputs.shape, pair.shape, (len(states) - 1, states.shape[1])
    inverse, weights = squares[:, :, :C]
    new = partial(torch.empty, dtype=pair.dtype, device=pair.device)
    with full_precision(pair.device):
        d_known, d_states = new(P, 2, C, V), new(N + 1, M, V, D)
        d_y = _to_chunks(d_outputs, d_known.view(N, B, H, 2, C, V)[:, :, :, 1]).view(P, C, V)
        d_error = weights.mT @ d_y
        torch.bmm(d_y.mT, decayed[:, 1], out=d_states[:-1].view(P, V, D)).baddbmm_(d_error.mT, response)
        d_states[-1].zero_() if d_memory is None else d_states[-1].copy_(d_memory.flatten(0, 1))
        for n in reversed(range(N)):
            d_states[n].baddbmm_(d_states[n + 1], transition.view(N, M, D, D)[n].mT)
        start, d_end = states[:-1].view(P, V, D), d_states[1:].view(P, V, D)
        d_error.baddbmm_(late, d_end.mT)
        torch.bmm(inverse.mT, d_error, out=d_known[:, 0])
        rows = d_known.view(P, 2 * C, V)
        d_scores = (rows @ error.mT).view(P, 2, C, C).mul_(ratio[:, None])
        d_scores[:, 0].diagonal(dim1=1, dim2=2).zero_()
        d_scores = d_scores.view(P, 2 * C, C)
        d_pair = (rows @ start).view(P, 2, C, D).mul_(rates[1][:, None])
        d_pair.view(P, 2 * C, D).baddbmm_(d_scores, step)
        d_step = (error @ d_end).mul_(ratio[:, -1, :, None])
        d_step.baddbmm_(d_scores.mT, pair.view(P, 2 * C, D))
        d_pair[:, 0].addcmul_(d_step, rates[0])
        d_beta = (d_step * pair[:, 0]).sum(dim=-1, keepdim=True).neg_()
        d_log_alpha = d_beta
        if log_alpha is not None:  # the terms of log g_t, one per product with it, add up to y_t . dy_t - v_t . dv_t
            d_log_g = (d_known * known).sum(dim=(1, 3))
            d_log_g[:, -1] += (states[1:] * d_states[1:]).sum(dim=(2, 3)).flatten()
            d_log_alpha = d_log_g.flip(1).cumsum(dim=1).flip(1)
    chunked = (N, B, H, C, -1)
    inputs = d_pair[:, 1], d_pair[:, 0], d_known[:, 0]
    d_q, d_k, d_v = (_from_chunks(x.view(chunked), T, d_outputs.dtype) for x in inputs)
    d_beta, d_log_alpha = (_from_chunks(x.view(chunked), T, x.dtype)[..., 0] for x in (d_beta, d_log_alpha))
    return d_q, d_k, d_v.neg_(), d_beta, d_log_alpha, d_states[0].view(B, H, V, D).clone()


def _fake(q, k, v, beta, log_alpha, memory):
    (B, T, H, D), V, C = q.shape, v.shape[-1], _chunk_length(q.shape[1])
    N, new = -(-T // C), partial(q.new_empty, dtype=at_least_fp32_dtype(q))
    P = N * B * H
    pair, known, rates, ratio, squares = (P, 2, C, D), (P, 2, C, V), (2, P, C, 1), (P, C, C), (2, P, C + 1, C)
    keys, values = (P, C, D), (P, C, V)
    shapes = pair, known, rates, ratio, keys, keys, pair, squares, values, keys, (P, D, D), (N + 1, B * H, V, D)
    return v.new_empty(v.shape), new((B, H, V, D)), *(new(shape) for shape in shapes)


def _fake_backward(d_outputs, d_memory, pair, *others):
    (B, T, H, V), D = d_outputs.shape, pair.shape[-1]
    shapes = (B, T, H, D), (B, T, H, D), (B, T, H, V)
    rates = pair.new_empty(B, T, H), pair.new_empty(B, T, H)
    return *(d_outputs.new_empty(shape) for shape in shapes), *rates, pair.new_empty(B, H, V, D)


_chunked = differentiable_op(
    "delta_rule",
    _forward,
    _backward,
    fake=_fake,
    fake_backward=_fake_backward,
    saved=lambda inputs, outputs: (*outputs[2:], inputs[4]),
)


def triton_miscompiles(capability: tuple[int, int]) -> bool:
    """Whether the gradient of the kernel with decay is wrong: on Hopper, with these Tritons.

    New versions of flash-linear-attention refuse it (its issue 640), older ones compute it.
    """
    import triton

    version = tuple(int(number) for number in re.findall(r"\d+", triton.__version__)[:3])
    return capability[0] == 9 and (3, 4, 0) <= version < (3, 7, 1)


def _to_fp32(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    beta: Tensor,
    log_alpha: Tensor | None,
    memory: Tensor | None,
) -> tuple[Tensor, ...]:
    """All inputs in float32 or better; without decay and earlier pairs zeros stand for them."""
    log_alpha = torch.zeros_like(beta) if log_alpha is None else log_alpha
    memory = values.new_zeros(len(keys), *values.shape[2:], keys.shape[-1]) if memory is None else memory
    inputs = [at_least_fp32(x) for x in (queries, keys, values, beta, log_alpha)]
    return *inputs, memory.to(inputs[0].dtype)
