"""RegBench on the device: a split as tensors whose shapes never change, and a model's scores on it.

Sequences are padded to one length, and the last batch of an epoch is filled up with rows of padding, which have no
targets and so no part in the mean loss.
"""

from functools import cached_property, partial

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
        room = (0, length - longest, 0, 1)
        self.inputs: Int[Tensor, "N T"] = F.pad(batch.inputs, room, value=PADDING).to(device)
        self.targets: Int[Tensor, "N T"] = F.pad(batch.targets, room, value=IGNORED).to(device)
        self.tokens = int(batch.counted.sum())

    @cached_property
    def portions(self) -> list[tuple[Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T V"]]]:
        """For measuring: inputs, targets and what may come next, short sequences first, no longer than they are."""
        legal = self.sequences.legal(range(self.size))
        lengths = legal.any(dim=-1).sum(dim=-1)
        portions = []
        for rows in lengths.argsort(stable=True).split(AT_ONCE):
            time = min(-(-int(lengths[rows].max()) // MULTIPLE) * MULTIPLE, legal.shape[1])
            there = rows.to(self.inputs.device)
            allowed = legal[rows, :time].to(self.inputs.device)
            portions.append((self.inputs[there, :time], self.targets[there, :time], allowed))
        return portions

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


def measure(model: LanguageModel, split: Split, machine: Machine, *, temperature: float = 1.0) -> dict[str, float]:
    """The mean loss of all targets, and accuracy and distance at all positions. Waits for the device once."""
    return _measures(_sums(model, split, machine, temperature))


class Examination:
    """`measure` of one model again and again: on CUDA what the first does is recorded by the second, then replayed."""

    def __init__(self, model: LanguageModel, split: Split, machine: Machine):
        self.sums = partial(_sums, model, split, machine)
        self.recorded, self.times = split.inputs.is_cuda, 0

    def __call__(self) -> dict[str, float]:
        self.times += 1
        if self.times == 1 or not self.recorded:
            return _measures(self.sums())
        if self.times == 2:
            self.graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.total = self.sums()
        self.graph.replay()
        return _measures(self.total)


@torch.no_grad()
def _sums(model: LanguageModel, split: Split, machine: Machine, temperature: float = 1.0) -> Float[Tensor, " 5"]:
    """Loss, targets, positions, right answers and distances."""
    model.eval()
    total = torch.zeros(5, dtype=torch.float64, device=split.inputs.device)
    for inputs, targets, legal in split.portions:
        logits = logits_of(model, inputs, machine) / temperature
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        total += torch.cat([torch.stack([loss, (targets != IGNORED).sum()]), sums(logits.softmax(dim=-1), legal)])
    model.train()
    return total


def _measures(total: Float[Tensor, " 5"]) -> dict[str, float]:
    loss, targets, positions, right, distance = total.tolist()
    return {"loss": loss / targets, "accuracy": right / positions, "tvd": distance / positions}


@torch.no_grad()
def best_temperature(model: LanguageModel, split: Split, machine: Machine) -> float:
    """By what to divide the logits for the lowest loss on a split."""
    model.eval()
    losses = torch.zeros(len(TEMPERATURES), device=split.inputs.device, dtype=torch.float64)
    for inputs, targets, _ in split.portions:
        answered = targets != IGNORED
        logits, answers = logits_of(model, inputs, machine)[answered], targets[answered]
        losses += torch.stack([F.cross_entropy(logits / t, answers, reduction="sum") for t in TEMPERATURES])
    model.train()
    return TEMPERATURES[int(losses.argmin())]
