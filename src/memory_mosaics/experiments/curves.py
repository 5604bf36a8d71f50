"""Training curves: several architectures, depths, learning rates and seeds, same batches, same order (figure 7).

All models have the same width, heads, blocks, context and recipe; the batch of a step depends on the seed alone.

With several seeds the search comes first, at the first seed and the same for every architecture: all learning rates,
and then further ones where the best is the smallest or largest of those tried. The other seeds are trained at the best
rate only.
"""

import os
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from memory_mosaics.config import MAX_JOBS
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.experiments import runner
from memory_mosaics.experiments.figures.language import LABELS, best_runs
from memory_mosaics.experiments.grid import Grid, is_at_edge, next_value
from memory_mosaics.experiments.outcomes import ENVIRONMENT, Outcome, Settings, merge_environments, read_outcome
from memory_mosaics.experiments.own_mixers import find_architecture
from memory_mosaics.experiments.report import log_curve, text_table
from memory_mosaics.models import ARCHITECTURES, matching_slots
from memory_mosaics.results import mean_and_interval, write_results
from memory_mosaics.runtime import RuntimeConfig, start_runtime
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training import trainer
from memory_mosaics.training.config import ModelArgs, Run, Training
from memory_mosaics.training.loggers import read_log

RECIPE = runner.load_packaged("curves")
MAX_EXTENSIONS = 4  # learning rates tried beyond those that were named
MEASURED = ("parameters", "train_loss", "valid_loss", "tokens_per_second", "seconds")
MODEL = ModelArgs(**RECIPE["model"])
TRAINING = Training(**RECIPE["training"])
RUNTIME = RuntimeConfig(**RECIPE["runtime"])


def run(
    data: Path,
    out: Path = Path("runs/curves"),
    *,
    architectures: list[str] | None = RECIPE["architectures"],
    blocks: list[int] | None = RECIPE["blocks"],
    learning_rates: list[float] | None = RECIPE["learning_rates"],
    seeds: int = RECIPE["seeds"],
    jobs: int = RECIPE["jobs"],
    model: ModelArgs = MODEL,
    training: Training = TRAINING,
    runtime: RuntimeConfig = RUNTIME,
) -> dict[str, Any]:
    """Train architectures at several depths and learning rates on the same batches, and draw their curves.

    Ctrl-C keeps everything; the same command continues.

    Args:
        data: a folder that `mosaics prepare` wrote
        out: folder for the runs, results.json and the figures
        architectures: any of memory-mosaic, transformer (learned positions), transformer-rotary, transformer-alibi,
            transformer-none, and the other mixers: mamba, rwkv, gla, ...; the first two if none are named
        blocks: the depths; 1 and 6 if none are named
        learning_rates: the largest of each run; 1e-3, 3e-3 and 6e-3 if none are named
        seeds: how many; more than one first extends the learning rates by up to four where the best lies at their
            edge, and trains the other seeds at the best of each architecture and depth
        jobs: runs at once, each in a process of its own, distributed over the GPUs
        model: what all models have in common; --architectures and --blocks give name and blocks. Unless slots are
            given, a Memory Mosaic has those that make it as large as the first other architecture named, within 1 %
        training: how all learn; its seed is the first, and its final_learning_rate counts as a share: every rate falls
            to the same share of itself as training.learning_rate does
        runtime: how it is computed
    """
    arguments = dict(locals())
    check_range(1, MAX_JOBS, jobs=jobs)
    check_range(1, 10_000, seeds=seeds)
    if jobs > 1 and "RANK" in os.environ:
        raise UserError("--jobs is not for torchrun: all processes train one model after the other")
    for name, flag in (("name", "architectures"), ("blocks", "blocks")):
        if getattr(model, name) is not None:
            raise UserError(f"--model.{name} {getattr(model, name)}: curves trains what --{flag} lists")
    kinds, depths = architectures or ["memory-mosaic", "transformer"], blocks or [1, 6]
    if model.position not in (None, "learned"):  # the name says which positions a transformer has
        kinds = [f"transformer-{model.position}" if kind == "transformer" else kind for kind in kinds]
    twin = next((kind for kind in kinds if kind != "memory-mosaic"), "transformer")
    corpus = Corpus.open(data)
    base = Run(data=data, out=out, model=model, training=training, runtime=runtime)
    search = [
        {"architecture": kind, "blocks": depth, "learning_rate": rate, "seed": training.seed}
        for depth, rate, kind in product(depths, learning_rates or [1e-3, 3e-3, 6e-3], kinds)
    ]
    common = CommonSettings(base, corpus.vocabulary, twin, tuple(search), seeds)
    for settings in search:
        common.run_of(settings).model.build(corpus.vocabulary)  # a wrong size is found before hours are spent
    shared = {key: value for key, value in asdict(model).items() if key not in ("name", "blocks")}
    results: dict[str, Any] = {"study": "curves", "interrupted": False, "corpus": describe(corpus), "seeds": seeds}
    results |= {"model": shared, "training": asdict(training), "runs": []}
    grid = Grid(out=out, name_of=common.name_of, train=common.train, settings=common.listed, quiet=jobs > 1)

    def save() -> None:
        write_results(out / "results.json", results | {"interrupted": True, "runs": common.records()})

    with start_runtime(runtime) as world:
        if world.is_rank0:
            relative = asdict(training) | {"learning_rate": 1.0, "final_learning_rate": common.final_share}
            sized_by = {"twin": twin} if "memory-mosaic" in kinds and not model.slots else {}
            runner.prepare(out, arguments, {"model": shared, "training": relative} | corpus.fingerprint | sized_by)
        done = runner.run_grids([grid], processes=jobs, save=save)
        results["runs"] = world.broadcast(common.records())
        results |= {"interrupted": not done, "summary": summary(results["runs"])}
        results |= merge_environments([one for one in map(common.outcome, grid.runs) if one])
        if world.is_rank0:
            runner.report(results, out, table(results), drawable=bool(results["summary"]))
    runner.raise_errors([grid])
    if done and not results["summary"]:
        raise UserError(f"none of {len(results['runs'])} runs finished; try smaller --learning_rates")
    return results


@dataclass(frozen=True)
class CommonSettings:
    """What all runs have in common, which runs there are, and how each follows from its settings."""

    base: Run
    vocabulary: int
    twin: str  # the architecture whose number of parameters a Memory Mosaic has
    search: tuple[Settings, ...] = ()
    seeds: int = 1

    def listed(self) -> list[Settings]:
        """Return the runs that are known now: those of the search, and once it has ended those of the other seeds."""
        runs = list({self.name_of(settings): settings for settings in self.search}.values())  # each once
        if self.seeds == 1:
            return runs
        for _ in range(MAX_EXTENSIONS):
            runs += _beyond_the_edge(self._losses(runs))
        best = [{**_key(one), "learning_rate": one["learning_rate"]} for one in best_runs(self._losses(runs)).values()]
        seeds = range(self.base.training.seed + 1, self.base.training.seed + self.seeds)
        return runs + [one | {"seed": seed} for one in best for seed in seeds]

    def _losses(self, runs: list[Settings]) -> list[dict[str, Any]]:
        """Return the settings of runs with their losses; nothing until all have ended."""
        outcomes = [self.outcome(settings) for settings in runs]
        ended = ((settings, outcome) for settings, outcome in zip(runs, outcomes, strict=True) if outcome)
        found = [settings | {"valid_loss": outcome.get("valid_loss")} for settings, outcome in ended]
        return found if len(found) == len(runs) else []

    @property
    def final_share(self) -> float:
        """The final learning rate as a share of the largest."""
        return self.base.training.final_learning_rate / self.base.training.learning_rate

    def name_of(self, settings: Settings) -> str:
        name = "{architecture}-{blocks}-{learning_rate:g}".format(**settings)
        return name if settings["seed"] == self.base.training.seed else f"{name}-seed{settings['seed']}"

    def folder(self, settings: Settings) -> Path:
        return self.base.out / "trials" / self.name_of(settings)

    def run_of(self, settings: Settings) -> Run:
        """Return the training run of some settings."""
        rate, final = settings["learning_rate"], settings["learning_rate"] * self.final_share
        return replace(
            self.base,
            out=self.folder(settings),
            model=self.model(settings["architecture"], settings["blocks"]),
            training=replace(self.base.training, learning_rate=rate, final_learning_rate=final, seed=settings["seed"]),
        )

    def model(self, kind: str, depth: int) -> ModelArgs:
        """Return the model of an architecture."""
        find_architecture(kind, ARCHITECTURES)
        given = self.base.model
        model = replace(given, name=f"{kind}-12", blocks=depth, slots=None, position=None)
        if kind == "transformer":
            return replace(model, position=given.position)
        if kind != "memory-mosaic":
            return model
        twin = None if given.slots else self.model(self.twin, depth)
        if twin is None or (self.twin == "transformer" and twin.position in (None, "learned")):
            return replace(model, slots=given.slots)  # none given: those that match learned positions
        return replace(model, slots=matching_slots(twin.build(self.vocabulary)))

    def train(self, settings: Settings, folder: Path) -> Outcome | None:
        results = trainer.train(self.run_of(settings))
        return None if results["interrupted"] else {name: results[name] for name in (*MEASURED, *ENVIRONMENT)}

    def outcome(self, settings: Settings) -> Outcome | None:
        return read_outcome(self.folder(settings))

    def records(self) -> list[dict[str, Any]]:
        """Return what results.json has of the runs that ended: their losses, their speed, and their curves."""
        return [self._record(settings, outcome) for settings in self.listed() if (outcome := self.outcome(settings))]

    def _record(self, settings: Settings, outcome: Outcome) -> dict[str, Any]:
        folder = self.folder(settings)
        lines = read_log(folder / "log.jsonl")
        measures = {name: outcome.get(name) for name in MEASURED}
        losses = {"curve": log_curve(lines, "loss"), "measured": log_curve(lines, "train_loss", "valid_loss")}
        return settings | {"run": f"trials/{folder.name}"} | measures | losses


def _key(record: dict[str, Any]) -> Settings:
    return {name: record[name] for name in ("architecture", "blocks")}


def _tried(runs: list[dict[str, Any]], record: dict[str, Any]) -> list[float]:
    """Return the learning rates of the architecture and depth of a record."""
    return sorted(one["learning_rate"] for one in runs if _key(one) == _key(record))


def _beyond_the_edge(runs: list[dict[str, Any]]) -> list[Settings]:
    """For each best run whose learning rate is the largest or smallest tried, return the next one: double or half."""
    further = []
    for best in best_runs(runs).values():
        rate = best["learning_rate"]
        next_rate = next_value(_tried(runs, best), rate, ratio=2.0)
        if next_rate is not None:
            further.append(_key(best) | {"learning_rate": next_rate, "seed": best["seed"]})
    return further


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and 95 % interval over the seeds, for each architecture and depth at its best learning rate."""
    rows = []
    for (kind, depth), best in best_runs(runs).items():
        key = (kind, depth, best["learning_rate"])
        same = [one for one in runs if (one["architecture"], one["blocks"], one["learning_rate"]) == key]
        finished = [one for one in same if one["valid_loss"] is not None]
        row = {"architecture": kind, "blocks": depth, "learning_rate": best["learning_rate"], "seeds": len(finished)}
        row |= {"failed": len(same) - len(finished), "parameters": best["parameters"]}
        row["at_edge"] = is_at_edge(best["learning_rate"], _tried(runs, best))
        for name in ("train_loss", "valid_loss", "seconds"):
            row[name], row[f"{name}_within"] = mean_and_interval([one[name] for one in finished], digits=6)
        rows.append(row)
    return rows


def describe(corpus: Corpus) -> dict[str, Any]:
    """Return which corpus it is, and its size."""
    manifest = corpus.manifest
    counts = {name: {key: split[key] for key in ("documents", "tokens")} for name, split in manifest["splits"].items()}
    return {"name": corpus.folder.name, "tokenizer": manifest["tokenizer"]["name"], "splits": counts}


def table(results: dict[str, Any]) -> str:
    """One line per run; with several seeds, one line per architecture and depth below."""
    rows = []
    for one in sorted(results["runs"], key=lambda one: (one["blocks"], one["learning_rate"], one["seed"])):
        measures = ["fail", "", ""]
        if one["valid_loss"] is not None:
            measures = [f"{one[name]:.3f}" for name in ("train_loss", "valid_loss")]
            measures.append(f"{one['tokens_per_second']:,.0f}")
        rows.append([*_cells(one), str(one["seed"]), *measures])
    header = ["architecture", "blocks", "learning rate"]
    text = text_table([*header, "seed", "train loss", "valid loss", "tokens/s"], rows)
    if results["seeds"] == 1 or not results["summary"]:
        return text
    rows = []
    for row in results["summary"]:
        within = "" if row["valid_loss_within"] is None else f" ± {row['valid_loss_within']:.3f}"
        counts = [str(row["seeds"]), str(row["failed"]), "yes" if row["at_edge"] else "no"]
        rows.append([*_cells(row), f"{row['valid_loss']:.3f}{within}", *counts])
    title = "At the best learning rate of the first seed, mean and 95 % interval over seeds:"
    return f"{text}\n\n{title}\n{text_table([*header, 'valid loss', 'seeds', 'failed', 'at edge'], rows)}"


def _cells(record: dict[str, Any]) -> list[str]:
    return [LABELS[record["architecture"]], str(record["blocks"]), f"{record['learning_rate']:g}"]
