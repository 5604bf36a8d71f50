"""The selective scan of Mamba:  h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,  y_t = C_t . h_t.

Letters: E inner width, N states. The states h are N times as large as the inputs. The PyTorch form stores those of one
segment of time, the Triton form those of one in CHECKPOINT_STEPS steps; in the backward pass both recompute the others.
"""

# pyright: reportInvalidTypeForm=false
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from memory_mosaics.ops.common import can_use_triton, contiguous, differentiable_op, tl, triton
from memory_mosaics.ops.scan import recurrence
from memory_mosaics.shapes import Float

SEGMENT = 128  # steps whose states are stored at the same time
CHECKPOINT_STEPS = 32  # steps between stored states
OPTIONS = dict(W=8, num_warps=1, STAGES=4)


def reference(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor
) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B E N"]]:
    """The definition, step by step."""
    outputs = [u[:, :0]]
    for t in range(u.shape[1]):
        h = torch.exp(dt[:, t, :, None] * A) * h + (dt[:, t] * u[:, t])[..., None] * B[:, t, None]
        outputs.append((h * C[:, t, None]).sum(-1)[:, None])
    return torch.cat(outputs, dim=1), h


def selective_scan(
    u: Float[Tensor, "B T E"],
    dt: Float[Tensor, "B T E"],
    A: Float[Tensor, "E N"],
    B: Float[Tensor, "B T N"],
    C: Float[Tensor, "B T N"],
    h: Float[Tensor, "B E N"],
) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B E N"]]:
    """C_t . h_t at every time, and the last h."""
    if u.shape[1] > 1 and can_use_triton(u, dtypes=(torch.float32,)):
        return _selective_scan(*(x.float() for x in (u, dt, A, B, C, h)))[:2]
    segments = [u.new_zeros(len(u), 0, u.shape[2])]
    for inputs in zip(*(z.split(SEGMENT, dim=1) for z in (u, dt, B, C)), strict=True):
        if inputs[0].shape[1] > 0:
            found = checkpoint(_segment, *inputs, A, h, use_reentrant=False, preserve_rng_state=False)
            y, h = cast(tuple[Tensor, Tensor], found)
            segments.append(y)
    return torch.cat(segments, dim=1), h


def _segment(u: Tensor, dt: Tensor, B: Tensor, C: Tensor, A: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    states = recurrence(torch.exp(dt[..., None] * A), (dt * u)[..., None] * B[:, :, None], h)
    return (states @ C[..., None])[..., 0], states[:, -1].clone()


def _options(A: Tensor) -> dict[str, Any]:
    return OPTIONS | {"WN": max(2, 1 << (A.shape[1] - 1).bit_length())}


def _forward(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the last states, and those stored for the backward pass."""
    inputs = contiguous(u, dt, A, B, C, h)
    (rows, T, E), N, options = u.shape, A.shape[1], _options(A)
    y, last, kept = _empty_outputs(u, dt, A, B, C, h)
    scan_forward[(rows, -(-E // options["W"]))](*inputs, y, last, kept, T, E, N, CHECKPOINT_STEPS, **options)
    return y, last, kept


def _backward(
    d_y: Tensor, d_last: Tensor | None, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, dt, A, B, C and the first h."""
    inputs = contiguous(u, dt, A, B, C, kept, d_y, d_last)
    (rows, T, E), N, options = u.shape, A.shape[1], _options(A)
    blocks = -(-E // options["W"])
    empty = partial(torch.empty, dtype=torch.float32, device=u.device)
    d_u, d_dt, d_A, d_start = empty(rows, T, E), empty(rows, T, E), empty(rows, E, N), empty(rows, E, N)
    d_B, d_C = empty(rows, blocks, T, N), empty(rows, blocks, T, N)
    trail = empty(rows, blocks, CHECKPOINT_STEPS, options["W"], options["WN"])
    outputs = (d_u, d_dt, d_A, d_B, d_C, d_start, trail)
    sizes = (T, E, N, CHECKPOINT_STEPS, blocks)
    scan_backward[(rows, blocks)](*inputs, *outputs, *sizes, HAS_LAST=d_last is not None, **options)
    return d_u, d_dt, d_A.sum(0), d_B.sum(1), d_C.sum(1), d_start


def _empty_outputs(u, dt, A, B, C, h):
    kept = h.new_empty(len(h), -(-u.shape[1] // CHECKPOINT_STEPS), *h.shape[1:])
    return u.new_empty(u.shape), h.new_empty(h.shape), kept


_selective_scan = differentiable_op(
    "selective_scan",
    _forward,
    _backward,
    fake=_empty_outputs,
    fake_backward=lambda d_y, d_last, *saved: tuple(x.new_empty(x.shape) for x in (*saved[:5], saved[5][:, 0])),
    saved=lambda inputs, outputs: (*inputs[:5], outputs[2]),
)


# The kernels. A program has W channels of one row of the batch, with their N states in registers, and iterates over
# time. Forward it stores the states of one in CHECKPOINT_STEPS steps. Backward it recomputes those of each interval
# from there into a buffer, `trail`, small enough to stay in the cache, and then iterates over the interval in reverse.
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def scan_step(u, dt, B, h, rate, e, n, at, E, N, some, states):
    """The next states, and what the backward pass needs of the step: dt, u, B and the decay of the states."""
    step = tl.load(dt + at * E + e, mask=some, other=0.0)
    x = tl.load(u + at * E + e, mask=some, other=0.0)
    into = tl.load(B + at * N + n, mask=states, other=0.0)
    fade = tl.exp2(step[:, None] * rate)
    return fade * h + (step * x)[:, None] * into[None, :], step, x, into, fade


@triton.jit
def scan_forward(
    u, dt, A, B, C, start, y, last, kept, T, E, N, CHECKPOINT_STEPS,
    W: tl.constexpr, WN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    b, e, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * W + tl.arange(0, W), tl.arange(0, WN)
    some, states = e < E, n < N
    inside, offset = some[:, None] & states[None, :], e[:, None] * N + n[None, :]
    rate = tl.load(A + offset, mask=inside, other=0.0) * LOG2E
    h = tl.load(start + b * E * N + offset, mask=inside, other=0.0)
    intervals = tl.cdiv(T, CHECKPOINT_STEPS)
    for interval in range(intervals):
        tl.store(kept + (b * intervals + interval) * E * N + offset, h, mask=inside)
        for t in tl.range(
            interval * CHECKPOINT_STEPS, tl.minimum((interval + 1) * CHECKPOINT_STEPS, T), num_stages=STAGES
        ):
            at = b * T + t
            h, _, _, _, _ = scan_step(u, dt, B, h, rate, e, n, at, E, N, some, states)
            out = tl.load(C + at * N + n, mask=states, other=0.0)
            tl.store(y + at * E + e, tl.sum(h * out[None, :], axis=1), mask=some)
    tl.store(last + b * E * N + offset, h, mask=inside)


@triton.jit
def scan_backward(
    u, dt, A, B, C, kept, d_y, d_last, d_u, d_dt, d_A, d_B, d_C, d_start, trail, T, E, N, CHECKPOINT_STEPS, BLOCKS,
    W: tl.constexpr, WN: tl.constexpr, STAGES: tl.constexpr, HAS_LAST: tl.constexpr,
):  # fmt: skip
    """Sums over programs are left to the caller: d_A is stored per row, d_B and d_C per W channels."""
    b, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    e, n = block * W + tl.arange(0, W), tl.arange(0, WN)
    some, states = e < E, n < N
    inside, offset = some[:, None] & states[None, :], e[:, None] * N + n[None, :]
    A_here = tl.load(A + offset, mask=inside, other=0.0)
    rate = A_here * LOG2E
    trail += (b * BLOCKS + block) * CHECKPOINT_STEPS * W * WN + tl.arange(0, W)[:, None] * WN + n[None, :]
    d_B += (b * BLOCKS + block) * T * N + n
    d_C += (b * BLOCKS + block) * T * N + n
    gradient, to_A = tl.zeros([W, WN], tl.float32), tl.zeros([W, WN], tl.float32)
    if HAS_LAST:
        gradient += tl.load(d_last + b * E * N + offset, mask=inside, other=0.0)
    intervals = tl.cdiv(T, CHECKPOINT_STEPS)
    for back in range(intervals):
        interval = intervals - 1 - back
        first, stop = interval * CHECKPOINT_STEPS, tl.minimum((interval + 1) * CHECKPOINT_STEPS, T)
        h = tl.load(kept + (b * intervals + interval) * E * N + offset, mask=inside, other=0.0)
        for t in tl.range(first, stop, num_stages=STAGES):
            tl.store(trail + (t - first) * W * WN, h)
            h, _, _, _, _ = scan_step(u, dt, B, h, rate, e, n, b * T + t, E, N, some, states)
        tl.debug_barrier()  # stores to the trail are complete
        for i in range(stop - first):
            t = stop - 1 - i
            at = b * T + t
            before = tl.load(trail + (t - first) * W * WN)
            h, step, x, into, fade = scan_step(u, dt, B, before, rate, e, n, at, E, N, some, states)
            out = tl.load(C + at * N + n, mask=states, other=0.0)
            dy = tl.load(d_y + at * E + e, mask=some, other=0.0)
            gradient += dy[:, None] * out[None, :]
            tl.store(d_C + t * N, tl.sum(dy[:, None] * h, axis=0), mask=states)
            tl.store(d_B + t * N, tl.sum(gradient * (step * x)[:, None], axis=0), mask=states)
            d_input = tl.sum(gradient * into[None, :], axis=1)
            gradient *= fade
            decayed = gradient * before  # gradient of dt A
            tl.store(d_u + at * E + e, d_input * step, mask=some)
            tl.store(d_dt + at * E + e, d_input * x + tl.sum(decayed * A_here, axis=1), mask=some)
            to_A += decayed * step[:, None]
        tl.debug_barrier()  # before it is overwritten
    tl.store(d_A + b * E * N + offset, to_A, mask=inside)
    tl.store(d_start + b * E * N + offset, gradient, mask=inside)
