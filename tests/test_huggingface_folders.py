"""Hugging Face: folders that open here and there, a pipeline and the Trainer."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments, pipeline

from huggingface_models import (
    CONFIGS,
    GREEDY,
    SAVED,
    SIZE,
    every_architecture,
    every_saved,
    huggingface_model,
    same_weights,
    tokens,
)
from memory_mosaics import LanguageModel, LanguageModelConfig, checkpoint, to_plain
from memory_mosaics.config import MixerConfig
from memory_mosaics.files import describe_files
from memory_mosaics.huggingface import MosaicConfig, MosaicForCausalLM
from memory_mosaics.language_model import next_token_loss
from memory_mosaics.mixers.attention import MLPConfig
from memory_mosaics.parameters import fp32_parameter_names
from mixers_under_contract import MIXERS, WIDTH

# folders


@every_saved
def test_a_folder_of_ours_opens_there(name: str, tmp_path: Path):
    ours = huggingface_model(SAVED[name]).language_model
    folder = checkpoint.save(ours, tmp_path / "model")
    theirs, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(theirs) is MosaicForCausalLM
    assert not any(report.values()), report
    assert same_weights(theirs.language_model, ours)
    assert theirs.config.language_model_config == SAVED[name]
    assert theirs.generation_config.use_cache
    ids = tokens(2, 5)
    assert torch.equal(theirs(ids).logits, ours(ids)[0])


@every_saved
def test_a_folder_of_theirs_opens_here(name: str, tmp_path: Path):
    theirs = huggingface_model(SAVED[name])
    theirs.save_pretrained(tmp_path)
    files = {"config.json", "generation_config.json", "model.safetensors", "README.md", "load_memory_mosaic.py"}
    assert {path.name for path in tmp_path.iterdir()} == files
    ours = checkpoint.load(tmp_path)
    assert ours.config == SAVED[name]
    assert same_weights(theirs.language_model, ours)
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert same_weights(theirs.language_model, checkpoint.load(tmp_path / "shards"))


def test_a_new_model_has_the_initial_values_of_a_language_model():
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


@pytest.mark.parametrize(
    ("blocks", "message"), [(4000, r"lacks the weight blocks\.2"), (1, r"does not have: blocks\.1")]
)
def test_weights_of_another_model_are_refused(blocks: int, message: str, tmp_path: Path):
    model = huggingface_model(CONFIGS["mosaic"])
    folder = checkpoint.save(model.language_model, tmp_path / "model")
    plain = json.loads((folder / "config.json").read_text())
    plain["language_model"]["blocks"] = blocks
    (folder / "config.json").write_text(json.dumps(plain))
    for options in ({}, {"subfolder": "model"}):
        with pytest.raises(checkpoint.CheckpointError, match=message):
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
        scale = weight_name.rsplit(".", 1)[-1] in ("theta", "rate", "taps", "gamma", "alpha")
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
def test_every_mixer_reads_in_every_dtype_and_generates(mixer: MixerConfig, tmp_path: Path):
    sizes = {"vocabulary": SIZE["vocabulary"], "width": WIDTH, "blocks": 2}
    config = LanguageModelConfig(sequence_mixer=mixer, channel_mixer=MLPConfig(), **sizes)
    MosaicForCausalLM(MosaicConfig(language_model=to_plain(config))).save_pretrained(tmp_path)
    ids, logits = tokens(2, 7), {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        exact = fp32_parameter_names(loaded.language_model)
        for name, weight in loaded.language_model.named_parameters():
            assert weight.dtype == (torch.promote_types(dtype, torch.float32) if name in exact else dtype), name
        with torch.no_grad():
            logits[dtype] = loaded(ids).logits
            assert logits[dtype].dtype == dtype
            assert logits[dtype].isfinite().all()
            first = loaded(ids[:, :4], use_cache=True)
            rest = [loaded(ids[:, t : t + 1], past_key_values=first.past_key_values).logits for t in range(4, 7)]
        if dtype == torch.float64:
            loss = loaded(ids, labels=ids).loss
            assert_close(loss, next_token_loss(logits[dtype][:, :-1], ids[:, 1:]), rtol=1e-12, atol=0)
            assert_close(torch.cat([first.logits, *rest], dim=1), logits[dtype], rtol=1e-10, atol=1e-10)
            assert same_weights(checkpoint.load(tmp_path, dtype=dtype), loaded.language_model)
        if dtype in (torch.bfloat16, torch.float16):  # beside float32, of scales and of what is accumulated
            assert loaded.generate(ids, **GREEDY | {"max_new_tokens": 3}).shape == (2, 7 + 3)
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


def test_a_model_in_several_files_opens_here_and_there(tmp_path: Path):
    model = huggingface_model(CONFIGS["mosaic"])
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert same_weights(checkpoint.load(tmp_path), model.language_model)
    assert same_weights(AutoModelForCausalLM.from_pretrained(tmp_path), model)


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
        tokens = model.generate(**ids, **GREEDY | {"max_new_tokens": 6}, eos_token_id=1)[0, ids["input_ids"].shape[1] :]
        assert text.split() == tokenizer.decode(tokens, skip_special_tokens=True).split()
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
