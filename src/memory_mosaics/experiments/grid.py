"""The runs of an experiment: a list of settings, or a search in which Optuna draws them; and which of them is next.

    Grid          the runs, their folders, and how each is trained
    Search        the space from which Optuna draws settings
    ListQueue     the runs of a list that no process trains yet
    OptunaQueue   the same with a journal, OUT/journal.log, in which further runs are drawn

Whoever trains a run holds a lock of the operating system, which is released when its process ends, for whatever reason.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from random import Random
from typing import Any

from filelock import FileLock, Timeout  # torch brings it

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments.outcomes import Outcome, Settings, read_outcome

Values = list[Any] | tuple[Any, Any]  # choices, or the ends of a range

MAX_REDRAWS = 1000  # of values that were drawn before, until a space counts as exhausted
FEW_REDRAWS = 20  # until the remaining combinations of a small space are enumerated
MAX_COMBINATIONS = 100_000  # of a small space


@dataclass(frozen=True, kw_only=True)
class Search:
    """Runs whose values Optuna draws from a space, or, if the grid lists them, keeps in its journal."""

    study: str  # its name in the journal
    space: dict[str, Values]
    method: str = "tpe"  # or random
    trials: int = 0  # how many to draw, if the grid lists none
    seed: int = 0
    base: Settings = field(default_factory=dict)  # the values that are not in the space

    @cached_property
    def points(self) -> list[Settings]:
        """All combinations of a small space; none of a large one."""
        values = {
            name: range(ends[0], ends[1] + 1) if isinstance(ends, tuple) and isinstance(ends[0], int) else ends
            for name, ends in self.space.items()
        }
        ranges = any(isinstance(ends, tuple) for ends in values.values())
        return [] if ranges or prod(map(len, values.values())) > MAX_COMBINATIONS else combinations(values)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Runs of an experiment. All functions are of a module, or `partial`s of such: other processes import them."""

    out: Path
    name_of: Callable[[Settings], str]
    train: Callable[[Settings, Path], Outcome | None]  # what was measured; None if it was told to stop
    settings: list[Settings] | Callable[[], list[Settings]]  # in the order of training; a search draws its own
    search: Search | None = None
    required_fields: tuple[str, ...] = ("train_loss", "valid_loss")  # fields of an outcome that finished
    summary_formats: tuple[str, ...] = ("valid loss {valid_loss:.4f}",)  # in the line of a run that ended
    prefix: str = ""  # of the names of runs that a search draws
    quiet: bool = True  # what a run prints goes into its output.txt, and one bar shows the progress of all
    keep_checkpoints: bool = True  # after the end

    @property
    def runs(self) -> list[Settings]:
        """All runs that are known now: what a function lists may depend on outcomes."""
        return self.settings() if callable(self.settings) else self.settings

    @property
    def count(self) -> int:
        """How many runs there are to be: those listed, or those to draw, as far as the space has so many."""
        if self.search is None or self.runs:
            return len(self.runs)
        return min(self.search.trials, len(self.search.points) or self.search.trials)

    def folder(self, settings: Settings) -> Path:
        return self.out / "trials" / self.name_of(settings)

    def folders(self) -> list[Path]:
        """Those of its runs that have started."""
        if self.search is None or self.runs:
            return [folder for folder in map(self.folder, self.runs) if folder.exists()]
        return sorted(self.out.glob(f"trials/{self.prefix}*"))

    def outcome(self, folder: Path) -> Outcome | None:
        return read_outcome(folder, self.required_fields)

    def queue(self) -> "ListQueue":
        return OptunaQueue(self, self.search) if self.search else ListQueue(self)


def combinations(values: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Return the settings of all combinations of values."""
    return [dict(zip(values, row, strict=True)) for row in product(*values.values())]


def next_value(tried: Sequence[float], best: float, *, ratio: float | None = None) -> float | None:
    """Return the next value beyond the best one of a sorted list; None if that is not at an edge.

    The ratio is that of the two values at the edge unless it is given.
    """
    if best == tried[-1]:
        return best * (ratio or (best / tried[-2] if tried[-2] else 2.0))
    if best == tried[0] and best:
        return best / (ratio or tried[1] / best)
    return None


def is_at_edge(chosen: Any, tried: Sequence[Any]) -> bool:
    """Whether a larger value than the chosen one, or a smaller one, might have been better; there is none below 0."""
    numbers = {value for value in tried if type(value) in (int, float)}
    return len(numbers) > 1 and (chosen == max(numbers) or chosen == min(numbers) != 0)


def lock(out: Path, name: str) -> FileLock:
    """Return a lock that the operating system releases when its holder ends."""
    (out / ".locks").mkdir(parents=True, exist_ok=True)
    return FileLock(out / ".locks" / name, thread_local=False)


class ListQueue:
    """Trains a fixed list of runs: next is an unlocked one without outcome or error."""

    def __init__(self, grid: Grid):
        self.grid = grid

    def settings(self) -> list[Settings]:
        """Return those of all runs that are known now."""
        return self.grid.runs

    def _is_unfinished(self, settings: Settings) -> bool:
        folder = self.grid.folder(settings)
        return self.grid.outcome(folder) is None and not (folder / "error.txt").exists()

    def _unfinished(self) -> Iterator[Settings]:
        return filter(self._is_unfinished, self.settings())

    def next_trial(self) -> tuple[Settings, FileLock] | None:
        """Return a run that this process may train, and its lock, which it has now."""
        for settings in self._unfinished():
            trial_lock = lock(self.grid.out, self.grid.name_of(settings))
            with suppress(Timeout):  # another process trains it
                trial_lock.acquire(timeout=0)
                if self._is_unfinished(settings):
                    return settings, trial_lock
                trial_lock.release()  # it ended in the meantime
        return None

    def has_unfinished(self) -> bool:
        return next(self._unfinished(), None) is not None


def import_optuna() -> Any:
    """Return the library, or say how to install it."""
    try:
        import optuna
    except ImportError:
        raise UserError("a sweep needs Optuna: pip install 'memory-mosaics[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class OptunaQueue(ListQueue):
    """Runs with a trial each in OUT/journal.log, which any number of processes share; they are drawn if none is listed.

    The folders of the runs decide what has ended, and the journal follows them. Whoever writes it holds a lock.
    """

    def __init__(self, grid: Grid, search: Search):
        super().__init__(grid)
        self.search, self.optuna = search, import_optuna()
        self.State, storages = self.optuna.trial.TrialState, self.optuna.storages
        self.distributions = {name: _distribution(name, values) for name, values in search.space.items()}
        self.ranges = {name for name, values in search.space.items() if isinstance(values, tuple)}
        file = grid.out / "journal.log"
        with lock(grid.out, "journal"):
            if file.exists():
                with file.open("rb+") as stream:  # half a line, left by a full disk, would spoil the next
                    stream.truncate(stream.read().rfind(b"\n") + 1)
            own = lock(grid.out, "journal-file")  # Optuna's own lock, left by a kill, blocks for half a minute
            try:
                storage = storages.JournalStorage(storages.journal.JournalFileBackend(str(file), lock_obj=own))
                self.study = self.optuna.create_study(storage=storage, study_name=search.study, load_if_exists=True)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError, AssertionError) as error:
                remedy = "remove it: finished trials are read from their folders"
                raise UserError(f"{file} is damaged: {one_line(error)}; {remedy}") from error

    def settings(self) -> list[Settings]:
        return self.grid.runs or [self._complete(trial.params) for trial in self._trials().values()]

    def _trials(self) -> dict[str, Any]:
        """Return trials by the names of their runs; none that repeats another, or whose process was killed drawing."""
        trials = self.study.get_trials(deepcopy=False)
        drawn = (
            one for one in trials if one.state != self.State.FAIL and one.params.keys() == self.search.space.keys()
        )
        return {self.grid.name_of(self._complete(trial.params)): trial for trial in drawn}

    def _complete(self, drawn: Settings) -> Settings:
        """Return all values of a trial from those of the space; those of a range have six digits, as in names."""
        rounded = {
            name: float(f"{value:.6g}") if name in self.ranges and isinstance(value, float) else value
            for name, value in drawn.items()
        }
        return self.search.base | rounded

    def next_trial(self) -> tuple[Settings, FileLock] | None:
        with lock(self.grid.out, "journal"):
            while True:
                known = self._record()
                if (found := super().next_trial()) is not None:
                    if self.grid.name_of(found[0]) not in known:
                        self._start(found[0])
                    return found
                if self.grid.runs or len(known) >= self.grid.count or not self._draw(known):
                    return None

    def _record(self) -> dict[str, Any]:
        """Write outcomes into the journal. A run that failed is pruned: to TPE, worse than all others."""
        trials = self._trials()
        for settings in self.settings():
            name = self.grid.name_of(settings)
            if outcome := self.grid.outcome(self.grid.folder(settings)):
                trial = trials.get(name) or self._start(settings)
                if trial.state == self.State.RUNNING and outcome["status"] == "finished":
                    journaled = self.optuna.trial.Trial(self.study, trial._trial_id)
                    journaled.set_user_attr("train_loss", outcome["train_loss"])
                    self.study.tell(trial.number, outcome["valid_loss"])
                elif trial.state == self.State.RUNNING:
                    self.study.tell(trial.number, state=self.State.PRUNED)
                trials[name] = trial
        return trials

    def _start(self, settings: Settings) -> Any:
        """Add a trial with these values."""
        values: Any = {"params": {name: settings[name] for name in self.distributions}}
        running = self.optuna.trial.create_trial(state=self.State.RUNNING, distributions=self.distributions, **values)
        self.study.add_trial(running)
        return self.study.get_trials(deepcopy=False)[-1]

    def _draw(self, known: dict[str, Any]) -> bool:
        """Add a trial with new values; False where the space is exhausted."""
        points = list(self.search.points)
        Random(self.search.seed).shuffle(points)
        sampler = "RandomSampler" if self.search.method == "random" else "TPESampler"
        for _ in range(FEW_REDRAWS if points else MAX_REDRAWS):
            number = len(self.study.get_trials(deepcopy=False))
            seed = (self.search.seed * 1_000_003 + number) % 2**32  # the same in whichever process
            self.study.sampler = getattr(self.optuna.samplers, sampler)(seed=seed)
            trial = self.study.ask(self.distributions)
            if self.grid.name_of(self._complete(trial.params)) not in known:
                return True
            self.study.tell(trial, state=self.State.FAIL)
        new = [settings for settings in map(self._complete, points) if self.grid.name_of(settings) not in known]
        if new:
            self._start(new[0])
        return bool(new)


def _distribution(name: str, values: Values) -> Any:
    """Return that of choices, or of a range: on a logarithmic scale, except from 0 and for dropout."""
    distributions = import_optuna().distributions
    if isinstance(values, list):
        return distributions.CategoricalDistribution(values)
    low, high = values
    if isinstance(low, int):
        return distributions.IntDistribution(low, high, log=low > 0)
    return distributions.FloatDistribution(low, high, log=low > 0 and name != "dropout")
