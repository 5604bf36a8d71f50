"""RegBench on the device: a split as tensors whose shapes never change, and a model's scores on it.

Sequences are padded to one length, and the last batch of an epoch is filled up with rows of padding, which have no
targets and so no part in the mean loss.
"""

from collections.abc import Iterator
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.data.regbench import IGNORED, PADDING, Sequences, order, sums
from memory_mosaics.language_model import LanguageModel, without_state
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.training.parallel import precision
from memory_mosaics.training.recipe import Machine

BATCH = 32  # sequences in a step
LENGTH, MULTIPLE = 704, 64  # what recorded sequences are padded to, so that all sizes share one compilation; or more
AT_ONCE = 128  # sequences measured at a time
TEMPERATURES = torch.logspace(-3, 3, 181, base=2).tolist()  # from 1/8 to 8, 2.3 % apart


class Split:
    """Sequences on the device, all of one length, with one row of nothing behind them."""

    def __init__(self, sequences: Sequences, device: torch.device):
        self.sequences, self.size = sequences, len(sequences)
        batch = sequences.at(range(self.size))
        longest = batch.inputs.shape[1]
        length = max(LENGTH, -(-longest // MULTIPLE) * MULTIPLE) if device.type == "cuda" else longest
        self.room = (0, length - longest, 0, 1)
        self.inputs: Int[Tensor, "N T"] = F.pad(batch.inputs, self.room, value=PADDING).to(device)
        self.targets: Int[Tensor, "N T"] = F.pad(batch.targets, self.room, value=IGNORED).to(device)
        self.tokens = int(batch.counted.sum())

    @cached_property
    def legal(self) -> Bool[Tensor, "N T V"]:
        """What may come next: for measuring alone."""
        return F.pad(self.sequences.legal(range(self.size)), (0, 0, *self.room)).to(self.inputs.device)

    def epoch(self, seed: int, epoch: int) -> tuple[Int[Tensor, " B"], ...]:
        """Which rows each step of an epoch has. Where steps are recorded the last is filled up with rows of nothing."""
        rows = torch.tensor(order(self.size, seed, epoch), device=self.inputs.device)
        missing = -self.size % BATCH if rows.is_cuda else 0
        return F.pad(rows, (0, missing), value=self.size).split(BATCH)


def logits_of(model: LanguageModel, inputs: Int[Tensor, "B T"], machine: Machine) -> Float[Tensor, "B T V"]:
    """In single precision, whatever the model was read in."""
    with precision(machine, inputs.device):
        features, _ = model.features(model.embedding(inputs), through=without_state)
    return F.linear(features.float(), model.output.float())


@torch.no_grad()
def measure(model: LanguageModel, split: Split, machine: Machine, *, temperature: float = 1.0) -> dict[str, float]:
    """The mean loss of all targets, and accuracy and distance at all positions. Waits for the device once."""
    model.eval()
    total = torch.zeros(5, dtype=torch.float64, device=split.inputs.device)
    for inputs, targets, legal in _portions(split):
        logits = logits_of(model, inputs, machine) / temperature
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        total += torch.cat([torch.stack([loss, (targets != IGNORED).sum()]), sums(logits.softmax(dim=-1), legal)])
    model.train()
    loss, targets, positions, right, distance = total.tolist()
    return {"loss": loss / targets, "accuracy": right / positions, "tvd": distance / positions}


def _portions(split: Split) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    parts = (part[: split.size].split(AT_ONCE) for part in (split.inputs, split.targets, split.legal))
    yield from zip(*parts, strict=True)


@torch.no_grad()
def best_temperature(model: LanguageModel, split: Split, machine: Machine) -> float:
    """By what to divide the logits for the lowest loss on a split."""
    model.eval()
    losses = torch.zeros(len(TEMPERATURES), device=split.inputs.device, dtype=torch.float64)
    for inputs, targets, _ in _portions(split):
        answered = targets != IGNORED
        logits, answers = logits_of(model, inputs, machine)[answered], targets[answered]
        losses += torch.stack([F.cross_entropy(logits / t, answers, reduction="sum") for t in TEMPERATURES])
    model.train()
    return TEMPERATURES[int(losses.argmin())]
