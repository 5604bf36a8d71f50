"""One model on RegBench: the published recipe, the whole training set on the device, every step recorded there.

AdamW (0.9, 0.999) with weight decay on all parameters but those whose modules say otherwise; 32 sequences a step; the
learning rate rises over the first tenth of the steps and falls along a cosine whose clock begins with the first. After
each epoch the model is measured on validation sequences. The test sees three epochs of each run: those of the lowest
validation loss, which is the one that counts, of the highest accuracy and of the lowest distance (TVD).
"""

import json
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil, cos, inf, isfinite, pi
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memory_mosaics.data.regbench import RegBenchTask
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import written_whole
from memory_mosaics.language_model import parameter_count
from memory_mosaics.parameters import groups
from memory_mosaics.results import rounded, surroundings
from memory_mosaics.studies.regbench_measures import BATCH, Examination, Split, best_temperature, measure
from memory_mosaics.studies.regbench_models import Size, architecture
from memory_mosaics.training.log import trim
from memory_mosaics.training.loop import Diverged, stopped_gently
from memory_mosaics.training.objective import Objective, adamw_of, moments, set_steps
from memory_mosaics.training.parallel import find_device, precision_of
from memory_mosaics.training.recipe import Machine
from memory_mosaics.training.step import Eager, Recorded

LOWEST_RATE = 1e-6  # where the warm-up begins
STATE = "state.safetensors"  # what a run goes on from
SAVED_EVERY = 60.0  # seconds
WORTH_COMPILING = 2000  # steps
BEST: dict[str, Callable[[float, float], bool]] = {  # by what an epoch is chosen, and when one is better
    "loss": lambda new, old: new < old,
    "accuracy": lambda new, old: new > old,
    "tvd": lambda new, old: new < old,
}


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
    def steps_an_epoch(self) -> int:
        return ceil(self.environments / BATCH)

    @property
    def steps(self) -> int:
        allowed = self.epochs if self.most_steps is None else max(1, self.most_steps // self.steps_an_epoch)
        return min(self.epochs, allowed) * self.steps_an_epoch

    @property
    def clip(self) -> float:
        return architecture(self.architecture).clip

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < (warm_up := self.steps // 10):
            return LOWEST_RATE + step * (self.learning_rate - LOWEST_RATE) / warm_up
        return self.learning_rate * (0.1 + 0.45 * (1 + cos(pi * step / self.steps)))


class Trainer:
    """Trains one job in a folder of its own, or goes on with it. `progress` is all there is beside tensors."""

    def __init__(self, job: Job, folder: Path, *, data: Path, machine: Machine):
        self.job, self.folder, self.machine = job, folder, machine
        self.state = folder / STATE
        self.device = torch.device(find_device(machine.device))
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32, as published, where not bfloat16
            torch.compiler.reset()  # it gives up on code that it has compiled for eight models
            torch.cuda.empty_cache()  # of the run before: other processes may want it
        self.splits = {
            name: Split(job.task.sequences(name, folder=data), self.device) for name in ("train", "validation", "test")
        }
        kind = architecture(job.architecture)
        torch.manual_seed(job.seed)
        self.model = kind.build(job.size).to(self.device)
        self.adamw = adamw_of(groups(self.model, weight_decay=job.weight_decay), betas=(0.9, 0.999))
        wanted = self.device.type == "cuda" and job.steps >= WORTH_COMPILING and kind.compiles
        self.compiled = wanted if machine.compile is None else machine.compile
        objective = Objective(self.model, compiled=self.compiled).train()
        eager = Eager(objective, self.adamw, job, machine, micro=BATCH)
        self.take = Recorded(eager) if self.device.type == "cuda" else eager
        self.validate = Examination(self.model, self.splits["validation"], machine)
        self.chosen = {by: [weight.detach().clone() for weight in self.model.parameters()] for by in BEST}
        self.progress: dict[str, Any] = {"step": 0, "epoch_loss": 0.0, "seconds": 0.0, "curve": []}
        self.progress["best"] = {"loss": [inf, 0], "accuracy": [-inf, 0], "tvd": [inf, 0]}  # and in which epoch
        self.stopping = False

    def go(self) -> dict[str, Any] | None:
        """What the job came to; nothing if it was told to stop."""
        self._restore()
        file = self.folder / "log.jsonl"
        trim(file, self.progress["step"])
        with stopped_gently(self):
            saved = time.perf_counter()
            while not (self.finished or self.stopping):
                line = self._advance()
                if line is not None:
                    with file.open("a", encoding="utf-8") as log:
                        log.write(json.dumps(line, allow_nan=False) + "\n")
                if self.stopping or time.perf_counter() - saved > SAVED_EVERY:
                    self._save()
                    saved = time.perf_counter()
            return self._outcome() if self.finished else None

    @property
    def finished(self) -> bool:
        """All epochs are trained, or enough of them since the best."""
        waited = len(self.progress["curve"]) - self.progress["best"]["loss"][1]
        patient = self.job.patience is None or waited < self.job.patience
        return self.progress["step"] >= self.job.steps or not patient

    def _advance(self) -> dict[str, Any] | None:
        """Train to the end of the epoch and measure; nothing if stopped on the way."""
        job, progress, train = self.job, self.progress, self.splits["train"]
        start, (epoch, place) = time.perf_counter(), divmod(progress["step"], job.steps_an_epoch)
        total = torch.full((), progress["epoch_loss"], device=self.device, dtype=torch.float64)
        for rows in train.epoch(job.seed, epoch)[place:]:
            if self.stopping:
                break
            torch.manual_seed((job.seed * 1_000_003 + progress["step"]) % 2**63)  # dropout
            loss, _ = self.take(progress["step"], train.inputs[rows], train.targets[rows])
            total += loss
            progress["step"] += 1
        done = progress["step"] == (epoch + 1) * job.steps_an_epoch
        measures = self.validate() if done else None
        progress["seconds"] += (seconds := time.perf_counter() - start)
        if measures is None:
            progress["epoch_loss"] = total.item()
            return None
        train_loss, progress["epoch_loss"] = total.item() / job.steps_an_epoch, 0.0
        if not all(map(isfinite, (train_loss, *measures.values()))):
            raise Diverged(f"the loss is {train_loss} in epoch {epoch + 1} of {self.folder.name}")
        progress["curve"].append([train_loss, *measures.values()])
        for by, better in BEST.items():
            if better(measures[by], progress["best"][by][0]):
                progress["best"][by] = [measures[by], epoch + 1]
                torch._foreach_copy_(self.chosen[by], [weight.detach() for weight in self.model.parameters()])
        line = {"step": progress["step"], "steps": job.steps, "train_loss": train_loss, **measures}
        return line | {"tokens_per_second": train.tokens / seconds}

    def _outcome(self) -> dict[str, Any]:
        """The scores on the test of the epochs that the validation chose, and with a temperature chosen there too."""
        progress, tested = self.progress, {}
        for by, weights in self.chosen.items():
            torch._foreach_copy_([weight.detach() for weight in self.model.parameters()], weights)
            t = best_temperature(self.model, self.splits["validation"], self.machine)
            scores = measure(self.model, self.splits["test"], self.machine)
            cooled = measure(self.model, self.splits["test"], self.machine, temperature=t)
            scores |= {"temperature": t} | {f"{name}_at_temperature": cooled[name] for name in ("loss", "tvd")}
            scores = {name: rounded(number, 5) for name, number in scores.items()}
            tested[by] = {"epoch": progress["best"][by][1], **scores}
        epoch = progress["best"]["loss"][1]
        columns = zip(*progress["curve"], strict=True)
        names = ("train_loss", "valid_loss", "valid_accuracy", "valid_tvd")
        trained = len(progress["curve"])
        return {
            "status": "finished",
            **asdict(self.job),
            "label": architecture(self.job.architecture).label,
            "parameters": parameter_count(self.model)["total"],
            "trained_epochs": trained,
            "selected_by": "loss",
            **{name: progress["curve"][epoch - 1][place] for place, name in enumerate(names)},
            "accuracy": tested["loss"]["accuracy"],
            "tvd": tested["loss"]["tvd"],
            "tested": tested,
            "curve": {name: rounded(list(column), 4) for name, column in zip(names, columns, strict=True)},
            "seconds": round(progress["seconds"], 1),
            "tokens_per_second": round(trained * self.splits["train"].tokens / progress["seconds"]),
            "compiled": self.compiled,
            "precision": precision_of(self.machine, self.device.type),
            **surroundings(self.device),
        }

    def _tensors(self) -> dict[str, Tensor]:
        """All that a run goes on from, to save or to load into."""
        weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        kept = {f"{by}.{name}": tensor for by in BEST for name, tensor in zip(weights, self.chosen[by], strict=True)}
        return {f"weight.{name}": weight for name, weight in weights.items()} | moments(self.model, self.adamw) | kept

    def _save(self) -> None:
        """Nothing that has diverged replaces what was saved."""
        from safetensors.torch import save_file

        for name, tensor in self._tensors().items():
            if not tensor.isfinite().all():
                raise Diverged(f"{name} contains NaN or Inf at step {self.progress['step']} of {self.folder.name}")
        with written_whole(self.state) as aside:
            progress = json.dumps(self.progress)
            save_file(self._tensors(), aside, {"progress": progress, "checksum": self._checksum(progress)})

    def _checksum(self, progress: str) -> str:
        """Of all that a run goes on from."""
        checksum = zlib.crc32(progress.encode())
        for tensor in self._tensors().values():
            checksum = zlib.crc32(tensor.contiguous().cpu().numpy().tobytes(), checksum)
        return f"{checksum:08x}"

    def _restore(self) -> None:
        """Go on from what was saved, if anything was."""
        from safetensors import SafetensorError, safe_open

        if not self.state.exists():
            return
        try:
            with safe_open(self.state, framework="pt", device=str(self.device)) as found:
                for name, tensor in self._tensors().items():
                    tensor.copy_(found.get_tensor(name))
                said = found.metadata()
                if said.get("checksum") not in (None, self._checksum(said["progress"])):  # none in earlier versions
                    raise ValueError("its checksum is another")
                self.progress = json.loads(said["progress"])
        except (SafetensorError, RuntimeError, LookupError, TypeError, OSError, ValueError) as error:
            raise UserError(f"cannot go on from {self.state}: {one_line(error)}; remove it to begin anew") from error
        set_steps(self.adamw, self.progress["step"])
