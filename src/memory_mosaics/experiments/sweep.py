"""Sweep: the search of the paper's appendix for learning rate, dropout, weight decay, warm-up and number of steps.

    table          the paper's: a base and six rows that each change one value, relative to the preset
    grid           all combinations of listed values
    random, tpe    values drawn from lists and ranges: log-uniformly, except for dropout and ranges from 0; or where
                   Optuna expects the best

Every trial is a training run in DIR/trials/NAME, where the name lists its values; runner.py trains them. A loss that is
NaN or Inf, or is worse than a uniform guess at the end, is a "fail", as in the paper's table.
"""

import os
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf, log
from pathlib import Path
from random import Random
from typing import Any, Literal

from memory_mosaics.config import MAX_JOBS, MAX_SIZE
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.experiments import runner
from memory_mosaics.experiments.grid import Grid, Search, Values, combinations, import_optuna
from memory_mosaics.experiments.outcomes import ENVIRONMENT, Outcome, Settings, merge_environments, read_outcome
from memory_mosaics.experiments.report import text_table
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training import trainer
from memory_mosaics.training.config import ModelArgs, Run, Training, refuse_preset

RECIPE = runner.load_packaged("sweep")
SHORT = {"learning_rate": "lr", "dropout": "dropout", "weight_decay": "decay", "warm_up": "warm", "steps": "steps"}
MEASURED = ("train_loss", "valid_loss", "best", "best_step", "seconds", "tokens_per_second", "parameters")


@dataclass(frozen=True, kw_only=True)
class Space:
    """Where grid, random and tpe search: for each value a list such as [1e-3,5e-3], or a range such as 1e-4..1e-2.

    Args:
        learning_rate: the largest; ranges are drawn from on a logarithmic scale, here and below
        dropout: of a range, drawn uniformly
        weight_decay: on matrices
        warm_up: steps of rising learning rate
        steps: of the optimiser, in all
    """

    learning_rate: list[float] | str | None = None
    dropout: list[float] | str | None = None
    weight_decay: list[float] | str | None = None
    warm_up: list[int] | str | None = None
    steps: list[int] | str | None = None

    def values(self) -> dict[str, Values]:
        """Return what was given, as lists of choices and ends of ranges."""
        return {name: _parse(name, given) for name, given in asdict(self).items() if given is not None}


def _parse(name: str, given: list[float] | list[int] | str) -> Values:
    try:
        words = given.split("..") if isinstance(given, str) else given
        found = [_round(name, float(word)) for word in words]
    except ValueError:
        found = []
    if isinstance(given, str) and len(found) == 2 and found[0] < found[1]:
        return found[0], found[1]
    if not found or (isinstance(given, str) and len(found) > 1):
        raise UserError(f"space.{name}: {given!r} is neither a list such as [0.1,0.2] nor a range such as 0.1..0.2")
    return list(dict.fromkeys(found))


def _round(name: str, value: float) -> float:
    """Round a value as in the name of a folder: to a whole number, or to six digits."""
    return round(value) if name in ("warm_up", "steps") else float(f"{value:.6g}")


MODEL = ModelArgs(**RECIPE["model"])
TRAINING = Training(**RECIPE["training"])
RUNTIME = RuntimeConfig(**RECIPE["runtime"])
SPACE = Space(**RECIPE["space"])


def run(
    data: Path,
    out: Path = Path("runs/sweep"),
    *,
    preset: str | None = RECIPE["preset"],
    model: ModelArgs = MODEL,
    training: Training = TRAINING,
    runtime: RuntimeConfig = RUNTIME,
    method: Literal["table", "grid", "random", "tpe"] = RECIPE["method"],
    space: Space = SPACE,
    trials: int | None = RECIPE["trials"],
    jobs: int = RECIPE["jobs"],
    cluster: Literal["ray"] | None = RECIPE["cluster"],
) -> dict[str, Any]:
    """Search for the values to train with: those of the paper's table around a preset, or in a space of your own.

    The same command continues a sweep that was stopped; started several times, it shares the trials.

    Args:
        data: a folder that `mosaics prepare` wrote
        out: the folder of the sweep: results.json, sweep.png, journal.log for Optuna's tools, and trials/
        preset: where all values below come from that are not given, as for `mosaics train`
        model: which model
        training: how it learns: the base that trials change
        runtime: how it is computed, saved and watched
        method: table changes one value at a time, grid takes all combinations, random and tpe draw
        space: where grid, random and tpe search
        trials: how many to train at most: what random and tpe draw, of a grid a random part, of the table its first
            rows. null is 20 for random and tpe, all for the others; more than before extends a sweep
        jobs: trials at once, each in a process of its own, distributed over the GPUs
        cluster: ray trains on the Ray cluster of this machine or of RAY_ADDRESS, whose machines share data and out
    """
    arguments = dict(locals())
    refuse_preset(preset)
    if "RANK" in os.environ:
        raise UserError("a sweep is not for torchrun: give it --jobs, or --cluster ray")
    check_range(1, MAX_JOBS, jobs=jobs)
    check_range(1, MAX_SIZE, trials=trials)
    base = Run(data=data, out=out, model=model, training=training, runtime=runtime)
    grid, setup = make_grid(base, method, space, trials)
    import_optuna()
    runner.check_devices(runtime, cluster)
    runner.prepare(out, arguments, setup)
    done = runner.run_grids([grid], processes=jobs, cluster=cluster)
    results = {"study": "sweep", "interrupted": not done, "data": str(data), **setup, **collect(grid)}
    finished = any(row["valid_loss"] is not None for row in results["rows"])
    runner.report(results, out, table(results), drawable=finished, also=f"Trials: {out / 'trials'}.")
    runner.raise_errors([grid])
    return results


def make_grid(run: Run, method: str, space: Space, trials: int | None) -> tuple[Grid, Settings]:
    """Return the trials of a sweep and what they have in common, once everything that may be trained makes sense."""
    corpus = Corpus.open(run.data)
    values: dict[str, Values] = space.values()
    given = asdict(run.training) | {"dropout": run.model.build(corpus.vocabulary).dropout}
    base: Settings = {name: _round(name, given[name]) for name in SHORT}
    runs: list[Settings] = []
    if method == "table":
        if values:
            raise UserError("the table changes the preset's own values; a space is for --method grid, random or tpe")
        runs = paper_rows(base)
        values |= {name: list(dict.fromkeys(row[name] for row in runs)) for name in base}
    elif not values:
        raise UserError(f"{method} needs a space to search in: for example --space.learning_rate 1e-4..1e-2")
    elif method == "grid":
        for name, choices in values.items():
            if isinstance(choices, tuple):
                raise UserError(f"grid takes lists, and space.{name} is the range {choices[0]}..{choices[1]}")
        runs = [base | row for row in combinations(values)]
        if trials is not None:  # any number of them has values from everywhere, and more of them begin with the same
            Random(run.training.seed).shuffle(runs)
    for name, choices in values.items():
        for value in choices:
            trial_run(run, base | {name: value}).model.build(corpus.vocabulary)
    setup = {key: value for key, value in run.plain().items() if key in ("model", "training")}
    searched = {name: f"{ends[0]}..{ends[1]}" if isinstance(ends, tuple) else ends for name, ends in values.items()}
    setup |= {"method": method, "space": searched}
    setup |= {"corpus": corpus.manifest["splits"]["train"]["sha256"], "chance": log(corpus.vocabulary)}
    drawn = {"method": method, "trials": trials or 20, "seed": run.training.seed}
    search = Search(study="sweep", space=values, base=base, **drawn)
    train_trial = partial(train, run, setup["chance"])
    return Grid(out=run.out, name_of=name_of, train=train_trial, settings=runs[:trials], search=search), setup


def paper_rows(base: Settings) -> list[Settings]:
    """Return the rows of the appendix's table relative to the base: 5e-3 to 1e-3, 0.05 to 0, 0.1 to 0.01, ..."""
    changes = [
        ("learning_rate", base["learning_rate"] / 5),
        ("dropout", 0 if base["dropout"] else 0.05),
        ("weight_decay", base["weight_decay"] / 10),
        ("warm_up", base["warm_up"] // 10),
        ("steps", max(1, base["steps"] // 2)),
        ("steps", base["steps"] * 2),
    ]
    rows = [base, *(base | {name: _round(name, value)} for name, value in changes)]
    return list({name_of(row): row for row in rows}.values())


def name_of(settings: Settings) -> str:
    return "-".join(f"{short}{settings[name]}" for name, short in SHORT.items())


def trial_run(run: Run, settings: Settings) -> Run:
    """Return the training run of a trial. A final learning rate above the largest is lowered to it."""
    changes: dict[str, Any] = {name: value for name, value in settings.items() if name != "dropout"}
    changes["final_learning_rate"] = min(run.training.final_learning_rate, settings["learning_rate"])
    model = replace(run.model, dropout=settings["dropout"])
    return replace(
        run, out=run.out / "trials" / name_of(settings), model=model, training=replace(run.training, **changes)
    )


def train(run: Run, chance: float, settings: Settings, folder: Path) -> Outcome | None:
    """Train a trial."""
    results = trainer.train(trial_run(run, settings))
    if results["interrupted"]:
        return None
    outcome = {name: results[name] for name in (*MEASURED, *ENVIRONMENT)}
    if not results["valid_loss"] <= chance:
        outcome |= {"status": "fail", "reason": f"worse than the {chance:.3f} of a uniform guess"}
    return outcome


def collect(grid: Grid) -> dict[str, Any]:
    """Return a row for each trial, in the order in which they were proposed, and which is the best."""
    assert grid.search is not None
    base, rows = grid.search.base, {}
    for settings in grid.queue().settings():
        name = name_of(settings)
        outcome = read_outcome(grid.folder(settings)) or {"status": "unfinished"}
        changed = [name for name, value in settings.items() if value != base[name]]
        rows[name] = (
            {"name": name, **settings, "changed": changed, "train_loss": None, "valid_loss": None} | outcome | settings
        )
    finished = [row for row in rows.values() if row["status"] == "finished"]
    best = min(finished, key=lambda row: row["valid_loss"], default=None)
    return {
        **merge_environments(list(rows.values())),
        "base": base,
        "best": best["name"] if best else None,
        "rows": list(rows.values()),
    }


def table(results: dict[str, Any]) -> str:
    """Return the rows as in the paper, or the best first if they were drawn; * marks what differs from the base."""
    rows = results["rows"]
    if results["method"] != "table":
        rows = sorted(rows, key=lambda row: inf if row["status"] != "finished" else row["valid_loss"])
    header = [*(name.replace("_", " ") for name in results["base"]), "train loss", "valid loss", ""]
    cells = []
    for row in rows:
        values = [f"{'*' if name in row['changed'] else ''}{row[name]:g}" for name in results["base"]]
        losses = [row["train_loss"], row["valid_loss"]]
        losses = [f"{loss:.3f}" if row["status"] == "finished" else row["status"] for loss in losses]
        cells.append([*values, *losses, "best" if row["name"] == results["best"] else ""])
    return text_table(header, cells)
