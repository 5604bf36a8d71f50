"""RegBench: does a model learn a new language from its context? Akyürek et al. 2024 (arXiv 2401.12973).

A language is a random automaton. A sequence is 10 to 19 strings of one language, each of 1 to 49 letters, joined by a
separator. There is one sequence per language, and the languages of the test are new. Figure 9 of the Memory Mosaics
paper shows the scores, its table 2 those on new sequences of the training languages.

    automaton   0: a -> 1, c -> 2     1: b -> 0     2: a -> 1, b -> 0          start in 0

    inputs      a  b  c  a  |  c  b  a  b  c  |  c  a  b
    targets     b  c  a  -  c  b  a  b  c  -  c  a  b  a       no target at the end of a string
    legal       b ac ab  b ac ab ac  b ac ab ac ab  b ac       what may come next, all equally likely
    counted     x  x  x  x  x  x  x  x  x  x  x  x  x  x       also at the end of a string, which could continue

Accuracy is the share of positions where the most likely token is a legal one. The distance (TVD) is half the sum of the
absolute differences of predicted and true probabilities, over all 20 tokens. Both are means over all positions of all
sequences, also the first, so that no model reaches 1 and 0.

An automaton has at most 12 states and 18 letters. Each state has one to three outgoing letters, equally likely, each
leading to another state; a string starts in state 0 and may end anywhere. Automata are minimized: equivalent states are
merged, unreachable ones removed, and the rest numbered breadth first. So two automata are equal as arrays exactly if
their languages are equal. Shapes: B automata, S = 12 states, A = 18 letters, K strings per automaton, L letters.

Sequence i of a split depends on the seed, the split and i alone: the training languages of a small benchmark are the
first ones of a larger one, and all sizes share one test. Splits are independent draws. As in the original, a language
may be drawn twice (1% of 20,000, nearly all of one or two states). `distinct` replaces such languages: then a split
also depends on those drawn before it, and the test on none.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain, count
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.config import part
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.language_model import LanguageModel, last_hidden_state
from memory_mosaics.runtime import CapturedFunction, Runtime
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.tasks.synthetic import IGNORED, Arrays, SyntheticData
from memory_mosaics.tasks.task import EAGER, Batch, CountedBatch, TokenTask
from memory_mosaics.text.tokenizer import Tokenizer, character_tokenizer

STATES = 12
LETTERS = "abcdefghijklmnopqr"
A = len(LETTERS)
MIN_SIZE = 4  # states before minimization, and letters of an alphabet
MAX_DEGREE = 3  # outgoing letters of a state
VOCABULARY = "." + LETTERS + "|"  # a token is an index into it: padding, letters, the separator
PADDING, SEPARATOR = 0, len(VOCABULARY) - 1
STRINGS = (10, 19)  # in a sequence
LENGTHS = (1, 49)  # letters in a string
BLOCK = 256  # sequences drawn at a time; the sequences of a seed depend on it
MAX_SEQUENCES = 10_000_000  # of a split, about a kilobyte each
BATCH = 32  # sequences per step
LENGTH, MULTIPLE = 704, 64  # sequences are padded to these on CUDA, so that all sizes share one compilation
EVAL_BATCH = 128
TEMPERATURES = torch.logspace(-3, 3, 181, base=2).tolist()  # from 1/8 to 8, 2.3 % apart

SplitName = Literal["test", "validation", "train"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)  # in the order of drawing, so that no test depends on training
ORDERS = 4  # of the n-grams
ANCHORS = ("uniform", *(f"{order}-gram" for order in range(1, ORDERS + 1)))


@dataclass(frozen=True)
class Automata:
    """`edges[b, s, a]` is the state after letter `a` in state `s` of automaton `b`; -1 if the letter is not allowed."""

    edges: Int[np.ndarray, "B S A"]

    def __len__(self) -> int:
        return len(self.edges)

    def __getitem__(self, rows: slice | list[int]) -> "Automata":
        return Automata(self.edges[rows])

    @property
    def legal(self) -> Bool[np.ndarray, "B S A"]:
        """The letters that may come next in each state, all with the same probability."""
        return self.edges >= 0

    @property
    def states(self) -> Int[np.ndarray, " B"]:
        """The number of states of minimized automata: every state has an outgoing letter."""
        return self.legal.any(axis=2).sum(axis=1)

    def sample_strings(self, chance: Float[np.ndarray, "B K L"]) -> Int[np.ndarray, "B K L"]:
        """Return the letters of K strings per automaton, chosen by random numbers in [0, 1)."""
        rows = np.arange(len(self))[:, None]
        letters = np.argsort(~self.legal, axis=2, kind="stable").astype(np.int8)  # outgoing ones first
        degree = self.legal.sum(axis=2)
        state = np.zeros(chance.shape[:2], dtype=np.int64)
        text = np.empty(chance.shape, dtype=np.int8)
        for position in range(chance.shape[2]):
            choice = (chance[:, :, position] * degree[rows, state]).astype(np.int64)
            text[:, :, position] = letter = letters[rows, state, choice]
            state = self.edges[rows, state, letter]
        return text

    def trace(self, letters: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
        """Return the state after each letter of a text; a negative number starts a new string."""
        rows = np.arange(len(self))
        states = np.empty(letters.shape, dtype=np.int8)
        state = np.zeros(len(self), dtype=np.int8)
        for t in range(letters.shape[1]):
            letter = letters[:, t]
            states[:, t] = state = np.where(letter >= 0, self.edges[rows, state, letter], 0)
            if (state < 0).any():
                row = int(state.argmin())
                raise UserError(f"text {row} is not of the language it is read by: letter {t} cannot come there")
        return states


def draw_automata(rng: np.random.Generator, count: int) -> Automata:
    """Draw automata that are not minimized. Unreachable states have edges too.

    Sorting random numbers draws without replacement. The i-th letter of a state leads to its i-th target.
    """
    states = rng.integers(MIN_SIZE, STATES + 1, size=(count, 1, 1))
    alphabet = rng.integers(MIN_SIZE, A + 1, size=(count, 1))
    degree = rng.integers(1, MAX_DEGREE + 1, size=(count, STATES, 1))
    allowed = rng.random((count, A)).argsort(axis=1).argsort(axis=1) < alphabet
    letters = _first(rng.random((count, STATES, A)), allowed[:, None, :])
    others = (np.arange(STATES) < states) & ~np.eye(STATES, dtype=bool)
    targets = _first(rng.random((count, STATES, STATES)), others)
    targets = np.where(np.arange(MAX_DEGREE) < degree, targets, -1).astype(np.int8)
    edges = np.full((count, STATES, A), -1, dtype=np.int8)
    np.put_along_axis(edges, letters, targets, axis=2)
    return Automata(edges)


def _first(chance: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return the indices of the three smallest numbers among those allowed, in order."""
    return np.where(allowed, chance, 2.0).argsort(axis=-1)[..., :MAX_DEGREE]


def minimize(automata: Automata) -> Automata:
    """Return the smallest automata with the same languages."""
    edges = automata.edges
    first = _equivalent(automata).argmax(axis=2).astype(np.int8)  # the first state equivalent to each
    rows = np.arange(len(edges))[:, None, None]
    return renumber(np.where(edges >= 0, first[rows, edges], -1))


def _equivalent(automata: Automata) -> Bool[np.ndarray, "B S S"]:
    """Return which states allow the same strings: the same letters, each leading to equivalent states.

    All pairs with the same letters are considered equivalent until a letter leads to a pair that is not.
    """
    masks = automata.legal @ (1 << np.arange(A))  # a state's letters as bits
    same = masks[:, :, None] == masks[:, None, :]
    b, s, t = np.nonzero(same & ~np.eye(STATES, dtype=bool))
    while True:
        after_s, after_t = automata.edges[b, s], automata.edges[b, t]  # (pairs, A); -1 in both, or in neither
        stay = same[b[:, None], after_s, after_t].all(axis=1)
        if stay.all():
            return same
        same[b[~stay], s[~stay], t[~stay]] = False
        b, s, t = b[stay], s[stay], t[stay]


def renumber(edges: Int[np.ndarray, "B S A"]) -> Automata:
    """Keep the reachable states, numbered breadth first in the order of the letters."""
    rows = np.arange(len(edges))
    number = np.full((len(edges), STATES + 1), -1, dtype=np.int8)  # the last one is for missing edges
    number[:, 0] = 0
    queue = np.zeros((len(edges), STATES), dtype=np.int64)
    found = np.ones(len(edges), dtype=np.int64)
    result = np.full_like(edges, -1)
    for state in range(STATES):
        following = edges[rows, queue[:, state]]  # (B, A)
        following[found <= state] = -1
        for letter in range(A):
            target = following[:, letter]
            new = np.flatnonzero((target >= 0) & (number[rows, target] < 0))
            number[new, target[new]] = found[new]
            queue[new, found[new]] = target[new]
            found[new] += 1
        result[:, state] = np.take_along_axis(number, following.astype(np.int64), axis=1)
    return Automata(result)


@dataclass(frozen=True, kw_only=True)
class RegBenchData:
    """The languages and their sequences.

    Args:
        environments: Training languages, with one sequence each. The papers have 100 to 40,000.
        held_out: Sequences for validation, and as many for the test. The papers have 250 or 500; 100 in distribution.
        in_distribution: Validate and test on new sequences of the training languages.
        distinct: Never use a language twice, in one split or in two.
        seed: Another seed is another benchmark.
    """

    environments: int = 1000
    held_out: int = 500
    in_distribution: bool = False
    distinct: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_range(1, MAX_SEQUENCES, environments=self.environments, held_out=self.held_out)
        if self.seed < 0:
            raise UserError(f"seed must be at least 0, not {self.seed}")

    @lru_cache(maxsize=6)  # noqa: B019 - runs of one process share them, and no more are kept
    def sequences(self, split: SplitName) -> "Sequences":
        """Return all sequences of a split."""
        languages = self._languages(split)
        automata = Automata(languages[np.arange(self._size(split)) % len(languages)])
        blocks = range(0, len(automata), BLOCK)
        parts = [_texts(self._rng(split, 1, b // BLOCK), automata[slice(b, b + BLOCK)]) for b in blocks]
        longest = max(part.shape[1] for part in parts)
        padded = [np.pad(part, ((0, 0), (0, longest - part.shape[1]))) for part in parts]
        return Sequences(np.concatenate(padded), automata)

    def _size(self, split: SplitName) -> int:
        return self.environments if split == "train" else self.held_out

    def _rng(self, split: SplitName, what: int, block: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, SPLITS.index(split), what, block))

    def _languages(self, split: SplitName) -> np.ndarray:
        """The edges of the automata of a split: (languages, states, letters)."""
        if self.in_distribution:
            return self._draw_languages("train", set())
        known: set[bytes] = set()
        for other in SPLITS[: SPLITS.index(split)] if self.distinct else ():
            self._draw_languages(other, known)
        return self._draw_languages(split, known)

    def _draw_languages(self, split: SplitName, known: set[bytes]) -> np.ndarray:
        """Draw the automata of a split, without those `known` if they are to be distinct."""
        blocks = (minimize(draw_automata(self._rng(split, 0, block), BLOCK)).edges for block in count())
        drawn, chosen = chain.from_iterable(blocks), []
        while len(chosen) < self._size(split):
            edges = next(drawn)
            if not (self.distinct and edges.tobytes() in known):
                chosen.append(edges)
                known.add(edges.tobytes())
        return np.stack(chosen)


def _texts(rng: np.random.Generator, automata: Automata) -> Int[np.ndarray, "B length"]:
    """Draw a sequence of each automaton of a block. A shorter block draws as many random numbers."""
    (fewest, most), (shortest, longest), size = STRINGS, LENGTHS, len(automata)
    strings = rng.integers(fewest, most, endpoint=True, size=(BLOCK, 1, 1))[:size]
    lengths = rng.integers(shortest, longest, endpoint=True, size=(BLOCK, most, 1))[:size]
    letters = automata.sample_strings(rng.random((BLOCK, most, longest))[:size])
    string, position = np.arange(most)[:, None], np.arange(longest + 1)
    tokens = np.where(position < lengths, np.pad(letters + 1, ((0, 0), (0, 0), (0, 1))), SEPARATOR).astype(np.int8)
    used = (string < strings) & (position < lengths + (string < strings - 1))  # no separator after the last string
    total = used.sum(axis=(1, 2))[:, None]
    text = np.full((size, total.max()), PADDING, dtype=np.int8)
    text[np.arange(text.shape[1]) < total] = tokens[used]
    return text


@dataclass(frozen=True)
class Sequences:
    """The sequences of a split, padded to the longest, with their automata. The inputs have one token less: T."""

    tokens: Int[np.ndarray, "N length"]
    automata: Automata

    def __len__(self) -> int:
        return len(self.tokens)

    def at(self, numbers: Sequence[int]) -> CountedBatch:
        """Return sequences by number. All positions except padding are counted, also those without a target."""
        text = torch.from_numpy(self.tokens[list(numbers)].astype(np.int64))
        targets = text[:, 1:]
        counted = targets != PADDING
        inputs = text[:, :-1].where(counted, PADDING)
        return CountedBatch(inputs, targets.where(counted & (targets != SEPARATOR), IGNORED), counted)

    def legal(self, numbers: Sequence[int]) -> Bool[Tensor, "B T vocabulary"]:
        """Return the tokens that may come next at every counted position, all equally likely; none elsewhere."""
        text, automata = self.tokens[list(numbers)], self.automata[list(numbers)]
        states = automata.trace(np.where(text == SEPARATOR, -1, text - 1)[:, :-1])
        legal = torch.zeros(*states.shape, len(VOCABULARY), dtype=torch.bool)
        legal[:, :, 1:SEPARATOR] = torch.from_numpy(automata.legal[np.arange(len(numbers))[:, None], states])
        return legal & torch.from_numpy(text[:, 1:] != PADDING)[:, :, None]


def score_sums(
    probabilities: Float[Tensor, "B T vocabulary"], legal: Bool[Tensor, "B T vocabulary"]
) -> Float[Tensor, " 3"]:
    """Sum positions, correct predictions and distances on the device. Probabilities need not sum to 1."""
    choices = legal.sum(dim=-1)
    counted = choices > 0
    truth = legal / choices.clamp(min=1)[..., None]
    right = legal.gather(-1, probabilities.argmax(dim=-1, keepdim=True))[..., 0]
    distance = (probabilities - truth).abs().sum(dim=-1, dtype=torch.float64) / 2
    return torch.stack([counted.sum(dtype=torch.float64), right.sum(dtype=torch.float64), (distance * counted).sum()])


class Split:
    """The sequences of a split on a device, all of one length, followed by one row of padding.

    On CUDA, where steps are captured, shapes never change: all benchmarks share one length, and the last batch of an
    epoch is filled up with rows of padding, which have no targets and do not change the mean loss.
    """

    def __init__(self, sequences: Sequences, device: torch.device):
        self.sequences, self.size = sequences, len(sequences)
        batch = sequences.at(range(self.size))
        longest = batch.inputs.shape[1]
        length = max(LENGTH, -(-longest // MULTIPLE) * MULTIPLE) if device.type == "cuda" else longest
        padding = (0, length - longest, 0, 1)
        self.inputs: Int[Tensor, "N T"] = F.pad(batch.inputs, padding, value=PADDING).to(device)
        self.targets: Int[Tensor, "N T"] = F.pad(batch.targets, padding, value=IGNORED).to(device)
        self.tokens = int(batch.counted.sum())

    @cached_property
    def eval_batches(self) -> list[tuple[Int[Tensor, "B T"], Int[Tensor, "B T"], Bool[Tensor, "B T V"]]]:
        """Inputs, targets and legal tokens, short sequences first, with little padding."""
        legal = self.sequences.legal(range(self.size))
        lengths = legal.any(dim=-1).sum(dim=-1)
        batches = []
        for rows in lengths.argsort(stable=True).split(EVAL_BATCH):
            time = min(-(-int(lengths[rows].max()) // MULTIPLE) * MULTIPLE, legal.shape[1])
            allowed, rows = legal[rows, :time].to(self.inputs.device), rows.to(self.inputs.device)
            batches.append((self.inputs[rows, :time], self.targets[rows, :time], allowed))
        return batches

    def epoch_batches(self, seed: int, epoch: int) -> tuple[Int[Tensor, " B"], ...]:
        """Return the rows of each step of an epoch, which has every sequence once, in an order of its own."""
        order = np.random.default_rng((seed, epoch)).permutation(self.size)
        rows = torch.from_numpy(order).to(self.inputs.device)
        missing = -self.size % BATCH if rows.is_cuda else 0
        return F.pad(rows, (0, missing), value=self.size).split(BATCH)


class RegBench(TokenTask):
    """The training set is kept on the device; a model is evaluated on the validation sequences."""

    selects: ClassVar = {"valid_loss": operator.lt, "accuracy": operator.gt, "tvd": operator.lt}
    batch_size = BATCH

    def __init__(self, languages: RegBenchData, *, seed: int = 0, device: torch.device = EAGER.device):
        self.splits = {name: Split(languages.sequences(name), device) for name in SPLITS}
        self.steps_per_epoch = -(-languages.environments // BATCH)
        self.divisible = languages.environments % BATCH == 0  # or the last batch of an epoch is smaller
        self.tokens_per_step = self.splits["train"].tokens / self.steps_per_epoch
        self._epoch_batches = lru_cache(maxsize=1)(partial(self.splits["train"].epoch_batches, seed))
        self._validation: tuple[Any, Callable[[], Tensor]] | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        """One token per character; the separator ends a text."""
        return character_tokenizer(VOCABULARY, name="regbench", end_of_text=SEPARATOR)

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        chosen, train = self._epoch_batches(epoch)[index][rows], self.splits["train"]
        return Batch(train.inputs[chosen], train.targets[chosen])

    def evaluate(self, model: LanguageModel, runtime: Runtime = EAGER) -> dict[str, float]:
        """Return loss, accuracy and distance on the validation sequences; the second call captures a CUDA graph."""
        if self._validation is None or self._validation[0] is not model:
            compute = partial(self.sums, model, "validation", runtime)
            captured = runtime.device.type == "cuda"
            self._validation = model, CapturedFunction(compute, warm_up=1) if captured else compute
        found = metrics(self._validation[1]())
        return {"valid_loss": found["loss"], "accuracy": found["accuracy"], "tvd": found["tvd"]}

    def test(self, model: LanguageModel, runtime: Runtime = EAGER) -> dict[str, float]:
        """Return the scores on the test, also with the temperature that has the lowest validation loss."""
        temperature = self.best_temperature(model, runtime)
        scores = metrics(self.sums(model, "test", runtime))
        divided = metrics(self.sums(model, "test", runtime, temperature))
        scores |= {"temperature": temperature}
        return scores | {f"{name}_at_temperature": divided[name] for name in ("loss", "tvd")}

    @torch.no_grad()
    def sums(
        self, model: LanguageModel, split: str, runtime: Runtime = EAGER, temperature: float = 1.0
    ) -> Float[Tensor, " 5"]:
        """Sum losses, targets, positions, correct predictions and distances of a split on the device."""
        total = torch.zeros(5, dtype=torch.float64, device=self.splits[split].inputs.device)
        for inputs, targets, legal in self.splits[split].eval_batches:
            logits = _logits(model, inputs, runtime) / temperature
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
            total += torch.cat(
                [torch.stack([loss, (targets != IGNORED).sum()]), score_sums(logits.softmax(dim=-1), legal)]
            )
        return total

    @torch.no_grad()
    def best_temperature(self, model: LanguageModel, runtime: Runtime = EAGER) -> float:
        """Return the temperature with the lowest loss on the validation sequences."""
        split = self.splits["validation"]
        losses = torch.zeros(len(TEMPERATURES), device=split.inputs.device, dtype=torch.float64)
        for inputs, targets, _ in split.eval_batches:
            answered = targets != IGNORED
            logits, answers = _logits(model, inputs, runtime)[answered], targets[answered]
            losses += torch.stack([F.cross_entropy(logits / t, answers, reduction="sum") for t in TEMPERATURES])
        return TEMPERATURES[int(losses.argmin())]


def _logits(model: LanguageModel, inputs: Int[Tensor, "B T"], runtime: Runtime) -> Float[Tensor, "B T V"]:
    """Compute logits in float32, whatever the precision of the model."""
    with runtime.autocast():
        features = last_hidden_state(model, inputs)
    return F.linear(features.float(), model.output.float())


def metrics(total: Float[Tensor, " 5"]) -> dict[str, float]:
    """Return the mean loss of all targets, and accuracy and distance at all positions."""
    loss, targets, positions, right, distance = total.tolist()
    return {"loss": loss / targets, "accuracy": right / positions, "tvd": distance / positions}


def anchors(sequences: Sequences, *, size: int = 16) -> dict[str, dict[str, float]]:
    """Return accuracy and distance of predictors that need no training: a scale for the scores of models.

    An in-context n-gram predicts from what followed the last n - 1 letters earlier in the same sequence. A model with
    the scores of order 1 knows the letters of a language and no more; order 2 is induction over one letter.

        order       1    2    3    4    uniform
        accuracy  .48  .83  .93  .95        .10        the uniform predictor's is that of a random token
        distance  .62  .33  .26  .27        .90
    """
    by_length = torch.from_numpy((sequences.tokens != PADDING).sum(axis=1).argsort())  # short ones share batches
    numbers = (rows.tolist() for rows in by_length.split(size))
    return _anchors((sequences.at(rows).inputs, sequences.legal(rows)) for rows in numbers)


def _anchors(batches: Iterable[tuple[Int[Tensor, "B T"], Bool[Tensor, "B T V"]]]) -> dict[str, dict[str, float]]:
    """Return the scores of the predictors on batches of inputs and legal tokens."""
    totals = dict.fromkeys(ANCHORS, torch.zeros(3))
    for inputs, legal in batches:
        longest = int(legal.any(dim=-1).sum(dim=1).max())
        inputs, legal = inputs[:, :longest], legal[:, :longest]
        for name, probabilities in zip(ANCHORS, [uniform(inputs), *ngrams(inputs, ORDERS)], strict=True):
            totals[name] = totals[name] + score_sums(probabilities, legal)
    positions, _, distance = totals["uniform"]
    totals["uniform"] = torch.stack([positions, positions - distance, distance])
    return {name: {"accuracy": (t[1] / t[0]).item(), "tvd": (t[2] / t[0]).item()} for name, t in totals.items()}


def uniform(inputs: Int[Tensor, "B T"]) -> Float[Tensor, "B T vocabulary"]:
    """Return equal probabilities of all tokens, also of padding and separator."""
    return torch.full((*inputs.shape, len(VOCABULARY)), 1 / len(VOCABULARY), device=inputs.device)


def ngrams(inputs: Int[Tensor, "B T"], highest: int) -> list[Float[Tensor, "B T vocabulary"]]:
    """Return the probabilities of the next token by the counts of this sequence so far, for orders 1 to `highest`.

    A letter seen after the context c, the last n - 1 letters, has the probability count(c letter) / count(c), where
    count(c) includes the current c and those at the end of strings. The rest is distributed over letters seen elsewhere
    but not after c, in proportion to the estimate of the next lower order. A string is padded with blanks at its start.
    If all letters were seen after c, the probabilities sum to less than 1.
    """
    text = F.pad(inputs, (1, 0), value=SEPARATOR)  # the first string starts like all others
    letters = F.one_hot(text, len(VOCABULARY))[:, :, 1:SEPARATOR].float()
    following = F.pad(letters[:, 1:], (0, 0, 0, 1))
    times = letters.cumsum(dim=1)
    estimates = [times / times.sum(dim=-1, keepdim=True).clamp(min=1)]
    for length in range(1, highest):
        context = _contexts(text, length).int()
        again = (context[:, :, None] == context[:, None, :]).float().tril_()  # (B, now, then)
        followed = again @ following - following  # what follows the current position is unknown
        seen = followed / again.sum(dim=-1, keepdim=True)
        others = estimates[-1].where((times > 0) & (followed == 0), 0)
        left = (1 - seen.sum(dim=-1, keepdim=True)) / others.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        estimates.append(seen + left * others)
    return [F.pad(estimate[:, 1:], (1, 1)) for estimate in estimates]


def _contexts(text: Int[Tensor, "B T"], length: int) -> Int[Tensor, "B T"]:
    """Return the last letters of the current string as one number at each position; blanks are 0."""
    number, inside = torch.zeros_like(text), torch.ones_like(text, dtype=torch.bool)
    for back in range(length):
        token = F.pad(text, (back, 0), value=SEPARATOR)[:, : text.shape[1]]
        inside = inside & (token != SEPARATOR)
        number = number * len(VOCABULARY) + token.where(inside, 0)
    return number


@part("regbench")
class RegBenchExamples(SyntheticData):
    """Sequences of random languages as examples of the arena: of a number of languages, or of new ones at every step.

    A target of a test is the set of letters that may come next, bit by bit; an answer is right if it is one of them.
    A sequence that is longer than `length` ends there.
    """

    vocabulary: int = len(VOCABULARY)
    length: int = LENGTH
    examples: int = 1000
    held_out: int = 500

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary != len(VOCABULARY):
            raise UserError(f"RegBench has a vocabulary of {len(VOCABULARY)}, not {self.vocabulary}")

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        inputs, targets = np.full((count, self.length), PADDING), np.full((count, self.length), IGNORED)
        for start in range(0, count, BLOCK):
            automata = minimize(draw_automata(rng, min(BLOCK, count - start)))
            drawn, rows = Sequences(_texts(rng, automata), automata), range(len(automata))
            batch, legal = drawn.at(rows), drawn.legal(rows).numpy()
            time = min(self.length, batch.inputs.shape[1])
            sets = (legal[:, :time] << np.arange(len(VOCABULARY))).sum(axis=-1)
            asked = batch.targets[:, :time] if training else np.where(sets > 0, sets, IGNORED)
            inputs[start : start + BLOCK, :time], targets[start : start + BLOCK, :time] = batch.inputs[:, :time], asked
        return inputs, targets

    def score(self, model: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropies to a uniform choice of the legal letters, and whether the most likely is legal."""
        asked = targets != IGNORED
        logits, legal = self.logits(model, inputs, asked), _legal(targets[asked])
        losses = -(logits.log_softmax(dim=-1) * legal).sum(dim=-1) / legal.sum(dim=-1)
        return losses, legal.gather(1, logits.argmax(dim=-1, keepdim=True))[:, 0].float()

    def solve(self, row: Sequence[int]) -> dict[int, int]:
        raise NotImplementedError("the context tells only in part what may come next")

    def anchors(self, examples: Batch) -> dict[str, float]:
        """Return the accuracies of n-grams of the sequence so far, and as a guess that of the letters alone."""
        batches = zip(examples.inputs.split(16), _legal(examples.targets).split(16), strict=True)
        accuracies = {name: scores["accuracy"] for name, scores in _anchors(batches).items() if name != "uniform"}
        return {"guess": accuracies["1-gram"]} | accuracies


def _legal(sets: Int[Tensor, "*B"]) -> Bool[Tensor, "*B vocabulary"]:
    """Return the tokens of sets that are stored bit by bit; none where there is no target."""
    return ((sets.clamp(min=0)[..., None] >> torch.arange(len(VOCABULARY), device=sets.device)) & 1).bool()
