"""The configuration of a training run, as dataclasses that YAML files and flags fill.

`Training` decides the numbers of a run and `RuntimeConfig` how they are computed: a run may resume under another
`RuntimeConfig`, on more processes or another device, but not under another `Training`.
"""

import json
import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from memory_mosaics import checkpoint
from memory_mosaics.config import MAX_SEED, MAX_SIZE, check_choices, check_positive, to_plain
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.files import first_difference, read_json
from memory_mosaics.language_model import Init, LanguageModelConfig, config_from_plain, weight_shapes
from memory_mosaics.models import PRESETS, architecture_name, position_name, preset, preset_hint
from memory_mosaics.runtime import RuntimeConfig

DEFAULT_MODEL = "memory-mosaic-tiny"
LOWEST_RATE = 1e-6  # where the warm-up of cosine-from-start starts


@dataclass(frozen=True, kw_only=True)
class ModelArgs:
    """Which model to train: a preset with some values changed, or a config.json.

    Args:
        name: a preset such as memory-mosaic-12 (`mosaics info NAME` shows it), or a config.json of your own parts; null
            is memory-mosaic-tiny
        width: of the residual stream; null keeps the preset's, here and below
        blocks: number of blocks
        heads: of every mixer; for memory-mosaic-v2, of short-term memories and as many of long-term memories
        slots: persistent pairs per head, for a Memory Mosaic; null makes it as large as its transformer, within 1 %
        position: learned, rotary, alibi or none, for a transformer
        context: tokens in a training window
        dropout: of the weights of attention and memories, and of what each mixer adds
        init: scheme of the initial values; null keeps the preset's: v2 for memory-mosaic-v2, default for all others
    """

    name: str | None = None
    width: int | None = None
    blocks: int | None = None
    heads: int | None = None
    slots: int | None = None
    position: str | None = None
    context: int | None = None
    dropout: float | None = None
    init: Init | None = None

    def build(self, vocabulary: int) -> LanguageModelConfig:
        """Return the configuration of the model for a vocabulary of this size."""
        changes: dict[str, Any] = {key: value for key, value in asdict(self).items() if value is not None}
        name = changes.pop("name", DEFAULT_MODEL)
        try:
            if name in PRESETS:
                config = preset(name, vocabulary=vocabulary, **changes)
            else:
                config = replace(read_model_file(Path(name)), vocabulary=vocabulary, **changes)
            weight_shapes(config)  # raises an error if the parts do not fit together
            if config.context > (limit := getattr(config.positions, "context", math.inf)):
                raise ValueError(f"context is {config.context}, and there are positions for {limit} tokens")
            return config
        except (TypeError, ValueError) as error:
            raise UserError(f"model {name}: {one_line(error)}") from error

    def apply_to(self, config: LanguageModelConfig, where: Path) -> LanguageModelConfig:
        """Return the configuration of the checkpoint `where` with this context and dropout.

        Any other value that is given must be what the checkpoint has.
        """
        remedy = f"the model is that of --from {where}: leave out the values that differ"
        plain = to_plain(config)
        if self.name is not None:
            same = {"context": config.context, "dropout": config.dropout, "init": self.init or config.init}
            other = replace(self, **same).build(config.vocabulary)
            if (given := first_difference(to_plain(other), plain)) is not None:
                raise UserError(f"model {self.name} has {given[0]} {given[1]}, and the checkpoint {given[2]}; {remedy}")
        else:
            for name in ("width", "blocks", "heads", "slots", "position", "init"):
                given = getattr(self, name)
                found: list[Any] = [position_name(config)] if name == "position" else _find_values(plain, name)
                if name == "heads" and architecture_name(config) == "memory-mosaic-v2":
                    found = [heads // 2 for heads in found]  # short-term and long-term memories are counted once
                if given is not None and found != [given]:
                    values = ", ".join(map(str, found)) or "none"
                    raise UserError(f"--model.{name} is {given}, and the checkpoint has {values}; {remedy}")
        changes = {name: getattr(self, name) for name in ("context", "dropout") if getattr(self, name) is not None}
        limit = getattr(config.positions, "context", math.inf)
        if changes.get("context", 0) > limit:
            raise UserError(f"--model.context is {self.context}, and {where} has positions for {limit} tokens")
        try:
            return replace(config, **changes)
        except ValueError as error:
            raise UserError(f"model {where}: {one_line(error)}") from error


def read_model_file(file: Path) -> LanguageModelConfig:
    if file.is_dir() and (checkpoint.steps(file) or any(file.glob("*.safetensors"))):
        raise UserError(
            "--model.name would take its configuration only; to train on from its weights, "
            f"give mosaics train --from {file}; for the configuration alone, name its config.json"
        )
    file = file / "config.json" if file.is_dir() else file
    try:
        plain = read_json(file)
    except FileNotFoundError:
        raise UserError(f"neither a preset nor a file; {preset_hint(file.name)}") from None
    if not isinstance(plain, dict):
        raise UserError(f"{file} holds no description of a model")
    plain = plain.get("config", plain)  # of `mosaics info --json`
    return config_from_plain(plain.get("language_model", plain) if isinstance(plain, dict) else {})


def _find_values(plain: Any, name: str) -> list[Any]:
    """Return the distinct values of the fields called `name`, at any depth of a configuration."""
    if not isinstance(plain, dict):
        return []
    nested = [value for part in plain.values() for value in _find_values(part, name)]
    return list(dict.fromkeys(([plain[name]] if isinstance(plain.get(name), int | str) else []) + nested))


@dataclass(frozen=True, kw_only=True)
class Training:
    """The hyperparameters, which decide the numbers of a run.

    Args:
        steps: optimiser steps in total
        batch: sequences per step, over all processes
        learning_rate: peak learning rate, after the warm-up
        final_learning_rate: where schedule cosine ends; the others have ends of their own
        warm_up: steps of linearly rising learning rate
        betas: AdamW's betas
        schedule: of the learning rate after the warm-up. cosine: half a cosine, down to the final rate. linear: a line
            down to 0. trapezoid: constant, and over the last third a line down to 0. cosine-from-start: a cosine
            over all steps, those of the warm-up too, down to a tenth, as in RegBench
        weight_decay: on matrices; scales, decays, taps and norms have none
        decay_all: weight decay on vectors too, where their modules allow it
        clip: largest norm of the gradient; null for any
        seed: of the initial values, the order of the data, dropout and drawn delays; the last two also depend on
            micro-batches and processes
        evaluate_every: steps between evaluations
        evaluate_windows: windows per evaluation; null for the whole validation split
        patience: stop after so many evaluations without a better validation loss; null never stops early
        stop_at: stop when an evaluation is this good: a loss, or the accuracy of a task that has one; null never does
    """

    steps: int = 80_000
    batch: int = 512
    learning_rate: float = 5e-3
    final_learning_rate: float = 1e-4
    warm_up: int = 2000
    schedule: Literal["cosine", "linear", "trapezoid", "cosine-from-start"] = "cosine"
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    decay_all: bool = False
    clip: float | None = 1.0
    seed: int = 0
    evaluate_every: int = 1000
    evaluate_windows: int | None = None
    patience: int | None = None
    stop_at: float | None = None

    def __post_init__(self) -> None:
        check_range(1, math.inf, steps=self.steps, evaluate_every=self.evaluate_every)
        check_range(1, math.inf, evaluate_windows=self.evaluate_windows, patience=self.patience)
        check_range(1, MAX_SIZE, batch=self.batch)
        check_range(0, MAX_SEED, seed=self.seed)
        check_range(0, math.inf, warm_up=self.warm_up, weight_decay=self.weight_decay)
        check_positive(self, "learning_rate", "clip", "stop_at")
        check_choices(self)
        if self.schedule == "cosine" and not 0 <= self.final_learning_rate <= self.learning_rate:
            raise UserError(
                f"final_learning_rate must be from 0 to the learning_rate of {self.learning_rate}, "
                f"not {self.final_learning_rate}"
            )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"betas must be two numbers in [0, 1), not {list(self.betas)}")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0: linear warm-up, then the schedule."""
        largest, share = self.learning_rate, step / self.steps
        if self.schedule == "cosine-from-start":
            if step < self.warm_up:
                return LOWEST_RATE + step * (largest - LOWEST_RATE) / self.warm_up
            return largest * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))
        if self.schedule in ("linear", "trapezoid"):
            rise = (step + 1) / self.warm_up if step < self.warm_up else 1.0
            return largest * min(rise, (1 if self.schedule == "linear" else 3) * (1 - share))
        if step < self.warm_up:
            return largest * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        fall = (1 + math.cos(math.pi * min(done, 1.0))) / 2
        return self.final_learning_rate + fall * (largest - self.final_learning_rate)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A language-modelling run: the corpus, the output folder and the configuration; `init_from` is fine-tuned.

    With `documents` each document of the corpus is read apart.
    """

    data: Path
    out: Path
    init_from: Path | None = None
    documents: bool = False
    model: ModelArgs
    training: Training = Training()
    runtime: RuntimeConfig = RuntimeConfig()

    def __post_init__(self) -> None:
        if self.init_from is None and self.model.name is None:
            object.__setattr__(self, "model", replace(self.model, name=DEFAULT_MODEL))

    @classmethod
    def from_preset(cls, name: str, *, data: str | Path, out: str | Path, **training: Any) -> "Run":
        """Return a run with the model and training of a preset, with some values of `Training` changed."""
        model, default = preset_defaults(name)
        return cls(data=Path(data), out=Path(out), model=model, training=replace(default, **training))

    def plain(self) -> dict[str, Any]:
        """Return plain values, for run.yaml."""
        return json.loads(json.dumps(asdict(self), default=os.fspath))


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """A run on any other task, with the configurations of the task and of the model."""

    out: Path
    name: str  # of the model, for display
    task: Any
    model: Any
    training: Training
    runtime: RuntimeConfig = RuntimeConfig()
    init_from: None = None

    def plain(self) -> dict[str, Any]:
        """Return plain values, for run.yaml."""
        parts = {name: to_plain(getattr(self, name)) for name in ("task", "model", "training", "runtime")}
        return json.loads(json.dumps({"name": self.name, "out": os.fspath(self.out)} | parts))


AnyRun = Run | TaskRun


def preset_defaults(name: str) -> tuple[ModelArgs, Training]:
    """Return the model and the training of a preset."""
    if name not in PRESETS:
        raise UserError(f"no preset {name!r}; {preset_hint(name)}")
    found = PRESETS[name]
    return ModelArgs(name=name, dropout=found.dropout), Training(**found.training)


def refuse_preset(preset: str | None) -> None:
    """Refuse a preset in a file or a call, which should give its values; the command line expands the flag itself."""
    if preset is not None:
        raise UserError(f"preset {preset}: give it as the flag --preset, or its values as model and training")
