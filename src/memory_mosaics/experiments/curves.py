"""Training curves: several architectures, depths, learning rates and seeds, same batches, same order (figure 7).

All models have the same width, heads, blocks, context and recipe; the batch of a step depends on the seed alone. Each
run is a training run like any other, in a folder of its own: a study that was stopped goes on where it was, and
finished runs are not repeated.

With several seeds the search comes first, at the first seed and the same for every architecture: all learning rates,
and then further ones where the best lies at the edge of those tried. The other seeds are trained at the best rate only.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from memory_mosaics import results as files
from memory_mosaics import runtime
from memory_mosaics.config import MAX_JOBS
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.experiments import figures, trials
from memory_mosaics.experiments.figures.language import LABELS, best_runs
from memory_mosaics.models import ARCHITECTURES, did_you_mean, matching_slots
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training import folder, trainer
from memory_mosaics.training.config import ModelArgs, Run, Training, recipe
from memory_mosaics.training.log import read

MODEL, TRAINING = recipe("memory-mosaic-small")
MACHINE = RuntimeConfig(samples=0)
MAX_EXTENSIONS = 4  # learning rates tried beyond either end of those that were named
Setting = tuple[str, int, float, int]  # architecture, blocks, learning rate, seed


def run(
    data: Path,
    out: Path = Path("runs/curves"),
    *,
    architectures: list[str] | None = None,
    blocks: list[int] | None = None,
    rates: list[float] | None = None,
    seeds: int = 1,
    jobs: int = 1,
    model: ModelArgs = MODEL,
    training: Training = TRAINING,
    machine: RuntimeConfig = MACHINE,
) -> dict[str, Any]:
    """Train Memory Mosaics and transformers of several depths and learning rates side by side, and draw their curves.

    Ctrl-C keeps everything; the same command goes on.

    Args:
        data: a folder that `mosaics prepare` wrote
        out: folder for the runs, results.json and the figures
        architectures: any of memory-mosaic, transformer (learned positions), transformer-rotary, transformer-alibi,
            transformer-none, and the other mixers: mamba, rwkv, gla, ...; the first two if none are named
        blocks: the depths; 1 and 6 if none are named
        rates: the largest learning rates; 1e-3, 3e-3 and 6e-3 if none are named. All end at the same share of it.
        seeds: how many; more than one first extends the rates until none of the best lies at their edge, and trains
            the other seeds at the best rate of each architecture and depth
        jobs: runs at once, each in a process of its own, spread over the GPUs there are
        model: what all models have in common; name and blocks are for --architectures and --blocks to say. Unless slots
            are given, a Memory Mosaic has those that make it as large as the first transformer named, within 1 %
        training: how all learn; its seed is the first, and its final_learning_rate counts as a share: every rate falls
            to the same share of itself as training.learning_rate does
        machine: how it is computed
    """
    check_range(1, MAX_JOBS, jobs=jobs)
    check_range(1, 10_000, seeds=seeds)
    if jobs > 1 and "RANK" in os.environ:
        raise UserError("--jobs is not for torchrun: all processes train one model after the other")
    for name, flag in (("name", "architectures"), ("blocks", "blocks")):
        if getattr(model, name) not in (None, getattr(MODEL, name)):
            raise UserError(f"--model.{name} {getattr(model, name)}: curves trains what --{flag} lists")
    kinds, depths = architectures or ["memory-mosaic", "transformer"], blocks or [1, 6]
    if model.position not in (None, "learned"):  # the name says which positions a transformer has
        kinds = list(
            dict.fromkeys(f"transformer-{model.position}" if kind == "transformer" else kind for kind in kinds)
        )
    twin = next((kind for kind in kinds if kind != "memory-mosaic"), "transformer")
    study = Study(Run(data=data, out=out, model=model, training=training, machine=machine), Corpus.open(data), twin)
    grid = product(depths, rates or [1e-3, 3e-3, 6e-3], kinds)
    first = [(kind, depth, rate, training.seed) for depth, rate, kind in grid]
    for setting in first:
        study.check(setting)  # a wrong size is found before hours are spent
    files.prepare(out)
    results: dict[str, Any] = {"study": "curves", "interrupted": False, "corpus": _corpus(study.corpus), "seeds": seeds}
    shared = {key: value for key, value in asdict(model).items() if key not in ("name", "blocks")}
    results |= {"model": shared, "training": asdict(training), "runs": []}

    with runtime.start(machine) as world:

        def train(settings: list[Setting]) -> bool:
            """Train what is new of these; false if told to stop."""
            try:
                return study.train(settings, results, jobs=jobs, keep=world.is_rank0)
            except KeyboardInterrupt:  # in other processes: they have saved
                return False

        done = train(first)
        for _ in range(MAX_EXTENSIONS if seeds > 1 else 0):
            further = _beyond_the_edge(results["runs"])
            done = done and train(further)
            if not further or not done:
                break
        if done and seeds > 1:
            best = [(*kind, record["learning_rate"]) for kind, record in best_runs(results["runs"]).items()]
            done = train([(*one, training.seed + number) for one in best for number in range(1, seeds)])
        results["interrupted"] = not done
        results["summary"] = summary(results["runs"])
        if world.is_rank0:
            files.write(out / "results.json", results)
            _report(results, out)
    if done and not results["summary"]:
        raise UserError(f"none of {len(results['runs'])} runs came to an end; try smaller --rates")
    return results


@dataclass(frozen=True)
class Study:
    """What all runs have in common."""

    base: Run
    corpus: Corpus
    twin: str  # the architecture that a Memory Mosaic is as large as

    def plan(self, setting: Setting) -> Run:
        """The training run of a setting."""
        kind, depth, rate, seed = setting
        if rate <= 0:
            raise UserError(f"a learning rate must be more than 0, not {rate}")
        training = self.base.training
        share = training.final_learning_rate / training.learning_rate
        name = f"{kind}-{depth}-{rate:g}" + (f"-seed{seed}" if seed != training.seed else "")
        return replace(
            self.base,
            out=self.base.out / "trials" / name,
            model=self.model(kind, depth),
            training=replace(training, learning_rate=rate, final_learning_rate=rate * share, seed=seed),
        )

    def model(self, kind: str, depth: int) -> ModelArgs:
        """The model of an architecture."""
        if kind not in ARCHITECTURES:
            raise UserError(f"no architecture {kind!r}; {did_you_mean(kind, ARCHITECTURES)}")
        given = self.base.model
        model = replace(given, name=f"{kind}-12", blocks=depth, slots=None, position=None)
        if kind == "transformer":
            return replace(model, position=given.position)
        if kind != "memory-mosaic":
            return model
        twin = None if given.slots else self.model(self.twin, depth)
        if twin is None or (self.twin == "transformer" and twin.position in (None, "learned")):
            return replace(model, slots=given.slots)  # none given: those that match learned positions
        return replace(model, slots=matching_slots(twin.build(self.corpus.vocabulary)))

    def check(self, setting: Setting) -> None:
        """Refuse sizes that do not fit together, and the folder of another run."""
        plan = self.plan(setting)
        plan.model.build(self.corpus.vocabulary)
        if plan.out.exists():
            folder.check_same(plan, self.corpus.fingerprint)

    def train(self, settings: list[Setting], results: dict[str, Any], *, jobs: int, keep: bool) -> bool:
        """Train all, one after the other or `jobs` at once, and add their records; false if told to stop."""
        for setting in settings:
            self.check(setting)
        done = jobs == 1
        if not done:
            queue = Queue(self.base.out, {plan.out.name: plan for plan in map(self.plan, settings)})
            with trials.watched(self.base.out.name, len(settings), queue.progress):
                done = trials.carry_out([queue], jobs)
        for setting in settings:
            plan = self.plan(setting)
            outcome = trials.outcome_of(plan.out)
            if outcome is None and not done:
                continue
            if outcome is None:
                outcome = train_one(plan)
                if outcome is None:
                    return False
                if keep:
                    files.write(plan.out / "outcome.json", outcome)
            results |= {key: outcome[key] for key in ("versions", "hardware") if key in outcome}
            labels = dict(zip(("architecture", "blocks", "learning_rate", "seed"), setting, strict=True))
            results["runs"].append(labels | {"run": f"trials/{plan.out.name}"} | _record(outcome, plan.out))
            if keep:
                files.write(self.base.out / "results.json", results | {"interrupted": True})
        return done


@dataclass(frozen=True)
class Queue:
    """The runs of a study as trials for several processes."""

    out: Path
    plans: dict[str, Run]

    def name_of(self, settings: trials.Settings) -> str:
        return settings["name"]

    def attempt(self, settings: trials.Settings) -> trials.Outcome | None:
        plan = self.plans[settings["name"]]
        return trials.attempted(plan.out, lambda: train_one(plan))

    def queue(self) -> trials.Listed:
        return trials.Listed(self, [{"name": name} for name in self.plans])

    def progress(self) -> trials.News:
        """Which runs ended, and how."""
        found = {name: trials.outcome_of(self.out / "trials" / name) for name in self.plans}
        ended = {name: f"{name}: {outcome.get('valid_loss') or 'fail'}" for name, outcome in found.items() if outcome}
        return trials.News(len(ended), ended, "")


def train_one(plan: Run) -> trials.Outcome | None:
    """Train a run, or go on with it; nothing if it was told to stop."""
    try:
        trained = trainer.train(plan)
    except trainer.Diverged as error:
        return {"status": "fail", "reason": str(error)}
    names = ("parameters", "train_loss", "valid_loss", "tokens_per_second", "seconds", "versions", "hardware")
    return None if trained["interrupted"] else {"status": "finished"} | {name: trained[name] for name in names}


def _beyond_the_edge(runs: list[dict[str, Any]]) -> list[Setting]:
    """For each best run whose learning rate is the largest or smallest tried, the next one: half or double."""
    further = []
    for (kind, depth), record in best_runs(runs).items():
        rate = record["learning_rate"]
        tried = [one["learning_rate"] for one in runs if (one["architecture"], one["blocks"]) == (kind, depth)]
        if rate == max(tried):
            further.append((kind, depth, 2 * rate, record["seed"]))
        elif rate == min(tried):
            further.append((kind, depth, rate / 2, record["seed"]))
    return further


def summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each architecture and depth at its best learning rate: mean and 95 % interval of the losses over the seeds."""
    rows = []
    for (kind, depth), best in best_runs(runs).items():
        key = (kind, depth, best["learning_rate"])
        same = [one for one in runs if (one["architecture"], one["blocks"], one["learning_rate"]) == key]
        finished = [one for one in same if one["valid_loss"] is not None]
        row = {"architecture": kind, "blocks": depth, "learning_rate": best["learning_rate"], "seeds": len(finished)}
        row |= {"failed": len(same) - len(finished), "parameters": best["parameters"]}
        for name in ("train_loss", "valid_loss", "seconds"):
            mean, within = files.mean_and_interval([one[name] for one in finished])
            row |= {name: files.rounded(mean, 6), f"{name}_within": files.rounded(within, 3)}
        rows.append(row)
    return rows


def _report(results: dict[str, Any], out: Path) -> None:
    drawn = "No figures: matplotlib is not installed here; mosaics draw makes them from results.json."
    if not any(record["valid_loss"] for record in results["runs"]):
        drawn = "No figures: no run came to an end."
    elif figures.available():
        drawn = f"Figures: {', '.join(file.name for file in figures.draw(results, out))} beside it."
    stopped = "Stopped; the same command goes on. " if results["interrupted"] else ""
    print(f"{table(results)}\n{stopped}Results: {out / 'results.json'}. {drawn}")


def _corpus(corpus: Corpus) -> dict[str, Any]:
    """What was read, and how much of it."""
    manifest = corpus.manifest
    counts = {name: {key: split[key] for key in ("documents", "tokens")} for name, split in manifest["splits"].items()}
    return {"name": corpus.folder.name, "tokenizer": manifest["tokenizer"]["name"], "splits": counts}


def _record(outcome: dict[str, Any], out: Path) -> dict[str, Any]:
    """One run: where it ended, how fast, and its curves."""
    lines = read(out / "log.jsonl")
    names = ("parameters", "train_loss", "valid_loss", "tokens_per_second", "seconds")
    training = [[line["step"], round(line["loss"], 4)] for line in lines if "loss" in line]
    measured = [
        [line["step"], *(round(line[f"{split}_loss"], 4) for split in ("train", "valid"))]
        for line in lines
        if "valid_loss" in line
    ]
    return {name: outcome.get(name) for name in names} | {"curve": training, "measured": measured}


def table(results: dict[str, Any]) -> str:
    """One line per run; with several seeds, one line per architecture and depth below."""
    lines = ["blocks  learning rate  seed  architecture                       train   valid  thousand tokens/s"]
    order: Callable[[dict[str, Any]], Any] = lambda one: (one["blocks"], one["learning_rate"], one["seed"])  # noqa: E731
    for one in sorted(results["runs"], key=order):
        head = f"{one['blocks']:6}  {one['learning_rate']:13g}  {one['seed']:4}  {LABELS[one['architecture']]:31}"
        speed = (one["tokens_per_second"] or 0) / 1000
        losses = "   fail" if one["valid_loss"] is None else f"{one['train_loss']:8.3f} {one['valid_loss']:7.3f}"
        lines.append(f"{head} {losses} {speed:18,.0f}" if one["valid_loss"] is not None else f"{head} {losses}")
    if results["seeds"] > 1 and results["summary"]:
        lines += ["", "at the best learning rate of the first seed: validation loss, 95 % interval over seeds"]
        for row in results["summary"]:
            within = "" if row["valid_loss_within"] is None else f" ± {row['valid_loss_within']:.3f}"
            kind = f"{LABELS[row['architecture']]:31} {row['blocks']:2} blocks, learning rate {row['learning_rate']:g}"
            lines.append(f"  {kind}: {row['valid_loss']:.3f}{within} ({row['seeds']} seeds, {row['failed']} failed)")
    return "\n".join(lines)
