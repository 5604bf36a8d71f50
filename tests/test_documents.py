"""Documents that share a row are read as if each were alone, by every mixer and every model."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from memory_mosaics.documents import SHORT, read_documents
from memory_mosaics.language_model import LanguageModel, without_state
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.testing import build_mixer
from mixers_under_contract import MIXERS, WIDTH

EXACT = {"rtol": 1e-10, "atol": 1e-10}
TIME = 21
QUICK = (
    "contextual memory, short and long",
    "attention, rotary",
    "hyena",
    "lstm",
    "gated delta net",
)  # others: contract
SIZES = {"width": 16, "blocks": 2, "heads": 2, "vocabulary": 48, "context": 16}

starts_of_three_rows = st.lists(
    st.lists(st.booleans(), min_size=TIME, max_size=TIME), min_size=3, max_size=3
).map(torch.tensor)  # fmt: skip


def spans(starts: Tensor) -> list[tuple[int, int]]:
    """The documents of one row."""
    return list(pairwise(sorted({0, len(starts), *starts.nonzero().flatten().tolist()})))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MIXERS]
)
@given(starts=starts_of_three_rows, cut=st.integers(0, TIME))
@settings(max_examples=3)
def test_documents_are_read_apart_by_every_mixer(name: str, starts: Tensor, cut: int):
    """At once, in two calls, and continued, in double precision."""
    mixer = build_mixer(MIXERS[name], WIDTH, True).double()
    x, following = (torch.randn(3, time, WIDTH, dtype=torch.float64) for time in (TIME, 2))
    with torch.no_grad():
        alone = [[mixer(row[None, first:end]) for first, end in spans(at)] for row, at in zip(x, starts, strict=True)]
        expected = torch.cat([torch.cat([y for y, _ in row], dim=1) for row in alone])
        then = torch.cat([mixer(y[None], row[-1][1])[0] for y, row in zip(following, alone, strict=True)])
        y, state = read_documents(mixer, x, starts=starts)
        assert_close(y, expected, **EXACT)
        assert_close(mixer(following, state)[0], then, **EXACT)
        first, state = read_documents(mixer, x[:, :cut], starts=starts[:, :cut])
        second, state = read_documents(mixer, x[:, cut:], state, starts=starts[:, cut:])
        assert_close(torch.cat([first, second], dim=1), expected, **EXACT)
        assert_close(mixer(following, state)[0], then, **EXACT)


def model_of(name: str) -> LanguageModel:
    """Of an architecture, with weights large enough that what it has read matters."""
    model = ARCHITECTURES[name].config(**SIZES).build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * (0.05 if weight.ndim == 1 else 0.5))
    return model


def two_rows() -> tuple[Tensor, Tensor, list[Tensor]]:
    """Tokens, starts, and the documents alone; the rows are longer than the learned positions."""
    tokens, starts = torch.randint(48, (2, 40)), torch.zeros(2, 40, dtype=torch.bool)
    starts[0, [0, 5, 21, 22, 38]] = starts[1, [16, 30]] = True
    return tokens, starts, [row[a:b] for row, at in zip(tokens, starts, strict=True) for a, b in spans(at)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_loss_and_its_gradients_are_those_of_the_documents_alone(name: str):
    model = model_of(name).double()
    tokens, starts, documents = two_rows()
    model.loss(tokens, tokens.roll(1, dims=1), starts=starts).backward()
    packed = [weight.grad for weight in model.parameters()]
    model.zero_grad()
    wanted = [row[a:b] for row, at in zip(tokens.roll(1, dims=1), starts, strict=True) for a, b in spans(at)]
    for document, targets in zip(documents, wanted, strict=True):
        (model.loss(document[None], targets[None]) * len(document) / tokens.numel()).backward()
    for weight, gradient in zip(model.parameters(), packed, strict=True):
        assert_close(gradient, weight.grad, rtol=1e-8, atol=1e-10)
    logits = torch.cat([model(document[None])[0][0] for document in documents])
    assert_close(model(tokens, starts=starts)[0].flatten(0, 1), logits, **EXACT)


@pytest.mark.parametrize("name", ["memory-mosaic", "memory-mosaic-v2", "transformer", "llama"])
def test_padding_may_surround_the_documents(name: str):
    model = model_of(name)
    tokens, starts, _ = two_rows()
    mask = torch.ones_like(starts)
    mask[0, :3] = mask[1, 35:] = mask[1, :20] = False
    starts[0, 3] = starts[1, 20] = True
    found = model(tokens, None, mask, starts)[0]
    for row, first, end in ((0, 3, 5), (0, 5, 21), (0, 38, 40), (1, 20, 30), (1, 30, 35)):
        assert_close(found[row, first:end], model(tokens[row : row + 1, first:end])[0][0], rtol=1e-4, atol=1e-4)


class Counted:
    """A running mean, and the shapes that it was called with."""

    def __init__(self):
        self.shapes = []

    def __call__(self, x, state=None, mask=None):
        self.shapes.append((*x.shape[:2], mask is None))
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None], ()


def test_documents_of_similar_lengths_are_one_batch_without_padding_masks():
    x, starts = torch.randn(2, 100, 3), torch.zeros(2, 100, dtype=torch.bool)
    starts[0, [4, 20, 50]] = starts[1, [60]] = True
    mixer = Counted()
    y, _ = read_documents(mixer, x, starts=starts, keep_state=False)
    assert mixer.shapes == [(2, SHORT, True), (1, 30, True), (3, 60, True)]
    assert_close(y[1, 60:], x[1, 60:].cumsum(0) / torch.arange(1, 41)[:, None])
    mixer = Counted()
    assert_close(read_documents(mixer, x, starts=starts, keep_state=False, by_length=False)[0], y)
    assert mixer.shapes == [(6, 60, True)]
    mixer = Counted()
    read_documents(mixer, x, starts=torch.zeros_like(starts))
    assert mixer.shapes == [(2, 100, True)], "rows of one document are read as they are"


def test_the_memory_of_documents_that_have_ended_is_freed():
    mixer = MIXERS["attention, rotary"].build(WIDTH)
    starts = torch.arange(30) == torch.tensor([[20], [25]])
    _, (_, store) = read_documents(mixer, torch.randn(2, 30, WIDTH), starts=starts)
    assert store.keys.shape[1] == 10


def test_a_state_of_fixed_capacity_starts_documents_in_all_rows_or_in_none():
    mixer, x = MIXERS["contextual memory"].build(WIDTH), torch.randn(2, 1, WIDTH)
    state = mixer.to_fixed_capacity(mixer(torch.randn(2, 5, WIDTH))[1], 10)
    y, _ = read_documents(mixer, x, state, starts=torch.tensor([[True], [True]]))
    assert_close(y, mixer(x)[0])
    with pytest.raises(ValueError, match="in some rows of a state of fixed capacity; start them in all"):
        read_documents(mixer, x, state, starts=torch.tensor([[True], [False]]))


def test_gradient_checkpointing_and_a_block_fn_read_documents_too():
    model = model_of("memory-mosaic").train()
    tokens, starts, _ = two_rows()
    plain = model.loss(tokens, tokens, starts=starts)
    model.gradient_checkpointing = True
    assert_close(model.loss(tokens, tokens, starts=starts), plain)
    assert_close(model.loss(tokens, tokens, starts=starts, block_fn=without_state), plain)


def test_starts_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"starts must be \(2, 40\) bool, not \(2, 39\) torch.bool"):
        model_of("llama")(torch.zeros(2, 40, dtype=torch.long), starts=torch.zeros(2, 39, dtype=torch.bool))
