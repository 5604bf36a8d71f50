import numpy as np
import pytest

from memory_mosaics.tasks.regbench_automata import Automata, draw, numbered, reduced, sample


@pytest.fixture(scope="module")
def drawn():
    return draw(np.random.default_rng(0), 20_000)


def test_states_have_one_to_three_letters_of_the_alphabet_and_never_themselves(drawn):
    degree = drawn.legal.sum(axis=2)
    assert np.bincount(degree.flatten(), minlength=4) / degree.size == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.01)
    assert not (drawn.edges == np.arange(12)[:, None]).any()
    targets = np.sort(drawn.edges, axis=2)[:, :, -3:]
    assert ((targets[:, :, 1:] > targets[:, :, :-1]) | (targets[:, :, :-1] < 0)).all()
    letters = drawn.legal.any(axis=1).sum(axis=1)
    assert letters.max() == 18
    assert (letters <= 4).mean() == pytest.approx(1 / 15, abs=0.01)  # the smallest of 15 sizes
    used = drawn.legal.any(axis=1).mean(axis=0)
    assert used == pytest.approx(np.full(18, used.mean()), abs=0.02)
    assert np.bincount(drawn.edges.max(axis=(1, 2)) + 1, minlength=13)[4:] / 20_000 == pytest.approx(1 / 9, abs=0.02)


def test_the_statistics_of_the_benchmark(drawn):
    """States and letters of 20,000 languages, against those of an implementation by other hands."""
    automata = reduced(drawn)
    assert automata.states.mean() == pytest.approx(6.9, abs=0.05)
    shares = [0.002, 0.019, 0.030, 0.142, 0.139, 0.134, 0.126, 0.123, 0.111, 0.091, 0.060, 0.024]
    assert np.bincount(automata.states, minlength=13)[1:] / 20_000 == pytest.approx(shares, abs=0.01)
    degree = automata.legal.sum(axis=2)
    degree = np.bincount(degree[degree > 0])[1:]
    assert degree / degree.sum() == pytest.approx(1 / 3, abs=0.01)
    assert automata.legal.any(axis=1).sum(axis=1).mean() == pytest.approx(7.45, abs=0.1)
    merged = automata.states < numbered(drawn.edges).states
    assert merged.mean() == pytest.approx(0.037, abs=0.005)
    twice = 1 - len({edges.tobytes() for edges in automata.edges}) / 20_000
    assert twice == pytest.approx(0.009, abs=0.003)


def continuations(edges, state, length):
    """All strings of a length from a state, the slow way."""
    if length == 0:
        return {""}
    return {
        chr(97 + letter) + rest
        for letter in np.flatnonzero(edges[state] >= 0)
        for rest in continuations(edges, edges[state, letter], length - 1)
    }


def test_reduction_keeps_the_language_and_leaves_no_two_states_alike(drawn):
    small = drawn[np.flatnonzero(drawn.edges.max(axis=(1, 2)) <= 5)[:150].tolist()]
    after = reduced(small)
    assert (after.states < 6).any()
    for before, edges, states in zip(small.edges, after.edges, after.states, strict=True):
        assert continuations(before, 0, 6) == continuations(edges, 0, 6)
        kinds = {frozenset(continuations(edges, state, 5)) for state in range(states)}
        assert len(kinds) == states  # five letters tell at most six states apart
        assert (edges[states:] == -1).all()
        assert edges.max() < states


def test_states_that_allow_the_same_strings_become_one():
    """Two ways round a circle of two letters, and a state that nothing leads to."""
    edges = np.full((1, 12, 18), -1, dtype=np.int8)
    edges[0, 0, [3, 4]] = 1, 2
    edges[0, 1, 5] = edges[0, 2, 5] = 0
    edges[0, 3, 5] = 0
    after = reduced(Automata(edges))
    assert after.states.tolist() == [2]
    assert after.edges[0, 0, [3, 4]].tolist() == [1, 1]
    assert after.edges[0, 1, 5] == 0
    assert np.array_equal(reduced(after).edges, after.edges)


def test_the_names_of_states_do_not_matter(drawn):
    """Renamed states, the start apart, give the same reduced automaton."""
    rng = np.random.default_rng(1)
    for edges in drawn.edges[:50]:
        names = np.array([0, *rng.permutation(np.arange(1, 12)), -1], dtype=np.int8)
        renamed = np.empty_like(edges)
        renamed[names[:12]] = names[edges]
        pair = reduced(Automata(np.stack([edges, renamed])))
        assert np.array_equal(pair.edges[0], pair.edges[1])


def test_walks_and_readings_agree():
    automata = sample(np.random.default_rng(2), 50)
    letters = automata.walk(np.random.default_rng(3).random((50, 4, 30)))
    for string in range(4):
        states = automata.read(letters[:, string])
        for row in range(50):
            state = 0
            for letter, read in zip(letters[row, string], states[row], strict=True):
                state = automata.edges[row, state, letter]
                assert state == read >= 0


def test_a_walk_takes_every_edge_as_often():
    edges = np.full((1, 12, 18), -1, dtype=np.int8)
    edges[0, 0, [0, 7, 17]] = 0
    letters = Automata(edges).walk(np.random.default_rng(0).random((1, 300, 100)))
    assert np.bincount(letters.flatten())[[0, 7, 17]] / 30_000 == pytest.approx(1 / 3, abs=0.01)
