"""A refactor changes no digit: what is computed is what is stored.

goldens.py has the cases, compares them to the last bit, and writes them anew.
"""

import json

import pytest

from goldens import CASES, FOLDER, compute, differences, machine, stored

SLOW = ("command/sweep", "induction/random triggers")
CONTINUOUS = ("train/", "preset/", "positions/", "convert/")


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in CASES])
def test_nothing_is_computed_otherwise(name):
    if not name.startswith(CONTINUOUS) and machine() != json.loads((FOLDER / "machine.json").read_text()):
        pytest.skip("another processor may choose otherwise where two are almost equal")
    assert not differences(compute(name), stored(name), exact=False)
