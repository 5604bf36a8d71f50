"""Sweep: the search of the paper's appendix for learning rate, dropout, weight decay, warm-up and number of steps.

    table          the paper's: a base and six rows that each change one thing, relative to the preset
    grid           all combinations of listed values
    random, tpe    values drawn from lists and ranges: blindly, or where Optuna expects the best

Every trial is a training run in DIR/trials/NAME, where the name says its values. Which trials there are is in Optuna's
journal, DIR/journal.log, which any number of processes share; killed at any moment, the same command goes on. A loss
that is no longer a number, or is worse than a uniform guess at the end, is a "fail", as in the paper's table.
"""

import os
import sys
from dataclasses import asdict, dataclass
from itertools import product
from math import inf, log, prod
from pathlib import Path
from typing import Any, Literal

from memory_mosaics import results as files
from memory_mosaics.config import MAX_JOBS, MAX_SIZE
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.experiments import figures
from memory_mosaics.experiments.journal import Values, optuna
from memory_mosaics.experiments.sweep_ray import need_ray, on_ray
from memory_mosaics.experiments.sweep_trials import SHORT, Plan, name_of, tidy
from memory_mosaics.experiments.trials import News, Settings, carry_out, outcome_of, watched
from memory_mosaics.runtime import RuntimeConfig, find_device
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training.config import ModelArgs, Run, Training, as_flag_only, recipe
from memory_mosaics.training.log import read

MODEL, TRAINING = recipe("memory-mosaic-tiny")
MACHINE = RuntimeConfig()


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
        """What was given, as lists of choices and ends of ranges."""
        return {name: _values(name, given) for name, given in asdict(self).items() if given is not None}


SPACE = Space()


def _values(name: str, given: list[float] | list[int] | str) -> Values:
    try:
        words = given.split("..") if isinstance(given, str) else given
        found = [tidy(name, float(word)) for word in words]
    except ValueError:
        found = []
    if isinstance(given, str) and len(found) == 2 and found[0] < found[1]:
        return found[0], found[1]
    if not found or (isinstance(given, str) and len(found) > 1):
        raise UserError(f"space.{name}: {given!r} is neither a list such as [0.1,0.2] nor a range such as 0.1..0.2")
    return list(dict.fromkeys(found))


def run(
    data: Path,
    out: Path = Path("runs/sweep"),
    *,
    preset: str | None = None,
    model: ModelArgs = MODEL,
    training: Training = TRAINING,
    machine: RuntimeConfig = MACHINE,
    method: Literal["table", "grid", "random", "tpe"] = "table",
    space: Space = SPACE,
    trials: int = 20,
    jobs: int = 1,
    cluster: Literal["ray"] | None = None,
) -> dict[str, Any]:
    """Search for the values to train with: those of the paper's table around a preset, or in a space of your own.

    The same command goes on with a sweep that was stopped; started several times, it shares the trials.

    Args:
        data: a folder that `mosaics prepare` wrote
        out: the folder of the sweep: results.json, sweep.png, journal.log for Optuna's tools, and trials/
        preset: where all values below come from that are not given, as for `mosaics train`
        model: which model
        training: how it learns: the base that trials change
        machine: how it is computed, saved and watched
        method: table changes one value at a time, grid takes all combinations, random and tpe draw
        space: where grid, random and tpe search
        trials: how many random and tpe draw in all; more than before extends a sweep
        jobs: trials at once, each in a process of its own, dealt out to the GPUs there are
        cluster: ray trains on the Ray cluster of this machine or of RAY_ADDRESS, whose machines share data and out
    """
    as_flag_only(preset)
    if "RANK" in os.environ:
        raise UserError("a sweep is not for torchrun: give it --jobs, or --cluster ray")
    check_range(1, MAX_JOBS, jobs=jobs)
    check_range(1, MAX_SIZE, trials=trials)
    plan = make(Run(data=data, out=out, model=model, training=training, machine=machine), method, space, trials)
    figures.check()
    optuna()
    if cluster == "ray":
        need_ray()
    else:
        find_device(machine.device)
    files.prepare(out)
    journal = plan.queue()
    try:
        with watched(out.name, len(plan.listed) or plan.trials, lambda: look(plan)):
            done = on_ray([plan], jobs) if cluster == "ray" else carry_out([plan], jobs)
    except KeyboardInterrupt:
        done = False
    results = collect(plan, journal.settings())
    results["interrupted"] = not done
    files.write(out / "results.json", results)
    where = f"Results: {out / 'results.json'}. Trials: {out / 'trials'}."
    if any(row["valid_loss"] is not None for row in results["rows"]):
        (figure,) = figures.draw(results, out)
        where += f" Figure: {figure}."
    stopped = "Stopped; the same command goes on. " if results["interrupted"] else ""
    print(f"{table(results)}\n{stopped}{where}")
    return results


def make(run: Run, method: str, space: Space, trials: int) -> Plan:
    """The plan of a sweep, once everything that it may train makes sense."""
    corpus = Corpus.open(run.data)
    values: dict[str, Values] = space.values()
    config = run.model.build(corpus.vocabulary)
    given = asdict(run.training) | {"dropout": config.dropout}
    base: Settings = {name: tidy(name, given[name]) for name in SHORT}
    listed: list[Settings] = []
    if method == "table":
        if values:
            raise UserError("the table changes the preset's own values; a space is for --method grid, random or tpe")
        listed = paper_rows(base)
        values |= {name: list(dict.fromkeys(row[name] for row in listed)) for name in base}
    elif not values:
        raise UserError(f"{method} needs a space to search in: for example --space.learning_rate 1e-4..1e-2")
    elif method == "grid":
        for name, choices in values.items():
            if isinstance(choices, tuple):
                raise UserError(f"grid takes lists, and space.{name} is the range {choices[0]}..{choices[1]}")
        listed = [base | dict(zip(values, row, strict=True)) for row in product(*values.values())]
    identity = {key: value for key, value in run.plain().items() if key in ("model", "training")}
    searched = {name: f"{ends[0]}..{ends[1]}" if isinstance(ends, tuple) else ends for name, ends in values.items()}
    identity |= {"method": method, "space": searched}
    identity |= {"corpus": corpus.manifest["splits"]["train"]["sha256"], "chance": log(corpus.vocabulary)}
    trials = min(trials, prod(_count(name, choices) for name, choices in values.items()))
    plan = Plan(run=run, base=base, space=values, listed=listed, trials=trials, identity=identity)
    for name, choices in values.items():
        for value in choices:
            plan.trial(plan.settings({name: value})).model.build(corpus.vocabulary)
    return plan


def _count(name: str, values: Values) -> int:
    """How many values there are to choose from; no range of real numbers ends."""
    if isinstance(values, list):
        return len(values)
    return int(values[1] - values[0]) + 1 if name in ("warm_up", "steps") else sys.maxsize


def paper_rows(base: Settings) -> list[Settings]:
    """The rows of the appendix's table, relative to the base: 5e-3 to 1e-3, 0.05 to 0, 0.1 to 0.01, 2000 to 200, ..."""
    changes = [
        ("learning_rate", base["learning_rate"] / 5),
        ("dropout", 0 if base["dropout"] else 0.05),
        ("weight_decay", base["weight_decay"] / 10),
        ("warm_up", base["warm_up"] // 10),
        ("steps", max(1, base["steps"] // 2)),
        ("steps", base["steps"] * 2),
    ]
    rows = [base, *(base | {name: tidy(name, value)} for name, value in changes)]
    return list({name_of(row): row for row in rows}.values())


def look(plan: Plan) -> News:
    """How far the trials are, and what the best has come to."""
    done, ended = progress(plan)
    best = min(ended, key=lambda name: ended[name], default="")
    lines = {name: f"{name}: valid loss {loss:.4f}, best so far {ended[best]:.4f}" for name, loss in ended.items()}
    return News(done, lines, f"best {ended[best]:.4f}: {best}" if best else "")


def progress(plan: Plan) -> tuple[float, dict[str, float]]:
    """How many trials are done, parts included, and the loss of each that ended; infinite if it failed."""
    done, finished = 0.0, {}
    for folder in plan.run.out.glob("trials/*"):
        if outcome := outcome_of(folder):
            finished[folder.name] = outcome["valid_loss"] if outcome["status"] == "finished" else inf
        elif lines := read(folder / "log.jsonl"):
            done += min(1.0, lines[-1]["step"] / int(folder.name.rpartition("steps")[2]))
    return done + len(finished), finished


def collect(plan: Plan, trials: list[Settings]) -> dict[str, Any]:
    """What results.json says: a row for each trial, in the order in which they were thought of."""
    rows: dict[str, dict[str, Any]] = {}
    for settings in trials:
        outcome = outcome_of(plan.trial(settings).out) or {"status": "unfinished"}
        losses = {"train_loss": None, "valid_loss": None}
        changed = [name for name, value in settings.items() if value != plan.base[name]]
        rows[name_of(settings)] = {"name": name_of(settings), **settings, "changed": changed} | losses | outcome
    finished = [row for row in rows.values() if row["status"] == "finished"]
    best = min(finished, key=lambda row: row["valid_loss"], default=None)
    hardware = sorted({row.pop("hardware") for row in rows.values() if "hardware" in row})
    return {
        "study": "sweep",
        "interrupted": False,
        "data": str(plan.run.data),
        **plan.identity,
        **files.environment_info(),
        **({"hardware": "; ".join(hardware)} if hardware else {}),
        "base": plan.base,
        "best": best["name"] if best else None,
        "rows": list(rows.values()),
    }


def table(results: dict[str, Any]) -> str:
    """The rows as in the paper, or the best first if they were drawn; * marks what differs from the base."""
    rows = results["rows"]
    if results["method"] != "table":
        rows = sorted(rows, key=lambda row: inf if row["status"] != "finished" else row["valid_loss"])
    heads = [*(name.replace("_", " ") for name in results["base"]), "train loss", "valid loss"]
    lines = ["".join(f"{head:>15}" for head in heads)]
    for row in rows:
        cells = [f"{'*' if name in row['changed'] else ''}{row[name]:g}" for name in results["base"]]
        losses = [
            f"{row[f'{name}_loss']:.3f}" if row["status"] == "finished" else row["status"]
            for name in ("train", "valid")
        ]
        best = "  best" if row["name"] == results["best"] else ""
        lines.append("".join(f"{cell:>15}" for cell in (*cells, *losses)) + best)
    return "\n".join(lines)
