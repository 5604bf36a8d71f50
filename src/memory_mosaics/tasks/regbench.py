"""RegBench: does a model learn a new language from its context? Akyürek et al. 2024 (arXiv 2401.12973).

A language is a random automaton (regbench_automata.py). A sequence is 10 to 19 strings of one language, each of 1 to 49
letters, joined by a separator. There is one sequence a language, and the languages of the test are new. The Memory
Mosaics paper has the scores in its figure 9, and in table 2 those on new sequences of languages trained on.

    automaton   0: a -> 1, c -> 2     1: b -> 0     2: a -> 1, b -> 0          start in 0

    inputs      a  b  c  a  |  c  b  a  b  c  |  c  a  b
    targets     b  c  a  -  c  b  a  b  c  -  c  a  b  a       where a string ends nothing is to be predicted
    legal       b ac ab  b ac ab ac  b ac ab ac ab  b ac       what may come next: the truth, each letter as likely
    counted     x  x  x  x  x  x  x  x  x  x  x  x  x  x       also where the string ends: it could have gone on

Accuracy is the share of positions where the most likely token is a legal one. The distance (TVD) is half the sum of the
absolute differences of predicted and true probabilities, over all 20 tokens. Both are means over all positions of all
sequences, the first ones included, so that nobody reaches 1 and 0.

Sequence i of a split depends on the seed, the split and i alone: the training languages of a small benchmark are the
first ones of a larger one, and all sizes share one test. Splits are apart as draws. As in the original nothing is done
about languages drawn twice (1% of 20,000, nearly all of one or two states). `distinct` draws others in their place:
then a split depends on those before it too, the test on none.
"""

import io
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import atomic_write, read_bytes
from memory_mosaics.language_model import LanguageModel, without_state
from memory_mosaics.runtime import CapturedFunction, Runtime
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.tasks.regbench_automata import LETTERS, Automata, sample
from memory_mosaics.tasks.task import EAGER, Batch, CountedBatch, TokenTask
from memory_mosaics.text.tokenizer import Tokenizer, character_tokenizer

VOCABULARY = "." + LETTERS + "|"  # a token is a place in here: padding, letters, the separator
PADDING, SEPARATOR = 0, len(VOCABULARY) - 1
IGNORED = -100  # as a target: neither trained on nor part of a loss
STRINGS = (10, 19)  # in a sequence
LENGTHS = (1, 49)  # letters in a string
BLOCK = 256  # sequences drawn at a time: part of what a seed means
MAX_SEQUENCE_BYTES = 1 << 14  # of a stored sequence and its language, with room to spare
MOST = 10_000_000  # sequences of a split: about a kilobyte each
BATCH = 32  # sequences in a step
LENGTH, MULTIPLE = 704, 64  # what captured sequences are padded to, so that all sizes share one compilation; or more
AT_ONCE = 128  # sequences measured at a time
TEMPERATURES = torch.logspace(-3, 3, 181, base=2).tolist()  # from 1/8 to 8, 2.3 % apart
FORMAT = 1  # of stored sequences: raise it whenever the same settings come to mean others

SplitName = Literal["test", "validation", "train"]
SPLITS: tuple[SplitName, ...] = get_args(
    SplitName
)  # in the order languages are given out, so that no test depends on training


@dataclass(frozen=True, kw_only=True)
class RegBenchTask:
    """Which languages, and how many.

    Args:
        environments: Training languages, with one sequence each. The papers have 100 to 40,000.
        held_out: Sequences of the validation, and of the test. The papers have 250 or 500; 100 in distribution.
        in_distribution: Validate and test with new sequences of the training languages, one language after the other.
        distinct: Never use a language twice, be it in one split or in two.
        seed: Another one is another benchmark.

    """

    environments: int = 1000
    held_out: int = 500
    in_distribution: bool = False
    distinct: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in {"environments": 1, "held_out": 1, "seed": 0}.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("environments", "held_out"):
            if getattr(self, name) > MOST:
                raise UserError(f"{name} must be at most {MOST:,}, not {getattr(self, name):,}")

    def sequences(self, split: SplitName, *, folder: Path | None = None) -> "Sequences":
        """All sequences of a split, kept in a file in `folder` where one is given. A damaged file is made again."""
        if folder is None:
            return self._draw(split)
        variant = "-in-distribution" * self.in_distribution + "-distinct" * self.distinct
        sizes = f"{self.environments}-{self.held_out}-seed{self.seed}"
        file = folder / f"regbench{FORMAT}-{sizes}{variant}-{split}.npz"
        found = _load(file, MAX_SEQUENCE_BYTES * (self._size(split) + 16))
        if found is None:
            _save(found := self._draw(split), file)
        return found

    def _size(self, split: SplitName) -> int:
        return self.environments if split == "train" else self.held_out

    def _rng(self, split: SplitName, what: int, block: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, SPLITS.index(split), what, block))

    def _draw(self, split: SplitName) -> "Sequences":
        languages = self._languages(split)
        automata = Automata(languages[np.arange(self._size(split)) % len(languages)])
        blocks = range(0, len(automata), BLOCK)
        parts = [_texts(self._rng(split, 1, b // BLOCK), automata[slice(b, b + BLOCK)]) for b in blocks]
        longest = max(part.shape[1] for part in parts)
        padded = [np.pad(part, ((0, 0), (0, longest - part.shape[1]))) for part in parts]
        return Sequences(np.concatenate(padded), automata)

    def _languages(self, split: SplitName) -> np.ndarray:
        """The edges of the automata of a split: (languages, states, letters)."""
        if self.in_distribution:
            return self._drawn("train", set())
        known: set[bytes] = set()
        earlier = SPLITS[: SPLITS.index(split)] if self.distinct else ()
        for other in earlier:
            self._drawn(other, known)
        return self._drawn(split, known)

    def _drawn(self, split: SplitName, known: set[bytes]) -> np.ndarray:
        """As many automata as the split has, without those `known` if they are to be distinct."""
        blocks = (sample(self._rng(split, 0, block), BLOCK).edges for block in count())
        drawn, chosen = chain.from_iterable(blocks), []
        while len(chosen) < self._size(split):
            edges = next(drawn)
            if not (self.distinct and edges.tobytes() in known):
                chosen.append(edges)
                known.add(edges.tobytes())
        return np.stack(chosen)


def _texts(rng: np.random.Generator, automata: Automata) -> Int[np.ndarray, "B length"]:
    """A sequence of each automaton of a block, as tokens. The last block may be shorter; what is drawn is not."""
    (fewest, most), (shortest, longest), size = STRINGS, LENGTHS, len(automata)
    strings = rng.integers(fewest, most, endpoint=True, size=(BLOCK, 1, 1))[:size]
    lengths = rng.integers(shortest, longest, endpoint=True, size=(BLOCK, most, 1))[:size]
    letters = automata.walk(rng.random((BLOCK, most, longest))[:size])
    string, place = np.arange(most)[:, None], np.arange(longest + 1)
    tokens = np.where(place < lengths, np.pad(letters + 1, ((0, 0), (0, 0), (0, 1))), SEPARATOR).astype(np.int8)
    used = (string < strings) & (place < lengths + (string < strings - 1))  # no separator behind the last string
    total = used.sum(axis=(1, 2))[:, None]
    text = np.full((size, total.max()), PADDING, dtype=np.int8)
    text[np.arange(text.shape[1]) < total] = tokens[used]
    return text


@dataclass(frozen=True)
class Sequences:
    """The sequences of a split, padded to the longest of them, each with its automaton. T is one less: the inputs."""

    tokens: Int[np.ndarray, "N length"]
    automata: Automata

    def __len__(self) -> int:
        return len(self.tokens)

    def batch(self, size: int, *, seed: int, step: int, rows: slice = slice(None)) -> CountedBatch:
        """Some `rows` of the batch of a training step, a pure function of (seed, step).

        An epoch has every sequence once, in an order of its own; its last batch has what is left.
        """
        epoch, place = divmod(step, -(-len(self) // size))
        return self.at(order(len(self), seed, epoch)[place * size : (place + 1) * size][rows])

    def portions(self, size: int) -> list[range]:
        """The numbers of all sequences, in order, `size` at a time."""
        return [range(start, min(start + size, len(self))) for start in range(0, len(self), size)]

    def at(self, numbers: Sequence[int]) -> CountedBatch:
        """Sequences by number. Counted are all positions that are no padding, also those with no target."""
        text = torch.from_numpy(self.tokens[list(numbers)].astype(np.int64))
        targets = text[:, 1:]
        counted = targets != PADDING
        inputs = text[:, :-1].where(counted, PADDING)
        return CountedBatch(inputs, targets.where(counted & (targets != SEPARATOR), IGNORED), counted)

    def legal(self, numbers: Sequence[int]) -> Bool[Tensor, "B T vocabulary"]:
        """The tokens that may come next, at every counted position; none elsewhere.

        The true probabilities are equal over them: at the end of a string too, since no string has to end.
        """
        text, automata = self.tokens[list(numbers)], self.automata[list(numbers)]
        states = automata.read(np.where(text == SEPARATOR, -1, text - 1)[:, :-1])
        legal = torch.zeros(*states.shape, len(VOCABULARY), dtype=torch.bool)
        legal[:, :, 1:SEPARATOR] = torch.from_numpy(automata.legal[np.arange(len(numbers))[:, None], states])
        return legal & torch.from_numpy(text[:, 1:] != PADDING)[:, :, None]


@lru_cache(maxsize=2)
def order(size: int, seed: int, epoch: int) -> list[int]:
    """In which an epoch has its sequences."""
    return np.random.default_rng((seed, epoch)).permutation(size).tolist()


@dataclass(frozen=True)
class Scores:
    """Sums over counted positions, to be added up over batches."""

    positions: int = 0
    right: float = 0.0
    distance: float = 0.0

    def __add__(self, other: "Scores") -> "Scores":
        return Scores(self.positions + other.positions, self.right + other.right, self.distance + other.distance)

    @property
    def accuracy(self) -> float:
        return self.right / self.positions

    @property
    def tvd(self) -> float:
        return self.distance / self.positions


def score(logits: Float[Tensor, "B T vocabulary"], legal: Bool[Tensor, "B T vocabulary"]) -> Scores:
    """How far a model's answers are from the truth of `Sequences.legal`."""
    return compare(logits.float().softmax(dim=-1), legal)


def compare(probabilities: Float[Tensor, "B T vocabulary"], legal: Bool[Tensor, "B T vocabulary"]) -> Scores:
    """The same for what gives probabilities; they need not sum to 1."""
    positions, right, distance = sums(probabilities, legal).tolist()
    return Scores(round(positions), right, distance)


def sums(probabilities: Float[Tensor, "B T vocabulary"], legal: Bool[Tensor, "B T vocabulary"]) -> Float[Tensor, " 3"]:
    """Positions, right answers and distances, added up where they are: nothing waits for the device."""
    choices = legal.sum(dim=-1)
    counted = choices > 0
    truth = legal / choices.clamp(min=1)[..., None]
    right = legal.gather(-1, probabilities.argmax(dim=-1, keepdim=True))[..., 0]
    distance = (probabilities - truth).abs().sum(dim=-1, dtype=torch.float64) / 2
    return torch.stack([counted.sum(dtype=torch.float64), right.sum(dtype=torch.float64), (distance * counted).sum()])


def measure(
    model: Callable[[Int[Tensor, "B T"]], Float[Tensor, "B T vocabulary"]], sequences: Sequences, *, size: int = 32
) -> Scores:
    """The scores of anything that gives logits, over all sequences, `size` at a time."""
    total = Scores()
    for numbers in sequences.portions(size):
        logits = model(sequences.at(numbers).inputs)
        total += score(logits, sequences.legal(numbers).to(logits.device))
    return total


class Split:
    """The sequences of a split on a device, all of one length, with one row of padding behind them.

    On CUDA, where steps are captured, their shapes never change: all benchmarks share one length, and the last batch of
    an epoch is filled up with rows of padding, which have no targets and so no part in the mean loss.
    """

    def __init__(self, sequences: Sequences, device: torch.device):
        self.sequences, self.size = sequences, len(sequences)
        batch = sequences.at(range(self.size))
        longest = batch.inputs.shape[1]
        length = max(LENGTH, -(-longest // MULTIPLE) * MULTIPLE) if device.type == "cuda" else longest
        more = (0, length - longest, 0, 1)
        self.inputs: Int[Tensor, "N T"] = F.pad(batch.inputs, more, value=PADDING).to(device)
        self.targets: Int[Tensor, "N T"] = F.pad(batch.targets, more, value=IGNORED).to(device)
        self.tokens = int(batch.counted.sum())

    @cached_property
    def portions(self) -> list[tuple[Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T V"]]]:
        """For measuring: inputs, targets and what may come next, short sequences first, no longer than they are."""
        legal = self.sequences.legal(range(self.size))
        lengths = legal.any(dim=-1).sum(dim=-1)
        portions = []
        for rows in lengths.argsort(stable=True).split(AT_ONCE):
            time = min(-(-int(lengths[rows].max()) // MULTIPLE) * MULTIPLE, legal.shape[1])
            there = rows.to(self.inputs.device)
            allowed = legal[rows, :time].to(self.inputs.device)
            portions.append((self.inputs[there, :time], self.targets[there, :time], allowed))
        return portions

    def steps_of(self, seed: int, epoch: int) -> tuple[Int[Tensor, " B"], ...]:
        """Which rows each step of an epoch has."""
        rows = torch.tensor(order(self.size, seed, epoch), device=self.inputs.device)
        missing = -self.size % BATCH if rows.is_cuda else 0
        return F.pad(rows, (0, missing), value=self.size).split(BATCH)


class RegBench(TokenTask):
    """The whole training set on the device; a model is measured on the validation sequences after each epoch."""

    selects: ClassVar = {"valid_loss": operator.lt, "accuracy": operator.gt, "tvd": operator.lt}
    batch_size = BATCH

    def __init__(
        self,
        languages: RegBenchTask,
        *,
        seed: int = 0,
        device: torch.device = EAGER.device,
        folder: Path | None = None,
    ):
        names: tuple[SplitName, ...] = ("train", "validation", "test")
        self.splits = {name: Split(languages.sequences(name, folder=folder), device) for name in names}
        self.steps_per_epoch = -(-languages.environments // BATCH)
        self.tokens_per_step = self.splits["train"].tokens / self.steps_per_epoch
        self._steps = lru_cache(maxsize=1)(partial(self.splits["train"].steps_of, seed))
        self._validation: tuple[Any, Callable[[], Tensor]] | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        """One token per character, the separator at the end of a text."""
        return character_tokenizer(VOCABULARY, name="regbench", end_of_text=SEPARATOR)

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        chosen, train = self._steps(epoch)[place][rows], self.splits["train"]
        return Batch(train.inputs[chosen], train.targets[chosen])

    def evaluate(self, model: LanguageModel, runtime: Runtime = EAGER) -> dict[str, float]:
        """The loss, accuracy and distance on the validation sequences; captured as a CUDA graph by the second call."""
        if self._validation is None or self._validation[0] is not model:
            sums = partial(self.sums, model, "validation", runtime)
            captured = runtime.device.type == "cuda"
            self._validation = model, CapturedFunction(sums, warm_up=1) if captured else sums
        found = metrics(self._validation[1]())
        return {"valid_loss": found["loss"], "accuracy": found["accuracy"], "tvd": found["tvd"]}

    def test(self, model: LanguageModel, runtime: Runtime = EAGER) -> dict[str, float]:
        """The scores on the test, and those with logits divided by the temperature that is best on the validation."""
        temperature = self.best_temperature(model, runtime)
        scores = metrics(self.sums(model, "test", runtime))
        divided = metrics(self.sums(model, "test", runtime, temperature))
        scores |= {"temperature": temperature}
        return scores | {f"{name}_at_temperature": divided[name] for name in ("loss", "tvd")}

    @torch.no_grad()
    def sums(
        self, model: LanguageModel, split: str, runtime: Runtime = EAGER, temperature: float = 1.0
    ) -> Float[Tensor, " 5"]:
        """Loss, targets, positions, right answers and distances of a split, added up on the device."""
        total = torch.zeros(5, dtype=torch.float64, device=self.splits[split].inputs.device)
        for inputs, targets, legal in self.splits[split].portions:
            logits = _logits(model, inputs, runtime) / temperature
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
            total += torch.cat([torch.stack([loss, (targets != IGNORED).sum()]), sums(logits.softmax(dim=-1), legal)])
        return total

    @torch.no_grad()
    def best_temperature(self, model: LanguageModel, runtime: Runtime = EAGER) -> float:
        """By what to divide the logits for the lowest loss on the validation sequences."""
        split = self.splits["validation"]
        losses = torch.zeros(len(TEMPERATURES), device=split.inputs.device, dtype=torch.float64)
        for inputs, targets, _ in split.portions:
            answered = targets != IGNORED
            logits, answers = _logits(model, inputs, runtime)[answered], targets[answered]
            losses += torch.stack([F.cross_entropy(logits / t, answers, reduction="sum") for t in TEMPERATURES])
        return TEMPERATURES[int(losses.argmin())]


def _logits(model: LanguageModel, inputs: Int[Tensor, "B T"], runtime: Runtime) -> Float[Tensor, "B T V"]:
    """In single precision, whatever the model computes in."""
    with runtime.autocast():
        features, _ = model.features(model.embedding(inputs), block_fn=without_state)
    return F.linear(features.float(), model.output.float())


def metrics(total: Float[Tensor, " 5"]) -> dict[str, float]:
    """The mean loss of all targets, and accuracy and distance at all positions. Waits for the device."""
    loss, targets, positions, right, distance = total.tolist()
    return {"loss": loss / targets, "accuracy": right / positions, "tvd": distance / positions}


def describe(sequences: Sequences, number: int = 0) -> str:
    """One sequence and its automaton, for people to read."""
    edges = sequences.automata.edges[number]
    lines = []
    for state in range(int(sequences.automata.states[number])):
        steps = (f"{LETTERS[a]} -> {edges[state, a]}" for a in np.flatnonzero(edges[state] >= 0))
        lines.append(f"{state}: {', '.join(steps)}")
    text = "".join(VOCABULARY[token] for token in sequences.tokens[number]).rstrip(VOCABULARY[PADDING])
    return "\n".join([*lines, "", *text.split(VOCABULARY[SEPARATOR])])


def _checksum(content: bytes, file: Path) -> bytes:
    """Of the content and the name: the data of another split or size does not pass for these."""
    return sha256(content + file.name.encode()).digest()


def _save(sequences: Sequences, file: Path) -> None:
    """A .npz file with its own checksum behind it, which readers of .npz files skip."""
    content = io.BytesIO()
    np.savez(content, tokens=sequences.tokens, edges=sequences.automata.edges)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {file.parent}: {one_line(error)}") from error
    with atomic_write(file) as tmp:
        tmp.write_bytes(content.getvalue() + _checksum(content.getvalue(), file))


def _load(file: Path, limit: int) -> Sequences | None:
    """What was saved; None where there is nothing, not all of it, or more than `limit` bytes."""
    try:
        content = read_bytes(file, limit)
    except (OSError, UserError):
        return None
    content, checksum = content[:-32], content[-32:]
    if _checksum(content, file) != checksum:
        return None
    arrays = np.load(io.BytesIO(content))
    return Sequences(arrays["tokens"], Automata(arrays["edges"]))
