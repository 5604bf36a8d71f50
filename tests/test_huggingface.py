"""Hugging Face: what a model says there is what it says here, with a cache and without, alone and in a batch."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

from memory_mosaics import LanguageModel, LanguageModelConfig, checkpoint, memory_mosaic, to_plain, transformer
from memory_mosaics.config import MixerConfig
from memory_mosaics.files import describe_files
from memory_mosaics.huggingface import MosaicCache, MosaicConfig, MosaicForCausalLM
from memory_mosaics.inspection import questions
from memory_mosaics.language_model import next_token_loss
from memory_mosaics.memory import PersistentMemoryConfig
from memory_mosaics.mixers.lstm import LSTMConfig
from memory_mosaics.mixers.mlp import MLPConfig
from memory_mosaics.parameters import exact_names
from mixers_under_contract import MIXERS, WIDTH

SIZE: dict[str, Any] = {"width": 16, "blocks": 2, "heads": 2, "vocabulary": 48, "context": 64}
CONFIGS: dict[str, LanguageModelConfig] = {
    "mosaic": memory_mosaic(slots=8, **SIZE),
    "learned": transformer(position="learned", **SIZE),
    "rotary": transformer(position="rotary", **SIZE),
    "alibi": transformer(position="alibi", **SIZE),
}
SAVED: dict[str, LanguageModelConfig] = CONFIGS | {
    "mosaic untied, biased": replace(CONFIGS["mosaic"], tied=False, bias=True),
    "learned untied, biased": replace(CONFIGS["learned"], tied=False, bias=True),
    "mosaic, post-norm": replace(CONFIGS["mosaic"], norm_placement="post"),
}
every_architecture = pytest.mark.parametrize("name", CONFIGS)
every_saved = pytest.mark.parametrize("name", SAVED)
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}


def huggingface_model(config: LanguageModelConfig) -> MosaicForCausalLM:
    """A model with weights large enough that what it says depends on what it has read."""
    model = MosaicForCausalLM(MosaicConfig(language_model=to_plain(config))).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight) * (0.05 if weight.ndim == 1 else 1.0 if "blocks" in name else 0.4))
    return model


def tokens(*shape: int) -> Tensor:
    return torch.randint(1, SIZE["vocabulary"], shape)


def left_padded(rows: list[Tensor]) -> dict[str, Tensor]:
    """One batch of rows of different lengths. The padding is not the token 0 only, lest that be what hides it."""
    longest = max(len(row) for row in rows)
    ids = torch.stack([torch.cat([tokens(longest - len(row)), row]) for row in rows])
    mask = torch.stack([torch.arange(longest) >= longest - len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask.long()}


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


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
    assert [tuple(x.shape) for x in seen.attentions] == [(2, 2, 9, 9)] * 2
    for weights, (number, kind, _, question) in zip(
        seen.attentions, (one for one in questions(whole, ids) if one[1] == "sequence"), strict=True
    ):
        known = question.pairs.known
        assert_close(weights.sum(dim=-1), (torch.arange(9) + known > 0).float().expand(2, 2, 9), msg=f"{number} {kind}")
        assert weights.triu(known).abs().sum() == 0  # no query sees what is later
        values = F.pad(question.pairs.values, (0, 0, 0, 0, 0, 9 - question.pairs.values.shape[1]))
        assert_close(torch.einsum("bhtn,bnhv->bthv", weights, values), question.answer(), rtol=1e-4, atol=1e-5)
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
        assert {tuple(x.shape) for x in seen[-1].attentions} == {(2, 2, end - start, end)}
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
    told = model.generate(ids, **wanted, **GREEDY)
    assert [step[0].shape[2:] for step in told.attentions] == [(5, 5), *((1, n) for n in range(6, 13))]
    assert all(len(step) == 3 for step in told.hidden_states)
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


# generate


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


def test_a_mask_is_passed_on_only_where_a_row_begins_with_padding(monkeypatch: pytest.MonkeyPatch):
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
        model(ids, labels=ids).loss.backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    assert len(calls) == 1 + 2  # computed again in the backward pass
    assert_close(gradients[1], gradients[0])
    model.gradient_checkpointing_disable()
    assert not model.language_model.gradient_checkpointing


# folders


@every_saved
def test_a_folder_of_ours_opens_there(name: str, tmp_path: Path):
    ours = huggingface_model(SAVED[name]).language_model
    folder = checkpoint.save(ours, tmp_path / "model")
    theirs, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(theirs) is MosaicForCausalLM
    assert not any(report.values()), report
    assert same_weights(theirs.language_model, ours)
    assert theirs.config.parts == SAVED[name]
    assert theirs.generation_config.use_cache
    ids = tokens(2, 5)
    assert torch.equal(theirs(ids).logits, ours(ids)[0])


@every_saved
def test_a_folder_of_theirs_opens_here(name: str, tmp_path: Path):
    theirs = huggingface_model(SAVED[name])
    theirs.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "generation_config.json", "model.safetensors"}
    ours = checkpoint.load(tmp_path)
    assert ours.config == SAVED[name]
    assert same_weights(theirs.language_model, ours)
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert same_weights(theirs.language_model, checkpoint.load(tmp_path / "shards"))


def test_a_new_model_begins_as_a_language_model_does():
    torch.manual_seed(5)
    theirs = AutoModelForCausalLM.from_config(MosaicConfig(language_model=to_plain(CONFIGS["mosaic"])))
    torch.manual_seed(5)
    assert same_weights(theirs.language_model, LanguageModel(CONFIGS["mosaic"]))


def test_weights_that_a_checkpoint_lacks_are_initialised_and_the_others_kept(tmp_path: Path):
    config = replace(CONFIGS["mosaic"], width=64)
    model = huggingface_model(config)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    block = "language_model.blocks.1.sequence_mixer."
    lacking = {block + "combine.map.weight", block + "sharpness.theta", block + "key.decay.rate", block + "value.taps"}
    kept = {name: weight for name, weight in weights.items() if name not in lacking}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(checkpoint.CheckpointError, match=r"lacks the weight blocks.1.sequence_mixer"):
        MosaicForCausalLM.from_pretrained(tmp_path)
    loaded = MosaicForCausalLM.from_pretrained(tmp_path, ignore_mismatched_sizes=True).state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in kept.items())
    new = LanguageModel(config).state_dict()
    for name in (block + "sharpness.theta", block + "key.decay.rate"):
        assert torch.equal(loaded[name], new[name.removeprefix("language_model.")])
    assert_close(loaded[block + "value.taps"].sum(dim=1), torch.ones(2))
    deviation = loaded[block + "combine.map.weight"].std().item()
    assert deviation == pytest.approx(0.02 / (2 * config.blocks) ** 0.5, rel=0.1)


def listed(folder: Path) -> Path:
    """With a manifest, as training writes it."""
    files = describe_files(folder, sorted(path.name for path in folder.iterdir()))
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "generation_config.json"])
def test_a_changed_file_of_a_checkpoint_is_refused(name: str, tmp_path: Path):
    folder = listed(checkpoint.save(huggingface_model(CONFIGS["mosaic"]).language_model, tmp_path / "model"))
    AutoModelForCausalLM.from_pretrained(folder)
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 0x40 if name == "model.safetensors" else ord("\n") ^ ord(" ")  # of the same size, and still JSON
    (folder / name).write_bytes(content)
    for lenient in (False, True):
        with pytest.raises(ValueError, match=rf"{name} is damaged: its CRC-32 .*; restore it, or remove manifest.json"):
            AutoModelForCausalLM.from_pretrained(folder, ignore_mismatched_sizes=lenient)


@pytest.mark.parametrize(("blocks", "said"), [(4000, r"lacks the weight blocks\.2"), (1, r"does not have: blocks\.1")])
def test_weights_of_another_model_are_refused(blocks: int, said: str, tmp_path: Path):
    model = huggingface_model(CONFIGS["mosaic"])
    folder = checkpoint.save(model.language_model, tmp_path / "model")
    plain = json.loads((folder / "config.json").read_text())
    plain["language_model"]["blocks"] = blocks
    (folder / "config.json").write_text(json.dumps(plain))
    for options in ({}, {"subfolder": "model"}):
        with pytest.raises(checkpoint.CheckpointError, match=said):
            AutoModelForCausalLM.from_pretrained(folder.parent if options else folder, **options)


def test_a_state_dict_of_ones_own_is_taken(tmp_path: Path):
    model = huggingface_model(CONFIGS["mosaic"])
    model.save_pretrained(tmp_path)
    other = {name: weight + 1 for name, weight in model.state_dict().items()}
    loaded = MosaicForCausalLM.from_pretrained(None, config=model.config, state_dict=dict(other))
    assert all(torch.equal(weight, other[name]) for name, weight in loaded.state_dict().items())


def test_weights_missing_in_another_format_are_refused(tmp_path: Path):
    model = huggingface_model(CONFIGS["mosaic"])
    model.config.save_pretrained(tmp_path)
    weights = model.state_dict()
    weights.pop("language_model.norm.weight")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(checkpoint.CheckpointError, match=r"missing keys language_model.norm.weight; ignore_mism"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@every_architecture
def test_a_model_loads_in_bfloat16_with_its_scales_in_float32(name: str, tmp_path: Path):
    model = huggingface_model(CONFIGS[name])
    model.save_pretrained(tmp_path / "float32")
    half = AutoModelForCausalLM.from_pretrained(tmp_path / "float32", dtype=torch.bfloat16)
    for weight_name, weight in half.named_parameters():
        scale = weight_name.rsplit(".", 1)[-1] in ("theta", "rate", "taps")
        assert weight.dtype == (torch.float32 if scale else torch.bfloat16), weight_name
        assert not scale or torch.equal(weight, model.get_parameter(weight_name))
    ids = tokens(2, 9)
    logits = half(ids).logits
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
    assert half.generate(ids, num_beams=2, **GREEDY).shape == (2, 9 + 8)

    half.save_pretrained(tmp_path / "bfloat16")
    assert same_weights(AutoModelForCausalLM.from_pretrained(tmp_path / "bfloat16"), half)
    assert same_weights(checkpoint.load(tmp_path / "bfloat16"), half.language_model)


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=[name.replace(" ", "-") for name in MIXERS])
def test_every_mixer_reads_and_generates_in_every_dtype(mixer: MixerConfig, tmp_path: Path):
    sizes = {"vocabulary": SIZE["vocabulary"], "width": WIDTH, "blocks": 2}
    config = LanguageModelConfig(sequence_mixer=mixer, channel_mixer=MLPConfig(), **sizes)
    MosaicForCausalLM(MosaicConfig(language_model=to_plain(config))).save_pretrained(tmp_path)
    ids, logits = tokens(2, 9), {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        exact = exact_names(loaded.language_model)
        for name, weight in loaded.language_model.named_parameters():
            assert weight.dtype == (torch.promote_types(dtype, torch.float32) if name in exact else dtype), name
        with torch.no_grad():
            logits[dtype] = loaded(ids).logits
            assert logits[dtype].dtype == dtype
            assert logits[dtype].isfinite().all()
            first = loaded(ids[:, :4], use_cache=True)
            rest = [loaded(ids[:, t : t + 1], past_key_values=first.past_key_values).logits for t in range(4, 9)]
        if dtype == torch.float64:
            loss = loaded(ids, labels=ids).loss
            assert_close(loss, next_token_loss(logits[dtype][:, :-1], ids[:, 1:]), rtol=1e-12, atol=0)
            assert_close(torch.cat([first.logits, *rest], dim=1), logits[dtype], rtol=1e-10, atol=1e-10)
            assert same_weights(checkpoint.load(tmp_path, dtype=dtype), loaded.language_model)
        assert loaded.generate(ids, **GREEDY | {"max_new_tokens": 3}).shape == (2, 9 + 3)
    assert_close(logits[torch.float32].double(), logits[torch.float64], rtol=1e-3, atol=1e-3)


def test_a_model_loads_with_a_device_map(tmp_path: Path):
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(2, 5)
    model.save_pretrained(tmp_path)
    mapped = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="cpu")
    assert {weight.device.type for weight in mapped.parameters()} == {"cpu"}
    assert torch.equal(mapped.generate(ids, **GREEDY), model.generate(ids, **GREEDY))


@pytest.mark.parametrize("name", ["mosaic", "mosaic untied, biased"])
@pytest.mark.parametrize("size", [53, 40])
def test_the_vocabulary_can_be_resized(name: str, size: int, tmp_path: Path):
    model, ids = huggingface_model(SAVED[name]), tokens(2, 5).clamp(max=39)
    before = model(ids).logits.detach()
    model.resize_token_embeddings(size)
    assert model.config.vocab_size == model.language_model.config.vocabulary == size
    after = model(ids).logits
    assert after.shape[-1] == size
    assert_close(after[..., :40], before[..., :40])
    model(ids, labels=ids).loss.backward()

    model.save_pretrained(tmp_path / "theirs")
    checkpoint.save(model.language_model, tmp_path / "ours")
    assert same_weights(checkpoint.load(tmp_path / "theirs"), checkpoint.load(tmp_path / "ours"))


# pipeline and Trainer


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<end>", *(f"w{i}" for i in range(SIZE["vocabulary"] - 2))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.mark.parametrize("name", ["mosaic", "learned"])
def test_a_pipeline_writes_what_generate_writes(name: str, tmp_path: Path):
    model, tokenizer = huggingface_model(CONFIGS[name]), word_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    write = pipeline("text-generation", model=str(tmp_path), device="cpu")
    prompts = ["w3 w9 w4", "w7", "w1 w2 w3 w4 w30"]
    options = {"do_sample": False, "max_new_tokens": 6, "return_full_text": False}
    alone = [write(prompt, **options)[0]["generated_text"] for prompt in prompts]
    together = [texts[0]["generated_text"] for texts in write(prompts, batch_size=3, **options)]
    assert together == alone
    for prompt, text in zip(prompts, alone, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")
        said = model.generate(**ids, **GREEDY | {"max_new_tokens": 6}, eos_token_id=1)[0, ids["input_ids"].shape[1] :]
        assert text.split() == tokenizer.decode(said, skip_special_tokens=True).split()
        assert text.strip()


def test_the_trainer_resumes_exactly(tmp_path: Path):
    config = replace(CONFIGS["mosaic"], dropout=0.1)
    start = huggingface_model(config).state_dict()
    data = [{"input_ids": row, "labels": row} for row in tokens(16, 9)]

    def trainer(steps: int) -> Trainer:
        model = MosaicForCausalLM(MosaicConfig(language_model=to_plain(config)))
        model.load_state_dict(start)
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=steps,
            save_steps=2,
            per_device_train_batch_size=2,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_steps=1,
        )
        return Trainer(model=model, args=arguments, train_dataset=data)

    undisturbed = trainer(4)
    undisturbed.train()
    assert not same_weights(AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2"), undisturbed.model)
    resumed = trainer(4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_weights(resumed.model, undisturbed.model)
    losses = [[entry["loss"] for entry in run.state.log_history if "loss" in entry] for run in (undisturbed, resumed)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4
    assert same_weights(checkpoint.load(tmp_path / "checkpoint-4"), resumed.model.language_model)


# configuration


def test_the_configuration_answers_to_the_names_of_hugging_face(tmp_path: Path):
    config = MosaicConfig(language_model=to_plain(CONFIGS["learned"]))
    names = {"vocab_size": 48, "hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 64}
    assert {name: getattr(config, name) for name in names} == names
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).parts == CONFIGS["learned"]
    assert AutoConfig.from_pretrained(tmp_path, vocab_size=50).parts == replace(CONFIGS["learned"], vocabulary=50)
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


# what cannot be done says so


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
    with pytest.raises(ValueError, match="packed documents"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))
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
    assert config.parts == CONFIGS["mosaic"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"head_mask": torch.zeros(2, 2)}, "no use for head_mask and would ignore it"),
        ({"foo": 3}, "no use for foo"),
        ({"token_type_ids": torch.ones(2, 6, dtype=torch.long)}, "no use for token_type_ids other than 0"),
        ({"is_causal": False}, "no use for is_causal"),
        ({"cu_seq_lens_q": torch.tensor([0, 3, 6])}, "no use for cu_seq_lens_q"),
        ({"position_ids": torch.zeros(2, 6, dtype=torch.long)}, "not those of the attention_mask"),
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


@pytest.mark.parametrize("mask", [None, torch.ones(1, 6, dtype=torch.long)])
def test_packed_documents_are_refused(mask: Tensor | None):
    model = huggingface_model(CONFIGS["mosaic"])
    with pytest.raises(ValueError, match="packed documents would see each other"):
        model(tokens(1, 6), attention_mask=mask, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))


def test_a_model_in_several_files_opens_here_and_there(tmp_path: Path):
    model = huggingface_model(CONFIGS["mosaic"])
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert same_weights(checkpoint.load(tmp_path), model.language_model)
    assert same_weights(AutoModelForCausalLM.from_pretrained(tmp_path), model)
