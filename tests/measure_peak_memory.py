"""Peak MiB of training steps of one block, beyond a step on 64 tokens. Arguments: mixer, dropout, rising lengths."""

import sys
from pathlib import Path

import torch

from memory_mosaics.language_model import Block, LanguageModelConfig
from memory_mosaics.mixers.attention import MLPConfig
from mixers_under_contract import MIXERS, WIDTH

NAME, DROPOUT, *LENGTHS = sys.argv[1:]
block = Block(
    LanguageModelConfig(
        vocabulary=1,
        width=WIDTH,
        blocks=1,
        sequence_mixer=MIXERS[NAME],
        channel_mixer=MLPConfig(),
        dropout=float(DROPOUT),
    )
)


def peak_after(length: int) -> float:
    block(torch.randn(1, length, WIDTH))[0].sum().backward()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


before = peak_after(64)
print(*(peak_after(int(length)) - before for length in LENGTHS))
