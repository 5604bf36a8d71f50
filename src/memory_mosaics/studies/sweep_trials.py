"""The trials of a sweep: which there are, and who trains them: this process, several, or a cluster (sweep_ray.py).

All take their trials from Optuna's journal by `claim` and train them by `attempt`. Whoever claims a trial holds a lock
of the operating system, which goes when its process goes, however it ends. A trial that the journal calls running and
that is not locked was left behind: the next to ask goes on with it, from its checkpoint.
"""

import json
import os
import signal
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NoReturn

import torch
from filelock import FileLock, Timeout  # torch brings it

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.results import write
from memory_mosaics.training import loop
from memory_mosaics.training.folder import difference
from memory_mosaics.training.recipe import Run

SHORT = {"learning_rate": "lr", "dropout": "dropout", "weight_decay": "decay", "warm_up": "warm", "steps": "steps"}
KEPT = ("train_loss", "valid_loss", "best", "best_step", "seconds", "tokens_per_second", "parameters", "hardware")
REDRAWS = 1000  # of values that were drawn before, until a space counts as exhausted
Number = float | int
Settings = dict[str, Number]
Values = list[Number] | tuple[Number, Number]  # choices, or the ends of a range
Claim = tuple[Any, Settings, Any]  # Optuna's trial, its values, the lock


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

    def settings(self, changes: dict[str, Any]) -> Settings:
        """All values of a trial that changes some."""
        return self.base | {name: tidy(name, value) for name, value in changes.items()}

    def settings_of(self, trial: Any) -> Settings:
        """Those of a trial of Optuna's, also while it waits."""
        return self.settings(trial.system_attrs.get("fixed_params", {}) | trial.params)

    def trial(self, settings: Settings) -> Run:
        """The training run of a trial. A final learning rate above the largest comes down to it."""
        changes: dict[str, Any] = {name: value for name, value in settings.items() if name != "dropout"}
        changes["final_learning_rate"] = min(self.run.training.final_learning_rate, settings["learning_rate"])
        model = replace(self.run.model, dropout=settings["dropout"])
        training, out = replace(self.run.training, **changes), self.run.out / "trials" / name_of(settings)
        return replace(self.run, out=out, model=model, training=training)


def name_of(settings: Settings) -> str:
    return "-".join(f"{short}{settings[name]}" for name, short in SHORT.items())


def outcome_of(folder: Path) -> dict[str, Any] | None:
    """What a finished trial came to."""
    file = folder / "outcome.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def attempt(run: Run, chance: float) -> dict[str, Any] | None:
    """Train a trial, or go on with it, or read what it came to; nothing if it was told to stop."""
    if (outcome := outcome_of(run.out)) is not None:
        return outcome
    run.out.mkdir(parents=True, exist_ok=True)
    with (run.out / "output.txt").open("a", encoding="utf-8") as text, redirect_stdout(text), redirect_stderr(text):
        try:
            results = loop.train(run)
        except loop.Diverged as error:
            outcome = {"status": "fail", "reason": one_line(error)}
        else:
            if results["interrupted"]:
                return None
            outcome = {"status": "finished"} | {name: results[name] for name in KEPT}
            if not results["valid_loss"] <= chance:
                outcome |= {"status": "fail", "reason": f"worse than the {chance:.3f} of a uniform guess"}
    write(run.out / "outcome.json", outcome)
    return outcome


def optuna() -> Any:
    """The library, or how to get it."""
    try:
        import optuna as library
    except ImportError:
        raise UserError("a sweep needs Optuna: pip install 'memory-mosaics[sweep]'") from None
    library.logging.set_verbosity(library.logging.ERROR)
    return library


def lock(plan: Plan, name: str) -> Any:
    """A lock that the operating system opens when its holder ends."""
    return FileLock(plan.run.out / ".locks" / name, thread_local=False)


def open_study(plan: Plan) -> Any:
    """The journal of a sweep, with its listed trials in it; refuses that of another sweep."""
    storages, file = optuna().storages, plan.run.out / "journal.log"
    (plan.run.out / ".locks").mkdir(exist_ok=True)
    with lock(plan, "journal"):
        if file.exists():
            with file.open("rb+") as stream:  # half a line, left by a full disk, would spoil the next
                stream.truncate(stream.read().rfind(b"\n") + 1)
        alone = storages.journal.JournalFileOpenLock(str(file))
        storage = storages.JournalStorage(storages.journal.JournalFileBackend(str(file), lock_obj=alone))
        study = optuna().create_study(storage=storage, study_name="sweep", load_if_exists=True)
        if other := difference("sweep", study.user_attrs.get("sweep", plan.identity), plan.identity):
            raise UserError(f"{plan.run.out} holds {other}; name another folder, or remove that one")
        study.set_user_attr("sweep", plan.identity)
        known = {name_of(plan.settings_of(trial)) for trial in study.get_trials(deepcopy=False)}
        for settings in plan.listed:
            if name_of(settings) not in known:
                study.enqueue_trial({name: settings[name] for name in plan.space})
    return study


def claim(plan: Plan, study: Any) -> Claim | None:
    """A trial that nobody trains: one that was left behind, or else a new one."""
    State = optuna().trial.TrialState
    with lock(plan, "journal"):
        trials = study.get_trials(deepcopy=False)
        ended = (trial for trial in trials if trial.state in (State.COMPLETE, State.PRUNED))
        taken = {name_of(plan.settings_of(trial)) for trial in ended}
        for trial in trials:
            if trial.state == State.RUNNING and (claimed := take(plan, study, trial, taken)):
                return claimed
        waiting = any(trial.state == State.WAITING for trial in trials)
        if waiting or (not plan.listed and len(taken) < plan.trials):
            for _ in range(REDRAWS):
                if claimed := take(plan, study, study.ask(), taken):
                    return claimed
    return None


def take(plan: Plan, study: Any, found: Any, taken: set[str]) -> Claim | None:
    """The claim on a trial, unless someone trains it or its values are `taken` already."""
    from_optuna = optuna()
    held = lock(plan, f"trial-{found.number}")
    try:
        held.acquire(timeout=0)
    except Timeout:
        taken.add(name_of(plan.settings_of(found)))
        return None
    kind = "TPESampler" if plan.identity["method"] == "tpe" else "RandomSampler"
    seed = (plan.run.training.seed * 1_000_003 + found.number) % 2**32  # whichever process draws
    study.sampler = getattr(from_optuna.samplers, kind)(seed=seed)
    trial = from_optuna.trial.Trial(study, found._trial_id)
    settings = plan.settings({name: draw(trial, name, values) for name, values in plan.space.items()})
    if name_of(settings) in taken:
        study.tell(trial, state=from_optuna.trial.TrialState.FAIL)
        held.release()
        return None
    return trial, settings, held


def draw(trial: Any, name: str, values: Values) -> Any:
    """One value: of a list, or of a range, uniformly for dropout and from 0, else on a logarithmic scale."""
    if isinstance(values, list):
        return trial.suggest_categorical(name, values)
    low, high = values
    if name in ("warm_up", "steps"):
        return trial.suggest_int(name, int(low), int(high), log=low > 0)
    return trial.suggest_float(name, low, high, log=low > 0 and name != "dropout")


def record(plan: Plan, study: Any, trial: Any, outcome: dict[str, Any]) -> None:
    """Write into the journal what a trial came to. One that failed is pruned: to TPE, worse than all others."""
    with lock(plan, "journal"):
        if outcome["status"] == "finished":
            trial.set_user_attr("train_loss", outcome["train_loss"])
            study.tell(trial, outcome["valid_loss"])
        else:
            study.tell(trial, state=optuna().trial.TrialState.PRUNED)


def work(plan: Plan, study: Any, *, wait: bool = True) -> bool:
    """Train trials until none is left, waiting for those that others train; false if told to stop."""
    while True:
        if claimed := claim(plan, study):
            trial, settings, held = claimed
            try:
                outcome = attempt(plan.trial(settings), plan.identity["chance"])
                if outcome is None:
                    return False
                record(plan, study, trial, outcome)
            finally:
                held.release()
        elif wait and study.get_trials(deepcopy=False, states=(optuna().trial.TrialState.RUNNING,)):
            time.sleep(1)
        else:
            return True


def in_processes(plan: Plan, jobs: int) -> bool:
    """Train in `jobs` processes at once; false if one was told to stop. What a broken one leaves, the others take."""
    context = get_context("spawn")
    children: list[Any] = []
    try:
        for number in range(jobs):
            child = context.Process(target=job, args=(plan, number, jobs))
            child.start()
            children.append(child)
        for child in children:
            child.join()
    finally:
        for child in children:
            child.terminate()  # gently: it saves first
        for child in children:
            child.join()
    return all(child.exitcode not in (130, -signal.SIGTERM) for child in children)


def job(plan: Plan, number: int, jobs: int) -> NoReturn:
    """Such a process: on its share of the cores, on one of the GPUs. It stops gently when the first process is gone."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the first process, which tells the others
    if (count := torch.cuda.device_count()) > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number % count]
    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))

    def stop_when_orphaned() -> None:
        parent_process().join()  # type: ignore[union-attr]
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_when_orphaned, daemon=True).start()
    try:
        raise SystemExit(0 if work(plan, open_study(plan), wait=False) else 130)
    except (UserError, OSError) as error:
        print(f"job {number}: {one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None
