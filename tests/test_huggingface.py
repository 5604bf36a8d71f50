"""Hugging Face: a model generates the same there as here; what it looks like inside, and its configuration."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForCausalLM

from huggingface_models import CONFIGS, GREEDY, every_architecture, huggingface_model, left_padded, tokens
from memory_mosaics import LanguageModelConfig, to_plain
from memory_mosaics.huggingface import MosaicCache, MosaicConfig, MosaicForCausalLM
from memory_mosaics.inspection import retrievals
from memory_mosaics.language_model import next_token_loss
from memory_mosaics.memory import PersistentMemoryConfig
from memory_mosaics.mixers.lstm import LSTMConfig

# what is inside


def attended(model: MosaicForCausalLM, **inputs: Any) -> Any:
    with torch.no_grad():
        return model(output_attentions=True, output_hidden_states=True, **inputs)


@every_architecture
def test_hidden_states_and_attentions_are_returned(name: str):
    model, ids = huggingface_model(CONFIGS[name]), tokens(2, 9)
    seen = attended(model, input_ids=ids)
    whole = model.language_model
    assert [tuple(x.shape) for x in seen.hidden_states] == [(2, 9, 16)] * 3
    first = whole.embedding(ids)
    assert_close(seen.hidden_states[0], first if whole.positions is None else whole.positions(first)[0])
    assert_close(seen.hidden_states[1], whole.blocks[0](seen.hidden_states[0])[0])
    assert_close(whole.logits(seen.hidden_states[-1]), seen.logits)
    assert_close(seen.logits, model(ids).logits)
    heads = whole.blocks[0].sequence_mixer.memory_info().heads
    assert [tuple(x.shape) for x in seen.attentions] == [(2, heads, 9, 9)] * 2
    for weights, (number, kind, _, retrieval, _) in zip(
        seen.attentions, (one for one in retrievals(whole, ids) if one[1] == "sequence"), strict=True
    ):
        for part, group in zip(weights.chunk(len(retrieval.groups()), dim=1), retrieval.groups(), strict=True):
            offset = group.pairs.seen[0].causal_offset
            some = (torch.arange(9) + offset > 0).float()
            assert_close(part.sum(dim=-1), some.expand(part.shape[:3]), msg=f"{number} {kind}")
            assert part.triu(offset).abs().sum() == 0  # no query sees what is later
        values = retrieval.pairs.per_head(heads).values
        values = F.pad(values, (0, 0, 0, 0, 0, 9 - values.shape[1]))
        assert_close(torch.einsum("bhtn,bnhv->bthv", weights, values), retrieval.answer(), rtol=1e-4, atol=1e-5)
    plain = model(ids)
    assert plain.attentions is None
    assert plain.hidden_states is None
    as_tuple = model(ids, output_attentions=True, output_hidden_states=True, use_cache=True, return_dict=False)
    assert [type(part) for part in as_tuple] == [Tensor, MosaicCache, tuple, tuple]


@every_architecture
def test_attentions_with_a_cache_and_padding_are_those_of_the_rows_alone(name: str):
    model, rows = huggingface_model(CONFIGS[name]), [tokens(7), tokens(4)]
    padded = left_padded(rows)
    seen, cache = [], MosaicCache()
    for start, end in ((0, 4), (4, 5), (5, 7)):
        ids, mask = padded["input_ids"][:, start:end], padded["attention_mask"][:, :end]
        seen.append(attended(model, input_ids=ids, attention_mask=mask, past_key_values=cache))
        heads = model.language_model.blocks[0].sequence_mixer.memory_info().heads
        assert {tuple(x.shape) for x in seen[-1].attentions} == {(2, heads, end - start, end)}
    for i, row in enumerate(rows):
        alone, missing = attended(model, input_ids=row[None]), 7 - len(row)
        for block in range(2):
            steps = [one.attentions[block] for one in seen]
            joined = torch.cat([F.pad(step, (0, 7 - step.shape[-1])) for step in steps], dim=2)[i]
            assert_close(joined[:, missing:, missing:], alone.attentions[block][0], rtol=1e-4, atol=1e-5)
            assert joined[:, :, :missing].abs().sum() == 0
            hidden = torch.cat([one.hidden_states[block + 1] for one in seen], dim=1)[i, missing:]
            assert_close(hidden, alone.hidden_states[block + 1][0], rtol=1e-3, atol=1e-4)


def test_attentions_of_the_configuration_and_of_generate(tmp_path: Path):
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(2, 5)
    wanted = {"output_attentions": True, "output_hidden_states": True, "return_dict_in_generate": True}
    generated = model.generate(ids, **wanted, **GREEDY)
    assert [step[0].shape[2:] for step in generated.attentions] == [(5, 5), *((1, n) for n in range(6, 13))]
    assert all(len(step) == 3 for step in generated.hidden_states)
    model.config.output_attentions = model.config.output_hidden_states = True
    assert len(model(ids).attentions) == 2
    assert model(ids, output_attentions=False, output_hidden_states=False).attentions is None
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa", output_attentions=False)
    assert_close(again(ids).attentions, model(ids).attentions)
    assert len(again(ids).hidden_states) == 3
    model.train()(ids).attentions[1].square().sum().backward()
    assert model.language_model.blocks[1].sequence_mixer.sharpness.theta.grad.abs().sum() > 0


def test_a_mixer_without_weights_is_named():
    for mixer in (LSTMConfig(), PersistentMemoryConfig(heads=2, slots=3)):
        config = LanguageModelConfig(vocabulary=48, width=16, blocks=2, sequence_mixer=mixer)
        model = MosaicForCausalLM(MosaicConfig(language_model=to_plain(config)))
        kind = type(mixer).__name__.removesuffix("Config")
        with pytest.raises(ValueError, match=f"output_attentions: {kind}, the sequence mixer of block 0, has no w"):
            model(tokens(1, 4), output_attentions=True)
        assert len(model(tokens(1, 4), output_hidden_states=True).hidden_states) == 3


# forward


@every_architecture
def test_the_loss_is_that_of_the_next_token(name: str):
    model, ids = huggingface_model(CONFIGS[name]), tokens(2, 9)
    labels = ids.clone()
    labels[0, :4] = -100
    output = model(ids, labels=labels)
    assert_close(output.loss, next_token_loss(model.language_model(ids)[0][:, :-1], labels[:, 1:]))
    assert output.past_key_values is None
    loss, logits = model(ids, labels=labels, return_dict=False)
    assert torch.equal(loss, output.loss)
    assert torch.equal(logits, output.logits)


def test_only_the_logits_asked_for_are_computed():
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(2, 9)
    logits = model(ids).logits
    assert_close(model(ids, logits_to_keep=3).logits, logits[:, -3:])
    assert_close(model(ids, logits_to_keep=torch.tensor([0, 5])).logits, logits[:, [0, 5]])


def test_a_mask_is_passed_on_only_where_a_row_starts_with_padding(monkeypatch: pytest.MonkeyPatch):
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(2, 6)
    masks, features = [], model.language_model.features

    def spy(x: Tensor, state: Any, mask: Any, **how: Any) -> Any:
        masks.append(mask)
        return features(x, state, mask, **how)

    monkeypatch.setattr(model.language_model, "features", spy)
    model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
    right = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    logits = model(ids, attention_mask=right).logits
    assert all(mask is None for mask in masks)
    assert_close(logits[0, :4], model(ids[:1, :4]).logits[0])

    masks.clear()
    model(ids, attention_mask=right.flip(1))
    assert torch.equal(masks[0], right.flip(1).bool())


@every_architecture
def test_checkpointed_gradients_are_the_same(name: str):
    model, ids = huggingface_model(CONFIGS[name]).train(), tokens(2, 9)
    calls = []
    model.language_model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    gradients = []
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(0)  # of the delays of v2
        model(ids, labels=ids).loss.backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    assert len(calls) == 1 + 2  # computed again in the backward pass
    assert_close(gradients[1], gradients[0])
    model.gradient_checkpointing_disable()
    assert not model.language_model.gradient_checkpointing


# configuration


def test_the_configuration_answers_to_the_names_of_hugging_face(tmp_path: Path):
    config = MosaicConfig(language_model=to_plain(CONFIGS["learned"]))
    names = {"vocab_size": 48, "hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 64}
    assert {name: getattr(config, name) for name in names} == names
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).language_model_config == CONFIGS["learned"]
    resized = AutoConfig.from_pretrained(tmp_path, vocab_size=50)
    assert resized.language_model_config == replace(CONFIGS["learned"], vocabulary=50)
    assert MosaicConfig().to_diff_dict()["language_model"] == MosaicConfig().language_model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 3}, "LanguageModelConfig has no field 'colour'"),
        ({"width": "wide"}, "LanguageModelConfig.width wants int, not 'wide'"),
        ({"blocks": 0}, "blocks must be at least 1, not 0"),
        ({"sequence_mixer": {"part": "telepathy"}}, "LanguageModelConfig.sequence_mixer: no part 'telepathy'"),
        ({"channel_mixer": {"part": "mlp", "colour": 3}}, "MLPConfig has no field 'colour'"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(change: dict[str, Any], message: str, tmp_path: Path):
    plain = to_plain(CONFIGS["mosaic"]) | change
    with pytest.raises(ValueError, match=message):
        MosaicConfig(language_model=plain)
    huggingface_model(CONFIGS["mosaic"]).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"language_model": plain}))
    with pytest.raises(ValueError, match=message):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_field_in_the_wrong_place_is_refused():
    with pytest.raises(ValueError, match=r"'width' is a field of MosaicConfig\.language_model"):
        MosaicConfig(width=64)
