"""The trainer, one for every task: each step is a function of the configuration, the data and the step before.

A run that is stopped, killed or moved to another number of processes resumes from its newest checkpoint by the same
command and ends with the same losses. On a CPU and the same number of processes they are the same to the last bit.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from signal import SIGINT, SIGTERM
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

from memory_mosaics import checkpoint
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError, one_line, within_memory
from memory_mosaics.files import read_json
from memory_mosaics.isolation import signal_handler
from memory_mosaics.language_model import LanguageModelConfig, weight_count, without_state
from memory_mosaics.models import PRESETS
from memory_mosaics.ops.common import double_dtype
from memory_mosaics.ops.cross_entropy import IGNORED
from memory_mosaics.parameters import param_groups
from memory_mosaics.results import environment_info, write_results
from memory_mosaics.runtime import CapturedFunction, Runtime, check_memory, no_grad_sync, parallelize, start_runtime
from memory_mosaics.tasks.language_modeling import LanguageModeling
from memory_mosaics.tasks.task import Batch, Task
from memory_mosaics.text.corpus import Corpus, prepare
from memory_mosaics.training.checkpointing import RunFolder, full_weights, resuming
from memory_mosaics.training.config import AnyRun, Run, Training
from memory_mosaics.training.loggers import Log, read_log, write_samples

UNREPORTED = ("since", "curve", "selected", "reached")  # in results.json
WARM_UP = 3  # steps before a CUDA graph is captured: compilers and libraries have then allocated what they use


class Diverged(UserError):
    """The loss, the gradient or the weights contain NaN or Inf."""


def train(run: Run, *, lengthen: bool = False) -> dict[str, Any]:
    """Train a language model, or resume from the newest checkpoint in `run.out`; return its results.json.

    To `lengthen` a run is to resume it with more steps: from there on the learning rate is that of the new length.
    """
    with start_runtime(run.runtime) as here:
        corpus = open_corpus(run, here)
        config, weights = initial_model(run, corpus, here)
        options: Any = {"context": config.context, "batch_size": run.training.batch, "seed": run.training.seed}
        options |= {"evaluate_windows": run.training.evaluate_windows, "documents": run.documents}
        task = LanguageModeling(corpus, **options)
        return Trainer(run, task, config, here, weights=weights).run(lengthen=lengthen)


def open_corpus(run: Run, runtime: Runtime) -> Corpus:
    """Open the corpus of a run. A text file is prepared first, once, in RUN/corpus, with a tenth of it held out."""
    if not run.data.is_file():
        return Corpus.open(run.data)
    folder, tokenizer = run.out / "corpus", "bpe"
    if folder.exists():
        tokenizer = str(folder)
    elif run.init_from is not None:
        tokenizer = str(checkpoint.newest(run.init_from))
    runtime.run_on_rank0(lambda: _prepare(run.data, folder, tokenizer))
    return Corpus.open(folder)


def _prepare(file: Path, folder: Path, tokenizer: str) -> None:
    prepare([str(file)], out=folder, tokenizer=tokenizer, valid_share=0.1)


def initial_model(run: Run, corpus: Corpus, runtime: Runtime) -> tuple[LanguageModelConfig, dict[str, Tensor] | None]:
    """Return the configuration of a run, and the weights of `run.init_from` unless the run has checkpoints already."""
    if run.init_from is None:
        return run.model.build(corpus.vocabulary), None
    if newest := RunFolder(run, runtime).newest_checkpoint():
        with resuming(newest):
            return checkpoint.read_config(newest), None
    source = LoadedModel.open(run.init_from)
    source.check_tokenizer_of(corpus)
    return run.model.apply_to(source.model.config, run.init_from), source.model.state_dict()


class Trainer:
    """One run, in one process or in one of many. `progress` is all of its state beside the tensors."""

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
        """Build the model of this configuration, with `weights` if it is fine-tuned.

        `compiled` overrides the run's setting of torch.compile, which is on for CUDA if neither is given.
        """
        self.spec, self.training, self.runtime_config, self.task = run, run.training, run.runtime, task
        self.rows = runtime.local_rows(task.batch_size)
        share = self.rows.stop - self.rows.start
        micro = min(run.runtime.micro_batch or share, share)
        if share % micro:
            raise UserError(f"micro_batch {micro} does not divide the {share} sequences of a process")
        if micro < task.batch_size and not task.divisible:
            raise UserError(
                f"{type(task).__name__} has batches that do not split; train in one process, without micro_batch"
            )
        self.sharded = runtime.distributed and run.runtime.sharding == "fsdp"
        torch.manual_seed(self.training.seed)
        self.model: Any = self._build(config, weights, runtime, share=share, micro=micro)
        cuda = runtime.device.type == "cuda"
        if compiled is None:
            compiled = cuda and not task.documents if run.runtime.compile is None else run.runtime.compile
        if compiled and task.documents:
            raise UserError("documents have other shapes at every step, which are not compiled; set compile to false")
        if compiled:
            torch.compiler.reset()  # it gives up on code that it has compiled for eight models
        block_fn = torch.compile(without_state, dynamic=False) if compiled and not self.sharded else None
        self.runtime = replace(runtime, micro_batch=micro, block_fn=block_fn)
        self.folder = RunFolder(run, self.runtime)
        objective = Objective(self.model, task, self.runtime)
        self.objective = parallelize(objective, self.runtime, sharded=self.sharded, compiled=compiled)
        self.optimizer = adamw(self.model, self.training)
        fixed = share == micro and not task.documents
        captured = cuda and not runtime.distributed and run.runtime.compile is not False and fixed
        self.train_step = TrainStep(self.objective, self.optimizer, self.training, self.runtime, captured=captured)
        self.best_weights = {name: [each.detach().clone() for each in self.model.parameters()] for name in task.selects}
        self.progress: dict[str, Any] = {"step": 0, "measured_step": 0, "seconds": 0.0, "worse": 0, "reached": False}
        # The lowest validation loss of all evaluations, and of all checkpoints.
        self.progress |= {"best": None, "best_step": 0, "kept": None, "kept_step": 0, "steps": self.training.steps}
        # All evaluations, the best by the metrics of the task, and the sums since the last line of the log.
        self.progress |= {"curve": [], "selected": {}, "since": None}
        self.stopping, self.recent = False, (0, 0.0)  # the steps since the last line of the log, and their mean loss

    def _build(
        self, config: Any, weights: dict[str, Tensor] | None, runtime: Runtime, *, share: int, micro: int
    ) -> nn.Module:
        what = "the model"
        if isinstance(config, LanguageModelConfig):
            shards, logits = runtime.size if self.sharded else 1, runtime.device.type != "cuda"
            need = memory_needed(config, batch=share, micro=micro, shards=shards, logits=logits)
            what = f"training {weight_count(config):,} parameters on {micro:,} x {config.context:,} tokens at once"
            check_memory(what, need, runtime.device, "choose a smaller model, batch, context or --runtime.micro_batch")
        with within_memory(f"{what} does not fit; choose a smaller model"):
            model = config.build()
            if weights is not None:
                model.load_state_dict(weights)
            return model.to(runtime.device)

    @property
    def done(self) -> bool:
        """Whether all steps are taken, the validation loss has not improved for too long, or it is good enough."""
        patience, progress = self.training.patience, self.progress
        stopped = progress["reached"] or bool(patience and progress["worse"] >= patience)
        return stopped or progress["step"] >= self.training.steps

    def run(self, *, lengthen: bool = False) -> dict[str, Any]:
        """Train until done or told to stop; return the results."""
        with self.folder.locked(self.task.fingerprint, lengthen=lengthen):
            if newest := self.folder.newest_checkpoint():
                self.progress |= self.folder.restore(newest, self.model, self.tensors())
                for state in self.optimizer.state.values():
                    state["step"].fill_(self.progress["step"])
                self._record_length()
            if self.done and (results := _read_results(self.spec.out / "results.json", self.progress["step"])):
                return self._report(results)
            step, silent = self.progress["step"], not self.runtime.is_rank0
            if not silent:
                print(self._start(), flush=True)
            with Log(self.spec, step=step, silent=silent) as log, signal_handler(self.stop, SIGINT, SIGTERM):
                size = self.runtime.micro_batch
                with within_memory(f"{size} sequences at once are too many; give a smaller --runtime.micro_batch"):
                    self._train(log)
            self.folder.check_exists()
            return self._report(self.results())

    def stop(self, number: int, frame: Any) -> None:
        """End the run after the current step, with a checkpoint, or at once if told for the second time."""
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True

    def _record_length(self) -> None:
        """Record where a run was lengthened: it differs from a run that had that length from the start."""
        step, before, steps = self.progress["step"], self.progress["steps"], self.training.steps
        if before != steps:
            lengthened = [*self.progress.get("lengthened", []), {"step": step, "from": before, "to": steps}]
            self.progress.update(steps=steps, lengthened=lengthened, worse=0)
            if self.runtime.is_rank0:
                rates = f"{self.training.rate(step):.2g} at step {step:,}, then down to the end"
                print(f"{self.spec.out} continues to {steps:,} steps, not {before:,}; the learning rate is {rates}")

    def _train(self, log: Log) -> None:
        saved, at = self.progress["step"], time.monotonic()
        self.objective.train()
        while not self.done and not self.stopping:
            if numbers := self._advance(log):
                self._check_finite(numbers)
                log.write(self.progress["step"], **numbers)
                if self._due(self._next_evaluation):
                    self._evaluate(log, numbers)
            wait = self.runtime_config.save_seconds or 0.0
            if self._due(self._next_save) and (self.done or self.runtime.broadcast(time.monotonic() - at >= wait)):
                self.save()
                saved, at = self.progress["step"], time.monotonic()
        if saved != self.progress["step"]:  # stopped by a signal, or early
            self.save()

    def results(self) -> dict[str, Any]:
        """Return what results.json holds."""
        speeds = [line["tokens_per_second"] for line in read_log(self.spec.out / "log.jsonl", "tokens_per_second")]
        progress = {name: value for name, value in self.progress.items() if name not in UNREPORTED}
        return {
            **self.spec.plain(),
            **progress,
            **environment_info(self.runtime.device),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "tokens_per_second": median(speeds) if speeds else None,
            "interrupted": not self.done,
        }

    def _start(self) -> str:
        """Return what is trained, on what, and on how many tokens."""
        device, training, task = self.runtime.device, self.training, self.task
        size = sum(weight.numel() for weight in self.model.parameters())
        where = f"{device.type}, {self.runtime_config.precision_on(device.type)}"
        where += f", {self.runtime.size} processes" * (self.runtime.size > 1)
        total = training.steps * task.tokens_per_step
        read = f", {total / task.train_tokens:,.2f} times the corpus" if task.train_tokens else ""
        resumed = f" from step {self.progress['step']:,} on" * bool(self.progress["step"])
        return (
            f"{_name(self.spec.plain())}, {size:,} parameters, on {where}\n"
            f"{training.steps:,} steps{resumed}: {total:,.0f} tokens{read}"
        )

    def _report(self, results: dict[str, Any]) -> dict[str, Any]:
        if self.runtime.is_rank0:
            write_results(self.spec.out / "results.json", results)
            print(_summary(results, *self.recent))
        return results

    def _check_finite(self, numbers: dict[str, Any]) -> None:
        words = {"norm": "norm of the gradient", "losses": "loss"}
        for name, found in numbers.items():
            for number in found if isinstance(found, list) else [found]:
                if not isfinite(number):
                    raise self._diverged(f"the {words.get(name, name.replace('_', ' '))} is {number}")

    def _diverged(self, what: str) -> Diverged:
        """Return the error with a remedy: the same command would only diverge again."""
        saved = checkpoint.steps(self.spec.out)[-1:]
        good = f", perhaps from the last good checkpoint: --from {saved[0]}" if saved else ""
        return Diverged(
            f"{what} at step {self.progress['step']} of {self.spec.out}; in another folder, take a smaller "
            f"learning_rate than {self.training.learning_rate} or a longer warm_up{good}"
        )

    def _due(self, following: Callable[[int], int]) -> bool:
        """Whether something that is next due at `following(step)` is due now; all is due after the last step."""
        step = self.progress["step"]
        return step == self.training.steps or following(step - 1) == step

    def _next_evaluation(self, step: int) -> int:
        return self.task.next_evaluation(step, self.training.evaluate_every)

    def _next_save(self, step: int) -> int:
        every = self.runtime_config.save_every
        return self._next_evaluation(step) if every is None else every * (step // every + 1)

    def _advance(self, log: Log) -> dict[str, Any]:
        """Train up to the next line of the log; return its numbers, or nothing if told to stop before."""
        start, first, every = time.perf_counter(), self.progress["step"], self.runtime_config.log_every
        following = every * (first // every + 1), self._next_evaluation(first), self._next_save(first)
        until, norm = min(self.training.steps, *following), torch.zeros(())
        since = self.progress["since"] or {"steps": 0, "loss": 0.0, "seconds": 0.0}
        here = self.runtime.device
        total = torch.tensor(since["loss"], dtype=double_dtype(here), device=here)
        while self.progress["step"] < until and not (self.stopping and not self.runtime.distributed):
            loss, norm = self._step(self.progress["step"])
            total = total + loss
            self.progress["step"] += 1
            log.bar.update()
        *sums, stopping = self.runtime.sum(*total.flatten(), float(self.stopping))
        self.stopping = stopping > 0  # as soon as one of the processes was told to
        steps, seconds = self.progress["step"] - first, time.perf_counter() - start
        self.progress["seconds"] += seconds
        steps, seconds = steps + since["steps"], seconds + since["seconds"]
        losses = [each / (max(1, steps) * self.runtime.size) for each in sums]
        self.recent = steps, fmean(losses)
        if self.progress["step"] < until:
            self.progress["since"] = {"steps": steps, "loss": total.tolist(), "seconds": seconds}
            return {}
        self.progress["since"] = None
        numbers = {"loss": fmean(losses), "norm": float(norm), "rate": self.training.rate(self.progress["step"] - 1)}
        numbers["tokens_per_second"] = steps * self.task.tokens_per_step / seconds
        return numbers | ({"losses": losses} if len(losses) > 1 else {})

    def _step(self, step: int) -> tuple[Tensor, Tensor]:
        """Train on the batch of a step; return the loss and the norm of the gradient."""
        torch.manual_seed(((self.training.seed * 1_000_003 + step) * 65_537 + self.runtime.rank) % 2**63)  # dropout
        batch = self.task.batch(step, self.rows)
        inputs, targets = (part.to(self.runtime.device, non_blocking=True) for part in (batch.inputs, batch.targets))
        return self.train_step(step, Batch(inputs, targets, starts=batch.starts))

    def _evaluate(self, log: Log, numbers: dict[str, Any]) -> None:
        """Log the metrics of the task, remember the best, and write samples."""
        self.folder.check_exists()
        progress = self.progress
        objective: Any = self.objective
        objective.eval()
        log.show("evaluating")
        if self.sharded:
            objective.unshard()  # the weights outside the blocks, which gather their own
        found = self.task.evaluate(self.model, self.runtime)
        if self.sharded:
            objective.reshard()
        objective.train()
        if not found:
            return
        found = {"train_loss": numbers["loss"]} | found
        self._check_finite(found)
        log.write(progress["step"], **found)
        progress.update(found, measured_step=progress["step"])
        progress["curve"].append([progress["step"], *found.values()])
        better = progress["best"] is None or found["valid_loss"] < progress["best"]
        progress["worse"] = 0 if better else progress["worse"] + 1
        if better:
            progress.update(best=found["valid_loss"], best_step=progress["step"])
        if self.training.stop_at is not None:
            progress["reached"] = self.task.reached(self.training.stop_at, found)
        for name, is_better in self.task.selects.items():
            before = progress["selected"].get(name)
            if before is None or is_better(found[name], before[0]):
                progress["selected"][name] = [found[name], progress["step"]]
                torch._foreach_copy_(self.best_weights[name], [weight.detach() for weight in self.model.parameters()])
        if self.runtime_config.samples:
            write_samples(self.spec.out / "samples.md", progress["step"], self._samples())

    def _samples(self) -> list[tuple[str, str]]:
        weights = full_weights(self.model, keep=self.runtime.is_rank0) if self.sharded else None
        if not self.runtime.is_rank0:
            return []
        model, here = self.model, self.runtime
        if weights is not None:
            model, here = self.model.config.build(), Runtime(precision=self.runtime_config.precision_on("cpu"))
            model.load_state_dict(weights)
        with here.autocast():
            return self.task.samples(model, self.runtime_config.samples, seed=self.training.seed)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors to resume from beside the weights: the optimiser's moments and the best weights."""
        tensors = {}
        for number, (name, weight) in enumerate(self.model.named_parameters()):
            tensors |= {f"{kind}.{name}": self.optimizer.state[weight][kind] for kind in ("exp_avg", "exp_avg_sq")}
            tensors |= {f"best.{metric}.{name}": weights[number] for metric, weights in self.best_weights.items()}
        return tensors

    def save(self) -> None:
        """Write a checkpoint, unless it would contain NaN or Inf, and remove old ones."""
        self.folder.check_exists()
        progress, tensors = self.progress, self.tensors()
        if name := self.folder.find_not_finite(self.model, tensors):
            raise self._diverged(f"{name} contains NaN or Inf")
        measured = progress["valid_loss"] if progress["measured_step"] == progress["step"] else inf
        if measured < (inf if progress["kept"] is None else progress["kept"]):
            progress.update(kept=measured, kept_step=progress["step"])
        self.folder.save(self.model, tensors, progress, self.task.tokenizer)
        if self.runtime.is_rank0:
            self.folder.prune(best=progress["kept_step"])


class Objective(nn.Module):
    """The loss of a task as a module of tensors, which DDP can wrap."""

    def __init__(self, model: nn.Module, task: Task, runtime: Runtime):
        super().__init__()
        self.model, self.task, self.runtime = model, task, runtime

    def forward(self, inputs: Tensor, targets: Tensor, starts: Tensor | None = None) -> Tensor:
        return self.task.loss(self.model, Batch(inputs, targets, starts=starts), self.runtime)


class TrainStep:
    """One optimiser step on a batch; returns its loss and the norm of its gradient.

    `captured`, for one process on a CUDA device and batches of one shape: the step is one CUDA graph, and what it
    returns is overwritten by the next step.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimizer: torch.optim.AdamW,
        training: Training,
        runtime: Runtime,
        *,
        captured: bool = False,
    ):
        self.objective, self.optimizer, self.training, self.runtime = objective, optimizer, training, runtime
        self.update: Callable[..., Any] = CapturedFunction(self._update, warm_up=WARM_UP) if captured else self._update

    def __call__(self, step: int, batch: Batch) -> tuple[Tensor, Tensor]:
        set_learning_rate(self.optimizer, self.training.rate(step))
        return self.update(batch.inputs, batch.targets, *(() if batch.starts is None else (batch.starts,)))

    def _update(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Accumulate the gradient over micro-batches, clip it and update. Losses of several models are summed."""
        size = self.runtime.micro_batch or len(batch[0])
        parts = list(zip(*(tensor.split(size) for tensor in batch), strict=True))
        total: Tensor | None = None
        for number, (part, weight) in enumerate(zip(parts, self._weights(parts), strict=True), start=1):
            with no_grad_sync(self.objective, off=number < len(parts)):
                with self.runtime.autocast():
                    loss = self.objective(*part) * weight / len(parts)
                loss.sum().backward()
            total = loss.detach() if total is None else total + loss.detach()
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        norm: Any = torch.nn.utils.clip_grad_norm_(weights, inf if self.training.clip is None else self.training.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        assert total is not None
        return total, norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def _weights(self, parts: list[tuple[Tensor, ...]]) -> list[Tensor] | list[float]:
        """Return the weight of each micro-batch's mean loss: its number of targets over the mean of all processes."""
        targets = [part[1] for part in parts]
        if targets[0].is_floating_point() or (len(parts) == 1 and not self.runtime.distributed):
            return [1.0] * len(parts)
        counts = torch.stack([(each != IGNORED).sum() for each in targets]).float()
        mean = counts.mean()
        if self.runtime.distributed:
            torch.distributed.all_reduce(mean)
            mean /= self.runtime.size
        return list(counts / mean)


def adamw(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """Build AdamW with weight decay on matrices, or on all parameters whose modules allow it.

    Its state is allocated at once, so that a checkpoint can be loaded into it.
    """
    decayed = lambda weight: training.decay_all or weight.dim() >= 2  # noqa: E731
    groups = param_groups(model, weight_decay=training.weight_decay, decayed=decayed)
    weight = groups[0]["params"][0]
    capturable = weight.is_cuda and not hasattr(weight, "full_tensor")  # then learning rates are tensors
    for group in groups:
        group["lr"] = torch.zeros((), device=weight.device) if capturable else 0.0
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=training.betas, fused=True, capturable=capturable)
    for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
        first, second = (torch.zeros_like(weight, requires_grad=False) for _ in range(2))
        moments = {"step": torch.zeros((), device=weight.device), "exp_avg": first, "exp_avg_sq": second}
        optimizer.state[weight] = moments
    return optimizer


def set_learning_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    """Set the learning rate of the next step, or the largest that a group allows."""
    for group in optimizer.param_groups:
        own = min(rate, group.get("max_lr", rate))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def memory_needed(config: LanguageModelConfig, *, batch: int, micro: int, shards: int = 1, logits: bool = True) -> int:
    """Return a lower bound on the bytes that a training process needs.

    These are the float32 weights, with gradients and moments split over `shards` processes; the tokens of its part of a
    batch and their targets; and for each token of `micro` sequences at once the inputs of both mixers of every block in
    16 bits and, where the loss keeps the `logits`, these and their gradients in float32.
    """
    count = weight_count(config)
    weights = 4 * count + 3 * 4 * count // shards
    per_token = 2 * 2 * config.blocks * config.width + (2 * 4 * config.vocabulary if logits else 0)
    return weights + 2 * 8 * batch * config.context + micro * config.context * per_token


def _name(results: dict[str, Any]) -> str:
    """Return the name of the model of a run, without the size of a preset of which it has another."""
    if "name" in results:
        return results["name"]
    model = results["model"]
    name = model["name"] or f"fine-tuned from {results['init_from']}"
    return name.rpartition("-")[0] if name in PRESETS and (model["width"] or model["blocks"]) else name


def _summary(results: dict[str, Any], recent: int = 0, loss: float = 0.0) -> str:
    """Return the losses of a run, for a stopped one also that of its `recent` steps, and where its files are."""
    step, steps, out = results["step"], results["training"]["steps"], results["out"]
    lines = [f"{_name(results)}, {results['parameters']:,} parameters: step {step:,} of {steps:,}"]
    if recent and results["measured_step"] != step:
        lines.append(f"loss of the last {recent} step{'s'[: recent != 1]} {loss:.4f}")
    losses = [
        f"{split} loss {results[f'{split}_loss']:.4f}" for split in ("train", "valid") if f"{split}_loss" in results
    ]
    if losses:
        at = f" at step {results['measured_step']:,}" if results["measured_step"] != step else ""
        lines.append(", ".join(losses) + at)
    if results["interrupted"]:
        lines.append("Stopped; the same command resumes from there.")
    if results["kept_step"] not in (0, step):
        lines.append(f"Best: {out}/step-{results['kept_step']:08}, valid loss {results['kept']:.4f}")
    samples = "samples.md, " if Path(out, "samples.md").exists() else ""
    lines += [f"Checkpoint: {out}/step-{step:08}", f"Beside it: log.jsonl, {samples}results.json, run.yaml"]
    return "\n".join(lines)


def _read_results(file: Path, step: int) -> dict[str, Any] | None:
    """Return the results of a run that ended at a step; None where the file is missing, damaged or of another step."""
    if file.exists() and not file.is_file():  # it could not be written again either
        raise UserError(f"{file} exists and is not a regular file; remove it")
    try:
        results = read_json(file)
        _summary(results)
        return results if results["step"] == step else None
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError) as error:
        print(f"{file} is damaged and written again: {one_line(error)}", file=sys.stderr)
        return None
