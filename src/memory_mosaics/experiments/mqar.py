"""MQAR: which architectures recall many key-value pairs, and at which width? The task is in tasks/mqar.py.

As in Zoology, models are sequence mixers alone, two blocks without channel mixers, and the learning rate is searched
for every architecture and width. The best rate is the one with the highest validation accuracy, averaged over seeds;
what is reported is the accuracy on the test examples.
"""

from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from memory_mosaics import results as files
from memory_mosaics import runtime
from memory_mosaics.config import MAX_JOBS, MAX_SIZE
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.experiments.runner import Grid, Outcome, Settings, check_setup, run_grids
from memory_mosaics.language_model import LanguageModelConfig, weight_shapes
from memory_mosaics.models import ARCHITECTURES, did_you_mean
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.tasks.mqar import MQAR, MQARData
from memory_mosaics.training.config import TaskRun, Training
from memory_mosaics.training.trainer import Trainer

TINY = MQARData(vocabulary=64, length=32, pairs=4, examples=6400, held_out=500)
MACHINE = RuntimeConfig(device="cpu")
CASE = ("architecture", "width")


def run(
    out: Path = Path("runs/mqar"),
    *,
    architectures: list[str] | None = None,
    task: MQARData = TINY,
    widths: list[int] | None = None,
    rates: list[float] | None = None,
    blocks: int = 2,
    heads: int = 1,
    epochs: int = 4,
    batch_size: int = 64,
    seeds: int = 1,
    jobs: int = 1,
    machine: RuntimeConfig = MACHINE,
) -> dict[str, Any]:
    """Train architectures on multi-query associative recall, the benchmark of Zoology, and compare their accuracy.

    The default is a small setting for a CPU. Ctrl-C keeps everything; the same command continues.

    Args:
        out: folder for the runs and results.json
        architectures: any that `mosaics curves` takes; memory-mosaic and transformer-rotary if none are named
        task: the examples; Zoology has --task.vocabulary 8192, 100000 examples, 3000 held out, and lengths and pairs of
            64 and 4, 128 and 8, 256 and 16, or 512 and 64
        widths: of the models; 64 if none are named. Zoology has 64, 128, 256 and 512
        rates: the largest learning rates; 3e-3 and 1e-2 if none are named. Zoology has 1e-4, 4.6e-4, 2.2e-3 and 1e-2
        blocks: of every model
        heads: of every sequence mixer that has heads
        epochs: passes over the training examples; Zoology has 64
        batch_size: examples per step
        seeds: models per architecture, width and rate
        jobs: runs at once, each in a process of its own
        machine: how it is computed
    """
    check_range(1, MAX_JOBS, jobs=jobs)
    check_range(1, 10_000, seeds=seeds)
    check_range(1, MAX_SIZE, epochs=epochs, batch_size=batch_size)
    study = Study(out=out, task=task, blocks=blocks, heads=heads, epochs=epochs, batch_size=batch_size, machine=machine)
    grid = product(
        architectures or ["memory-mosaic", "transformer-rotary"], widths or [64], rates or [3e-3, 1e-2], range(seeds)
    )
    runs: list[Settings] = [dict(zip((*CASE, "learning_rate", "seed"), values, strict=True)) for values in grid]
    for settings in runs:
        weight_shapes(study.model(settings))  # a wrong size is found before anything is trained
        study.training(settings)
    files.prepare(out)
    setup = {"task": asdict(task), "blocks": blocks, "heads": heads, "epochs": epochs, "batch_size": batch_size}
    check_setup(out, setup)
    grids = [study.grid(runs, quiet=jobs > 1)]
    done = run_grids(grids, processes=jobs)
    outcomes = [found for settings in runs if (found := grids[0].outcome(grids[0].folder(settings)))]
    results = {"study": "mqar", "interrupted": not done, "settings": setup | {"seeds": seeds}}
    results |= files.environment_info() | {"runs": outcomes, "summary": summary(outcomes)}
    files.write(out / "results.json", results)
    stopped = "" if done else "Stopped; the same command continues. "
    print(f"{table(results)}\n{stopped}Results: {out / 'results.json'}.")
    return results


@dataclass(frozen=True, kw_only=True)
class Study:
    """What all runs have in common."""

    out: Path
    task: MQARData
    blocks: int
    heads: int
    epochs: int
    batch_size: int
    machine: RuntimeConfig

    def grid(self, runs: list[Settings], *, quiet: bool) -> Grid:
        shown = ("accuracy {accuracy:.3f}",)
        fields = ("valid_loss", "valid_accuracy", "accuracy")
        return Grid(out=self.out, name_of=name_of, train=self.train, runs=runs, fields=fields, shown=shown, quiet=quiet)

    def model(self, settings: Settings) -> LanguageModelConfig:
        name = settings["architecture"]
        if name not in ARCHITECTURES:
            raise UserError(f"no architecture {name!r}; {did_you_mean(name, ARCHITECTURES)}")
        sizes = {"width": settings["width"], "blocks": self.blocks, "heads": self.heads}
        config = ARCHITECTURES[name].config(**sizes, vocabulary=self.task.vocabulary, context=self.task.length)
        return replace(config, channel_mixer=None)

    def training(self, settings: Settings) -> Training:
        epoch = -(-self.task.examples // self.batch_size)
        return Training(
            steps=self.epochs * epoch,
            batch=self.batch_size,
            learning_rate=settings["learning_rate"],
            final_learning_rate=0.0,
            warm_up=min(100, epoch),
            weight_decay=0.1,
            seed=settings["seed"],
            evaluate_every=epoch,
        )

    def train(self, settings: Settings, folder: Path) -> Outcome | None:
        """Train one model, or continue it, and test it; None if it was told to stop."""
        config, training = self.model(settings), self.training(settings)
        machine = replace(self.machine, samples=0, log_every=training.evaluate_every)
        spec = TaskRun(out=folder, name=folder.name, task=self.task, model=config, training=training, machine=machine)
        with runtime.start(machine) as here:
            task = MQAR(self.task, batch_size=self.batch_size, seed=settings["seed"])
            trainer = Trainer(spec, task, config, here)
            results = trainer.run()
            if results["interrupted"]:
                return None
            tested = task.measure(trainer.model.eval(), "test", here)
        progress = trainer.progress
        measured = {"valid_loss": progress["valid_loss"], "valid_accuracy": progress["accuracy"]}
        measured |= {"accuracy": tested["accuracy"]}
        curve = [[step, round(accuracy, 4)] for step, *_, accuracy in progress["curve"]]
        measured = {"parameters": results["parameters"]} | {key: round(value, 5) for key, value in measured.items()}
        return measured | {"seconds": round(progress["seconds"], 1), "curve": curve}


def name_of(settings: Settings) -> str:
    return "{architecture}-{width}-{learning_rate:g}-seed{seed}".format(**settings)


def summary(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Return the test accuracy of each architecture and width at its best rate, with its 95 % interval over seeds."""
    finished = [one for one in outcomes if one["status"] == "finished"]
    rows = []
    for case in dict.fromkeys(tuple(one[name] for name in CASE) for one in finished):
        by_rate: dict[float, list[Outcome]] = {}
        for one in finished:
            if tuple(one[name] for name in CASE) == case:
                by_rate.setdefault(one["learning_rate"], []).append(one)
        best = max(by_rate.values(), key=lambda same: fmean(one["valid_accuracy"] for one in same))
        mean, within = files.mean_and_interval([one["accuracy"] for one in best])
        row = dict(zip(CASE, case, strict=True)) | {name: best[0][name] for name in ("learning_rate", "parameters")}
        row |= {"seeds": len(best), "accuracy": round(mean, 4)}
        rows.append(row | {"accuracy_within": None if within is None else round(within, 4)})
    return rows


def table(results: dict[str, Any]) -> str:
    """Return one line per architecture and width."""
    lines = ["architecture               width  learning rate  parameters  seeds  test accuracy"]
    for row in results["summary"]:
        within = "" if row["accuracy_within"] is None else f" ± {row['accuracy_within']:.3f}"
        label = ARCHITECTURES[row["architecture"]].label
        lines.append(
            f"{label:25} {row['width']:6} {row['learning_rate']:14g} {row['parameters']:11,} {row['seeds']:6} "
            f"{row['accuracy']:14.3f}{within}"
        )
    failed = sum(one["status"] != "finished" for one in results["runs"])
    return "\n".join([*lines, f"{failed} runs failed: their losses overflow"] if failed else lines)
