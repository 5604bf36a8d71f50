"""The trials of a sweep: training runs that differ in a few values."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memory_mosaics.errors import one_line
from memory_mosaics.experiments.journal import Journal, Values
from memory_mosaics.experiments.trials import Outcome, Settings, attempted
from memory_mosaics.training import trainer
from memory_mosaics.training.config import Run

SHORT = {"learning_rate": "lr", "dropout": "dropout", "weight_decay": "decay", "warm_up": "warm", "steps": "steps"}
KEPT = ("train_loss", "valid_loss", "best", "best_step", "seconds", "tokens_per_second", "parameters", "hardware")
Number = float | int


def tidy(name: str, value: Number) -> Number:
    """The value as a folder's name says it: a whole number, or six digits."""
    return round(value) if name in ("warm_up", "steps") else float(f"{value:.6g}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A sweep: the run that all trials are variants of, and which variants."""

    run: Run
    base: Settings
    space: dict[str, Values]
    listed: list[Settings]  # all trials of a table or grid
    trials: int  # how many to draw, if none are listed
    identity: dict[str, Any]  # what a sweep that goes on must have in common
    study: str = "sweep"

    @property
    def out(self) -> Path:
        return self.run.out

    @property
    def seed(self) -> int:
        return self.run.training.seed

    @property
    def method(self) -> str:
        return self.identity["method"]

    def name_of(self, settings: Settings) -> str:
        return name_of(settings)

    def settings(self, changes: Settings) -> Settings:
        """All values of a trial that changes some."""
        return self.base | {name: tidy(name, value) for name, value in changes.items()}

    def trial(self, settings: Settings) -> Run:
        """The training run of a trial. A final learning rate above the largest comes down to it."""
        changes: dict[str, Any] = {name: value for name, value in settings.items() if name != "dropout"}
        changes["final_learning_rate"] = min(self.run.training.final_learning_rate, settings["learning_rate"])
        model = replace(self.run.model, dropout=settings["dropout"])
        training, out = replace(self.run.training, **changes), self.run.out / "trials" / name_of(settings)
        return replace(self.run, out=out, model=model, training=training)

    def attempt(self, settings: Settings) -> Outcome | None:
        """Train a trial, or go on with it, or read what it came to; nothing if it was told to stop."""
        run = self.trial(settings)
        return attempted(run.out, lambda: _train(run, self.identity["chance"]))

    def queue(self) -> Journal:
        return Journal(self)


def name_of(settings: Settings) -> str:
    return "-".join(f"{short}{settings[name]}" for name, short in SHORT.items())


def _train(run: Run, chance: float) -> Outcome | None:
    try:
        results = trainer.train(run)
    except trainer.Diverged as error:
        return {"status": "fail", "reason": one_line(error)}
    if results["interrupted"]:
        return None
    outcome = {"status": "finished"} | {name: results[name] for name in KEPT}
    if not results["valid_loss"] <= chance:
        outcome |= {"status": "fail", "reason": f"worse than the {chance:.3f} of a uniform guess"}
    return outcome
