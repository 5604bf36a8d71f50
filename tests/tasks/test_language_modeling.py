import numpy as np
import pytest
import torch

from memory_mosaics.errors import UserError
from memory_mosaics.tasks.language_modeling import Windows, openings

TOKENS = np.arange(1003, dtype=np.uint16)


def test_targets_follow_inputs():
    batch = Windows(TOKENS, 10).batch(step=3, size=4)
    assert batch.inputs.shape == (4, 10)
    assert torch.equal(batch.targets, batch.inputs + 1)


def test_the_batch_of_a_step_depends_on_nothing_else():
    once, again = Windows(TOKENS, 10, seed=5), Windows(TOKENS, 10, seed=5)
    for step in (7, 2, 31):
        once.batch(step, 8)
    assert torch.equal(once.batch(9, 8).inputs, again.batch(9, 8).inputs)
    assert not torch.equal(once.batch(9, 8).inputs, Windows(TOKENS, 10, seed=6).batch(9, 8).inputs)


def test_the_rows_of_all_processes_are_the_batch():
    windows = Windows(TOKENS, 10)
    whole = windows.batch(4, 6).inputs
    parts = [windows.batch(4, 6, slice(rank * 2, rank * 2 + 2)).inputs for rank in range(3)]
    assert torch.equal(torch.cat(parts), whole)


def test_an_epoch_trains_on_each_token_once_and_epochs_differ():
    windows = Windows(TOKENS, 10)
    epochs = [
        torch.cat(
            [windows.batch(number, 1).inputs for number in range(e * windows.per_epoch, (e + 1) * windows.per_epoch)]
        )
        for e in range(3)
    ]
    for epoch in epochs:
        assert len(epoch.unique()) == epoch.numel() == windows.per_epoch * 10
        assert windows.per_epoch * 10 > len(TOKENS) - 20
    offsets = {int(epoch.min()) for epoch in epochs}
    assert len(offsets) > 1


def test_adjacent_windows_predict_every_token_but_the_first_once():
    windows = Windows(TOKENS[:41], 10)
    batch = windows.evenly_spaced(range(windows.adjacent), windows.adjacent)
    assert batch.targets.flatten().tolist() == list(range(1, 41))


@pytest.mark.parametrize("length", [1003, 2000])
def test_a_corpus_too_small_for_a_window_is_an_error_with_both_numbers(length):
    with pytest.raises(
        UserError, match=rf"my text has 1,003 tokens, and a window of {length} wants at least {length + 1:,}"
    ):
        Windows(TOKENS, length, name="my text")


@pytest.mark.parametrize("length", [1002, 800, 502, 501])
def test_a_corpus_of_one_or_two_windows_is_enough(length):
    windows = Windows(TOKENS, length)
    for step in range(20):
        batch = windows.batch(step, 2)
        assert batch.targets.shape == (2, length)
        assert torch.equal(batch.targets, batch.inputs + 1)


def test_openings_begin_after_an_end_and_stop_before_the_next():
    tokens = np.array([5, 6, 0, 1, 2, 3, 4, 0, 0, 7, 0, 8, 8, 8, 8, 8])
    found = [opening.tolist() for opening in openings(tokens, 0, count=4, length=3)]
    assert found == [[5, 6], [1, 2, 3], [7], [8, 8, 8]]
