"""Hugging Face: what cannot be done is refused, what changes nothing is taken."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from huggingface_models import CONFIGS, GREEDY, every_architecture, huggingface_model, same_weights, tokens
from memory_mosaics.huggingface import MosaicCache, MosaicConfig

PACKED = torch.tensor([[0, 1, 2, 0, 1, 2]])  # the positions of two documents


def test_a_cache_cannot_forget():
    cache = huggingface_model(CONFIGS["mosaic"])(tokens(1, 5)).past_key_values
    assert not cache.is_croppable
    with pytest.raises(ValueError, match="cannot forget its last tokens"):
        cache.crop(-1)
    assert cache.is_initialized
    assert not MosaicCache().is_initialized
    assert MosaicCache(), "an empty cache is still a cache where code asks `if past_key_values`"


@every_architecture
def test_assisted_generation_is_refused(name: str):
    model, ids = huggingface_model(CONFIGS[name]), tokens(1, 5)
    with pytest.raises(ValueError, match="not supported with stateful models"):
        model.generate(ids, assistant_model=huggingface_model(CONFIGS[name]), **GREEDY)
    with pytest.raises(ValueError, match="not supported with stateful models"):
        model.generate(ids, prompt_lookup_num_tokens=2, **GREEDY)


@pytest.mark.parametrize("use_cache", [True, False])
def test_padding_between_the_tokens_of_a_row_is_refused(use_cache: bool):
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(2, 5)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    with pytest.raises(ValueError, match="padding between its tokens"):
        model.generate(ids, attention_mask=mask, use_cache=use_cache, **GREEDY)


def test_inputs_that_make_no_sense_are_refused():
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(2, 6)
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
        model()
    with pytest.raises(ValueError, match="must be a MosaicCache, not a DynamicCache"):
        model(ids, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 3\), but 6 tokens"):
        model(ids, attention_mask=torch.ones(2, 3, dtype=torch.long))
    assert model(ids, position_ids=torch.arange(6)[None]).logits.isfinite().all()
    with pytest.raises(ValueError, match="72 tokens are more than the 64 learned positions"):
        huggingface_model(CONFIGS["learned"])(tokens(1, 72))
    assert MosaicCache().get_max_length() == -1


def test_options_that_other_models_take(tmp_path: Path):
    model = huggingface_model(CONFIGS["mosaic"])
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, use_cache=False, attn_implementation="sdpa")
    assert loaded(tokens(1, 5)).past_key_values is None
    assert loaded(tokens(1, 5), use_cache=True).past_key_values is not None
    assert same_weights(loaded, model)
    config = MosaicConfig(language_model=CONFIGS["mosaic"])  # type: ignore[arg-type]
    assert config.language_model_config == CONFIGS["mosaic"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"head_mask": torch.zeros(2, 2)}, "no use for head_mask and would ignore it"),
        ({"foo": 3}, "no use for foo"),
        ({"token_type_ids": torch.ones(2, 6, dtype=torch.long)}, "no use for token_type_ids other than 0"),
        ({"is_causal": False}, "no use for is_causal"),
        ({"cu_seq_lens_q": torch.tensor([0, 3, 6])}, "no use for cu_seq_lens_q"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 3]])}, "not those of the attention_mask"),
        ({"position_ids": PACKED, "cu_seq_lens_q": torch.tensor([0, 2, 6])}, "cu_seq_lens_q describes other documents"),
        ({"position_ids": PACKED, "max_length_k": 4}, "max_length_k describes other documents than position_ids"),
        ({"position_ids": PACKED, "output_hidden_states": True}, "are of one document per row; pad them instead"),
        ({"position_ids": PACKED, "output_attentions": True}, "are of one document per row; pad them instead"),
        ({"position_ids": torch.arange(1, 7)[None]}, "not those of the attention_mask"),
        ({"position_ids": torch.arange(5)[None]}, r"shape \(1, 5\), but the tokens \(2, 6\)"),
        ({"cache_position": torch.arange(1, 7)}, "cache_position must be 0 to 5"),
    ],
)
def test_keywords_that_would_be_ignored_are_refused(given: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        huggingface_model(CONFIGS["mosaic"])(tokens(2, 6), **given)


def test_keywords_that_change_nothing_are_taken():
    model, ids = huggingface_model(CONFIGS["learned"]), tokens(2, 6)
    zeros, positions = torch.zeros(2, 6, dtype=torch.long), torch.arange(6)
    plain = {"head_mask": None, "token_type_ids": zeros, "is_causal": True, "position_ids": positions[None]}
    assert torch.equal(model(ids, **plain, cache_position=positions).logits, model(ids).logits)
    summed = model(ids, labels=ids, num_items_in_batch=torch.tensor(20)).loss
    torch.testing.assert_close(summed, model(ids, labels=ids).loss * 10 / 20)


def test_position_ids_are_those_of_the_mask():
    model, ids = huggingface_model(CONFIGS["learned"]), tokens(2, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    plain = model(ids, attention_mask=mask)
    assert torch.equal(model(ids, attention_mask=mask, position_ids=positions).logits, plain.logits)
    with pytest.raises(ValueError, match="not those of the attention_mask"):
        model(ids, attention_mask=mask, position_ids=torch.arange(6)[None])
    longer = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], dim=1)
    options = {"past_key_values": plain.past_key_values, "attention_mask": longer}
    with pytest.raises(ValueError, match="not those of the attention_mask"):
        model(ids[:, :1], position_ids=torch.tensor([[6], [6]]), **options)
    with pytest.raises(ValueError, match="need an attention_mask of all tokens"):
        model(ids[:, :1], past_key_values=plain.past_key_values, position_ids=torch.tensor([[4], [6]]))
    assert model(ids[:, :1], position_ids=torch.tensor([[4], [6]]), **options).logits.isfinite().all()
    out = model.generate(ids, attention_mask=mask, position_ids=positions, max_new_tokens=3, do_sample=False)
    assert torch.equal(out, model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False))
