"""The training loop, one for every task: each step is a function of the recipe, the data and the step before.

A run that is stopped, killed or moved to another number of processes goes on from its newest checkpoint by the same
command and ends with the same losses. On a CPU and the same number of processes they are the same to the last bit.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from memory_mosaics import checkpoint, runtime
from memory_mosaics.errors import UserError, within_memory
from memory_mosaics.language_model import LanguageModelConfig, weight_count, without_state
from memory_mosaics.results import environment_info, write
from memory_mosaics.runtime import Runtime, check_memory, precision_of
from memory_mosaics.tasks.language_modeling import LanguageModeling
from memory_mosaics.tasks.task import Batch, Task
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training import distributed, fine_tuning, folder, state
from memory_mosaics.training.config import AnyRun, Run
from memory_mosaics.training.log import Log, read
from memory_mosaics.training.optimizer import adamw, memory_needed, moments
from memory_mosaics.training.step import Objective, Step


@runtime_checkable
class Stoppable(Protocol):
    """Ends soon after it is told to."""

    stopping: bool


class Diverged(UserError):
    """The loss, the gradient or the weights are no longer finite numbers."""


def train(run: Run, *, lengthen: bool = False) -> dict[str, Any]:
    """Train a language model from the beginning, or on from the newest checkpoint in `run.out`; returns what its
    results.json says.

    To `lengthen` a run, it may have more steps than before: from there on the learning rate is that of the new length.
    """
    with runtime.start(run.machine) as here:
        corpus = Corpus.open(run.data)
        own = here.broadcast([str(path) for path in checkpoint.steps(run.out)][-1:])
        config, weights = fine_tuning.start(run, corpus, Path(own[0]) if own else None)
        sizes = {"context": config.context, "batch_size": run.training.batch, "seed": run.training.seed}
        task = LanguageModeling(corpus, evaluate_windows=run.training.evaluate_windows, **sizes)
        return Trainer(run, task, config, here, weights=weights).run(lengthen=lengthen)


class Trainer:
    """One run, in one process or in one of many. `progress` is all that has to be remembered beside the tensors."""

    def __init__(
        self,
        run: AnyRun,
        task: Task,
        config: Any,
        runtime: Runtime,
        *,
        weights: dict[str, Tensor] | None = None,
        compiled: bool | None = None,
    ):
        """A model of this configuration, with `weights` if it does not begin anew. `compiled` with torch.compile: what
        the run says of it if None, and if that says nothing, on CUDA.
        """
        self.spec, self.training, self.machine, self.task = run, run.training, run.machine, task
        self.rows = runtime.share(task.batch_size)
        share = self.rows.stop - self.rows.start
        micro = min(self.machine.micro_batch or share, share)
        if share % micro:
            raise UserError(f"micro_batch {micro} does not divide the {share} sequences of a process")
        self.sharded = distributed.uses_fsdp(self.machine, runtime)
        torch.manual_seed(self.training.seed)
        self.model: Any = self._build(config, weights, runtime, share=share, micro=micro)
        if compiled is None:
            compiled = runtime.device.type == "cuda" if self.machine.compile is None else self.machine.compile
        block_fn = torch.compile(without_state, dynamic=False) if compiled and not self.sharded else None
        self.runtime = replace(runtime, micro_batch=micro, block_fn=block_fn)
        objective = Objective(self.model, task, self.runtime)
        self.objective = distributed.parallelize(objective, self.machine, self.runtime, compiled=compiled)
        self.optimizer = adamw(self.model, self.training)
        captured = runtime.device.type == "cuda" and not runtime.distributed and self.machine.compile is not False
        self.take_step = Step(
            self.objective, self.optimizer, self.training, self.runtime, captured=captured and share == micro
        )
        self.best_weights = {name: [each.detach().clone() for each in self.model.parameters()] for name in task.selects}
        self.progress: dict[str, Any] = {"step": 0, "measured_step": 0, "seconds": 0.0, "worse": 0}
        # The lowest validation loss of all measured, and of all saved.
        self.progress |= {"best": None, "best_step": 0, "kept": None, "kept_step": 0}
        self.progress["steps"] = self.training.steps
        self.progress |= {"curve": [], "selected": {}}  # all that was measured, and the best by the task's own metrics
        self.progress["since"] = None  # the last line of the log: steps, their losses and seconds
        self.stopping = False
        self.check_folder: Callable[[], None] = lambda: None

    def _build(
        self, config: Any, weights: dict[str, Tensor] | None, runtime: Runtime, *, share: int, micro: int
    ) -> nn.Module:
        what = "the model"
        if isinstance(config, LanguageModelConfig):
            shards, logits = runtime.size if self.sharded else 1, runtime.device.type != "cuda"
            need = memory_needed(config, batch=share, micro=micro, shards=shards, logits=logits)
            what = f"training {weight_count(config):,} parameters on {micro:,} x {config.context:,} tokens at once"
            check_memory(what, need, runtime.device, "choose a smaller model, batch, context or --machine.micro_batch")
        with within_memory(f"{what} does not fit; choose a smaller model"):
            model = config.build()
            if weights is not None:
                model.load_state_dict(weights)
            return model.to(runtime.device)

    @property
    def done(self) -> bool:
        """Whether all steps are taken, or the validation loss has not improved for too long."""
        patience = self.training.patience
        return self.progress["step"] >= self.training.steps or bool(patience and self.progress["worse"] >= patience)

    def run(self, *, lengthen: bool = False) -> dict[str, Any]:
        """Train until done or told to stop."""
        with folder.locked_run_dir(
            self.spec, self.task.fingerprint, self.runtime, lengthen=lengthen
        ) as self.check_folder:
            newest = self.runtime.broadcast([str(path) for path in checkpoint.steps(self.spec.out)][-1:])
            for path in newest:
                self.progress |= state.restore(Path(path), self.model, self.tensors(), self.optimizer, self.runtime)
                self.note_length()
            if self.done and (results := folder.read_results(self.spec.out, self.progress["step"])):
                return self._report(results)
            step, silent = self.progress["step"], not self.runtime.is_rank0
            with Log(self.spec, step=step, silent=silent) as log, graceful_shutdown(self):
                size = self.runtime.micro_batch
                with within_memory(f"{size} sequences at once are too many; give a smaller --machine.micro_batch"):
                    self._train(log)
            self.check_folder()
            return self._report(self.results())

    def note_length(self) -> None:
        """Remember where a run was lengthened: it is not what a run of that length would have come to."""
        step, before, steps = self.progress["step"], self.progress["steps"], self.training.steps
        if before != steps:
            lengthened = [*self.progress.get("lengthened", []), {"step": step, "from": before, "to": steps}]
            self.progress.update(steps=steps, lengthened=lengthened, worse=0)
            if self.runtime.is_rank0:
                rates = f"{self.training.rate(step):.2g} at step {step:,}, then down to the end"
                print(f"{self.spec.out} goes on to {steps:,} steps, not {before:,}; the learning rate is {rates}")

    def _train(self, log: Log) -> None:
        saved, at = self.progress["step"], time.monotonic()
        self.objective.train()
        while not self.done and not self.stopping:
            if numbers := self.advance(log):
                self.check(numbers)
                log.write(self.progress["step"], **numbers)
                if self.due(self.next_evaluation):
                    self.measure(log, numbers)
            wait = self.machine.save_seconds or 0.0
            if self.due(self.next_save) and (self.done or time.monotonic() - at >= wait):
                self.save()
                saved, at = self.progress["step"], time.monotonic()
        if saved != self.progress["step"]:  # stopped, by hand or for want of progress
            self.save()

    def results(self) -> dict[str, Any]:
        """What the run came to."""
        lines = read(self.spec.out / "log.jsonl", "tokens_per_second")
        speeds = [line["tokens_per_second"] for line in lines]
        progress = {name: value for name, value in self.progress.items() if name not in ("since", "curve", "selected")}
        return {
            **self.spec.plain(),
            **progress,
            **environment_info(self.runtime.device),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "tokens_per_second": median(speeds) if speeds else None,
            "interrupted": not self.done,
        }

    def _report(self, results: dict[str, Any]) -> dict[str, Any]:
        """Written and printed by the first process."""
        if self.runtime.is_rank0:
            write(self.spec.out / "results.json", results)
            print(folder.closing(results))
        return results

    def check(self, numbers: dict[str, Any]) -> None:
        """Refuse to go on with what is no number."""
        words = {"norm": "norm of the gradient", "losses": "loss"}
        for name, found in numbers.items():
            for number in found if isinstance(found, list) else [found]:
                if not isfinite(number):
                    raise self.diverged(f"the {words.get(name, name.replace('_', ' '))} is {number}")

    def diverged(self, what: str) -> Diverged:
        """The error that names the way out: the same command would only diverge again."""
        saved = checkpoint.steps(self.spec.out)[-1:]
        good = f", perhaps from the last good checkpoint: --from {saved[0]}" if saved else ""
        return Diverged(
            f"{what} at step {self.progress['step']} of {self.spec.out}; in another folder, take a smaller "
            f"learning_rate than {self.training.learning_rate} or a longer warm_up{good}"
        )

    def due(self, following: Callable[[int], int]) -> bool:
        """Whether it is time for what follows steps at `following(step)`; all follow the last step."""
        step = self.progress["step"]
        return step == self.training.steps or following(step - 1) == step

    def next_evaluation(self, step: int) -> int:
        return self.task.next_evaluation(step, self.training.evaluate_every)

    def next_save(self, step: int) -> int:
        every = self.machine.save_every
        return self.next_evaluation(step) if every is None else every * (step // every + 1)

    def next_line(self, step: int) -> int:
        """The next step after which a line is written: of the log, or of what follows it."""
        every = self.machine.log_every
        nexts = every * (step // every + 1), self.next_evaluation(step), self.next_save(step)
        return min(self.training.steps, *nexts)

    def advance(self, log: Log) -> dict[str, Any]:
        """Take the steps up to the next line: their mean loss, the last norm and learning rate, and the speed; nothing
        if told to stop on the way.
        """
        start, first = time.perf_counter(), self.progress["step"]
        until, norm = self.next_line(first), torch.zeros(())
        since = self.progress["since"] or {"steps": 0, "loss": 0.0, "seconds": 0.0}
        total = torch.tensor(since["loss"], dtype=torch.float64, device=self.runtime.device)
        while self.progress["step"] < until and not (self.stopping and not self.runtime.distributed):
            loss, norm = self.step(self.progress["step"])
            total = total + loss
            self.progress["step"] += 1
            log.bar.update()
        *sums, stopping = self.runtime.sum(*total.flatten(), float(self.stopping))
        self.stopping = stopping > 0  # as soon as one of the processes was told to
        steps, seconds = self.progress["step"] - first, time.perf_counter() - start
        self.progress["seconds"] += seconds
        steps, seconds = steps + since["steps"], seconds + since["seconds"]
        if self.progress["step"] < until:
            self.progress["since"] = {"steps": steps, "loss": total.tolist(), "seconds": seconds}
            return {}
        self.progress["since"] = None
        losses = [each / (steps * self.runtime.size) for each in sums]
        numbers = {"loss": fmean(losses), "norm": float(norm), "rate": self.training.rate(self.progress["step"] - 1)}
        numbers["tokens_per_second"] = steps * self.task.tokens_per_step / seconds
        return numbers | ({"losses": losses} if len(losses) > 1 else {})

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """One step of the optimiser on the batch of that number; the loss and the gradient's norm."""
        torch.manual_seed(((self.training.seed * 1_000_003 + step) * 65_537 + self.runtime.rank) % 2**63)  # dropout
        batch = self.task.batch(step, self.rows)
        inputs, targets = (part.to(self.runtime.device, non_blocking=True) for part in (batch.inputs, batch.targets))
        return self.take_step(step, Batch(inputs, targets))

    def measure(self, log: Log, numbers: dict[str, Any]) -> None:
        """What the task measures, and some text; remembers the best."""
        self.check_folder()
        progress = self.progress
        self.objective.eval()
        found = self.task.evaluate(self.model, self.runtime)
        self.objective.train()
        if self.sharded:
            self.model.reshard()  # without a backward pass the root stays whole
        if not found:
            return
        found = {"train_loss": numbers["loss"]} | found
        self.check(found)
        log.write(progress["step"], **found)
        progress.update(found, measured_step=progress["step"])
        progress["curve"].append([progress["step"], *found.values()])
        better = progress["best"] is None or found["valid_loss"] < progress["best"]
        progress["worse"] = 0 if better else progress["worse"] + 1
        if better:
            progress.update(best=found["valid_loss"], best_step=progress["step"])
        for name, is_better in self.task.selects.items():
            before = progress["selected"].get(name)
            if before is None or is_better(found[name], before[0]):
                progress["selected"][name] = [found[name], progress["step"]]
                torch._foreach_copy_(self.best_weights[name], [weight.detach() for weight in self.model.parameters()])
        if self.machine.samples:
            folder.write_samples(self.spec.out / "samples.md", progress["step"], self._samples())

    def _samples(self) -> list[tuple[str, str]]:
        weights = state.full_weights(self.model, keep=self.runtime.is_rank0) if self.sharded else None
        if not self.runtime.is_rank0:
            return []
        model, here = self.model, self.runtime
        if weights is not None:
            model, here = self.model.config.build(), Runtime(precision=precision_of(self.machine, "cpu"))
            model.load_state_dict(weights)
        with here.autocast():
            return self.task.samples(model, self.machine.samples, seed=self.training.seed)

    def tensors(self) -> dict[str, Tensor]:
        """All that a run goes on from beside the weights: the optimiser's moments, and the best weights by a metric."""
        names = [name for name, _ in self.model.named_parameters()]
        best = {
            f"best.{by}.{name}": weight
            for by, weights in self.best_weights.items()
            for name, weight in zip(names, weights, strict=True)
        }
        return moments(self.model, self.optimizer) | best

    def save(self) -> None:
        """Write a checkpoint, unless it would contain NaN or Inf, and remove those that are no longer wanted."""
        self.check_folder()
        progress = self.progress
        if name := state.not_finite(self.model, self.tensors(), self.runtime):
            raise self.diverged(f"{name} contains NaN or Inf")
        measured = progress["valid_loss"] if progress["measured_step"] == progress["step"] else inf
        if measured < (inf if progress["kept"] is None else progress["kept"]):
            progress.update(kept=measured, kept_step=progress["step"])
        tokenizer = self.task.tokenizer
        state.save(self.spec.out, self.model, self.tensors(), progress, runtime=self.runtime, tokenizer=tokenizer)
        if self.runtime.is_rank0:
            state.prune(self.spec.out, keep=self.machine.keep, best=progress["kept_step"])


@contextmanager
def graceful_shutdown(trainer: Stoppable) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run after the current step, with a checkpoint; a second one ends it at once."""

    def stop(number: int, frame: Any) -> None:
        if trainer.stopping:
            raise KeyboardInterrupt
        trainer.stopping = True

    try:
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever started it decides when it ends
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
