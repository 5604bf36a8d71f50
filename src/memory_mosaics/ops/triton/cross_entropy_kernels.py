"""Triton kernel of the loss over the vocabulary. `cross_entropy.py` beside this file says what it is for."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl


@triton.jit
def loss_and_gradient(
    logits, targets, losses, stride, V, ignore,
    BLOCK: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    """One row: -log softmax at the target; softmax minus the target, in the place of the logits."""
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
        hit = tl.load(logits + target).to(tl.float32)  # before any of the row is written over
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
