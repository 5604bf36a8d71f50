"""Hugging Face: generate with a cache and without, alone and in a batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from huggingface_models import CONFIGS, GREEDY, every_architecture, huggingface_model, left_padded, tokens
from memory_mosaics import LanguageModel, indexed_store, save
from memory_mosaics.huggingface import MosaicCache
from memory_mosaics.stores import stores_of
from memory_mosaics.text.tokenizer import train_bpe


@every_architecture
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_generation_is_the_same_with_and_without_a_cache(name: str, beams: int):
    model, ids = huggingface_model(CONFIGS[name]), tokens(2, 7)
    options = GREEDY | {"num_beams": beams, "no_repeat_ngram_size": 1}  # lest a model fall into saying one token
    assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))


@every_architecture
def test_greedy_generation_takes_the_likeliest_token_of_the_language_model(name: str):
    model, ids = huggingface_model(CONFIGS[name]), tokens(1, 5)
    for _ in range(4):
        logits, _ = model.language_model(ids)
        ids = torch.cat([ids, logits[:, -1:].argmax(dim=-1)], dim=1)
    assert torch.equal(model.generate(ids[:, :5], **GREEDY | {"max_new_tokens": 4}), ids)


@every_architecture
def test_sampling_with_a_seed_is_the_same_with_and_without_a_cache(name: str):
    model, ids = huggingface_model(CONFIGS[name]), tokens(2, 7)
    samples = []
    for use_cache, seed in ((True, 1), (False, 1), (True, 2)):
        set_seed(seed)
        samples.append(model.generate(ids, **GREEDY | {"do_sample": True}, use_cache=use_cache))
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])


@every_architecture
@pytest.mark.parametrize("beams", [1, 2])
def test_a_left_padded_row_is_continued_as_the_row_alone(name: str, beams: int):
    model, rows = huggingface_model(CONFIGS[name]), [tokens(3), tokens(8), tokens(5)]
    together = model.generate(**left_padded(rows), num_beams=beams, **GREEDY)[:, 8:]
    uncached = model.generate(**left_padded(rows), num_beams=beams, use_cache=False, **GREEDY)[:, 8:]
    alone = [model.generate(row[None], num_beams=beams, **GREEDY)[0, len(row) :] for row in rows]
    assert torch.equal(together, torch.stack(alone))
    assert torch.equal(uncached, torch.stack(alone))


@every_architecture
def test_generation_continues_from_a_returned_cache(name: str):
    model, rows = huggingface_model(CONFIGS[name]), [tokens(3), tokens(6)]
    batch = left_padded(rows)
    first = model.generate(**batch, return_dict_in_generate=True, **GREEDY)
    cache = first.past_key_values
    assert cache.get_seq_length() == 6 + 8 - 1  # the last token has not been read yet

    longer = torch.cat([first.sequences, tokens(2, 3)], dim=1)
    mask = torch.nn.functional.pad(batch["attention_mask"], (0, 8 + 3), value=1)
    again = model.generate(longer, attention_mask=mask, **GREEDY)
    continued = model.generate(longer, attention_mask=mask, past_key_values=cache, **GREEDY)
    assert torch.equal(continued, again)
    assert cache.get_seq_length() == 6 + 8 + 3 + 8 - 1


@every_architecture
def test_a_prompt_may_be_read_in_chunks(name: str):
    model = huggingface_model(CONFIGS[name])
    batch = left_padded([tokens(3), tokens(9)])
    ids, mask = batch["input_ids"], batch["attention_mask"]
    whole = model(**batch).logits[:, -1]
    for chunk in (1, 2, 4):
        cache = None
        for start in range(0, 9, chunk):
            end = min(start + chunk, 9)
            output = model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            assert cache.get_seq_length() == end
        assert_close(output.logits[:, -1], whole, rtol=1e-4, atol=1e-4)
    assert torch.equal(model.generate(**batch, prefill_chunk_size=4, **GREEDY), model.generate(**batch, **GREEDY))


def test_generation_from_embeddings_and_with_several_samples():
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(2, 6)
    embedded = model.generate(inputs_embeds=model.get_input_embeddings()(ids), **GREEDY)
    assert torch.equal(embedded, model.generate(ids, **GREEDY)[:, 6:])
    assert model.generate(ids, num_return_sequences=3, **GREEDY | {"do_sample": True}).shape == (6, 6 + 8)


def test_a_cache_is_selected_repeated_and_reset():
    model, ids, next_ids = huggingface_model(CONFIGS["mosaic"]), tokens(3, 6), tokens(3, 1)
    full = model(torch.cat([ids, next_ids], dim=1)).logits[:, -1:]

    cache = model(ids).past_key_values
    cache.batch_select_indices(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    rows = torch.tensor([2, 2, 0, 0])
    assert_close(model(next_ids[rows], past_key_values=cache).logits, full[rows])

    cache.reset()
    assert cache.get_seq_length() == 0
    assert_close(model(next_ids, past_key_values=cache).logits, model(next_ids).logits)


def test_an_index_is_a_cache(monkeypatch):
    """With all lists read it is exact, token by token and with beams."""
    monkeypatch.setattr(indexed_store, "FIRST", 20)
    monkeypatch.setattr(indexed_store, "LEAST", 4)
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(2, 40)
    for beams in (1, 2):
        cache = MosaicCache("indexed:1000:3")
        found = model.generate(ids, past_key_values=cache, num_beams=beams, **GREEDY)
        assert torch.equal(found, model.generate(ids, num_beams=beams, **GREEDY))
        assert all(store.num_indexed > 30 for store in stores_of(cache.state))


def test_a_bounded_store_is_a_cache():
    """Below its bound it is exact; above, a prompt read at once, token by token, and with beams, is one text."""
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(2, 40)
    exact = model.generate(ids, **GREEDY)
    assert torch.equal(model.generate(ids, past_key_values=MosaicCache("lru:100"), **GREEDY), exact)
    for beams in (1, 2):
        bounded = model.generate(ids, past_key_values=MosaicCache("window:10"), num_beams=beams, **GREEDY)
        assert bounded.shape == exact.shape
    cache, logits = MosaicCache("window:10"), []
    with torch.no_grad():
        whole = model(ids, past_key_values=MosaicCache("window:10")).logits
        for part in ids.split(7, dim=1):
            logits.append(model(part, past_key_values=cache).logits)
    assert_close(torch.cat(logits, dim=1), whole, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="output_attentions need a cache of all pairs"):
        model(ids, past_key_values=MosaicCache("window:10"), output_attentions=True)


def test_generation_stops_at_a_string(tmp_path: Path):
    tokenizer = train_bpe(["one two three"] * 9, vocabulary=260)
    save(LanguageModel(replace(CONFIGS["mosaic"], vocabulary=tokenizer.vocabulary)), tmp_path, tokenizer=tokenizer)
    model, theirs = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    ids = torch.tensor([tokenizer.encode("one")])
    options: dict[str, Any] = {"tokenizer": theirs, "do_sample": False, "max_new_tokens": 6, "eos_token_id": None}
    options["sequence_bias"] = [[tokenizer.encode("t"), 1000.0]]  # it writes tttttt
    assert model.generate(ids, **options).shape[1] == ids.shape[1] + 6
    assert model.generate(ids, stop_strings=["tt"], **options).shape[1] == ids.shape[1] + 2
