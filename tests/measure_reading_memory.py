"""Peak MiB beyond those of a short text, of reading longer and longer ones. Arguments: a store, rising lengths."""

import sys
from pathlib import Path

import torch

from memory_mosaics import LanguageModel, memory_mosaic
from memory_mosaics.bounded_stores import StorePolicy
from memory_mosaics.evaluation import token_losses

STORE, *LENGTHS = sys.argv[1:]
model = LanguageModel(memory_mosaic(width=64, blocks=2, heads=4, vocabulary=100, context=64)).eval()


def peak_after(length: int) -> float:
    text = torch.randint(100, (1, length + 1))
    losses = token_losses(model, text[:, :-1], text[:, 1:], state=model.empty_state(StorePolicy.parse(STORE)))
    assert losses.shape == (1, length)
    assert losses.isfinite().all()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


before = peak_after(2048)
print(*(peak_after(int(length)) - before for length in LENGTHS))
