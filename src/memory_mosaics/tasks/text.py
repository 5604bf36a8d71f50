"""Text in context: models are trained on one text, and read that and others.

The validation documents are divided in two halves by a hash of their text. Values are chosen on the `choosing` half;
tests read the `report` half, and all of each other text, in windows of the length of training:

    choosing half    | document | document | ...    loss after training  -> which values
    report half      | window 0 | window 1 | ...    loss by position     -> what is reported
    other texts      | window 0 | window 1 | ...

Windows are adjacent and evenly spaced, and cross the ends of documents, which are read apart with `documents: true`. A
document of a test that occurs in the training text is left out. With `test_lengths` each text is read in longer windows
too, about as many tokens of it; with `documents: true` each of these lies within one document.

Beside the loss in nats per token a test reports

    seen             the loss on tokens that occur in the training text
    gain             how much the context helps: the mean loss of the first eighth of the positions less that of the
                     last quarter
    bits per byte    which compares tokenizers
    by_position      the mean loss between positions 0, 1, 2, 4, 8, ...
    disentanglement  how much it depends on the token which head predicts it (inspection.py), in windows of the length
                     of training

and the same of predictors that need no training: the unigram of the training text, a cache of the unigrams of the
context, and a cache of its n-grams (evaluation.py).
"""

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from memory_mosaics import evaluation
from memory_mosaics.config import check_choices, part
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.evaluation import EvalWindows, Losses, LossStatistics, check_window, choose_starts
from memory_mosaics.inspection import disentanglement
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.runtime import Runtime
from memory_mosaics.tasks.language_modeling import LanguageModeling
from memory_mosaics.tasks.task import EAGER
from memory_mosaics.text.corpus import Corpus, prepare
from memory_mosaics.text.sources import GENERATORS, find_sources

BYTES = 257  # ids of the tokenizer of bytes, with the end of a text
MAX_LENGTH, MAX_WINDOWS = 1 << 16, 1 << 20
EVAL_TOKENS = 1 << 15  # at once
DISENTANGLEMENT_WINDOWS = 8
UNIGRAM_SMOOTHING = 1.0  # added to the count of every token

Measures = dict[str, Any]


@part("text")
class TextData:
    """A training text, and others to read.

    Args:
        train: Sources as of `mosaics prepare`: files, directories, stories:COUNT, python:VERSION.
        valid: Sources to validate and test on; without them a share of the documents of `train`.
        valid_share: That share.
        read: Other texts by name, each a list of sources.
        tokenizer: bytes, or a bpe that is trained on the training text; all of its ids but some bytes occur there.
        vocabulary: Ids of the bpe. The tokenizer of bytes has 257.
        length: Tokens per window.
        test_lengths: Tokens per window of further tests, which are longer.
        windows: How many a test reads of each text, evenly spaced over the report half.
        order: The longest n-gram of the cache of n-grams.
        once: Refuse to read a training token twice.
        documents: Read each document apart, in training and in tests: nothing is remembered beyond its end.
        text_field: The field of a JSON object that holds the text.
    """

    train: tuple[str, ...]
    valid: tuple[str, ...] = ()
    valid_share: float = 0.05
    read: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tokenizer: Literal["bytes", "bpe"] = "bytes"
    vocabulary: int = BYTES
    length: int = 512
    test_lengths: tuple[int, ...] = ()
    windows: int = 200
    order: int = 4
    once: bool = False
    documents: bool = False
    text_field: str = "text"

    metric: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choices(self)
        check_range(1, MAX_LENGTH, length=self.length)
        for length in self.test_lengths:
            check_range(self.length + 1, MAX_LENGTH, test_lengths=length)
        if len({*self.test_lengths}) < len(self.test_lengths):
            raise UserError(f"test_lengths has a length twice: {', '.join(map(str, self.test_lengths))}")
        check_range(1, MAX_WINDOWS, windows=self.windows)
        check_range(1, 16, order=self.order)
        if self.tokenizer == "bytes" and self.vocabulary != BYTES:
            raise UserError(f"the tokenizer of bytes has a vocabulary of {BYTES}, not {self.vocabulary}")
        for name in ("train", "valid"):
            if name in self.read:
                raise UserError(f"{name!r} cannot be the name of another text: it is that of a part of the first")
        if len({*self.labels}) < len(self.labels):
            raise UserError(f"two tests would be called {max(self.labels, key=self.labels.count)!r}; rename a text")

    @property
    def labels(self) -> list[str]:
        """The names of the tests: of windows of the length of training first, then of longer ones."""
        texts = ["valid", *self.read]
        return texts + [f"{text}-{length}" for length in self.test_lengths for text in texts]

    def model(self, body: LanguageModelConfig) -> LanguageModelConfig:
        return body

    def prepare(self, folder: Path) -> Measures:
        """Write the corpora of all texts, unless they are there; return their checksums."""
        options: dict[str, Any] = {"field": self.text_field, "vocabulary": self.vocabulary, "tokenizer": self.tokenizer}
        held_out: Any = {"valid": list(self.valid)} if self.valid else {"valid_share": self.valid_share}
        corpora = {"train": prepare_or_open(list(self.train), out=folder / "train", **options, **held_out)}
        if self.tokenizer == "bpe":
            options["tokenizer"] = str(folder / "train")
        for name, sources in self.read.items():
            corpora[name] = prepare_or_open(list(sources), out=folder / name, **options, valid_share=0.0)
        return {"corpora": {name: corpus.fingerprint["corpus"] for name, corpus in corpora.items()}}

    def open(self, folder: Path) -> "Text":
        return Text(self, folder)


def prepare_or_open(sources: list[str], *, out: Path, valid: list[str] | None = None, **options: Any) -> Corpus:
    """Prepare a corpus; where its sources are not at hand, open the one that was prepared where they were."""
    try:
        find_sources([*sources, *(valid or [])])
    except UserError as error:
        if not (out / "manifest.json").exists():
            raise
        corpus = Corpus.open(out)
        corpus.verify()
        print(f"{out} is taken as it is: {one_line(error)}")
        return corpus
    return prepare(sources, out=out, valid=valid, **options)


class Text:
    """The prepared texts of a `TextData`."""

    def __init__(self, data: TextData, folder: Path):
        self.data, self.folder = data, folder
        self.corpus = Corpus.open(folder / "train")
        if self.corpus.vocabulary > data.vocabulary:
            raise UserError(f"{folder / 'train'} has {self.corpus.vocabulary} ids, not {data.vocabulary}")

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each id occurs in the training text."""
        return evaluation.count_tokens(self.corpus)

    def task(self, *, batch_size: int, seed: int, steps: int) -> "TextTask":
        task = TextTask(self, batch_size=batch_size, seed=seed)
        windows = task.windows["train"].per_epoch
        if self.data.once and steps * batch_size > windows:
            need = f"{steps:,} steps of {batch_size} windows need {steps * batch_size:,}"
            raise UserError(f"the training text has {windows:,} windows, and {need}; take more text or fewer steps")
        return task

    @cached_property
    def training_documents(self) -> set[bytes]:
        """Hashes of the tokens of every training document."""
        return {_hash(document.tobytes()) for document in documents(self.corpus, "train")}

    def test_sets(self) -> list["TextTest"]:
        """The validation documents first, then the other texts: at the length of training, then at each other."""
        corpora = {"valid": self.corpus} | {name: Corpus.open(self.folder / name) for name in self.data.read}
        lengths = (self.data.length, *self.data.test_lengths)
        return [TextTest(self, name, corpus, length) for length in lengths for name, corpus in corpora.items()]


def documents(corpus: Corpus, split: str) -> list[np.ndarray]:
    """Return the tokens of each document, with its end of text."""
    tokens = np.asarray(corpus.tokens(split))
    ends = np.flatnonzero(tokens == corpus.end_of_text) + 1
    return [document for document in np.split(tokens, ends) if len(document)]


def split_half(corpus: Corpus, half: Literal["choosing", "report"]) -> list[np.ndarray]:
    """Return the validation documents of this half. A hash of the text decides, so that it is the same for bytes and
    for a BPE.
    """
    decode, wanted = corpus.tokenizer().decode, ("choosing", "report").index(half)
    texts = ((one, decode(one[one != corpus.end_of_text]).encode()) for one in documents(corpus, "valid"))
    return [one for one, text in texts if _hash(text)[0] % 2 == wanted]


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _join(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, np.uint16)


class TextTask(LanguageModeling):
    """Language modeling that is validated on the choosing half of the validation documents."""

    def __init__(self, text: Text, *, batch_size: int, seed: int):
        length, folder = text.data.length, text.corpus.folder
        documents = text.data.documents
        super().__init__(text.corpus, context=length, batch_size=batch_size, seed=seed, documents=documents)
        name = f"the choosing half of the validation documents of {folder}"
        self.windows["valid"] = self._windows(_join(split_half(text.corpus, "choosing")), length, seed, name)
        self.evaluate_windows = text.data.windows

    @torch.no_grad()
    def evaluate(self, model: Any, runtime: Runtime = EAGER) -> dict[str, float]:
        return {"valid_loss": self.evaluate_split(model, "valid", runtime)}


@dataclass(frozen=True)
class TextTest:
    """Windows of one text: the report half of the validation documents, or all of another text."""

    text: Text
    name: str
    corpus: Corpus
    length: int

    @property
    def label(self) -> str:
        return f"{self.name}-{self.length}" if self._is_longer else self.name

    @property
    def _is_longer(self) -> bool:
        return self.length > self.text.data.length

    @property
    def _start_of_text(self) -> int | None:
        """The token at which what was read is forgotten."""
        return self.corpus.end_of_text if self.text.data.documents else None

    @cached_property
    def _documents(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """All of them, and those that do not occur in the training text."""
        known = self.text.training_documents
        every = split_half(self.corpus, "report") if self.name == "valid" else documents(self.corpus, "train")
        return every, [one for one in every if _hash(one.tobytes()) not in known]

    @cached_property
    def windows(self) -> EvalWindows:
        """Those that are read; an error if the text has not one."""
        name = f"the report half of {self.corpus.folder}" if self.name == "valid" else str(self.corpus.folder)
        parts, count = self._documents[1], self.text.data.windows * self.text.data.length // self.length
        tokens = _join(parts)
        check_window(tokens, self.length, name)
        if self._is_longer and self.text.data.documents:
            ends = np.cumsum([len(part) for part in parts])
            each = [
                range(end - len(part), end - self.length, self.length) for part, end in zip(parts, ends, strict=True)
            ]
            adjacent = [start for starts in each for start in starts]
            if not adjacent:
                longest = max(map(len, parts)) - 1
                raise UserError(f"the longest document of {name} has {longest:,} tokens, and a test {self.length:,}")
        else:
            adjacent = range(0, len(tokens) - self.length, self.length)
        return EvalWindows(tokens, choose_starts(adjacent, max(1, count)), self.length)

    def check(self) -> None:
        """Raise an error if the text has not one window."""
        _ = self.windows

    def describe(self) -> Measures:
        """Return what results.json has of the test: windows are its examples."""
        every, kept = self._documents
        found = {"documents": len(kept), "left_out": len(every) - len(kept), "tokens": len(self.windows.tokens)}
        return found | {"examples": len(self.windows)}

    def measure(self, model: Any, runtime: Runtime = EAGER) -> Measures:
        """Return the loss of a model and what else is reported; `loss` is the score."""
        losses = evaluation.of_model(model, start_of_text=self._start_of_text)
        with runtime.autocast():
            found = self._measure("model", losses, rows=max(1, EVAL_TOKENS // self.length))
        if not self._is_longer and not self.text.data.documents:  # memories go on at the ends of documents there
            score = disentanglement(model, next(self.windows.batches(DISENTANGLEMENT_WINDOWS)))
            found |= {} if score is None else {"disentanglement": score}
        return found

    def anchors(self) -> dict[str, Measures]:
        """Return the same measures of a guess, the unigram, and caches of the context."""
        counts, order = self.text.counts, self.text.data.order
        prior = evaluation.unigram(counts, UNIGRAM_SMOOTHING)
        guess = np.full(len(counts), 1 / len(counts))
        predictors = {
            "guess": evaluation.of_unigram(guess),
            "unigram": evaluation.of_unigram(prior),
            "unigram cache": evaluation.of_cache(prior, 1, start_of_text=self._start_of_text),
        }
        predictors[f"{order}-gram cache"] = evaluation.of_cache(prior, order, start_of_text=self._start_of_text)
        return {name: self._measure(name, losses, rows=64) for name, losses in predictors.items()}

    def _measure(self, name: str, losses: Losses, *, rows: int) -> Measures:
        found = LossStatistics(self.length, counts=self.text.counts)
        evaluation.measure(
            losses, self.windows, found, self.corpus.tokenizer(), rows=rows, name=f"{self.label}, {name}"
        )
        edges = [0, *(2**power for power in range(self.length.bit_length()) if 2**power < self.length), self.length]
        means: Any = found.curves()["by_position"]
        return {
            "loss": found.loss,
            "seen": found.loss_seen or 0.0,
            "seen_share": found.seen / found.tokens,
            "gain": float(means[: max(1, self.length // 8)].mean() - means[-max(1, self.length // 4) :].mean()),
            "bits_per_byte": found.summary()["bits_per_byte"],
            "by_position": [[*span, found.mean_between(*span)] for span in pairwise(edges)],
        }


def python_library(name: str) -> Iterator[str]:
    """Yield the source files of Python's standard library: `python:3.11.7`, by the interpreter of that version.

    Files of its tests and of other packages are not among them. The checksum of what was read is in the manifest.
    """
    wanted, running = name.partition(":")[2], ".".join(map(str, sys.version_info[:3]))
    if wanted != running:
        raise UserError(f"{name}: this is Python {running}; prepare the text with Python {wanted}")
    root = Path(sysconfig.get_paths()["stdlib"])
    others = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"}
    files = sorted(file for file in root.rglob("*.py") if not others & {*file.relative_to(root).parts})
    return (text for file in files if (text := file.read_text(encoding="utf-8", errors="replace")).strip())


GENERATORS["python"] = python_library
