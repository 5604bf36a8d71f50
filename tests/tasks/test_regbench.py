"""Sequences, splits, scores and files of RegBench. Its languages and its anchors have tests of their own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from counting import calls
from memory_mosaics.errors import UserError
from memory_mosaics.tasks.regbench import (
    IGNORED,
    PADDING,
    SEPARATOR,
    SPLITS,
    VOCABULARY,
    RegBenchTask,
    Scores,
    Sequences,
    describe,
    measure,
    score,
)
from memory_mosaics.tasks.regbench_automata import Automata, numbered

SMALL = RegBenchTask(environments=70, held_out=40)


def automaton(*states: dict[str, int]) -> Automata:
    edges = np.full((1, 12, 18), -1, dtype=np.int8)
    for number, state in enumerate(states):
        for letter, target in state.items():
            edges[0, number, VOCABULARY.index(letter) - 1] = target
    return Automata(edges)


def tokens(*texts: str) -> np.ndarray:
    longest = max(map(len, texts))
    return np.array([[VOCABULARY.index(letter) for letter in text.ljust(longest, ".")] for text in texts], np.int8)


EXAMPLE = automaton({"a": 1, "c": 2}, {"b": 0}, {"a": 1, "b": 0})  # of the module's docstring


@pytest.fixture(scope="module")
def train():
    return RegBenchTask(environments=3000).sequences("train")


def strings(sequences):
    """Of each sequence, as text."""
    rows = ("".join(VOCABULARY[token] for token in row).rstrip(".") for row in sequences.tokens)
    return [row.split("|") for row in rows]


def test_the_example_of_the_docstring():
    sequences = Sequences(tokens("abca|cbabc|caba", "cab"), EXAMPLE[[0, 0]])
    batch, legal = sequences.at([0, 1]), sequences.legal([0, 1])
    assert "".join(VOCABULARY[token] for token in batch.inputs[0]) == "abca|cbabc|cab"
    expected = [-100 if letter == "-" else VOCABULARY.index(letter) for letter in "bca-cbabc-caba"]
    assert batch.targets[0].tolist() == expected
    said = ["".join(VOCABULARY[token] for token in np.flatnonzero(row)) for row in legal[0]]
    assert " ".join(said) == "b ac ab b ac ab ac b ac ab ac ab b ac"
    assert batch.counted.sum(dim=1).tolist() == legal.any(dim=-1).sum(dim=1).tolist() == [14, 2]
    assert batch.inputs[1, 2:].tolist() == [PADDING] * 12
    assert batch.targets[1, 2:].tolist() == [IGNORED] * 12


def test_the_true_distribution_by_enumerating_all_strings():
    """P(next | string so far) is the share of all long strings that go on so among those that begin so."""
    nodes = [{"a": 1, "c": 2}, {"b": 0}, {"a": 1, "b": 0}]
    found = [("", 0, 1.0)]  # text, state, probability
    for _ in range(6):
        found = [
            (text + letter, target, share / len(nodes[state]))
            for text, state, share in found
            for letter, target in nodes[state].items()
        ]
    shares = {text: share for text, _, share in found}
    assert sum(shares.values()) == pytest.approx(1)
    sequences = Sequences(tokens("ab|cbabc|ca"), EXAMPLE)
    legal = sequences.legal([0])[0].double()
    truth = legal / legal.sum(dim=-1, keepdim=True)
    for t in range(10):
        so_far = "ab|cbabc|ca"[: t + 1].split("|")[-1]
        begun = sum(share for text, share in shares.items() if text.startswith(so_far))
        for token, letter in enumerate(VOCABULARY):
            goes_on = sum(share for text, share in shares.items() if text.startswith(so_far + letter))
            assert truth[t, token].item() == pytest.approx(goes_on / begun)


def test_sequences_are_as_long_as_they_should_be(train):
    counts, lengths = zip(*((len(row), list(map(len, row))) for row in strings(train)), strict=True)
    assert set(counts) == set(range(10, 20))
    assert {length for row in lengths for length in row} == set(range(1, 50))
    assert np.mean(counts) == pytest.approx(14.5, abs=0.2)
    assert np.mean([length for row in lengths for length in row]) == pytest.approx(25, abs=0.3)
    total = (train.tokens != PADDING).sum(axis=1)
    assert total.mean() == pytest.approx(375, abs=8)
    assert 600 < total.max() == train.tokens.shape[1] < 760


def test_inputs_targets_and_counted_positions(train):
    numbers = range(100)
    batch, legal = train.at(numbers), train.legal(numbers)
    text = torch.from_numpy(train.tokens[:100]).long()
    length = (text != PADDING).sum(dim=1, keepdim=True)
    place = torch.arange(text.shape[1] - 1)
    assert torch.equal(batch.counted, (place < length - 1).expand_as(batch.counted))
    assert torch.equal(batch.inputs, text[:, :-1].where(place < length - 1, PADDING))
    assert torch.equal(batch.targets, text[:, 1:].where(batch.counted & (text[:, 1:] != SEPARATOR), IGNORED))
    assert torch.equal(batch.counted, legal.any(dim=-1))
    scored = batch.targets != IGNORED
    assert legal[scored].gather(1, batch.targets[scored][:, None]).all()
    assert not legal[:, :, [PADDING, SEPARATOR]].any()


def test_legal_letters_are_equally_likely(train):
    numbers = range(1000)
    targets, legal = train.at(numbers).targets, train.legal(numbers)
    for degree in (2, 3):
        here = (legal.sum(dim=-1) == degree) & (targets != IGNORED)
        rank = (legal[here].cumsum(dim=-1).gather(1, targets[here][:, None]) - 1).flatten()
        assert_close(rank.bincount() / len(rank), torch.full((degree,), 1 / degree), rtol=0, atol=0.01)


def test_a_sequence_depends_on_seed_split_and_number_alone():
    large = RegBenchTask(environments=600, held_out=300)
    for split in SPLITS:
        few, many = SMALL.sequences(split), large.sequences(split)
        assert strings(few) == strings(many)[: len(few)]
        assert np.array_equal(few.automata.edges, many.automata.edges[: len(few)])
        assert strings(few) != strings(replace(SMALL, seed=1).sequences(split))
    assert len(large.sequences("validation")) == 300


def test_splits_are_other_draws():
    texts = [text for split in SPLITS for text in map("|".join, strings(SMALL.sequences(split)))]
    assert len(set(texts)) == len(texts) == 70 + 40 + 40


def test_languages_come_twice_unless_they_are_to_be_distinct():
    task = RegBenchTask(environments=6000, held_out=300)
    for distinct in (False, True):
        splits = [replace(task, distinct=distinct).sequences(split) for split in SPLITS]
        languages = [edges.tobytes() for sequences in splits for edges in sequences.automata.edges]
        twice = len(languages) - len(set(languages))
        assert (twice == 0) if distinct else (twice > 5)


def test_in_distribution_the_languages_are_those_of_training():
    task = replace(SMALL, in_distribution=True, held_out=100)
    known = task.sequences("train")
    assert strings(known) == strings(SMALL.sequences("train"))
    validation, test = task.sequences("validation"), task.sequences("test")
    for held_out in (validation, test):
        assert np.array_equal(held_out.automata.edges, known.automata.edges[np.arange(100) % 70])
        assert not {tuple(row) for row in strings(held_out)} & {tuple(row) for row in strings(known)}
        assert held_out.legal(range(100)).any()
    assert strings(validation) != strings(test)


def test_batches_are_a_function_of_seed_and_step_and_an_epoch_has_all_once():
    sequences = SMALL.sequences("train")
    batches = [sequences.batch(32, seed=5, step=step).inputs for step in range(6)]
    assert [len(batch) for batch in batches] == [32, 32, 6] * 2
    everything = {tuple(row) for row in sequences.at(range(70)).inputs.tolist()}
    for epoch in (batches[:3], batches[3:]):
        assert {tuple(row) for row in torch.cat(epoch).tolist()} == everything
    assert not torch.equal(batches[0], batches[3])
    assert torch.equal(SMALL.sequences("train").batch(32, seed=5, step=4).inputs, batches[4])
    assert not torch.equal(sequences.batch(32, seed=6, step=4).inputs, batches[4])
    parts = [sequences.batch(32, seed=5, step=4, rows=slice(rank, None, 2)) for rank in range(2)]
    assert torch.equal(torch.stack([part.inputs for part in parts], dim=1).flatten(0, 1), batches[4])


def test_scores_are_the_definition():
    sequences = SMALL.sequences("test")
    batch, legal = sequences.at(range(8)), sequences.legal(range(8))
    logits = torch.randn(*batch.inputs.shape, 20) * 3
    right, distance, positions = 0, 0.0, 0
    for row, t in batch.counted.nonzero().tolist():
        p, letters = logits[row, t].softmax(dim=0), legal[row, t].nonzero().flatten().tolist()
        right += int(p.argmax()) in letters
        distance += 0.5 * sum(abs(float(p[v]) - (v in letters) / len(letters)) for v in range(20))
        positions += 1
    found = score(logits, legal)
    assert (found.positions, found.right) == (positions, right)
    assert found.tvd == pytest.approx(distance / positions, rel=1e-5)
    assert found.accuracy == right / positions
    halves = score(logits[:3], legal[:3]) + score(logits[3:], legal[3:])
    assert (halves.positions, halves.right) == (found.positions, found.right)
    assert halves.distance == pytest.approx(found.distance)


def test_who_knows_the_truth_scores_best_and_who_is_sure_of_one_letter_pays_in_distance():
    sequences = SMALL.sequences("test")
    truths = iter([sequences.legal(numbers) for numbers in sequences.portions(16)])
    perfect = measure(lambda inputs: next(truths).float() * 1e4, sequences, size=16)
    assert (perfect.accuracy, perfect.tvd) == (1, pytest.approx(0, abs=1e-6))
    legal = sequences.legal(range(40))
    sure = score(legal.float().cumsum(dim=-1).eq(1).logical_and(legal).float() * 1e4, legal)
    degree = legal.sum(dim=-1)[legal.any(dim=-1)]
    assert (sure.accuracy, sure.tvd) == (1, pytest.approx(float((1 - 1 / degree).mean()), rel=1e-5))
    assert Scores() + sure == sure


def test_the_same_from_a_file(tmp_path, monkeypatch):
    fresh = SMALL.sequences("test")
    SMALL.sequences("test", folder=tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()
    assert np.array_equal(np.load(file)["tokens"], fresh.tokens)
    with monkeypatch.context() as patched:
        patched.delattr(RegBenchTask, "_draw")
        kept = SMALL.sequences("test", folder=tmp_path / "new")
    assert np.array_equal(kept.tokens, fresh.tokens)
    assert np.array_equal(kept.automata.edges, fresh.automata.edges)
    assert kept.tokens.dtype == fresh.tokens.dtype


def test_every_setting_and_split_has_a_file_of_its_own(tmp_path):
    changes = [{}, {"environments": 71}, {"held_out": 41}, {"in_distribution": True}, {"distinct": True}, {"seed": 1}]
    for change in changes:
        for split in SPLITS:
            replace(SMALL, **change).sequences(split, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == len(changes) * len(SPLITS)


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "text", "another"])
def test_a_damaged_file_is_made_again(tmp_path, damage):
    fresh = SMALL.sequences("train", folder=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    SMALL.sequences("test", folder=tmp_path / "another")
    (another,) = (tmp_path / "another").iterdir()
    damaged = {"cut": whole[:-100], "changed": bytes(changed), "empty": b"", "text": b"x" * 40}
    file.write_bytes((damaged | {"another": another.read_bytes()})[damage])
    assert np.array_equal(SMALL.sequences("train", folder=tmp_path).tokens, fresh.tokens)
    assert file.read_bytes() == whole


def test_drawing_takes_few_calls():
    """A hundred for each environment, run-time checks of types among them: a tenth of a second for a thousand."""
    few, many = (calls(lambda n=n: RegBenchTask(environments=n, seed=1).sequences("train")) for n in (10, 510))
    assert many - few < 100 * 500


def test_a_description_for_people():
    said = describe(Sequences(tokens("abca|cbabc", "cab"), EXAMPLE[[0, 0]]), 0)
    assert said == "0: a -> 1, c -> 2\n1: b -> 0\n2: a -> 1, b -> 0\n\nabca\ncbabc"


def test_a_text_of_another_language_is_refused():
    with pytest.raises(UserError, match="text 1 is not of the language it is read by: letter 2 cannot come there"):
        Sequences(tokens("abca", "abbc"), EXAMPLE[[0, 0]]).legal([0, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environments": 0}, "environments must be at least 1, not 0"),
        ({"held_out": -1}, "held_out must be at least 1, not -1"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
    ],
)
def test_a_wrong_setting_is_named(change, message):
    with pytest.raises(UserError, match=message):
        replace(SMALL, **change)


def test_a_folder_that_is_a_file_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match=r"cannot make the folder .*taken"):
        SMALL.sequences("test", folder=tmp_path / "taken")


def test_the_example_is_reduced_already():
    assert np.array_equal(numbered(EXAMPLE.edges).edges, EXAMPLE.edges)
