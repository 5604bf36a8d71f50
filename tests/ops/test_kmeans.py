import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.ops import kmeans as op
from memory_mosaics.ops.kmeans import kmeans, nearest


def reference(points, weights, initial):
    """Lloyd's algorithm for one problem, point by point."""
    centres = [points[index] for index in initial]
    for step in range(11):
        group = [int(torch.stack([(x - c).square().sum() for c in centres]).argmin()) for x in points]
        if step == 10:
            return group
        members = [[i for i, g in enumerate(group) if g == k] for k in range(len(centres))]
        assert all(members)
        centres = [sum(weights[i] * points[i] for i in some) / sum(weights[i] for i in some) for some in members]


@pytest.mark.parametrize("most", [1 << 24, 20])
def test_groups_are_those_of_the_definition(monkeypatch, most):
    monkeypatch.setattr(op, "MAX_DISTANCES", most)
    points, weights = torch.randn(2, 60, 3), torch.rand(2, 60)
    initial = torch.stack([torch.randperm(60)[:5] for _ in range(2)])
    groups = kmeans(points, weights, initial)
    assert groups.tolist() == [reference(*problem) for problem in zip(points, weights, initial, strict=True)]


def test_an_empty_group_starts_again_where_it_is_needed():
    """Both first centres lie in one of two groups, at one point."""
    points = torch.cat([torch.zeros(5, 2), torch.ones(5, 2)])[None] + 0.01 * torch.randn(1, 10, 2)
    points[0, 1] = points[0, 0]
    assert kmeans(points, torch.ones(1, 10), torch.tensor([[0, 1]]))[0].tolist() in (
        [0] * 5 + [1] * 5,
        [1] * 5 + [0] * 5,
    )


def test_points_without_weight_move_nothing():
    points = torch.randn(1, 30, 4)
    more, weights = torch.cat([points, 100 + torch.randn(1, 9, 4)], dim=1), torch.ones(1, 39)
    weights[:, 30:] = 0
    initial = torch.arange(6)[None]
    assert kmeans(more, weights, initial)[:, :30].equal(kmeans(points, weights[:, :30], initial))


def test_more_groups_than_different_points_leave_some_empty():
    points = torch.randn(1, 4, 3).repeat(1, 5, 1)
    groups = kmeans(points, torch.ones(1, 20), torch.arange(10)[None])[0]
    assert [len(set(groups[i::4].tolist())) for i in range(4)] == [1, 1, 1, 1]
    assert len(set(groups.tolist())) == 4


def test_distances():
    points, centres = torch.randn(2, 7, 3), torch.randn(2, 4, 3)
    group, distance = nearest(points, centres)
    wanted = torch.cdist(points, centres).square().min(dim=-1)
    assert group.equal(wanted.indices)
    assert_close(distance, wanted.values)
