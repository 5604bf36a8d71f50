"""Keys of Memory Mosaics v2 in one pass over memory:  average_t = gate_t x_t + decay_t average_{t-1},  key = Norm.

`gated_key` is the op; `reference` its definition. A decay and a gate for every step and head; else as `leaky_key`,
but for x, which the gradient of the gates needs and which is kept.
"""

# pyright: reportIndexIssue=false, reportCallIssue=false, reportArgumentType=false
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.ops.normalise import EPS
from memory_mosaics.ops.scan import recurrence
from memory_mosaics.ops.triton import WIDTHS
from memory_mosaics.ops.triton.leaky_average import packed, runs_kernels, segments
from memory_mosaics.shapes import Float

FORWARD = dict(C=32, num_warps=4, num_stages=2)
BACKWARD = dict(C=32, num_warps=4, num_stages=1)
RESIDENT = 6  # programs that a multiprocessor should have to work on


def gated_key(
    raw: Float[Tensor, "B T H D"],
    decay: Float[Tensor, "B T H"],
    gate: Float[Tensor, "B T H"],
    mean: Float[Tensor, "B H D"] | None = None,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """Keys, and the last average in float32, to continue from. Decays in (0, 1]: below 1e-12 they count as that."""
    mean = None if mean is None else mean.float()
    key, last, _ = torch.ops.memory_mosaics.gated_key(raw, decay.float(), gate.float(), mean)
    return key, last


def reference(
    raw: Float[Tensor, "B T H D"],
    decay: Float[Tensor, "B T H"],
    gate: Float[Tensor, "B T H"],
    mean: Float[Tensor, "B H D"] | None = None,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """The definition, one step at a time in float32."""
    average = torch.zeros_like(raw[:, 0], dtype=torch.float32) if mean is None else mean
    averages = []
    for x, decays, gates in zip(raw.float().unbind(1), decay.unbind(1), gate.unbind(1), strict=True):
        average = gates[..., None] * x + decays[..., None] * average
        averages.append(average)
    return F.normalize(torch.stack(averages, dim=1), dim=-1, eps=EPS).to(raw.dtype), average


def forward_kernels(
    raw: Tensor, decay: Tensor, gate: Tensor, mean: Tensor | None, rows: int | None = None, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Key, last average, norms."""
    from memory_mosaics.ops.triton import gated_average_kernels as kernels

    raw, decay, gate = packed(raw), decay.contiguous(), gate.contiguous()
    mean = None if mean is None else mean.contiguous()
    B, T, H, D = raw.shape
    options = FORWARD | {"PRECISION": "split" if raw.dtype == torch.bfloat16 else "tf32x3"} | options
    rows, S = segments(raw, options["C"], RESIDENT) if rows is None else (rows, -(-T // rows))
    key = torch.empty(B, T, H, D, dtype=raw.dtype, device=raw.device)
    norm = torch.empty(B, H, T, dtype=torch.float32, device=raw.device)
    last = torch.empty(B, H, D, dtype=torch.float32, device=raw.device)
    sums, totals = _between(B, H, S, D, raw.device)
    sizes = (*raw.stride()[:3], T, H, rows, S)
    if S > 1:
        kernels.gated_key_forward_sums[(B * H, S - 1)](raw, decay, gate, sums, totals, *sizes, D=D, C=options["C"])
    kernels.gated_key_forward[(B * H, S)](
        raw, decay, gate, mean, sums, totals, key, norm, last, *sizes, D=D, EPS=EPS,
        HAS_MEAN=mean is not None, HAS_SUMS=S > 1, **options,
    )  # fmt: skip
    return key, last, norm


def _between(B: int, H: int, S: int, D: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    if S == 1:
        return None, None
    return torch.empty(B, H, S, D, device=device), torch.empty(B, H, S, device=device)


def backward_kernels(
    d_key: Tensor,
    d_last: Tensor | None,
    key: Tensor,
    norm: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
    rows: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of raw, decay, gate and mean."""
    from memory_mosaics.ops.triton import gated_average_kernels as kernels

    raw, decay, gate, mean = (None if x is None else x.contiguous() for x in (None, *inputs[1:]))
    raw, d_key = packed(inputs[0]), packed(d_key)
    d_last = None if d_last is None else d_last.contiguous()
    B, T, H, D = key.shape
    options = BACKWARD | {"PRECISION": "tf32" if key.dtype == torch.bfloat16 else "tf32x3"} | options
    rows, S = segments(key, options["C"], RESIDENT) if rows is None else (rows, -(-T // rows))
    d_raw = torch.empty(B, T, H, D, dtype=key.dtype, device=key.device)
    d_decay, d_gate = torch.empty(B, T, H, device=key.device), torch.empty(B, T, H, device=key.device)
    d_mean = None if mean is None else torch.empty(B, H, D, device=key.device)
    sums, totals = _between(B, H, S, D, key.device)
    sizes, flags = (T, H, rows, S), dict(D=D, EPS=EPS, HAS_LAST=d_last is not None)
    if S > 1:
        there = (d_key, key, norm, decay, d_last, sums, totals, *d_key.stride()[:3], *sizes)
        kernels.gated_key_backward_sums[(B * H, S - 1)](*there, C=options["C"], **flags)
    kernels.gated_key_backward[(B * H, S)](
        d_key, key, norm, raw, decay, gate, mean, d_last, sums, totals, d_raw, d_decay, d_gate, d_mean,
        *d_key.stride()[:3], *raw.stride()[:3], *sizes, HAS_MEAN=mean is not None, HAS_SUMS=S > 1, **flags, **options,
    )  # fmt: skip
    return d_raw, d_decay, d_gate, d_mean


SCHEMA = "(Tensor raw, Tensor decay, Tensor gate, Tensor? mean) -> (Tensor, Tensor, Tensor)"
BACKWARD_SCHEMA = (
    "(Tensor d_key, Tensor? d_last, Tensor key, Tensor norm, Tensor raw, Tensor decay, Tensor gate, Tensor? mean)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("memory_mosaics::gated_key", mutates_args=(), schema=SCHEMA)
def _forward(raw, decay, gate, mean):
    if raw.is_cuda and raw.shape[-1] not in WIDTHS:
        raise ValueError(f"the kernel takes heads of width {WIDTHS}; got {raw.shape[-1]}")
    if runs_kernels(raw):
        return forward_kernels(raw, decay, gate, mean)
    averages = scan(gate[..., None] * raw.float(), decay, mean)
    norm = averages.norm(dim=-1).clamp(min=EPS)
    key = (averages / norm[..., None]).to(raw.dtype).contiguous()
    return key, averages[:, -1].clone(memory_format=torch.contiguous_format), norm.transpose(1, 2).contiguous()


def scan(x: Tensor, decay: Tensor, mean: Tensor | None) -> Tensor:
    """a_t = x_t + decay_t a_{t-1}, for devices without Triton."""
    return recurrence(decay[..., None], x, torch.zeros_like(x[:, 0]) if mean is None else mean)


@_forward.register_fake
def _(raw, decay, gate, mean):
    B, T, H, D = raw.shape
    last = raw.new_empty(B, H, D, dtype=torch.float32)
    return raw.new_empty(B, T, H, D), last, raw.new_empty(B, H, T, dtype=torch.float32)


@torch.library.custom_op("memory_mosaics::gated_key_backward", mutates_args=(), schema=BACKWARD_SCHEMA)
def _backward(d_key, d_last, key, norm, raw, decay, gate, mean):
    inputs = raw, decay, gate, mean
    form = backward_kernels if runs_kernels(key) else _backward_in_torch
    d_raw, d_decay, d_gate, d_mean = form(d_key, d_last, key, norm, inputs)
    return d_raw, d_decay, d_gate, key.new_empty(0) if d_mean is None else d_mean


@_backward.register_fake
def _(d_key, d_last, key, norm, raw, decay, gate, mean):
    steps = decay.new_empty(decay.shape), gate.new_empty(gate.shape)
    return torch.empty_like(key), *steps, key.new_empty(0) if mean is None else mean.new_empty(mean.shape)


def _backward_in_torch(d_key, d_last, key, norm, inputs):
    raw, decay, gate, mean = inputs
    dtype, norm = key.dtype, norm.transpose(1, 2)[..., None]
    d_key, key = d_key.float(), key.float()
    radial = (key * d_key).sum(-1, keepdim=True).where(norm > EPS, 0.0)
    arriving = (d_key - key * radial) / norm
    if d_last is not None:
        arriving[:, -1] += d_last
    following = torch.cat([decay[:, 1:], decay[:, :1]], dim=1)  # the last is never used
    gradient = scan(arriving.flip(1), following.flip(1), None).flip(1)
    start = torch.zeros_like(key[:, :1]) if mean is None else mean[:, None]
    before = torch.cat([start, (key * norm)[:, :-1]], dim=1)
    d_mean = None if mean is None else decay[:, 0, :, None] * gradient[:, 0]
    d_gate = (gradient * raw.float()).sum(-1)
    return (gate[..., None] * gradient).to(dtype).contiguous(), (gradient * before).sum(-1), d_gate, d_mean


def _save(ctx, inputs, output):
    key, _, norm = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(key, norm, *inputs)


def _gradients(ctx, d_key, d_last, _):
    key, norm, raw, decay, gate, mean = ctx.saved_tensors
    d_key = torch.zeros_like(key) if d_key is None else d_key
    found = torch.ops.memory_mosaics.gated_key_backward(d_key, d_last, key, norm, raw, decay, gate, mean)
    return *found[:3], None if mean is None else found[3]


_forward.register_autograd(_gradients, setup_context=_save)
