"""Trials that Optuna keeps: in OUT/journal.log, which any number of processes share, and which its own tools read.

A trial that the journal calls running and that is not locked was left behind, and is the next to be claimed.
"""

from itertools import product
from math import prod
from pathlib import Path
from random import Random
from typing import Any, Protocol, runtime_checkable

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments.trials import Claim, Outcome, Settings, held_at_once, lock, outcome_of
from memory_mosaics.training.folder import difference

REDRAWS = 1000  # of values that were drawn before, until a space counts as exhausted
FEW = 20  # of them, until one that was not drawn is looked for, in a space of so many combinations at most
LARGEST = 100_000
Values = list[Any] | tuple[Any, Any]  # choices, or the ends of a range


@runtime_checkable
class Search(Protocol):
    """A plan whose trials are values of a space."""

    @property
    def out(self) -> Path: ...

    @property
    def study(self) -> str:
        """Its name in the journal."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """What a search that goes on must have in common."""
        ...

    @property
    def method(self) -> str:
        """How trials are drawn: random, or else tpe."""
        ...

    @property
    def space(self) -> dict[str, Values]: ...

    @property
    def listed(self) -> list[Settings]:
        """All trials, unless they are drawn."""
        ...

    @property
    def trials(self) -> int:
        """How many to draw, if none are listed."""
        ...

    @property
    def seed(self) -> int: ...

    def name_of(self, settings: Settings) -> str: ...

    def settings(self, changes: Settings) -> Settings:
        """All values of a trial, from those of the space."""
        ...


def optuna() -> Any:
    """The library, or how to get it."""
    try:
        import optuna as library
    except ImportError:
        raise UserError("a sweep needs Optuna: pip install 'memory-mosaics[sweep]'") from None
    library.logging.set_verbosity(library.logging.ERROR)
    return library


class Journal:
    """The trials of a search, with its listed ones in the journal; refuses that of another search."""

    def __init__(self, plan: Search):
        self.plan = plan
        self.State = optuna().trial.TrialState
        storages, file = optuna().storages, plan.out / "journal.log"
        with lock(plan.out, "journal"):
            if file.exists():
                with file.open("rb+") as stream:  # half a line, left by a full disk, would spoil the next
                    stream.truncate(stream.read().rfind(b"\n") + 1)
            alone = lock(plan.out, "journal-file")  # Optuna's own, left by a kill, holds all up for half a minute
            try:
                storage = storages.JournalStorage(storages.journal.JournalFileBackend(str(file), lock_obj=alone))
                self.study = optuna().create_study(storage=storage, study_name=plan.study, load_if_exists=True)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError, AssertionError) as error:
                remedy = "remove it: finished trials are read from their folders"
                raise UserError(f"{file} is damaged: {one_line(error)}; {remedy}") from error
            if other := difference("sweep", self.study.user_attrs.get("sweep", plan.identity), plan.identity):
                raise UserError(f"{plan.out} holds {other}; name another folder, or remove that one")
            self.study.set_user_attr("sweep", plan.identity)
            known = self._ended() | self._names(self.State.RUNNING, self.State.WAITING)
            for settings in plan.listed:
                if plan.name_of(settings) not in known:
                    self.study.enqueue_trial({name: settings[name] for name in plan.space})

    def _all(self, *states: Any) -> list[Any]:
        return self.study.get_trials(deepcopy=False, states=states or None)

    def _names(self, *states: Any) -> set[str]:
        return {self.plan.name_of(self._settings_of(trial)) for trial in self._all(*states)}

    def _ended(self) -> set[str]:
        """Those that ended and whose outcomes are there: who removes an outcome has that trained anew."""
        names = self._names(self.State.COMPLETE, self.State.PRUNED)
        return {name for name in names if outcome_of(self.plan.out / "trials" / name)}

    def _settings_of(self, trial: Any) -> Settings:
        """Those of a trial of Optuna's, also while it waits."""
        return self.plan.settings(trial.system_attrs.get("fixed_params", {}) | trial.params)

    def settings(self) -> list[Settings]:
        """Of all trials, in the order in which they were thought of."""
        return [self._settings_of(trial) for trial in self._all()]

    def claim(self) -> Claim | None:
        with lock(self.plan.out, "journal"):
            trials, State = self._all(), self.State
            taken = self._ended()
            for trial in trials:
                if trial.state == State.RUNNING and (claimed := self._take(trial, taken)):
                    return claimed
            for _ in [trial for trial in trials if trial.state == State.WAITING]:
                if claimed := self._take(self.study.ask(), taken):
                    return claimed
            if not self.plan.listed and len(taken) < self.plan.trials:
                points = self._points()
                for _ in range(FEW if points else REDRAWS):
                    if claimed := self._take(self.study.ask(), taken):
                        return claimed
                for point in points:
                    if self.plan.name_of(self.plan.settings(point)) not in taken:
                        self.study.enqueue_trial(point)
                        return self._take(self.study.ask(), taken)
        return None

    def _points(self) -> list[Settings]:
        """All combinations of a small space, in an order of the seed's; none of a large one."""
        values = {name: _values(choices) for name, choices in self.plan.space.items()}
        if prod(len(choices or range(LARGEST + 1)) for choices in values.values()) > LARGEST:
            return []
        points = [
            dict(zip(values, row, strict=True)) for row in product(*(choices or () for choices in values.values()))
        ]
        Random(self.plan.seed).shuffle(points)
        return points

    def _take(self, found: Any, taken: set[str]) -> Claim | None:
        """The claim on a trial, unless someone trains it or its values are `taken` already."""
        mine = lock(self.plan.out, f"trial-{found._trial_id}")
        if not held_at_once(mine):
            taken.add(self.plan.name_of(self._settings_of(found)))
            return None
        kind = "RandomSampler" if self.plan.method == "random" else "TPESampler"
        seed = (self.plan.seed * 1_000_003 + found.number) % 2**32  # whichever process draws
        self.study.sampler = getattr(optuna().samplers, kind)(seed=seed)
        trial = optuna().trial.Trial(self.study, found._trial_id)
        drawn = {name: draw(trial, name, values) for name, values in self.plan.space.items()}
        settings = self.plan.settings(drawn)
        if self.plan.name_of(settings) in taken:
            self.study.tell(trial, state=self.State.FAIL)
            mine.release()
            return None
        return Claim(settings, mine, trial)

    def record(self, claimed: Claim, outcome: Outcome) -> None:
        """Write into the journal what a trial came to. One that failed is pruned: to TPE, worse than all others."""
        with lock(self.plan.out, "journal"):
            if outcome["status"] == "finished":
                claimed.trial.set_user_attr("train_loss", outcome["train_loss"])
                self.study.tell(claimed.trial, outcome["valid_loss"])
            else:
                self.study.tell(claimed.trial, state=self.State.PRUNED)

    def busy(self) -> bool:
        return bool(self._all(self.State.RUNNING))


def _values(choices: Values) -> list[Any] | None:
    """All of them; None where there is no end of them."""
    if isinstance(choices, list):
        return choices
    low, high = choices
    return list(range(low, high + 1)) if isinstance(low, int) and high - low <= LARGEST else None


def draw(trial: Any, name: str, values: Values) -> Any:
    """One value: of a list, or of a range, uniformly for dropout and from 0, else on a logarithmic scale."""
    if isinstance(values, list):
        return trial.suggest_categorical(name, values)
    low, high = values
    if isinstance(low, int):
        return trial.suggest_int(name, low, high, log=low > 0)
    return trial.suggest_float(name, low, high, log=low > 0 and name != "dropout")
