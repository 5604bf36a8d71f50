"""Weighted k-means by Lloyd's algorithm: which of few groups each point belongs to.

P problems of their own, N points, K groups, D width
"""

import torch
from torch import Tensor

from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.shapes import Float, Int

MAX_DISTANCES = 1 << 24  # computed at a time: 64 MiB in float32


def kmeans(
    points: Float[Tensor, "P N D"], weights: Float[Tensor, "P N"], initial: Int[Tensor, "P K"], *, steps: int = 10
) -> Int[Tensor, "P N"]:
    """The group of every point after so many steps. The first centres are the points with the indices `initial`.

    A group that has become empty starts again from the point that is farthest from its centre. Points without weight
    move no centre. A group stays empty where fewer points than groups differ.
    """
    points = at_least_fp32(points)
    weights = weights.to(points.dtype)
    index = initial[..., None].expand(-1, -1, points.shape[2])
    centres = points.gather(1, index)
    for _ in range(steps):
        group, distance = nearest(points, centres)
        total = weights.new_zeros(initial.shape).scatter_add(1, group, weights)
        sums = torch.zeros_like(centres).scatter_add(1, group[..., None].expand_as(points), points * weights[..., None])
        empty = total == 0
        far = distance.masked_fill(weights == 0, -1.0).topk(int(empty.sum(dim=1).max()), dim=1).indices
        if far.shape[1]:
            rank = (empty.cumsum(dim=1) - 1).clamp(0, far.shape[1] - 1)
            restart = points.gather(1, far.gather(1, rank)[..., None].expand_as(centres))
            sums, total = torch.where(empty[..., None], restart, sums), total.masked_fill(empty, 1.0)
        centres = sums / total[..., None]
    return nearest(points, centres)[0]


def nearest(
    points: Float[Tensor, "P N D"], centres: Float[Tensor, "P K D"]
) -> tuple[Int[Tensor, "P N"], Float[Tensor, "P N"]]:
    """The nearest centre of every point, and the squared distance to it."""
    squares = centres.square().sum(dim=-1)[:, None]
    found = []
    for some in points.split(max(1, MAX_DISTANCES // centres.shape[:2].numel()), dim=1):
        found.append((squares - 2 * some @ centres.transpose(1, 2)).min(dim=-1))
    distances = torch.cat([each.values for each in found], dim=1) + points.square().sum(dim=-1)
    return torch.cat([each.indices for each in found], dim=1), distances.clamp(min=0)
