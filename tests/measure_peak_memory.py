"""Peak MiB of a training step of one block, beyond a step on 64 tokens. Arguments: mixer, time, dropout."""

import sys
from pathlib import Path

import torch

from memory_mosaics.language_model import Block, LanguageModelConfig
from memory_mosaics.mixers.mlp import MLPConfig
from mixers_under_contract import MIXERS, WIDTH


def peak() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


name, time, dropout = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
block = Block(
    LanguageModelConfig(
        vocabulary=1, width=WIDTH, blocks=1, sequence_mixer=MIXERS[name], channel_mixer=MLPConfig(), dropout=dropout
    )
)
for length in (64, time):
    before = peak()
    block(torch.randn(1, length, WIDTH))[0].sum().backward()
print(peak() - before)
