"""The training loop: every step is a function of the recipe, the corpus and the step before.

A run that is stopped, killed or moved to another number of processes goes on from its newest checkpoint by the same
command and ends with the same losses. On a CPU and the same number of processes they are the same to the last bit.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from memory_mosaics import checkpoint
from memory_mosaics.data.windows import Windows, openings
from memory_mosaics.errors import UserError, within_memory
from memory_mosaics.generation import Draw, generate
from memory_mosaics.language_model import LanguageModel, parameter_count, weight_count
from memory_mosaics.results import surroundings, write
from memory_mosaics.sizes import check_memory
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training import fine_tuning, folder, parallel, state
from memory_mosaics.training.log import Log, read
from memory_mosaics.training.objective import Objective, memory_needed, optimiser
from memory_mosaics.training.recipe import Run, plain
from memory_mosaics.training.step import Eager, step_for


@runtime_checkable
class Stoppable(Protocol):
    """Ends soon after it is told to."""

    stopping: bool


class Diverged(UserError):
    """The loss, the gradient or the weights are no longer finite numbers."""


def train(run: Run, *, lengthen: bool = False) -> dict[str, Any]:
    """Train from the beginning, or on from the newest checkpoint in `run.out`; returns what its results.json says.

    To `lengthen` a run, it may have more steps than before: from there on the learning rate is that of the new length.
    """
    with parallel.world(run.machine) as world:
        return Trainer(run, world).go(lengthen=lengthen)


class Trainer:
    """One run, in one process or in one of many. `progress` is all that has to be remembered beside the tensors."""

    def __init__(self, run: Run, world: parallel.World):
        self.run, self.training, self.machine, self.world = run, run.training, run.machine, world
        self.corpus = Corpus.open(run.data)
        self.tokenizer = self.corpus.tokenizer()
        if not len(self.corpus.tokens("valid")):
            raise UserError(
                f"{run.data} has nothing to validate on; prepare it with --valid, or a --valid_share above 0"
            )
        own = world.agree([str(path) for path in checkpoint.steps(run.out)][-1:])
        config, weights = fine_tuning.start(run, self.corpus, Path(own[0]) if own else None)
        self.windows = {
            split: Windows(
                self.corpus.tokens(split),
                config.context,
                seed=run.training.seed,
                name=f"the {split} split of {run.data}",
            )
            for split in ("train", "valid")
        }
        self.rows = world.share(self.training.batch)
        share = self.rows.stop - self.rows.start
        self.micro = min(self.machine.micro_batch or share, share)
        if share % self.micro:
            raise UserError(f"micro_batch {self.micro} does not divide the {share} sequences of a process")
        self.dealt_out = parallel.deals_out(self.machine, world)
        shards, logits = world.size if self.dealt_out else 1, torch.device(world.device).type != "cuda"
        need = memory_needed(config, batch=share, micro=self.micro, shards=shards, logits=logits)
        what = f"training {weight_count(config):,} parameters on {self.micro:,} x {config.context:,} tokens at once"
        check_memory(what, need, world.device, "choose a smaller model, batch, context or --machine.micro_batch")
        torch.manual_seed(self.training.seed)
        with within_memory(f"{what} does not fit; choose a smaller model"):
            self.model = LanguageModel(config)
            if weights is not None:
                self.model.load_state_dict(weights)
            self.model.to(world.device)
        compiled = parallel.compiles(self.machine, world) and not self.dealt_out
        self.objective = parallel.spread(Objective(self.model, compiled=compiled), self.machine, world)
        self.adamw = optimiser(self.model, self.training)
        eager = Eager(self.objective, self.adamw, self.training, self.machine, micro=self.micro)
        self.take = step_for(eager, rows=share, compiled=compiled, world=world)
        self.progress: dict[str, Any] = {"step": 0, "measured_step": 0, "seconds": 0.0, "worse": 0}
        # The lowest validation loss of all measured, and of all saved.
        self.progress |= {"best": None, "best_step": 0, "kept": None, "kept_step": 0}
        self.progress["steps"] = run.training.steps
        self.stopping = False
        self.check_folder: Callable[[], None] = lambda: None

    @property
    def done(self) -> bool:
        """Whether all steps are taken, or the validation loss has not improved for too long."""
        patience = self.training.patience
        return self.progress["step"] >= self.training.steps or bool(patience and self.progress["worse"] >= patience)

    def go(self, *, lengthen: bool = False) -> dict[str, Any]:
        """Train until done or told to stop."""
        with folder.claimed(self.run, self.corpus, self.world, lengthen=lengthen) as self.check_folder:
            newest = self.world.agree([str(path) for path in checkpoint.steps(self.run.out)][-1:])
            for path in newest:
                self.progress |= state.restore(Path(path), self.model, self.adamw, self.world)
                self.note_length()
            if self.done and (results := folder.read_results(self.run.out, self.progress["step"])):
                return self._said(results)
            with Log(self.run, step=self.progress["step"], silent=not self.world.first) as log, stopped_gently(self):
                advice = f"{self.micro} sequences at once are too many; give a smaller --machine.micro_batch"
                with within_memory(advice):
                    self._train(log)
            self.check_folder()
            return self._said(self.results())

    def note_length(self) -> None:
        """Remember where a run was lengthened: it is not what a run of that length would have come to."""
        step, before, steps = self.progress["step"], self.progress["steps"], self.training.steps
        if before != steps:
            lengthened = [*self.progress.get("lengthened", []), {"step": step, "from": before, "to": steps}]
            self.progress.update(steps=steps, lengthened=lengthened, worse=0)
            if self.world.first:
                rates = f"{self.training.rate(step):.2g} at step {step:,}, then down to the end"
                print(f"{self.run.out} goes on to {steps:,} steps, not {before:,}; the learning rate is {rates}")

    def _train(self, log: Log) -> None:
        saved = self.progress["step"]
        self.objective.train()
        while not self.done and not self.stopping:
            if numbers := self.advance(self.next_pause(), log):
                self.check(loss=numbers["loss"], **{"norm of the gradient": numbers["norm"]})
                log.write(self.progress["step"], **numbers)
                if self.due(self.training.evaluate_every):
                    self.measure(log)
                if self.due(self.machine.save_every or self.training.evaluate_every):
                    self.save()
                    saved = self.progress["step"]
        if saved != self.progress["step"]:  # stopped, by hand or for want of progress
            self.save()

    def results(self) -> dict[str, Any]:
        """What the run came to."""
        speeds = [line["tokens_per_second"] for line in read(self.run.out / "log.jsonl") if "tokens_per_second" in line]
        return {
            **plain(self.run),
            **self.progress,
            **surroundings(self.world.device),
            "parameters": parameter_count(self.model)["total"],
            "tokens_per_second": median(speeds) if speeds else None,
            "interrupted": not self.done,
        }

    def _said(self, results: dict[str, Any]) -> dict[str, Any]:
        """Written and printed by the first process."""
        if self.world.first:
            write(self.run.out / "results.json", results)
            print(folder.closing(results))
        return results

    def check(self, **numbers: float) -> None:
        for name, number in numbers.items():
            if not isfinite(number):
                raise self.diverged(f"the {name} is {number}")

    def diverged(self, what: str) -> Diverged:
        """The error that names the way out: the same command would only diverge again."""
        saved = checkpoint.steps(self.run.out)[-1:]
        good = f", perhaps from the last good checkpoint: --from {saved[0]}" if saved else ""
        return Diverged(
            f"{what} at step {self.progress['step']} of {self.run.out}; in another folder, take a smaller "
            f"learning_rate than {self.training.learning_rate} or a longer warm_up{good}"
        )

    def due(self, every: int) -> bool:
        return self.progress["step"] == self.training.steps or self.progress["step"] % every == 0

    def next_pause(self) -> int:
        """The next step after which something is written."""
        step = self.progress["step"]
        every = (self.machine.log_every, self.training.evaluate_every, self.machine.save_every or self.training.steps)
        return min(self.training.steps, *(n * (step // n + 1) for n in every))

    def advance(self, until: int, log: Log) -> dict[str, float]:
        """Take the steps up to `until`; their mean loss, the last norm and learning rate, and the speed."""
        start, first = time.perf_counter(), self.progress["step"]
        total, norm = torch.zeros((), device=self.world.device), torch.zeros(())
        while self.progress["step"] < until and not (self.stopping and not self.world.distributed):
            loss, norm = self.step(self.progress["step"])
            total += loss
            self.progress["step"] += 1
            log.bar.update()
        steps = self.progress["step"] - first
        loss_sum, stopping = self.world.sum(total, float(self.stopping))
        self.stopping = stopping > 0  # as soon as one of the processes was told to
        if steps == 0:  # told so before the first
            return {}
        seconds = time.perf_counter() - start
        self.progress["seconds"] += seconds
        tokens = steps * self.training.batch * self.model.config.context
        mean = loss_sum / (steps * self.world.size)
        rate = self.training.rate(self.progress["step"] - 1)
        return {"loss": mean, "norm": float(norm), "rate": rate, "tokens_per_second": tokens / seconds}

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        """One step of the optimiser on the batch of that number; the loss and the gradient's norm."""
        torch.manual_seed(((self.training.seed * 1_000_003 + step) * 65_537 + self.world.rank) % 2**63)  # dropout
        batch = self.windows["train"].batch(step, self.training.batch, self.rows)
        inputs, targets = (part.to(self.world.device, non_blocking=True) for part in (batch.inputs, batch.targets))
        return self.take(step, inputs, targets)

    @torch.no_grad()
    def evaluate(self, split: str) -> float:
        """The mean loss without dropout over windows from all of a split, dealt out to the processes.

        Every process computes the same number of batches of one size, as compiled and sharded models want it; rows
        beyond the last window are filled up and do not count.
        """
        windows, size = self.windows[split], self.micro
        count = min(windows.in_file, self.training.evaluate_windows or self.windows["valid"].in_file)
        self.objective.eval()
        total = 0.0
        for first in range(self.world.rank * size, _up(count, size * self.world.size), size * self.world.size):
            real = max(0, min(size, count - first))
            numbers = (min(number, count - 1) for number in range(first, first + size))
            batch = windows.in_order([number * windows.in_file // count for number in numbers])
            targets = batch.targets.clone()
            targets[real:] = -100
            inputs, targets = batch.inputs.to(self.world.device), targets.to(self.world.device)
            with parallel.precision(self.machine, self.world.device):
                loss = self.objective(inputs, targets)
            total += loss.item() * real if real else 0.0
        self.objective.train()
        return self.world.sum(total)[0] / count

    def measure(self, log: Log) -> None:
        """Both losses and some text; remembers the best."""
        self.check_folder()
        progress = self.progress
        losses = {f"{split}_loss": self.evaluate(split) for split in self.windows}
        self.check(**{name.replace("_", " "): loss for name, loss in losses.items()})
        log.write(progress["step"], **losses)
        progress.update(losses, measured_step=progress["step"])
        better = progress["best"] is None or losses["valid_loss"] < progress["best"]
        progress["worse"] = 0 if better else progress["worse"] + 1
        if better:
            progress.update(best=losses["valid_loss"], best_step=progress["step"])
        if self.machine.samples:
            folder.write_samples(self.run.out / "samples.md", progress["step"], self._stories())

    def _stories(self) -> list[tuple[str, str]]:
        """Continuations of how the first validation documents begin."""
        weights = state.full_weights(self.model, keep=self.world.first) if self.dealt_out else None
        if not self.world.first:
            return []
        model = self.model
        if weights is not None:
            model = LanguageModel(model.config)
            model.load_state_dict(weights)
        end = self.corpus.end_of_text
        generator = torch.Generator().manual_seed(self.training.seed)
        begun = openings(self.windows["valid"].tokens, end, count=self.machine.samples)
        with parallel.precision(self.machine, model.embedding.weight.device):
            told = generate(model, begun, 200, draw=Draw(temperature=0.8), end=end, generator=generator)
        decode = self.tokenizer.decode
        return [
            (decode(opening.tolist()), decode(tokens.tolist())) for opening, tokens in zip(begun, told, strict=True)
        ]

    def save(self) -> None:
        """Write a checkpoint, unless it would contain NaN or Inf, and remove those that are no longer wanted."""
        self.check_folder()
        progress = self.progress
        if name := state.not_finite(self.model, self.adamw, self.world):
            raise self.diverged(f"{name} contains NaN or Inf")
        measured = progress["valid_loss"] if progress["measured_step"] == progress["step"] else inf
        if measured < (inf if progress["kept"] is None else progress["kept"]):
            progress.update(kept=measured, kept_step=progress["step"])
        state.save(self.run.out, self.model, self.adamw, progress, world=self.world, tokenizer=self.tokenizer)
        if self.world.first:
            state.prune(self.run.out, keep=self.machine.keep, best=progress["kept_step"])


def _up(number: int, multiple: int) -> int:
    return ceil(number / multiple) * multiple


@contextmanager
def stopped_gently(trainer: Stoppable) -> Iterator[None]:
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
