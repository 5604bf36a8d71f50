"""A refactor changes no digit: what is computed is what was recorded.

goldens.py has the cases, and writes them anew.
"""

import os

import pytest

from goldens import CASES, compute, differences, recorded


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_computed_otherwise(name):
    assert not differences(compute(name), recorded(name), exact=os.environ.get("GOLDEN") == "exact")
