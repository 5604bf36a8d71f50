"""Next-token loss over a large vocabulary:  mean over n of  -log softmax(W x_n)[target_n].

The Triton form never stores all logits, nor any of them in float32. For some thousand rows at a time it computes the
logits in the dtype of the features, the loss, the gradient in place of the logits, and its two products with the
features and the weight. The gradients are thus computed in the forward pass, with one buffer of logits for all rows.
"""

# pyright: reportInvalidTypeForm=false
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.ops.common import at_least_fp32, can_use_triton, custom_op, tl, triton
from memory_mosaics.shapes import Float, Int

IGNORED = -100  # a target that does not count, as in PyTorch
BUFFER = 2**30  # bytes of logits at a time
ALIGNED = 64  # the vocabulary is padded to a multiple of this: matrix products of odd sizes take four times as long
LAUNCH = dict(BLOCK=4096, num_warps=16)


def reference(
    features: Float[Tensor, "N W"], weight: Float[Tensor, "V W"], targets: Int[Tensor, " N"]
) -> Float[Tensor, ""]:
    """The definition, in float32."""
    return F.cross_entropy(F.linear(features.float(), weight.float()), targets)


def linear_cross_entropy(
    features: Float[Tensor, "N W"], weight: Float[Tensor, "V W"], targets: Int[Tensor, " N"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats, of the logits features @ weight.T over targets other than IGNORED."""
    if not can_use_triton(features):
        return F.cross_entropy(at_least_fp32(F.linear(features, weight)), targets)
    if torch.is_autocast_enabled(features.device.type):
        features = features.to(torch.get_autocast_dtype(features.device.type))
    gradients = torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)
    return _linear_cross_entropy(features, weight, targets, gradients)[0]


def rows_at_a_time(N: int, V: int, size: int) -> int:
    """Number of rows whose logits fit into the buffer, the same for all chunks but the last."""
    most = max(BUFFER // (V * size), 128)
    even = -(-N // -(-N // most))
    return min(N, -(-even // 128) * 128)


def _forward(
    features: Tensor, weight: Tensor, targets: Tensor, gradients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, 1 / number of targets, and gradients of the sum over targets (empty if not `gradients`)."""
    (N, W), V, targets = features.shape, len(weight), targets.contiguous()
    padded, rows = -(-V // ALIGNED) * ALIGNED, rows_at_a_time(N, V, features.element_size())
    matrix = F.pad(weight.to(features.dtype), (0, 0, 0, padded - V))
    empty = partial(torch.empty, dtype=features.dtype, device=features.device)
    logits, losses, d_features = empty(rows, padded), empty(N, dtype=torch.float32), empty(N if gradients else 0, W)
    d_weight = torch.zeros(padded if gradients else 0, W, dtype=torch.float32, device=features.device)
    for start in range(0, N, rows):
        part = slice(start, start + rows)
        x = features[part]
        chunk = logits[: len(x)]
        torch.mm(x, matrix.t(), out=chunk)  # padding is 0 and not part of the softmax: so is its gradient
        loss_and_gradient[(len(x),)](
            chunk, targets[part], losses[part], chunk.stride(0), V, IGNORED, GRADIENT=gradients, **LAUNCH
        )
        if gradients:
            torch.mm(chunk, matrix, out=d_features[part])
            d_weight += chunk.t() @ x
    share = 1 / (targets != IGNORED).sum().float()
    return losses.sum() * share, share, d_features, d_weight[:V].to(weight.dtype)


def _fake(features, weight, targets, gradients):
    (N, W), V = features.shape, len(weight)
    scalar = features.new_empty((), dtype=torch.float32)
    d_features, d_weight = features.new_empty(N if gradients else 0, W), weight.new_empty(V if gradients else 0, W)
    return scalar, torch.empty_like(scalar), d_features, d_weight


def _save(ctx, inputs, output):
    ctx.set_materialize_grads(False)  # zeros of the size of the weight
    ctx.save_for_backward(*output[1:])


def _gradients(ctx, d_loss, *_):
    if d_loss is None:
        return (None,) * 4
    share, d_features, d_weight = ctx.saved_tensors
    factor = d_loss * share
    return (factor * d_features).to(d_features.dtype), (factor * d_weight).to(d_weight.dtype), None, None


_linear_cross_entropy = custom_op(
    "linear_cross_entropy", _forward, fake=_fake, setup_context=_save, backward=_gradients
)


@triton.jit
def loss_and_gradient(
    logits, targets, losses, stride, V, ignore,
    BLOCK: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """One row: -log softmax at the target; the logits are overwritten by softmax minus one-hot target."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    v = tl.arange(0, BLOCK)
    target = tl.load(targets + row)
    if target == ignore:
        tl.store(losses + row, 0.0)
        if GRADIENT:
            for start in range(0, V, BLOCK):
                empty = tl.zeros([BLOCK], logits.dtype.element_ty)
                tl.store(logits + start + v, empty, mask=start + v < V)
    else:
        hit = tl.load(logits + target).to(tl.float32)  # before the row is overwritten
        top, total = float("-inf"), 0.0
        for start in range(0, V, BLOCK):
            x = tl.load(logits + start + v, mask=start + v < V, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(top, tl.max(x, axis=0))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), axis=0)
            top = higher
        normaliser = top + tl.log(total)
        tl.store(losses + row, normaliser - hit)
        if GRADIENT:
            for start in range(0, V, BLOCK):
                x = tl.load(logits + start + v, mask=start + v < V, other=float("-inf")).to(tl.float32)
                found = tl.exp(x - normaliser) - tl.where(start + v == target, 1.0, 0.0)
                tl.store(logits + start + v, found.to(logits.dtype.element_ty), mask=start + v < V)
