"""Hugging Face: a model generates the same there as here; what it looks like inside, and its configuration."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)

from huggingface_models import CONFIGS, GREEDY, every_architecture, huggingface_model, left_padded, tokens
from memory_mosaics import LanguageModel, LanguageModelConfig, checkpoint, to_plain
from memory_mosaics.errors import CheckpointError
from memory_mosaics.huggingface import (
    MosaicCache,
    MosaicConfig,
    MosaicForCausalLM,
    MosaicForSequenceClassification,
    MosaicModel,
)
from memory_mosaics.inspection import retrievals
from memory_mosaics.language_model import next_token_loss
from memory_mosaics.memory import PersistentMemoryConfig
from memory_mosaics.mixers.lstm import LSTMConfig
from memory_mosaics.text.tokenizer import train_bpe

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
        assert_close(torch.einsum("bhtn,bnhv->bthv", weights, values), retrieval.answers(), rtol=1e-4, atol=1e-5)
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
    prefix = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"  # its name in 5.17
    gradients = []
    for enable in (False, True):
        if enable:
            getattr(model, f"{prefix}_checkpointing_enable")()
        model.zero_grad()
        torch.manual_seed(0)  # of the delays of v2
        model(ids, labels=ids).loss.backward()
        gradients.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    assert len(calls) == 1 + 2  # computed again in the backward pass
    assert_close(gradients[1], gradients[0])
    getattr(model, f"{prefix}_checkpointing_disable")()
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


# other classes


@every_architecture
def test_the_backbone_and_the_view_of_it_give_the_last_hidden_states(name: str, tmp_path: Path):
    model, ids = huggingface_model(CONFIGS[name]), tokens(2, 7)
    model.save_pretrained(tmp_path)
    backbone = AutoModel.from_pretrained(tmp_path)
    assert type(backbone) is MosaicModel
    expected = attended(model, input_ids=ids)
    assert torch.equal(backbone(ids).last_hidden_state, expected.hidden_states[-1])
    assert torch.equal(model.base_model(ids).last_hidden_state, expected.hidden_states[-1])
    assert torch.equal(model.get_output_embeddings().weight, model.language_model.output)
    cache = backbone(ids[:, :4]).past_key_values
    second = backbone(ids[:, 4:], past_key_values=cache, output_attentions=True)
    assert_close(second.last_hidden_state, expected.hidden_states[-1][:, 4:], rtol=1e-4, atol=1e-5)
    assert len(second.attentions) == 2
    with pytest.raises(ValueError, match="no use for labels"):
        backbone(ids, labels=ids)


def test_a_classifier_starts_from_a_language_model_and_is_saved(tmp_path: Path):
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(3, 7)
    model.save_pretrained(tmp_path / "model")
    options: dict[str, Any] = {"num_labels": 3, "pad_token_id": 0}
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", **options)
    same_embedding = classifier.model.language_model.embedding.weight
    assert torch.equal(same_embedding, model.language_model.embedding.weight)
    assert classifier.score.weight.std() > 0
    padded = F.pad(ids, (0, 2))  # the label is read at the last token that is no padding
    found = classifier(padded, attention_mask=(padded != 0).long(), labels=torch.tensor([0, 1, 2]))
    assert_close(found.logits, classifier(ids).logits, rtol=1e-4, atol=1e-5)
    found.loss.backward()
    assert all(weight.grad is not None for weight in classifier.model.language_model.blocks.parameters())
    classifier.save_pretrained(tmp_path / "classifier")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "classifier")
    assert torch.equal(again(ids).logits, classifier(ids).logits)
    where = f"{tmp_path / 'classifier'} holds a MosaicForSequenceClassification, not a"
    remedy = "; open it with AutoModelForSequenceClassification"
    for opened, name in (
        (AutoModelForCausalLM.from_pretrained, "MosaicForCausalLM"),
        (AutoModel.from_pretrained, "MosaicModel"),
        (checkpoint.load, "LanguageModel"),
    ):
        with pytest.raises(CheckpointError) as error:
            opened(tmp_path / "classifier")
        assert str(error.value) == f"{where} {name}{remedy}"


def test_the_trainer_trains_a_classifier_on_accumulated_batches(tmp_path: Path):
    """Two batches of two rows train as one of four: the loss is a mean, and Trainer divides it by their number."""
    start = MosaicForSequenceClassification(huggingface_model(CONFIGS["mosaic"]).config).state_dict()
    data = [{"input_ids": row, "labels": number % 2} for number, row in enumerate(tokens(4, 5))]
    models = []
    for rows, accumulated in ((4, 1), (2, 2)):
        config = MosaicConfig(language_model=to_plain(CONFIGS["mosaic"]), pad_token_id=0)
        models.append(MosaicForSequenceClassification(config))
        models[-1].load_state_dict(start)
        arguments = TrainingArguments(
            str(tmp_path), max_steps=1, per_device_train_batch_size=rows, gradient_accumulation_steps=accumulated,
            optim="sgd", max_grad_norm=0, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
        )  # fmt: skip
        Trainer(model=models[-1], args=arguments, train_dataset=data).train()
    for once, accumulated in zip(*(model.parameters() for model in models), strict=True):
        assert_close(accumulated, once)


@pytest.mark.parametrize(
    ("auto", "labels"),
    [
        (AutoModelForTokenClassification, {"labels": torch.tensor([[0, 1, 2, 0]])}),
        (AutoModelForQuestionAnswering, {"start_positions": torch.tensor([1]), "end_positions": torch.tensor([2])}),
    ],
)
def test_a_label_for_each_token_and_the_ends_of_an_answer(auto: Any, labels: dict[str, Tensor], tmp_path: Path):
    model, ids = huggingface_model(CONFIGS["mosaic"]), tokens(1, 4)
    model.save_pretrained(tmp_path / "model")
    headed = auto.from_pretrained(tmp_path / "model", num_labels=3 if "labels" in labels else 2)
    assert headed.get_input_embeddings() is headed.model.language_model.embedding
    headed(ids, **labels).loss.backward()
    assert all(weight.grad is not None for weight in headed.parameters())
    headed.save_pretrained(tmp_path / "headed")
    again, file = auto.from_pretrained(tmp_path / "headed"), f"load_memory_mosaic.{type(headed).__name__}"
    assert torch.equal(again(ids)[0], headed(ids)[0])
    assert again.config.auto_map[auto.__name__] == file
    with pytest.raises(
        CheckpointError, match=f"holds a {type(headed).__name__}, not a LanguageModel; .*{auto.__name__}"
    ):
        checkpoint.load(tmp_path / "headed")


def test_a_classifier_that_lost_its_labels_is_refused(tmp_path: Path):
    classifier = MosaicForSequenceClassification(huggingface_model(CONFIGS["mosaic"]).config)
    classifier.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"missing keys score\.weight; ignore_mismatched_sizes=True"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)


def test_the_configuration_has_the_names_that_others_read():
    for name, config in CONFIGS.items():
        found = MosaicConfig(language_model=to_plain(config))
        assert (found.num_attention_heads, found.tie_word_embeddings) == (config.sequence_mixer.heads, True), name
    assert MosaicConfig(language_model=to_plain(replace(CONFIGS["mosaic"], tied=False))).tie_word_embeddings is False
    assert (
        MosaicConfig(
            language_model=to_plain(replace(CONFIGS["mosaic"], sequence_mixer=LSTMConfig()))
        ).num_attention_heads
        is None
    )


# other libraries


def test_a_checkpoint_says_how_it_is_loaded_where_nothing_is_imported(tmp_path: Path):
    tokenizer = train_bpe(["one two three"] * 9, vocabulary=260)
    ours = LanguageModel(replace(CONFIGS["mosaic"], vocabulary=tokenizer.vocabulary))
    checkpoint.save(ours, tmp_path / "model", tokenizer=tokenizer)
    program = (
        "from pathlib import Path\n"
        "from transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained('model', trust_remote_code=True)\n"
        "print(model.config.eos_token_id, model.config.pad_token_id)\n"
        "model.save_pretrained('published')\n"
        "print(sorted(path.name for path in Path('published').iterdir()))\n"
    )
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    end = tokenizer.end_of_text
    files = ["README.md", "config.json", "generation_config.json", "load_memory_mosaic.py", "model.safetensors"]
    assert done.stdout.splitlines() == [f"{end} {end}", str(files)]
    card = (tmp_path / "published" / "README.md").read_text()
    assert f"{sum(weight.numel() for weight in ours.parameters()):,} parameters" in card
    assert "trust_remote_code=True" in card
    (tmp_path / "published" / "README.md").write_text("ours")
    AutoModelForCausalLM.from_pretrained(tmp_path / "published").save_pretrained(tmp_path / "published")
    assert (tmp_path / "published" / "README.md").read_text() == "ours"


def test_lora_trains_all_linear_maps_by_default():
    peft = pytest.importorskip("peft")
    model = huggingface_model(CONFIGS["mosaic"])
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))
    trained = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    maps = [name for name, module in model.named_modules() if type(module) is nn.Linear and "lora" not in name]
    assert len(trained) == 2 * len(maps) > 0
    ids = tokens(2, 7)
    adapted(input_ids=ids, labels=ids).loss.backward()
    assert adapted.generate(input_ids=ids, **GREEDY).shape[1] > 7


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_trl_trains(kind: str, tmp_path: Path):
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    texts = ["one two three four"] * 8
    tokenizer = train_bpe(texts, vocabulary=260)
    checkpoint.save(
        LanguageModel(replace(CONFIGS["mosaic"], vocabulary=tokenizer.vocabulary)),
        tmp_path / "model",
        tokenizer=tokenizer,
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    before = model.language_model.embedding.weight.clone()
    rows = (
        {"text": texts} if kind == "SFT" else {"prompt": ["one"] * 8, "chosen": [" two"] * 8, "rejected": [" four"] * 8}
    )
    arguments = getattr(trl, f"{kind}Config")(
        output_dir=str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=2, max_length=16, use_cpu=True,
        bf16=False, report_to=[], save_strategy="no", learning_rate=1e-2,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the libraries
        trainer = getattr(trl, f"{kind}Trainer")(
            model=model,
            args=arguments,
            train_dataset=datasets.Dataset.from_dict(rows),
            processing_class=AutoTokenizer.from_pretrained(tmp_path / "model"),
        )
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert all(loss == loss for loss in losses)
    assert not torch.equal(before, model.language_model.embedding.weight)
