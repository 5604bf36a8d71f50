"""A text that keeps changing is read as if it had always been so; edits do to answers what they say."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from memory_mosaics import LanguageModel
from memory_mosaics.apps.explorer.reading import (
    CHUNK_TOKENS,
    CachedText,
    Edit,
    EditedRetrieval,
    InstrumentedModel,
)
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.inspection import inspect_position, through_norms
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.memory import PersistentMemoryConfig
from memory_mosaics.text.tokenizer import byte_tokenizer
from mixers_under_contract import MIXERS, WIDTH

LENGTHS = [150, 64, 65, 0, 175]


def features(reading: CachedText) -> torch.Tensor:
    return torch.cat([chunk.features for chunk in reading.chunks])


def whole(model: LanguageModel, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model.features(model.embedding(torch.tensor([tokens])))[0][0]


@pytest.mark.parametrize("name", [name for name in MIXERS if "positions" not in name and name != "dropped inputs"])
def test_a_changing_text_is_read_as_a_whole_one(name):
    """Whatever the mixer: what grows in its state is a prefix of what it grows to."""
    persistent = PersistentMemoryConfig(heads=2, slots=5)
    model = LanguageModel(
        LanguageModelConfig(vocabulary=50, width=WIDTH, blocks=2, sequence_mixer=MIXERS[name], channel_mixer=persistent)
    ).eval()
    reading = CachedText(InstrumentedModel(LoadedModel("model", Path(), model, byte_tokenizer())))
    generator = torch.Generator().manual_seed(3)
    tokens: list[int] = torch.randint(50, (170,), generator=generator).tolist()
    reading.update(tokens)
    for change in (169, 64, 0):  # from the end to the first token
        tokens = tokens[:change] + torch.randint(50, (max(1, 175 - change),), generator=generator).tolist()
        reading.update(tokens)
        assert reading.recomputed <= len(tokens) - change // CHUNK_TOKENS * CHUNK_TOKENS
        torch.testing.assert_close(features(reading), whole(model, tokens), atol=2e-4, rtol=1e-3)
    for length in LENGTHS:
        reading.update(tokens[:length])
        assert sum(len(chunk.tokens) for chunk in reading.chunks) == length
    torch.testing.assert_close(features(reading), whole(model, tokens), atol=2e-4, rtol=1e-3)


def test_nothing_is_read_twice(mosaic):
    reading = CachedText(InstrumentedModel(mosaic))
    tokens = list(range(200))
    reading.update(tokens)
    reading.update(tokens)
    assert reading.recomputed == 0
    reading.update([*tokens, 7])
    assert reading.recomputed == 201 - 3 * CHUNK_TOKENS


@pytest.mark.parametrize("name", ["mosaic", "gated", "twin", "rotary", "grouped"])
def test_it_shows_what_inspect_shows(name, request):
    trained = request.getfixturevalue(name)
    tokens = (torch.arange(90) * 7 % 280).tolist()
    reading = CachedText(InstrumentedModel(trained))
    reading.update(tokens)
    for position in (0, 1, 63, 64, 89):
        wanted = inspect_position(trained.model, torch.tensor(tokens), position=position, top=3)
        (found,) = reading.overview(position, position + 1)
        for layer, each, shown in zip(reading.model.layers, wanted, found[: len(wanted)], strict=True):
            assert shown["effective"] == pytest.approx(each.effective.tolist(), rel=2e-3, abs=1e-4)
            pairs = reading.detail((*layer, 1), position, position + 1)[0]["pairs"][:3]
            weights = [weight for weight in each.weights[1].tolist() if weight >= 6e-4]
            assert [weight for _, weight in pairs] == pytest.approx(weights[: len(pairs)], abs=1e-4)
            assert len(pairs) >= len(weights)


@pytest.mark.parametrize("name", ["twin", "grouped"])
def test_with_those_of_mlps_contributions_add_up_to_the_logit(name, request):
    """Above the average token, of every layer and the embedding."""
    trained = request.getfixturevalue(name)
    tokens = (torch.arange(80) * 7 % 280).tolist()
    reading = CachedText(InstrumentedModel(trained))
    reading.update(tokens)
    described = reading.model.describe_layers()
    assert [layer["kind"] for layer in described if layer.get("closed")] == ["channel", "channel"]
    (found,), model = reading.overview(79, 80, 9), trained.model
    total = sum(sum(layer["contribution"]) for layer in found)
    x = model.embedding(torch.tensor([tokens]))
    x = (x if model.positions is None else model.positions(x)[0])[:, 79:]
    x = through_norms(model, model.blocks[0].channel_mixer, x, reading.chunks[1].spreads[15:16])[0, 0]
    output = model.output.detach()
    logits, embedding = output @ whole(model, tokens)[79], float(x.detach() @ (output[9] - output.mean(dim=0)))
    assert total + embedding == pytest.approx(float(logits[9] - logits.mean()), rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("name", ["mosaic", "gated"])
def test_contributions_add_up_to_the_logits(name, placement, request):
    """Of all memories and the embedding; there are no biases, and every mixer recalls."""
    mosaic = request.getfixturevalue(name)
    tokens = (torch.arange(80) * 7 % 280).tolist()
    model = LanguageModel(replace(mosaic.model.config, norm_placement=placement)).eval()
    model.load_state_dict(mosaic.model.state_dict())
    reading = CachedText(InstrumentedModel(LoadedModel("model", Path(), model, byte_tokenizer())))
    reading.update(tokens)
    total = sum(reading.retrieved(layer, 64, 80)[1].sum(dim=1) for layer in reading.model.layers)
    x = model.embedding.weight[torch.tensor(tokens[64:])].detach()
    norms = [norm for block in model.blocks for norm in (block.sequence_norm, block.channel_norm)]
    spreads = reading.chunks[1].spreads.unbind(dim=-1)
    for norm, spread in zip([*(norms if placement == "post" else []), model.norm], spreads, strict=True):
        x = (x - x.mean(dim=-1, keepdim=True)) / spread[:, None] * norm.weight
    torch.testing.assert_close((total + x).detach(), whole(model, tokens)[64:], atol=1e-4, rtol=1e-3)


def test_losses_and_shares_are_the_models(mosaic):
    tokens = (torch.arange(150) * 7 % 280).tolist()
    reading = CachedText(InstrumentedModel(mosaic))
    reading.update(tokens)
    with torch.no_grad():
        logs = mosaic.model(torch.tensor([tokens]))[0][0].log_softmax(dim=-1)
    for first, last in ((0, 150), (60, 70), (64, 128), (149, 150)):
        found = reading.predictions(first, last)
        assert len(found["losses"]) == len(found["best"]) == last - first
        assert (found["losses"][0] is None) == (first == 0)
        for token in range(max(first, 1), last):
            assert found["losses"][token - first] == pytest.approx(-float(logs[token - 1, tokens[token]]), abs=2e-3)
        text, share, index = found["best"][-1][0]
        assert index == int(logs[last - 1].argmax())
        assert share == pytest.approx(math.exp(float(logs[last - 1, index])), abs=1e-3)
        assert text == mosaic.tokenizer.display(index)


@pytest.mark.parametrize("name", ["mosaic", "gated", "rotary", "grouped"])
def test_a_removed_pair_is_gone_and_the_rest_shares_its_weight(name, request):
    trained = request.getfixturevalue(name)
    tokens = (torch.arange(90) * 7 % 280).tolist()
    plain, edited = CachedText(InstrumentedModel(trained)), CachedText(InstrumentedModel(trained))
    plain.update(tokens)
    edited.update(tokens, [Edit(block=0, kind="sequence", head=2, pair=5)], plain)
    before, _ = plain.retrieved((0, "sequence"), 64, 90)
    after, _ = edited.retrieved((0, "sequence"), 64, 90)
    assert not after[:, 2, 5].any()
    rest = before[:, 2].clone()
    rest[:, 5] = 0
    torch.testing.assert_close(after[:, 2], rest / rest.sum(dim=-1, keepdim=True))
    torch.testing.assert_close(after[:, :2], before[:, :2])
    changed = (features(edited) - features(plain)).abs().amax(dim=-1)
    assert changed[:5].max() < 1e-5
    assert changed[6:].max() > 1e-4


def test_a_memory_that_is_off_adds_nothing(mosaic):
    tokens = (torch.arange(90) * 7 % 280).tolist()
    for kind in ("sequence", "channel"):
        plain, edited = CachedText(InstrumentedModel(mosaic)), CachedText(InstrumentedModel(mosaic))
        plain.update(tokens)
        edited.update(tokens, [Edit(block=1, kind=kind, head=3)], plain)
        adds = edited.retrieved((1, kind), 64, 90)[1]
        assert not adds[:, 3].any()
        assert adds[:, :3].any()
        assert (features(edited) - features(plain)).abs().max() > 1e-3
        edited.update(tokens, [], plain)
        torch.testing.assert_close(features(edited), features(plain), rtol=0, atol=0)


def test_slots_of_a_persistent_memory_can_be_removed(mosaic):
    tokens = list(range(40))
    plain, edited = CachedText(InstrumentedModel(mosaic)), CachedText(InstrumentedModel(mosaic))
    plain.update(tokens)
    slot = int(plain.retrieved((0, "channel"), 39, 40)[0][0, 1].argmax())
    edited.update(tokens, [Edit(block=0, kind="channel", head=1, pair=slot)], plain)
    assert not edited.retrieved((0, "channel"), 0, 40)[0][:, 1, slot].any()
    assert edited.retrieved((0, "channel"), 0, 40)[0][:, 0, slot].any()


@pytest.mark.parametrize(("name", "peek"), [("mosaic", 1), ("rotary", 0)])
def test_a_rewritten_pair_is_that_of_another_text(name, peek, request):
    """In the first block, whose inputs do not depend on what else was read: all heads rewritten are the other text."""
    trained = request.getfixturevalue(name)
    engine = InstrumentedModel(trained)
    tokens = (torch.arange(90) * 7 % 280).tolist()
    other = [*tokens[:70], 33, *tokens[71:]]
    plain, edited, another = (CachedText(engine) for _ in range(3))
    plain.update(tokens)
    another.update(other)
    edited.update(tokens, [Edit(block=0, kind="sequence", head=2, pair=70 - peek, token=33)], plain)
    value = edited.layer_edits[0, "sequence"][0][1]
    torch.testing.assert_close(value, another.pairs[0, "sequence"].values[0, 70 - peek, 2], atol=1e-5, rtol=1e-4)
    assert (features(edited) - features(plain)).abs().max() > 1e-4
    wanted = plain.pairs[0, "sequence"].values.clone()
    wanted[0, 70 - peek, 2] = value
    retrieval = edited.chunks[1].retrievals[0, "sequence"]._replace(pairs=edited.pairs[0, "sequence"])
    (rows,) = EditedRetrieval(retrieval, edited.layer_edits[0, "sequence"]).rows
    torch.testing.assert_close(rows.pairs.values[2, :, 0], wanted[0, :, 2])


def test_edits_are_read_from_where_they_reach(mosaic):
    tokens = list(range(250))
    plain, edited = CachedText(InstrumentedModel(mosaic)), CachedText(InstrumentedModel(mosaic))
    plain.update(tokens)
    edited.update(tokens, [Edit(block=0, kind="sequence", head=0, pair=200)], plain)
    edited.update(tokens, [Edit(block=0, kind="sequence", head=0, pair=210)], plain)
    assert edited.recomputed == 250 - 3 * CHUNK_TOKENS
    edited.update(tokens, [Edit(block=0, kind="sequence", head=0)], plain)
    assert edited.recomputed == 250
