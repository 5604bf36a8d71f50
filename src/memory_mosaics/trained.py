"""A trained model with its tokenizer, as commands that use one open it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from memory_mosaics import checkpoint
from memory_mosaics.errors import UserError
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Trained:
    """`name` tells it from others: the run's folder, as far as that is needed."""

    name: str
    folder: Path
    model: LanguageModel
    tokenizer: Tokenizer

    @classmethod
    def open(cls, run: Path, *, name: str | None = None, device: str | torch.device = "cpu") -> "Trained":
        """The newest checkpoint of a training run, or a checkpoint folder."""
        if not run.exists():
            raise UserError(f"there is no run {run}; mosaics train makes one")
        folder = checkpoint.newest(run)
        model = checkpoint.load(folder, device=device)
        for weight, tensor in model.named_parameters():
            if not tensor.isfinite().all():
                raise UserError(f"{folder} is damaged: {weight} holds numbers that are none")
        if not (folder / "tokenizer.json").exists():
            remedy = "put that of its training data there, as mosaics convert --tokenizer does"
            raise UserError(f"{folder} has no tokenizer.json: {remedy}")
        tokenizer = Tokenizer.load(folder)
        if tokenizer.vocabulary > model.config.vocabulary:
            sizes = f"{tokenizer.vocabulary:,} tokens, and the model {model.config.vocabulary:,}"
            raise UserError(f"{folder}: its tokenizer has {sizes}; they do not belong together")
        return cls(name or run.name, folder, model, tokenizer)

    def check_reads(self, corpus: Corpus) -> None:
        """A loss on tokens that mean something else to the model would say nothing."""
        theirs = corpus.manifest["tokenizer"]
        if theirs["fingerprint"] != self.tokenizer.fingerprint:
            names = f"{theirs['name']}, and {self.folder} reads those of {self.tokenizer.name}"
            raise UserError(f"{corpus.folder} holds tokens of {names}; prepare it with --tokenizer {self.folder}")


def named(runs: Sequence[str | Path]) -> dict[str, Path]:
    """Several runs, named by as many of their last folders as tell them apart."""
    if not runs:
        raise UserError("name at least one run")
    places = [Path(run).resolve() for run in runs]
    for run, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise UserError(f"{run} is named twice")
    depth = next(d for d in range(1, 99) if len({place.parts[-d:] for place in places}) == len(places))
    return {"/".join(place.parts[-depth:]): Path(run) for run, place in zip(runs, places, strict=True)}


def one_by_one(runs: Mapping[str, Path], *, device: str | torch.device = "cpu") -> Iterator[Trained]:
    """Each run opened when its turn comes: no more than two are in memory, the last one and the next."""
    for name, run in runs.items():
        yield Trained.open(run, name=name, device=device)
