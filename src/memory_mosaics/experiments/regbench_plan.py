"""Which models RegBench trains: all combinations of values, the paper's search, or draws from it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

from memory_mosaics import checkpoint
from memory_mosaics.errors import UserError, one_line, within_memory
from memory_mosaics.experiments.journal import Journal, Values
from memory_mosaics.experiments.regbench_models import Size, architecture, check
from memory_mosaics.experiments.regbench_training import Job, task_of, train
from memory_mosaics.experiments.trials import Listed, Outcome, Settings, attempted
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.training.trainer import Diverged

SEARCHED: Settings = {  # by the paper
    "blocks": [2, 4, 8],
    "heads": [2, 4, 8],
    "width": [64, 128, 256],
    "weight_decay": [0.01, 0.1],
}
SHORT = {"blocks": "l", "heads": "h", "width": "d", "weight_decay": "decay", "learning_rate": "lr", "seed": "seed"}


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The values to try, in all combinations; of what is not given, the architecture's own or, in a sweep, the paper's.

    Args:
        blocks: depths
        heads: of architectures that have some
        width: widths
        weight_decay: on all parameters whose modules do not forbid it
        learning_rate: the largest
        seed: of the initial values, the order of the sequences, and dropout
    """

    blocks: list[int] | None = None
    heads: list[int] | None = None
    width: list[int] | None = None
    weight_decay: list[float] | None = None
    learning_rate: list[float] | None = None
    seed: list[int] | None = None

    def __post_init__(self) -> None:
        for name, least in {"blocks": 1, "heads": 1, "width": 1, "weight_decay": 0, "seed": 0}.items():
            for value in getattr(self, name) or ():
                if value < least:
                    raise UserError(f"{name} must be at least {least}, not {value}")
        for value in self.seed or ():
            if value >= 2**63:
                raise UserError(f"seed must be below 2^63, not {value}")
        for value in self.learning_rate or ():
            if not 0 < value < inf:
                raise UserError(f"learning_rate must be more than 0, not {value}")

    def of(self, name: str, *, sweep: bool) -> dict[str, list[Any]]:
        """All values for one architecture."""
        kind = architecture(name)
        found = {}
        for value, given in asdict(self).items():
            own = 0 if value == "seed" else getattr(kind, value)
            found[value] = list(dict.fromkeys(given or (SEARCHED.get(value) if sweep else None) or [own]))
        if kind.heads is None:
            found["heads"] = [None]
        if not kind.stacks:
            found["blocks"] = [1]
        return found


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Some runs: a list of them, or with a space those of Optuna's study of one architecture and one size."""

    out: Path
    fixed: Settings  # what all runs have in common
    machine: RuntimeConfig
    listed: list[Settings] = field(default_factory=list)
    space: dict[str, Values] = field(default_factory=dict)
    trials: int = 0  # how many to draw, if none are listed
    seed: int = 0

    method = "tpe"

    @property
    def case(self) -> str:
        """How the names of its runs begin."""
        return _case(self.fixed)

    @property
    def study(self) -> str:
        """Another space is another study: a sweep may grow, and runs of both are the same folders."""
        return f"{self.case}-{_named(self.space)}"

    @property
    def identity(self) -> dict[str, Any]:
        return self.fixed | {"space": self.space}

    @property
    def count(self) -> int:
        return len(self.listed) or self.trials

    def settings(self, changes: Settings) -> Settings:
        return {name: changes.get(name) for name in self.space}

    def job(self, settings: Settings) -> Job:
        return Job(**self.fixed, **settings)

    def name_of(self, settings: Settings) -> str:
        return name_of(self.job(settings))

    def attempt(self, settings: Settings) -> Outcome | None:
        """Train a model, or go on with it, or read what it came to; nothing if it was told to stop."""
        job = self.job(settings)
        folder = self.out / "trials" / name_of(job)

        def attempt() -> Outcome | None:
            try:
                with within_memory(f"a model of width {job.width} does not fit; choose a smaller"):
                    return train(job, folder, data=self.out / "data", machine=self.machine)
            except Diverged as error:
                label = architecture(job.architecture).label
                return {"status": "fail", "reason": one_line(error), **asdict(job), "label": label}

        outcome = attempted(folder, attempt)
        if outcome is not None:  # what it would go on from is no longer wanted
            for step in checkpoint.steps(folder):
                checkpoint.remove(step)
        return outcome

    def queue(self) -> Journal | Listed:
        return Journal(self) if self.space else Listed(self, self.listed)


def name_of(job: Job) -> str:
    """What a run's folder is called."""
    settings = asdict(job)
    return f"{_case(settings)}-{_named({name: [settings[name]] for name in SHORT})}"


def _case(settings: Settings) -> str:
    """The architecture and its languages."""
    inside = "-in" if settings["in_distribution"] else ""
    return f"{settings['architecture']}-{settings['environments']}{inside}"


def _named(space: Mapping[str, Values]) -> str:
    """`l2,4-d64-decay0.1-lr0.001-seed0`; heads only where there are some."""
    parts = []
    for name, short in SHORT.items():
        values = [f"{one:g}" if isinstance(one, float) else str(one) for one in space[name] if one is not None]
        parts += [short + ",".join(values)] if values else []
    return "-".join(parts)


def make(
    out: Path,
    machine: RuntimeConfig,
    common: Settings,
    cases: list[tuple[str, int]],
    choices: Choices,
    *,
    sweep: bool,
    trials: int | None,
) -> list[Plan]:
    """The plans, once everything that they may train makes sense."""
    searches, listed = [], []
    for name, number in cases:
        task_of(number, common)
        space = choices.of(name, sweep=sweep)
        for blocks, heads, width in product(space["blocks"], space["heads"], space["width"]):
            check(name, Size(blocks=blocks, heads=heads or 1, width=width))
        rows = [dict(zip(space, row, strict=True)) for row in product(*space.values())]
        case = {"architecture": name, "environments": number}
        listed += [case | row for row in rows]
        drawn = trials is not None and trials < len(rows)
        options = {"listed": [] if drawn else rows, "trials": trials if drawn else 0, "seed": space["seed"][0]}
        searches.append(Plan(out=out, machine=machine, fixed=common | case, space={**space}, **options))
    return searches if sweep else [Plan(out=out, machine=machine, fixed=common, listed=listed)]
