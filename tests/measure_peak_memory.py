"""MiB that one training step of a block of `name` takes at its peak, beyond a step on 64 tokens: argv name time dropout."""

import sys
from pathlib import Path

import torch
from mixers_under_contract import MIXERS, WIDTH

from memory_mosaics.language_model import Block, LanguageModelConfig
from memory_mosaics.mixers.mlp import MLPConfig


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
