"""The delta rule: a matrix S per head that is corrected towards each new pair, and decays.

    S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T,    y_t = S_t q_t

One step of gradient descent on |S k_t - v_t|^2 with rate beta_t: what S had stored under a key of norm one is replaced
by the new value, where linear attention would add it (Schlag et al. 2021). Without alpha this is DeltaNet's, with it
Gated DeltaNet's.

`delta_rule` computes chunks of time in parallel (Yang et al. 2024, arXiv:2406.06484 and 2412.06464). Within a chunk

    S_t = g_t S_0 + sum_{s <= t} (g_t / g_s) u_s k_s^T,    g_t = alpha_1 ... alpha_t,

and the corrections u solve a unit triangular system, the UT transform of the WY representation of the products:

    u_t + beta_t sum_{s < t} (g_t / g_s) (k_s . k_t) u_s = beta_t (v_t - g_t S_0 k_t)

It is solved for v and for g_t k_t at once, in all chunks; what then goes from chunk to chunk is a few products with S.
On CUDA in half precision the kernels of flash-linear-attention compute the same, if the package is installed and Triton
compiles them rightly.

Letters in shapes: B batch, T time, H heads, D key width, V value width; N chunks of C steps.
"""

import re

import torch
from torch import Tensor

from memory_mosaics.ops.common import at_least_fp32, flash_kernel, full_precision
from memory_mosaics.ops.scan import split_chunks
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
    with full_precision(queries.device):
        q, k, v, beta, log_alpha, S = _to_fp32(queries, keys, values, beta, log_alpha, memory)
        chunks = split_chunks(min(CHUNK, T), q, k, v, beta[..., None], log_alpha[..., None])
        q, k, v, beta, g = (x.transpose(2, 3).contiguous() for x in chunks)  # (B, N, H, C, _)
        g = g.cumsum(dim=3)
        ratio = (g - g.mT).tril().exp().tril()  # g_t / g_s for s <= t
        system = beta * ratio * (k @ k.mT)  # its diagonal and what is above it are not read
        solved = torch.linalg.solve_triangular(
            system, beta * torch.cat([v, g.exp() * k], dim=-1), upper=False, unitriangular=True
        )
        values_part, keys_part = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
        weights, q, last = ratio * (q @ k.mT), g.exp() * q, g[:, :, :, -1:]
        k = (last - g).exp() * k
        outputs = []
        for n in range(q.shape[1]):
            u = values_part[:, n] - keys_part[:, n] @ S.mT
            outputs.append(weights[:, n] @ u + q[:, n] @ S.mT)
            S = last[:, n].exp() * S + u.mT @ k[:, n]
    y = torch.stack(outputs, dim=1).transpose(2, 3).flatten(1, 2)[:, :T]
    return y.to(dtype), S


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
