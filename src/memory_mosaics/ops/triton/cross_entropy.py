"""Next-token loss over a large vocabulary without ever holding all logits, nor any of them in float32.

`linear_cross_entropy` is the op; `reference` its definition. Rows are taken some thousands at a time: their logits in
the dtype of the features, the loss, the gradient written over the logits, and its two products with the features and
the weight. So the backward pass finds its answer waiting, and one buffer of logits serves all.
"""

# pyright: reportIndexIssue=false, reportCallIssue=false, reportArgumentType=false
import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.ops.triton.leaky_average import runs_kernels
from memory_mosaics.shapes import Float, Int

BUFFER = 2**30  # bytes of logits at a time
ALIGNED = 64  # the vocabulary is padded to a multiple of this: the products of an odd one take four times as long
LAUNCH = dict(BLOCK=4096, num_warps=16)


def linear_cross_entropy(
    features: Float[Tensor, "N W"], weight: Float[Tensor, "V W"], targets: Int[Tensor, " N"], ignore: int = -100
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats, of the logits features @ weight.T; targets equal to `ignore` do not count."""
    if torch.is_autocast_enabled(features.device.type):
        features = features.to(torch.get_autocast_dtype(features.device.type))
    wanted = torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)
    return torch.ops.memory_mosaics.linear_cross_entropy(features, weight, targets, ignore, wanted)[0]


def reference(
    features: Float[Tensor, "N W"], weight: Float[Tensor, "V W"], targets: Int[Tensor, " N"], ignore: int = -100
) -> Float[Tensor, ""]:
    """The definition, in float32."""
    return F.cross_entropy(F.linear(features.float(), weight.float()), targets, ignore_index=ignore)


def rows_at_a_time(N: int, V: int, size: int, buffer: int = BUFFER) -> int:
    """Rows whose logits fit into the buffer, the same number for every chunk but the last."""
    most = max(buffer // (V * size), 128)
    even = -(-N // -(-N // most))
    return min(N, -(-even // 128) * 128)


SCHEMA = (
    "(Tensor features, Tensor weight, Tensor targets, int ignore, bool gradients) -> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.custom_op("memory_mosaics::linear_cross_entropy", mutates_args=(), schema=SCHEMA)
def _forward(features, weight, targets, ignore, gradients):
    return in_chunks(features, weight, targets, ignore, gradients)


def in_chunks(
    features: Tensor, weight: Tensor, targets: Tensor, ignore: int, gradients: bool, buffer: int = BUFFER
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, one over the number of targets that count, and the gradients of the sum over them (empty: not wanted)."""
    (N, W), V = features.shape, len(weight)
    padded = -(-V // ALIGNED) * ALIGNED
    matrix = F.pad(weight.to(features.dtype), (0, 0, 0, padded - V))
    rows = rows_at_a_time(N, V, features.element_size(), buffer) if N else 0
    logits = torch.empty(rows, padded, dtype=features.dtype, device=features.device)
    losses = torch.empty(N, dtype=torch.float32, device=features.device)
    d_features = torch.empty(N if gradients else 0, W, dtype=features.dtype, device=features.device)
    d_weight = torch.zeros(padded if gradients else 0, W, dtype=torch.float32, device=features.device)
    for start in range(0, N, rows or 1):
        part = slice(start, start + rows)
        x = features[part]
        chunk = logits[: len(x)]
        torch.mm(x, matrix.t(), out=chunk)  # 0 in the padding, and no part of the softmax: so is its gradient
        losses[part] = _losses(chunk[:, :V], targets[part], ignore, gradients)
        if gradients:
            torch.mm(chunk, matrix, out=d_features[part])
            d_weight += chunk.t() @ x
    share = 1 / (targets != ignore).sum().float()
    return losses.sum() * share, share, d_features, d_weight[:V].to(weight.dtype)


def _losses(logits: Tensor, targets: Tensor, ignore: int, gradients: bool) -> Tensor:
    """The loss of each row; the logits become its gradient."""
    if runs_kernels(logits):
        from memory_mosaics.ops.triton import cross_entropy_kernels as kernels

        losses = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        kernels.loss_and_gradient[(len(logits),)](
            logits,
            targets.contiguous(),
            losses,
            logits.stride(0),
            logits.shape[1],
            ignore,
            GRADIENT=gradients,
            **LAUNCH,
        )
        return losses
    logs = logits.float().log_softmax(-1)
    counts = targets != ignore
    there = targets.where(counts, 0)[:, None]
    losses = -logs.gather(1, there)[:, 0] * counts
    if gradients:
        softmax = logs.exp_()
        softmax.scatter_add_(1, there, -torch.ones_like(there, dtype=softmax.dtype))
        logits.copy_(softmax * counts[:, None])
    return losses


@_forward.register_fake
def _(features, weight, targets, ignore, gradients):
    (N, W), V = features.shape, len(weight)
    scalar = features.new_empty((), dtype=torch.float32)
    found = features.new_empty(N if gradients else 0, W), weight.new_empty(V if gradients else 0, W)
    return scalar, torch.empty_like(scalar), *found


def _save(ctx, inputs, output):
    _, share, d_features, d_weight = output
    ctx.set_materialize_grads(False)  # zeros of the size of the weight
    ctx.save_for_backward(share, d_features, d_weight)


def _gradients(ctx, d_loss, *_):
    if d_loss is None:
        return None, None, None, None, None
    share, d_features, d_weight = ctx.saved_tensors
    factor = d_loss * share
    return (factor * d_features).to(d_features.dtype), (factor * d_weight).to(d_weight.dtype), None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
