import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.conftest import SIZES
from memory_mosaics import LanguageModel, PersistentMemoryConfig, checkpoint, memory_mosaic, transformer
from memory_mosaics.cli import main
from memory_mosaics.experiments import inspect
from memory_mosaics.inspection import inspect_position, patterns
from memory_mosaics.norms import RMSNormConfig, ScaledNormConfig
from memory_mosaics.text.tokenizer import byte_tokenizer

TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])
TEXT = "Anna had a red ball"


@pytest.fixture
def model(mosaic):
    return checkpoint.load(mosaic)


def scattered(each, size):
    """What each head adds to the logits of all tokens, in their order."""
    return np.stack([logits[np.argsort(tokens)] for tokens, logits in zip(each.tokens, each.logits, strict=True)])


@pytest.mark.parametrize("placement", ["pre", "post", "scaled", "rms"])
@torch.no_grad()
def test_what_the_heads_add_makes_up_the_logits(model, placement):
    """Embedding and heads are all there is: their parts under the norms after them add up to what the model says."""
    if placement != "pre":
        weights = model.state_dict()
        others = {"scaled": {"output_norm": ScaledNormConfig()}, "rms": {"norm": RMSNormConfig()}}
        other = others.get(placement, {"norm_placement": "post"})
        model = LanguageModel(replace(model.config, **other)).eval()
        model.load_state_dict({name: x * 1.3 + 0.1 if "norm" in name else x for name, x in weights.items()})
    looks = inspect_position(model, TOKENS, top=SIZES["vocabulary"])
    norms = [norm for block in model.blocks for norm in (block.sequence_norm, block.channel_norm)]
    seen = []
    see = lambda norm, x: seen.append((norm, x[0][0, -1]))  # noqa: E731
    hooks = [norm.register_forward_pre_hook(see) for norm in (*(norms if placement == "post" else []), model.norm)]
    logits = model(TOKENS[None])[0][0, -1]
    for hook in hooks:
        hook.remove()
    share = model.embedding(TOKENS[-1])
    for norm, x in seen:
        if placement != "rms":
            share, x = share - share.mean(), x - x.mean()
        share = share / (x.square().mean() + norm.eps).sqrt() * getattr(norm, "gain", norm.weight)
    total = (share @ model.output.T).numpy() + sum(scattered(each, 257).sum(axis=0) for each in looks)
    np.testing.assert_allclose(total, logits.numpy(), rtol=1e-4, atol=1e-4)
    assert [(each.block, each.mixer) for each in looks[:2]] == [(0, "contextual memory"), (0, "persistent memory")]


@torch.no_grad()
def test_weights_are_those_of_the_definition(model):
    block, mixer = model.blocks[0], model.blocks[0].sequence_mixer
    keys = mixer.key(block.sequence_norm(model.embedding(TOKENS[None])))[0][0]  # (T, H, D)
    scores = mixer.sharpness() * torch.einsum("hd,nhd->nh", keys[-1], keys[:-1])
    expected = scores.softmax(dim=0).T  # (H, T - 1)
    (first, *_) = inspect_position(model, TOKENS, top=3)
    best = expected.topk(3, dim=-1)
    np.testing.assert_array_equal(first.indices, best.indices.numpy())
    np.testing.assert_allclose(first.weights, best.values.numpy(), rtol=1e-4)
    np.testing.assert_allclose(first.effective, 1 / expected.square().sum(-1).numpy(), rtol=1e-4)
    np.testing.assert_allclose(first.decay, mixer.key.decay().numpy())
    np.testing.assert_allclose(first.sharpness, mixer.sharpness().numpy())


@torch.no_grad()
def test_slots_of_several_persistent_memories():
    from dataclasses import replace

    config = replace(memory_mosaic(**SIZES), channel_mixer=PersistentMemoryConfig(heads=4, slots=6, memories=2))
    model = LanguageModel(config)
    second = inspect_position(model, TOKENS, top=20)[1]
    assert second.indices.shape == (4, 20)
    assert sorted(second.indices[0].tolist()) == [-1] * 8 + list(range(12))
    np.testing.assert_allclose(second.weights.sum(axis=1), 1, rtol=1e-5)


def test_a_position_sees_what_was_before_it(model):
    for ours, alone in zip(
        inspect_position(model, TOKENS, position=4), inspect_position(model, TOKENS[:5]), strict=True
    ):
        np.testing.assert_array_equal(ours.indices, alone.indices)
        np.testing.assert_allclose(ours.logits, alone.logits, rtol=1e-5)
    empty = inspect_position(model, TOKENS, position=0)[0]
    assert (empty.indices == -1).all()
    assert (empty.weights == 0).all()
    assert (empty.effective == 0).all()
    with pytest.raises(ValueError, match="position must be between -8 and 7 in this text, not 8"):
        inspect_position(model, TOKENS, position=8)


def test_patterns_have_the_shapes_of_the_viewers(model):
    found = patterns(model, TOKENS)
    assert [each.shape for each in found] == [(1, 4, 8, 8)] * 2
    for each in found:
        np.testing.assert_allclose(each.sum(axis=-1)[0, :, 1:], 1, rtol=1e-5)
        assert (each[0, :, 0] == 0).all()
        assert (np.triu(each[0]) == 0).all(), "a memory does not know its own time"
    (first, *_) = inspect_position(model, TOKENS, top=1)
    np.testing.assert_allclose(found[0][0, :, -1].max(axis=-1), first.weights[:, 0], rtol=1e-5)
    with pytest.raises(ValueError, match="at most 1024"):
        patterns(model, torch.zeros(1025, dtype=torch.long))


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
def test_attention_is_shown_the_same_way(position):
    model = LanguageModel(transformer(position=position, **SIZES))
    (first, second) = inspect_position(model, TOKENS)
    assert (first.mixer, first.block, second.block) == ("attention", 0, 1), "an MLP retrieves nothing"
    assert np.isnan(first.decay).all()
    np.testing.assert_allclose(first.sharpness, 8**-0.5)
    (weights, _) = patterns(model, TOKENS)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.sort(weights[0, :, -1])[:, :-6:-1], first.weights, rtol=1e-5)


def test_the_command(mosaic, tmp_path, capsys):
    file = tmp_path / "look.json"
    assert main(["inspect", str(mosaic), TEXT, "--top", "3", "--json", str(file)]) == 0
    output = capsys.readouterr().out.splitlines()
    assert max(map(len, output)) <= 100
    assert output[0].startswith("position 18 of 19, 'l'; then mosaic expects ")
    assert [line for line in output if line.startswith("block")] == [
        f"block {block}, {kind} memory" for block in (0, 1) for kind in ("contextual", "persistent")
    ]
    found = json.loads(file.read_text(encoding="utf-8"))
    assert np.shape(found["patterns"]) == (2, 1, 4, 19, 19)
    assert len(found["mixers"][0]["heads"][0]["predicts"]) == 3
    assert "".join(found["tokens"]) == TEXT


def test_one_head(mosaic, twin, capsys):
    assert main(["inspect", str(mosaic), TEXT, "--block", "1", "--head", "2", "--position", "0"]) == 0
    output = capsys.readouterr().out
    assert output.count("head") == 2
    assert "nothing is stored yet" in output
    assert main(["inspect", str(twin), TEXT, "--block", "1", "--head", "2"]) == 0
    assert "block 1, attention\n  head 2   beta 0.3536" in capsys.readouterr().out


def test_one_head_in_json(mosaic):
    found = inspect.run(mosaic, TEXT, block=1, head=2, top=3)
    assert [[head["head"] for head in each["heads"]] for each in found["mixers"]] == [[2], [2]]


def test_a_head_that_only_some_mixers_have(tmp_path, capsys):
    config = replace(memory_mosaic(**SIZES), channel_mixer=PersistentMemoryConfig(heads=2, slots=6))
    checkpoint.save(LanguageModel(config), tmp_path / "own", tokenizer=byte_tokenizer())
    assert main(["inspect", str(tmp_path / "own"), TEXT, "--block", "1", "--head", "3"]) == 0
    output = capsys.readouterr().out
    assert "block 1, contextual memory\n  head 3" in output
    assert "persistent memory" not in output
