"""A refactor changes no digit: what is computed is what is stored.

goldens.py has the cases, compares them to the last bit, and writes them anew.
"""

import json

import pytest

from goldens import CASES, FOLDER, compute, differences, machine, shared, stored
from memory_mosaics.training.trainer import Trainer

WHOLE = {"train/contextual memory", "train/persistent memory", "train/attention", "regbench/lstm", "regbench/gla"}
SLOW = {name for name in CASES if name.startswith(("train/", "regbench/"))} - WHOLE
SLOW |= {"command/sweep", "induction", "induction/random triggers", "moons/authors' periods"}
CONTINUOUS = ("train/", "preset/", "positions/", "convert/")
FEW = 5  # steps: initial values, losses, gradients and the first updates


@pytest.mark.parametrize("name", [name for name in CASES if name in SLOW and name.startswith("train/")])
def test_nothing_is_computed_otherwise_in_the_first_steps(name, monkeypatch):
    shared()  # whose models are trained to the end
    monkeypatch.setattr(Trainer, "done", property(lambda trainer: trainer.progress["step"] >= FEW))
    found = compute(name)
    assert [line["step"] for line in found] == list(range(1, FEW + 1))
    assert not differences(found, stored(name)[:FEW], exact=False)


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in CASES])
def test_nothing_is_computed_otherwise(name, request):
    if name != "command/draw":
        request.getfixturevalue("undrawn")
    if not name.startswith(CONTINUOUS) and machine() != json.loads((FOLDER / "machine.json").read_text()):
        pytest.skip("another processor may choose otherwise where two are almost equal")
    assert not differences(compute(name), stored(name), exact=False)
