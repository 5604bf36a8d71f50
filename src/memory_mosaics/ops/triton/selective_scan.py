"""The selective scan of Mamba in one pass over its inputs:  h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,  y_t = C_t . h_t.

`selective_scan` is the op; `reference` its definition. The states, N times as large as the inputs, are never written
but once in EVERY steps: going back they are computed again from there.
"""

# pyright: reportIndexIssue=false, reportCallIssue=false, reportArgumentType=false
from typing import Any

import torch
from torch import Tensor

from memory_mosaics.ops.triton.leaky_average import runs_kernels
from memory_mosaics.shapes import Float

EVERY = 32
OPTIONS = dict(W=8, num_warps=1, STAGES=4)
SCHEMA = "(Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor h) -> (Tensor, Tensor, Tensor)"
BACKWARD_SCHEMA = (
    "(Tensor d_y, Tensor? d_last, Tensor u, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor kept)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def selective_scan(
    u: Float[Tensor, "B T E"],
    dt: Float[Tensor, "B T E"],
    A: Float[Tensor, "E N"],
    B: Float[Tensor, "B T N"],
    C: Float[Tensor, "B T N"],
    h: Float[Tensor, "B E N"],
) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B E N"]]:
    """C_t . h_t at every time and the last h, in float32."""
    return torch.ops.memory_mosaics.selective_scan(*(x.float() for x in (u, dt, A, B, C, h)))[:2]


def reference(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor
) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B E N"]]:
    """The definition, step by step."""
    answers = [u[:, :0]]
    for t in range(u.shape[1]):
        h = torch.exp(dt[:, t, :, None] * A) * h + (dt[:, t] * u[:, t])[..., None] * B[:, t, None]
        answers.append((h * C[:, t, None]).sum(-1)[:, None])
    return torch.cat(answers, dim=1), h


def _sizes(A: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    return OPTIONS | {"WN": max(2, 1 << (A.shape[1] - 1).bit_length())} | options


def forward_kernels(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Answers, the last states, and those that are kept for the way back."""
    from memory_mosaics.ops.triton import selective_scan_kernels as kernels

    inputs = [x.contiguous() for x in (u, dt, A, B, C, h)]
    (rows, T, E), N, options = u.shape, A.shape[1], _sizes(A, options)
    y, last, kept = torch.empty_like(inputs[0]), torch.empty_like(inputs[5]), u.new_empty(rows, -(-T // EVERY), E, N)
    kernels.scan_forward[(rows, -(-E // options["W"]))](*inputs, y, last, kept, T, E, N, EVERY, **options)
    return y, last, kept


def backward_kernels(
    d_y: Tensor,
    d_last: Tensor | None,
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    kept: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, A, B, C and the first h."""
    from memory_mosaics.ops.triton import selective_scan_kernels as kernels

    given = [x.contiguous() for x in (u, dt, A, B, C, kept, d_y)]
    d_last = None if d_last is None else d_last.contiguous()
    (rows, T, E), N, options = u.shape, A.shape[1], _sizes(A, options)
    blocks = -(-E // options["W"])
    empty = lambda *shape: torch.empty(*shape, dtype=torch.float32, device=u.device)  # noqa: E731
    d_u, d_dt, d_A, d_start = empty(rows, T, E), empty(rows, T, E), empty(rows, E, N), empty(rows, E, N)
    d_B, d_C = empty(rows, blocks, T, N), empty(rows, blocks, T, N)
    trail = empty(rows, blocks, EVERY, options["W"], options["WN"])
    kernels.scan_backward[(rows, blocks)](
        *given, d_last, d_u, d_dt, d_A, d_B, d_C, d_start, trail, T, E, N, EVERY, blocks,
        HAS_LAST=d_last is not None, **options,
    )  # fmt: skip
    return d_u, d_dt, d_A.sum(0), d_B.sum(1), d_C.sum(1), d_start


@torch.library.custom_op("memory_mosaics::selective_scan", mutates_args=(), schema=SCHEMA)
def _forward(u, dt, A, B, C, h):
    if runs_kernels(u) and u.numel():
        return forward_kernels(u, dt, A, B, C, h)
    y, last = reference(u, dt, A, B, C, h)
    return y.contiguous(), last.clone(), h[:, None].clone()  # from the first state all can be found again


@_forward.register_fake
def _(u, dt, A, B, C, h):
    stretches = -(-u.shape[1] // EVERY) if u.is_cuda else 1
    return torch.empty_like(u).contiguous(), h.new_empty(h.shape), h.new_empty(len(h), stretches, *h.shape[1:])


@torch.library.custom_op("memory_mosaics::selective_scan_backward", mutates_args=(), schema=BACKWARD_SCHEMA)
def _backward(d_y, d_last, u, dt, A, B, C, kept):
    if runs_kernels(u) and u.numel():
        return backward_kernels(d_y, d_last, u, dt, A, B, C, kept)
    return _backward_in_torch(d_y, d_last, u, dt, A, B, C, kept[:, 0])


def _backward_in_torch(d_y, d_last, u, dt, A, B, C, h):
    fades, inputs, states = torch.exp(dt[..., None] * A), (dt * u)[..., None] * B[:, :, None], [h]
    for t in range(u.shape[1]):
        states.append(fades[:, t] * states[-1] + inputs[:, t])
    gradient = torch.zeros_like(h) if d_last is None else d_last
    gradients = []  # of each state, the last first
    for t in reversed(range(u.shape[1])):
        gradients.append(gradient + d_y[:, t, :, None] * C[:, t, None])
        gradient = fades[:, t] * gradients[-1]
    states, g = torch.stack(states, dim=1), torch.stack([*gradients[::-1], gradient], dim=1)[:, :-1]
    arriving, decayed = (g * B[:, :, None]).sum(-1), g * fades * states[:, :-1]
    return (
        arriving * dt,
        arriving * u + (decayed * A).sum(-1),
        (decayed * dt[..., None]).sum((0, 1)),
        (g * (dt * u)[..., None]).sum(2),
        (d_y[..., None] * states[:, 1:]).sum(2),
        gradient.clone(),
    )


@_backward.register_fake
def _(d_y, d_last, u, dt, A, B, C, kept):
    return tuple(x.new_empty(x.shape) for x in (u, dt, A, B, C, kept[:, 0]))


def _save(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:5], output[2])


def _gradients(ctx, d_y, d_last, _):
    u, dt, A, B, C, kept = ctx.saved_tensors
    d_y = torch.zeros_like(u) if d_y is None else d_y
    return torch.ops.memory_mosaics.selective_scan_backward(d_y, d_last, u, dt, A, B, C, kept)


_forward.register_autograd(_gradients, setup_context=_save)
