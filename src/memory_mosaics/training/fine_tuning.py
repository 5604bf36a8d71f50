"""Fine-tuning: a run that begins with the weights of a checkpoint, with a new optimiser and a new schedule.

The model is the checkpoint's, and so is the tokenizer. What a run began with is in its corpus.json, so that it goes on
exactly, also when the checkpoint is gone.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from memory_mosaics import checkpoint
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.config import to_plain
from memory_mosaics.errors import UserError
from memory_mosaics.files import describe_files
from memory_mosaics.language_model import LanguageModelConfig, weight_shapes
from memory_mosaics.models import position_name
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training import state
from memory_mosaics.training.config import ModelArgs, Run


def start(run: Run, corpus: Corpus, own: Path | None) -> tuple[LanguageModelConfig, dict[str, Tensor] | None]:
    """The configuration of a run, and the weights that it begins with, if they are another run's.

    A run that has a checkpoint of its `own` goes on from there and asks the other no more.
    """
    if run.init_from is None:
        return run.model.build(corpus.vocabulary), None
    if own is not None:
        with state.resuming(own):
            return checkpoint.read_config(own), None
    source = LoadedModel.open(run.init_from)
    source.check_reads(corpus)
    return combine(run.model, source.model.config, run.init_from), source.model.state_dict()


def combine(choice: ModelArgs, config: LanguageModelConfig, where: Path) -> LanguageModelConfig:
    """The configuration of a checkpoint with the chosen context and dropout. Any other choice must be what it has."""
    alone = f"the model is that of --from {where}: leave out what is another"
    if choice.name is not None:
        other = replace(choice, context=config.context, dropout=config.dropout).build(config.vocabulary)
        if (given := _first_difference(to_plain(other), to_plain(config))) is not None:
            raise UserError(f"model {choice.name} has {given[0]} {given[1]}, and the checkpoint {given[2]}; {alone}")
    else:
        for name in ("width", "blocks", "heads", "slots", "position"):
            given = getattr(choice, name)
            found = [position_name(config)] if name == "position" else _values(to_plain(config), name)
            if given is not None and found != [given]:
                said = ", ".join(map(str, found)) or "none"
                raise UserError(f"--model.{name} is {given}, and the checkpoint has {said}; {alone}")
    if choice.context is not None:
        limit = getattr(config.positions, "context", choice.context)
        if limit < choice.context:
            raise UserError(f"--model.context is {choice.context}, and {where} has positions for {limit} tokens")
        config = replace(config, context=choice.context)
    if choice.dropout is not None:
        config = replace(config, dropout=choice.dropout)
    weight_shapes(config)
    return config


def _first_difference(left: Any, right: Any, name: str = "") -> tuple[str, Any, Any] | None:
    if isinstance(left, dict) and isinstance(right, dict):
        keys = [*left, *(key for key in right if key not in left)]
        found = (_first_difference(left.get(key), right.get(key), f"{name}.{key}".strip(".")) for key in keys)
        return next((one for one in found if one), None)
    return None if left == right else (name, left, right)


def _values(plain: Any, name: str) -> list[Any]:
    """All values of that name in a configuration, each once."""
    if not isinstance(plain, dict):
        return []
    nested = [value for part in plain.values() for value in _values(part, name)]
    return list(dict.fromkeys(([plain[name]] if isinstance(plain.get(name), int | str) else []) + nested))


def described(init_from: Path) -> dict[str, Any]:
    """Which checkpoint, and what its weights are."""
    folder = checkpoint.newest(init_from)
    names = sorted(file.name for file in folder.glob("*.safetensors"))
    return {"checkpoint": str(folder), "weights": describe_files(folder, names)}
