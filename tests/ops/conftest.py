"""For all ops: memory that no kernel has written holds NaN."""

import pytest
import torch
from triton_forms import common, mend_interpreter

if common.INTERPRETED:
    mend_interpreter()


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Memory that no kernel has written holds NaN."""
    with torch.device("cpu"):  # PyTorch lists what makes tensors when it is first asked: before it is another function
        empty = torch.empty
        empty(0)

    def poisoned(*shape, **options):
        memory = empty(*shape, **options)
        with torch.no_grad():
            return memory.fill_(float("nan")) if memory.is_floating_point() else memory

    monkeypatch.setattr(torch, "empty", poisoned)
