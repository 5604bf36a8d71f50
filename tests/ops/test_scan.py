import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.ops.scan import recurrence, reference, scan


@pytest.mark.parametrize("time", [1, 2, 63, 128, 130, 1000])
def test_a_recurrence_is_its_definition(time):
    a, b, h = torch.rand(2, time, 3, 4), torch.randn(2, time, 3, 4), torch.randn(2, 3, 4)
    expected = reference(*(x.double() for x in (a, b, h)))
    assert_close(recurrence(a, b, h).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("time", [1, 2, 3, 4, 5, 63, 130])
def test_a_scan_gives_every_prefix(time):
    """Of matrix products, which do not commute."""
    turns = torch.linalg.qr(torch.randn(2, time, 3, 3, dtype=torch.float64)).Q
    (found,) = scan(lambda a, b: [a[0] @ b[0]], [turns])
    prefix = torch.eye(3, dtype=torch.float64)
    for t in range(time):
        prefix = prefix @ turns[:, t]
        assert_close(found[:, t], prefix)
