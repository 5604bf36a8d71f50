"""Moons on circles, section 5 of the paper: an observation is the position of each moon, a complex number of modulus 1.

    x_t = (exp(i (2 pi t / p_1 + phase_1)), ..., exp(i (2 pi t / p_N + phase_N)))

The periods of a system are N different half-integers from 0.5 to 3.5, up to a common scale. Of all such sets, the
quarter whose common period (the lcm) is smallest are used: the others take too long to repeat. One set is kept for
validation, the rest is for training: a period of the validation system may occur in a training system, the combination
does not. The scale is as large as it can be while a sequence holds three common periods, rounded down so that every
moon returns after an integer number of observations. Without the rounding (`integer_periods=False`) the periods are
those of the authors' code: 44.4, 66.7 and 88.9 in place of 44, 66 and 88.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import torch
from torch import Tensor, nn

from memory_mosaics.config import part
from memory_mosaics.errors import UserError
from memory_mosaics.extractors import Linear
from memory_mosaics.memory import ContextualMemory
from memory_mosaics.runtime import Runtime
from memory_mosaics.shapes import Float
from memory_mosaics.tasks.task import EAGER, Batch, Task

SHARPNESS = 50.0
BATCH_SIZE = 4  # sequences of a step, for each network
CLIP = 1.0  # of the squared error, which is 2 for a guess at random
MARGIN = 5  # observations between the return of all moons and what counts on it

HALVES = range(1, 8)  # the periods 0.5 ... 3.5, counted in halves


@dataclass(frozen=True)
class System:
    """A set of moons: their periods, and the time after which all stand where they stood, in observations."""

    periods: tuple[int | float, ...]
    lcm: int | float


@dataclass(frozen=True, kw_only=True)
class MoonsData:
    """Sequences of `length` observations of systems of `moons` moons.

    Args:
        moons: Moons of a system, 1 to 6.
        length: Observations in a sequence, three common periods or more.
        integer_periods: Whether every period is an integer number of observations.
    """

    moons: int = 3
    length: int = 800
    integer_periods: bool = True

    def __post_init__(self) -> None:
        if self.length < shortest(self.moons):
            raise UserError(f"length must be at least {shortest(self.moons)} for {self.moons} moons, not {self.length}")

    @cached_property
    def systems(self) -> list[System]:
        """All systems, in observations: a half is as many of them as fit three common periods into a sequence."""
        found = []
        for lcm, periods in _halves(self.moons):
            half = self.length // (3 * lcm) if self.integer_periods else self.length / (3 * lcm)
            found.append(System(tuple(half * period for period in periods), half * lcm))
        return found

    @property
    def validation(self) -> System:
        """The system never trained on: the one that takes longest to repeat beyond its slowest moon."""
        return max(self.systems, key=lambda system: (system.lcm - max(system.periods), system.periods))

    @property
    def training(self) -> list[System]:
        """All others; a single moon has but one system, up to scale, and is trained and validated on it."""
        return [system for system in self.systems if system != self.validation] or self.systems

    def sequences(self, system: System, count: int, *, seed: int) -> Float[Tensor, "B T W"]:
        """`count` sequences of one system, from random phases on. W holds the real and imaginary part of every moon."""
        rng = np.random.default_rng((seed, *map(round, system.periods)))
        return self._observe(np.tile(system.periods, (count, 1)), rng)

    def batch(self, size: int, *, seed: int, step: int) -> Batch:
        """Training sequences, each of a random system in random order: a pure function of (seed, step)."""
        rng = np.random.default_rng((seed, step))
        chosen = rng.integers(len(self.training), size=size)
        periods = np.array([self.training[i].periods for i in chosen])
        x = self._observe(rng.permuted(periods, axis=1), rng)
        return Batch(x[:, :-1], x[:, 1:])

    def _observe(self, periods: np.ndarray, rng: np.random.Generator) -> Float[Tensor, "B T W"]:
        t = np.arange(self.length)[None, :, None]
        phases = rng.uniform(0, 2 * np.pi, size=(len(periods), 1, self.moons))
        angles = torch.from_numpy(2 * np.pi * t / periods[:, None] + phases)
        return torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(2).float()


def _halves(moons: int) -> list[tuple[int, tuple[int, ...]]]:
    """The sets of periods in use, each behind its lcm, smallest lcm first; both counted in halves."""
    if not 1 <= moons <= 6:
        raise UserError(f"moons must be 1 to 6, since there are 7 periods to choose from, not {moons}")
    sets = sorted((math.lcm(*periods), periods) for periods in combinations(HALVES, moons))
    return sets[: max(2, math.ceil(len(sets) / 4))]


def shortest(moons: int) -> int:
    """Observations that hold three common periods of every system, if half a unit of time is one observation."""
    return 3 * _halves(moons)[-1][0]


class ComplexMap(nn.Module):
    """W x for complex x and W, where a complex number is two coordinates in a row: it turns and scales each pair.

    A real matrix of the same size would have twice the numbers, and could also shear. With `copies` > 1 it is as many
    matrices, for networks trained side by side: the first rows of a batch go through the first, and so on.
    """

    def __init__(self, width: int, out_width: int, *, copies: int = 1):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(copies, out_width // 2, width // 2, 2) / width**0.5)

    def forward(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "B T V"]:
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()).unflatten(0, (len(self.weight), -1))
        y = torch.einsum("cbti,coi->cbto", z, torch.view_as_complex(self.weight))
        return torch.view_as_real(y.flatten(0, 1)).flatten(-2)


class CombineMoons(nn.Module):
    """z_T = W_z [y_T]: the answers of all memories through one complex matrix."""

    def __init__(self, width: int, *, copies: int):
        super().__init__()
        self.map = ComplexMap(width, width, copies=copies)

    def forward(self, answers: Float[Tensor, "B T H D"]) -> Float[Tensor, "B T W"]:
        return self.map(answers.flatten(2))


@part("moons")
class MoonNetworkConfig:
    """So many moons, and memories to share them; `copies` are networks trained side by side in the same tensors."""

    moons: int = 3
    heads: int = 3
    copies: int = 1

    def __post_init__(self) -> None:
        if self.heads < 1 or self.moons % self.heads:
            raise UserError(f"{self.moons} moons do not split over {self.heads} heads")

    def build(self) -> "MoonNetwork":
        return MoonNetwork(self)


class MoonNetwork(ContextualMemory):
    """Figure 3: k = W_phi x_T, v = W_psi x_{T+1}, z = W_z y in complex numbers, moons / heads of them per memory."""

    def __init__(self, config: MoonNetworkConfig):
        width, each = 2 * config.moons, 2 * config.moons // config.heads
        new = lambda: ComplexMap(width, width, copies=config.copies)  # noqa: E731
        super().__init__(
            key=Linear(width, config.heads, head_width=each, map=new()),
            value=Linear(width, config.heads, head_width=each, map=new(), peek=1),
            sharpness=SHARPNESS,
            combine=CombineMoons(width, copies=config.copies),
        )
        self.config = config


class Moons(Task):
    """Predict the next observation; networks side by side have sequences of their own, by consecutive seeds.

    First the memories share out the moons: sequences end with the first common period, after which a single table would
    do as well, and the squared error of a position is clipped (appendix A), since no prediction can be good while the
    memories are nearly empty. Then, over the last 30 % of the steps, they become exact: only positions after the first
    common period count, where every moon has been seen to return.
    """

    def __init__(self, sequences: MoonsData, *, steps: int, copies: int = 1, seed: int = 0):
        self.sequences, self.steps, self.copies, self.seed = sequences, steps, copies, seed
        self.batch_size, self.divisible = BATCH_SIZE * copies, copies == 1
        self.repeated = math.ceil(max(system.lcm for system in sequences.training)) + MARGIN
        self.tokens_per_step = self.batch_size * self.repeated

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        end = self.repeated if step < 0.7 * self.steps else 3 * self.repeated // 2
        seeds = range(self.seed, self.seed + self.copies)
        x = torch.cat([self.sequences.batch(BATCH_SIZE, seed=one, step=step).inputs[:, : end + 1] for one in seeds])
        return Batch(x[rows, :-1], x[rows, 1:])

    def loss(self, model: MoonNetwork, batch: Batch, runtime: Runtime = EAGER) -> Float[Tensor, " copies"]:
        start = 0 if batch.inputs.shape[1] <= self.repeated else self.repeated
        error = (model(batch.inputs)[0] - batch.targets).square().sum(dim=-1)[:, start:] / self.sequences.moons
        return error.clamp(max=CLIP).unflatten(0, (self.copies, -1)).mean(dim=(1, 2))
