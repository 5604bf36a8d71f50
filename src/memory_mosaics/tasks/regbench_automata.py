"""Random languages for RegBench: probabilistic automata, many at a time. Akyürek et al. 2024 (arXiv 2401.12973).

An automaton has at most 12 states and 18 letters. Each state has one to three outgoing letters, equally likely, each to
another state; a string starts in state 0 and may end anywhere. Before use an automaton is reduced: states that allow
the same strings are one, states never reached are gone, and the rest is numbered in the order a walk by letters finds
them. So two automata are equal as arrays exactly if their languages are.

The letters here: B automata, S = 12 states, A = 18 letters, K strings of an automaton, L letters of a string.
"""

from dataclasses import dataclass

import numpy as np

from memory_mosaics.errors import UserError
from memory_mosaics.shapes import Bool, Float, Int

STATES = 12
LETTERS = "abcdefghijklmnopqr"
A = len(LETTERS)
FEWEST = 4  # states before reduction, and letters of an alphabet
DEGREES = 3  # most outgoing letters of a state


@dataclass(frozen=True)
class Automata:
    """`edges[b, s, a]` is the state after letter `a` in state `s` of automaton `b`, -1 where no string goes on so."""

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
        """How many states a reduced automaton has: every one of them has an outgoing letter."""
        return self.legal.any(axis=2).sum(axis=1)

    def walk(self, chance: Float[np.ndarray, "B K L"]) -> Int[np.ndarray, "B K L"]:
        """Letters of strings from the start, one for each number drawn from [0, 1)."""
        rows = np.arange(len(self))[:, None]
        letters = np.argsort(~self.legal, axis=2, kind="stable").astype(np.int8)  # outgoing ones first
        degree = self.legal.sum(axis=2)
        state = np.zeros(chance.shape[:2], dtype=np.int64)
        text = np.empty(chance.shape, dtype=np.int8)
        for place in range(chance.shape[2]):
            choice = (chance[:, :, place] * degree[rows, state]).astype(np.int64)
            text[:, :, place] = letter = letters[rows, state, choice]
            state = self.edges[rows, state, letter]
        return text

    def read(self, letters: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
        """The state after each letter of a text; whatever is no letter (below 0) begins a new string."""
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


def sample(rng: np.random.Generator, count: int) -> Automata:
    """Automata as the benchmark draws them, reduced."""
    return reduced(draw(rng, count))


def draw(rng: np.random.Generator, count: int) -> Automata:
    """Automata before reduction. Unused states have edges too; nothing leads to them.

    Sorting random numbers draws without replacement. A state's letters and targets pair up in the order drawn.
    """
    states = rng.integers(FEWEST, STATES + 1, size=(count, 1, 1))
    alphabet = rng.integers(FEWEST, A + 1, size=(count, 1))
    degree = rng.integers(1, DEGREES + 1, size=(count, STATES, 1))
    allowed = rng.random((count, A)).argsort(axis=1).argsort(axis=1) < alphabet
    letters = _first(rng.random((count, STATES, A)), allowed[:, None, :])
    others = (np.arange(STATES) < states) & ~np.eye(STATES, dtype=bool)
    targets = _first(rng.random((count, STATES, STATES)), others)
    targets = np.where(np.arange(DEGREES) < degree, targets, -1).astype(np.int8)
    edges = np.full((count, STATES, A), -1, dtype=np.int8)
    np.put_along_axis(edges, letters, targets, axis=2)
    return Automata(edges)


def _first(chance: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """The places of the three smallest numbers among those allowed, smallest first."""
    return np.where(allowed, chance, 2.0).argsort(axis=-1)[..., :DEGREES]


def reduced(automata: Automata) -> Automata:
    """The smallest automata with the same languages. Probabilities stay: they follow from the letters of a state."""
    edges = automata.edges
    first = _equivalent(automata).argmax(axis=2).astype(np.int8)  # of its kind, for each state
    rows = np.arange(len(edges))[:, None, None]
    return numbered(np.where(edges >= 0, first[rows, edges], -1))


def _equivalent(automata: Automata) -> Bool[np.ndarray, "B S S"]:
    """Which states allow the same strings: the same letters, and after each of them equivalent states.

    All pairs with the same letters are taken to be equivalent until a letter leads to a pair that is not.
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


def numbered(edges: Int[np.ndarray, "B S A"]) -> Automata:
    """The states that can be reached, numbered by when a walk, breadth first and letter by letter, finds them."""
    rows = np.arange(len(edges))
    number = np.full((len(edges), STATES + 1), -1, dtype=np.int8)  # the last one is for missing edges
    number[:, 0] = 0
    queue = np.zeros((len(edges), STATES), dtype=np.int64)
    found = np.ones(len(edges), dtype=np.int64)
    result = np.full_like(edges, -1)
    for place in range(STATES):
        following = edges[rows, queue[:, place]]  # (B, A)
        following[found <= place] = -1
        for letter in range(A):
            target = following[:, letter]
            new = np.flatnonzero((target >= 0) & (number[rows, target] < 0))
            number[new, target[new]] = found[new]
            queue[new, found[new]] = target[new]
            found[new] += 1
        result[:, place] = np.take_along_axis(number, following.astype(np.int64), axis=1)
    return Automata(result)
