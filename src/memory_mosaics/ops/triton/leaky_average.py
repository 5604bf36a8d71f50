"""Keys of equation 6 in one pass over memory:  average_t = x_t + decay * average_{t-1},  key_t = Norm(average_t).

`leaky_key` is the op; `reference` its definition. On CUDA it reads W x once and writes the keys once. For the gradient
it keeps the keys, which recall keeps as well, and their norms: key times norm gives the average back as exactly as the
gradient of the keys is known, and W x itself need not be kept.
"""

# pyright: reportIndexIssue=false, reportCallIssue=false, reportArgumentType=false
import os
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.ops.leaky_average import leaky_average
from memory_mosaics.ops.leaky_average import reference as average_reference
from memory_mosaics.ops.normalise import EPS
from memory_mosaics.ops.triton import WIDTHS
from memory_mosaics.shapes import Float

FORWARD = dict(C=16, num_warps=2, num_stages=5)
BACKWARD = dict(P=8, C=16, num_warps=2, STAGES=6)
SEGMENT_FORWARD = dict(C=16, num_warps=1, num_stages=8)  # of several
SEGMENT_BACKWARD = dict(P=4, C=16, num_warps=1, STAGES=10)
CHUNK = 32  # of steps: a segment has a whole number of them
SUMS = dict(C=CHUNK, num_warps=1)  # most of whose programs have nothing to do
SHORTEST = 256  # steps of a segment
RESIDENT = 8  # programs that a multiprocessor should have to work on, where time is cut


def leaky_key(
    raw: Float[Tensor, "B T H D"],
    decay: Float[Tensor, " H"],
    mean: Float[Tensor, "B H D"] | None = None,
    scale: Float[Tensor, " H"] | None = None,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """Keys, and the last average in float32, to continue from. With `scale` the keys have that length, per head."""
    mean, scale = (None if given is None else given.float() for given in (mean, scale))
    key, last, _ = torch.ops.memory_mosaics.leaky_key(raw, decay.float(), mean, scale)
    return key, last


def reference(
    raw: Float[Tensor, "B T H D"],
    decay: Float[Tensor, " H"],
    mean: Float[Tensor, "B H D"] | None = None,
    scale: Float[Tensor, " H"] | None = None,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B H D"]]:
    """The definition: the leaky average step by step in float32, then the norm."""
    average, last = average_reference(raw.float(), decay, mean)
    key = F.normalize(average, dim=-1, eps=EPS)
    return (key if scale is None else scale[:, None] * key).to(raw.dtype), last


def runs_kernels(x: Tensor) -> bool:
    """On CUDA; and anywhere under Triton's interpreter, to test them."""
    return x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


@lru_cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132


def segments(x: Tensor, chunk: int, resident: int) -> tuple[int, int]:
    """Steps of a segment, a multiple of the chunk, and how many there are: `resident` programs a multiprocessor."""
    B, T, H, _ = x.shape
    wanted = max(1, min(resident * multiprocessors(x.device) // (B * H), T // SHORTEST))
    rows = -(-T // (wanted * chunk)) * chunk
    return rows, -(-T // rows)


def bits(x: Tensor) -> float:
    """Halvings after which a step is nothing beside those that came since, in the precision of x and more.

    Where nothing came since, as in padding, the direction of what is left is lost at the border of a segment.
    """
    return 24.0 if x.dtype == torch.float32 else 16.0


def packed(x: Tensor) -> Tensor:
    """The kernels take any strides but that of the head's width."""
    return x if x.stride(-1) == 1 else x.contiguous()


def forward_kernels(
    raw: Tensor, decay: Tensor, mean: Tensor | None, scale: Tensor | None, rows: int | None = None, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Key, last average, norms. `rows` of a segment and `options` of the launch are for measurements."""
    from memory_mosaics.ops.triton import leaky_average_kernels as kernels

    raw, decay = packed(raw), decay.contiguous()
    mean, scale = (None if given is None else given.contiguous() for given in (mean, scale))
    B, T, H, D = raw.shape
    rows, S = segments(raw, CHUNK, RESIDENT) if rows is None else (rows, -(-T // rows))
    precision = "split" if raw.dtype == torch.bfloat16 else "tf32x3"
    options = (FORWARD if S == 1 else SEGMENT_FORWARD) | {"PRECISION": precision} | options
    key = torch.empty(B, T, H, D, dtype=raw.dtype, device=raw.device)
    norm = torch.empty(B, H, T, dtype=torch.float32, device=raw.device)
    last = torch.empty(B, H, D, dtype=torch.float32, device=raw.device)
    sums = torch.empty(B, H, S, D, dtype=torch.float32, device=raw.device) if S > 1 else None
    strides = raw.stride()[:3]
    if sums is not None:
        kernels.key_forward_sums[(B * H, S - 1)](raw, decay, sums, *strides, H, rows, S, D=D, BITS=bits(raw), **SUMS)
    kernels.key_forward[(B * H, S)](
        raw, decay, scale, mean, sums, key, norm, last, *strides, T, H, rows, S, D=D, EPS=EPS,
        HAS_SCALE=scale is not None, HAS_MEAN=mean is not None, HAS_SUMS=sums is not None, BITS=bits(raw),
        **options,
    )  # fmt: skip
    return key, last, norm


def backward_kernels(
    d_key: Tensor,
    d_last: Tensor | None,
    key: Tensor,
    norm: Tensor,
    decay: Tensor,
    mean: Tensor | None,
    scale: Tensor | None,
    rows: int | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of raw, decay, mean and scale; those of decay and scale segment by segment: (B*S, H)."""
    from memory_mosaics.ops.triton import leaky_average_kernels as kernels

    d_key, decay = packed(d_key), decay.contiguous()
    mean, scale, d_last = (None if given is None else given.contiguous() for given in (mean, scale, d_last))
    B, T, H, D = key.shape
    rows, S = segments(key, CHUNK, RESIDENT) if rows is None else (rows, -(-T // rows))
    options = (BACKWARD if S == 1 else SEGMENT_BACKWARD) | options
    empty = lambda *shape: torch.empty(*shape, dtype=torch.float32, device=key.device)  # noqa: E731
    d_raw = torch.empty(B, T, H, D, dtype=key.dtype, device=key.device)
    d_decay, d_scale = empty(B * S, H), None if scale is None else empty(B * S, H)
    d_mean = None if mean is None else empty(B, H, D)
    sums = empty(B, H, S, D) if S > 1 else None
    sizes = (*d_key.stride()[:3], T, H, rows, S)
    flags = dict(D=D, EPS=EPS, HAS_SCALE=scale is not None, HAS_LAST=d_last is not None, BITS=bits(key))
    if sums is not None:
        there = (d_key, key, norm, decay, scale, d_last, sums)
        kernels.key_backward_sums[(B * H, S - 1)](*there, *sizes, **flags, **SUMS)
    kernels.key_backward[(B * H, S)](
        d_key, key, norm, decay, scale, mean, d_last, sums, d_raw, d_decay, d_scale, d_mean, *sizes, **flags,
        HAS_MEAN=mean is not None, HAS_SUMS=sums is not None, **options,
    )  # fmt: skip
    return d_raw, d_decay, d_mean, d_scale


SCHEMA = "(Tensor raw, Tensor decay, Tensor? mean, Tensor? scale) -> (Tensor, Tensor, Tensor)"
BACKWARD_SCHEMA = (
    "(Tensor d_key, Tensor? d_last, Tensor key, Tensor norm, Tensor decay, Tensor? mean, Tensor? scale)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("memory_mosaics::leaky_key", mutates_args=(), schema=SCHEMA)
def _forward(raw, decay, mean, scale):
    if raw.shape[-1] not in WIDTHS and raw.is_cuda:
        raise ValueError(f"the kernel takes heads of width {WIDTHS}; got {raw.shape[-1]}")
    if runs_kernels(raw) and raw.numel():
        return forward_kernels(raw, decay, mean, scale)
    average, last = leaky_average(raw.float(), decay, mean)
    norm = average.norm(dim=-1).clamp(min=EPS)
    key = average / norm[..., None]
    key = key if scale is None else scale[:, None] * key
    key = key.to(raw.dtype).contiguous()
    return key, last.clone(memory_format=torch.contiguous_format), norm.transpose(1, 2).contiguous()


@_forward.register_fake
def _(raw, decay, mean, scale):
    B, T, H, D = raw.shape
    last = raw.new_empty(B, H, D, dtype=torch.float32)
    return raw.new_empty(B, T, H, D), last, raw.new_empty(B, H, T, dtype=torch.float32)


@torch.library.custom_op("memory_mosaics::leaky_key_backward", mutates_args=(), schema=BACKWARD_SCHEMA)
def _backward(d_key, d_last, key, norm, decay, mean, scale):
    if runs_kernels(key) and key.numel():
        found = backward_kernels(d_key, d_last, key, norm, decay, mean, scale)
    else:
        found = _backward_in_torch(d_key, d_last, key, norm, decay, mean, scale)
    return tuple(key.new_empty(0) if gradient is None else gradient for gradient in found)


@_backward.register_fake
def _(d_key, d_last, key, norm, decay, mean, scale):
    rows = key.shape[0] * (segments(key, CHUNK, RESIDENT)[1] if runs_kernels(key) else 1)
    shapes = (
        (rows, key.shape[2]),
        mean if mean is None else mean.shape,
        None if scale is None else (rows, key.shape[2]),
    )
    return torch.empty_like(key), *(key.new_empty(0) if x is None else norm.new_empty(x) for x in shapes)


def _backward_in_torch(d_key, d_last, key, norm, decay, mean, scale):
    d_raw_dtype = key.dtype
    d_key, key, norm = d_key.float(), key.float(), norm.transpose(1, 2)[..., None]
    factor = key.new_ones(()) if scale is None else scale[:, None]
    key = key / factor
    radial = (key * d_key).sum(-1, keepdim=True)
    arriving = factor / norm * (d_key - key * radial.where(norm > EPS, 0.0))
    if d_last is not None and arriving.shape[1]:
        arriving[:, -1] += d_last
    gradient = leaky_average(arriving.flip(1), decay)[0].flip(1)
    start = torch.zeros_like(key[:, :0]) if mean is None else mean[:, None]
    before = torch.cat([start, key * norm], dim=1)[:, : -1 if key.shape[1] else None]
    d_decay = (gradient[:, 0 if mean is not None else 1 :] * before).sum((1, 3))
    d_mean = None if mean is None else decay[:, None] * gradient[:, 0]
    return gradient.to(d_raw_dtype).contiguous(), d_decay, d_mean, None if scale is None else radial.sum((1, 3))


def _save(ctx, inputs, output):
    _, decay, mean, scale = inputs
    key, _, norm = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(key, norm, decay, mean, scale)


def _gradients(ctx, d_key, d_last, _):
    key, norm, decay, mean, scale = ctx.saved_tensors
    d_key = torch.zeros_like(key) if d_key is None else d_key
    found = torch.ops.memory_mosaics.leaky_key_backward(d_key, d_last, key, norm, decay, mean, scale)
    d_raw, d_decay, d_mean, d_scale = found
    # Segments are added up here, where a compiler can put it into one kernel with what comes next.
    return d_raw, d_decay.sum(0), None if mean is None else d_mean, None if scale is None else d_scale.sum(0)


_forward.register_autograd(_gradients, setup_context=_save)
