"""One model on RegBench: the published recipe.

AdamW (0.9, 0.999) with weight decay on all parameters but those whose modules say otherwise; 32 sequences per step; the
learning rate rises over the first tenth of the steps and falls along a cosine whose clock begins with the first. After
each epoch the model is measured on validation sequences. The test sees three epochs of each run: those of the lowest
validation loss, which is the one that counts, of the highest accuracy and of the lowest distance (TVD).
"""

from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import torch

from memory_mosaics import checkpoint, runtime
from memory_mosaics.experiments.regbench_models import Size, architecture
from memory_mosaics.results import environment_info, rounded
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.tasks.regbench import BATCH, RegBench, RegBenchTask
from memory_mosaics.training.config import TaskRun, Training
from memory_mosaics.training.trainer import Trainer

SAVE_SECONDS = 60.0
WORTH_COMPILING = 2000  # steps


def task_of(environments: int, common: dict[str, Any]) -> RegBenchTask:
    """The languages of a number of environments."""
    same = {name: common[name] for name in ("held_out", "in_distribution", "distinct")}
    return RegBenchTask(environments=environments, seed=common["data_seed"], **same)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model to train, on one set of languages."""

    architecture: str
    environments: int
    in_distribution: bool
    blocks: int
    heads: int | None
    width: int
    weight_decay: float
    learning_rate: float
    seed: int
    epochs: int = 200
    held_out: int = 500
    distinct: bool = False  # no language twice
    data_seed: int = 0  # another one is another benchmark
    patience: int | None = None  # epochs without a lower validation loss after which a run ends
    most_steps: int | None = None  # fewer epochs where they would be more

    @property
    def size(self) -> Size:
        return Size(blocks=self.blocks, heads=self.heads or 1, width=self.width)

    @property
    def task(self) -> RegBenchTask:
        return task_of(self.environments, asdict(self))

    @property
    def steps_per_epoch(self) -> int:
        return ceil(self.environments / BATCH)

    @property
    def steps(self) -> int:
        allowed = self.epochs if self.most_steps is None else max(1, self.most_steps // self.steps_per_epoch)
        return min(self.epochs, allowed) * self.steps_per_epoch

    @property
    def training(self) -> Training:
        """The published recipe."""
        return Training(
            steps=self.steps,
            batch=BATCH,
            learning_rate=self.learning_rate,
            final_learning_rate=0.0,
            warm_up=self.steps // 10,
            schedule="cosine-from-start",
            betas=(0.9, 0.999),
            weight_decay=self.weight_decay,
            decay_all=True,
            clip=architecture(self.architecture).clip,
            seed=self.seed,
            evaluate_every=self.steps_per_epoch,
            patience=self.patience,
        )


def train(job: Job, out: Path, *, data: Path, machine: RuntimeConfig) -> dict[str, Any] | None:
    """Train a model in a folder of its own, or go on with it, and test it; nothing if it was told to stop.

    The model of the epoch with the lowest validation loss stays in OUT/model.
    """
    kind = architecture(job.architecture)
    machine = replace(machine, samples=0, log_every=job.steps_per_epoch, save_seconds=SAVE_SECONDS)
    with runtime.start(machine) as here:
        cuda = here.device.type == "cuda"
        if cuda:
            torch.set_float32_matmul_precision("high")  # TF32, as published, where not bfloat16
            torch.compiler.reset()  # it gives up on code that it has compiled for eight models
            torch.cuda.empty_cache()  # of the run before: other processes may want it
        task = RegBench(job.task, seed=job.seed, device=here.device, folder=data)
        wanted = cuda and job.steps >= WORTH_COMPILING and kind.compiles
        compiled = wanted if machine.compile is None else machine.compile
        config = kind.config(job.size)
        run = TaskRun(out=out, name=out.name, task=job.task, model=config, training=job.training, machine=machine)
        trainer = Trainer(run, task, config, here, compiled=compiled)
        results = trainer.run()
        if results["interrupted"]:
            return None
        tested = {by: _test(trainer, task, by) for by in ("tvd", "accuracy", "valid_loss")}
        if (out / "model").exists():  # of a run that was killed here
            checkpoint.remove(out / "model")
        checkpoint.save(trainer.model, out / "model", tokenizer=task.tokenizer)
    progress = trainer.progress
    epoch = tested["valid_loss"]["epoch"]
    names = ("train_loss", "valid_loss", "valid_accuracy", "valid_tvd")
    columns = list(zip(*(line[1:] for line in progress["curve"]), strict=True))
    trained = len(progress["curve"])
    return {
        "status": "finished",
        **asdict(job),
        "label": kind.label,
        "parameters": results["parameters"],
        "trained_epochs": trained,
        "selected_by": "loss",
        **{name: column[epoch - 1] for name, column in zip(names, columns, strict=True)},
        "accuracy": tested["valid_loss"]["accuracy"],
        "tvd": tested["valid_loss"]["tvd"],
        "tested": {"loss": tested["valid_loss"], "accuracy": tested["accuracy"], "tvd": tested["tvd"]},
        "curve": {name: rounded(list(column), 4) for name, column in zip(names, columns, strict=True)},
        "seconds": round(progress["seconds"], 1),
        "tokens_per_second": round(trained * task.splits["train"].tokens / progress["seconds"]),
        "compiled": compiled,
        "precision": here.precision,
        **environment_info(here.device),
    }


def _test(trainer: Trainer, task: RegBench, by: str) -> dict[str, Any]:
    """The scores on the test of the epoch that is the best by a metric of the validation. The model stays that one."""
    torch._foreach_copy_([weight.detach() for weight in trainer.model.parameters()], trainer.best_weights[by])
    scores: Any = task.test(trainer.model.eval(), trainer.runtime)
    step = trainer.progress["selected"][by][1]
    return {"epoch": step // task.steps_per_epoch, **{name: rounded(number, 5) for name, number in scores.items()}}
