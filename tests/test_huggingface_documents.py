"""Hugging Face: packed documents, as transformers' and TRL's collators send them, are read apart."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorWithFlattening

from huggingface_models import CONFIGS, every_architecture, huggingface_model, left_padded, tokens
from memory_mosaics import LanguageModel, checkpoint
from memory_mosaics.huggingface import MosaicCache, MosaicForCausalLM
from memory_mosaics.text.tokenizer import train_bpe

LENGTHS = (3, 1, 7, 5)


def documents_and_positions() -> tuple[list[Tensor], Tensor, Tensor]:
    """Documents, one row of them all, and positions that start again with each."""
    documents = [tokens(length) for length in LENGTHS]
    return documents, torch.cat(documents)[None], torch.cat([torch.arange(length) for length in LENGTHS])[None]


def logits_alone(model: MosaicForCausalLM, documents: list[Tensor]) -> Tensor:
    return torch.cat([model(document[None]).logits[0] for document in documents])


@every_architecture
@torch.no_grad()
def test_positions_that_start_again_start_documents(name: str):
    model = huggingface_model(CONFIGS[name]).double()
    documents, row, positions = documents_and_positions()
    alone = logits_alone(model, documents)
    assert_close(model(row, position_ids=positions).logits[0], alone)
    assert_close(model(row, position_ids=positions, attention_mask=torch.ones_like(row)).logits[0], alone)
    assert_close(model(row, position_ids=positions, use_cache=False).logits[0], alone)
    numbers = torch.repeat_interleave(torch.arange(1, 5), torch.tensor(LENGTHS))[None]
    assert_close(model(row, attention_mask=numbers).logits[0], alone, msg="a mask that numbers the documents")


@every_architecture
@torch.no_grad()
def test_a_cache_continues_the_last_document(name: str):
    model, cache = huggingface_model(CONFIGS[name]).double(), MosaicCache()
    documents, row, positions = documents_and_positions()
    alone = logits_alone(model, documents)
    for first, end in ((0, 2), (2, 6), (6, 9), (9, 10), (10, 14), (14, 16)):
        part = {"input_ids": row[:, first:end], "position_ids": positions[:, first:end]}
        assert_close(model(**part, past_key_values=cache).logits[0], alone[first:end])
    more = tokens(1, 3)
    expected = model(torch.cat([documents[-1][None], more], dim=1)).logits[:, -3:]
    cache.batch_repeat_interleave(2)
    assert_close(model(more.expand(2, -1), past_key_values=cache).logits, expected.expand(2, -1, -1))
    generated = model.generate(row, past_key_values=None, max_new_tokens=2, do_sample=False)
    assert generated.shape == (1, 18)


@torch.no_grad()
def test_rows_with_padding_hold_documents():
    model = huggingface_model(CONFIGS["learned"]).double()
    rows = [tokens(9), tokens(6)]
    padded = left_padded(rows)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [1, 1, 1, 0, 1, 0, 1, 2, 3]])
    found = model(**padded, position_ids=positions, past_key_values=(cache := MosaicCache()))
    for i, start in enumerate((4, 2)):
        alone = logits_alone(model, [rows[i][:start], rows[i][start:]])
        assert_close(found.logits[i, -len(rows[i]) :], alone)
    following = tokens(2, 1)
    mask = torch.cat([padded["attention_mask"], torch.ones(2, 1, dtype=torch.long)], dim=1)
    options = {"attention_mask": mask, "position_ids": torch.tensor([[5], [4]]), "past_key_values": cache}
    then = model(following, **options).logits
    for i, start in enumerate((4, 2)):
        assert_close(then[i], model(torch.cat([rows[i][start:], following[i]])[None]).logits[0, -1:])


def loss_alone(model: MosaicForCausalLM, documents: list[Tensor]) -> Tensor:
    """The mean loss of the predicted tokens of documents in rows of their own."""
    losses = [model(one[None], labels=one[None]).loss * (len(one) - 1) for one in documents if len(one) > 1]
    return sum(losses) / sum(len(one) - 1 for one in documents)


@every_architecture
def test_the_loss_of_flattened_batches_is_that_of_the_documents_alone(name: str):
    model, documents = huggingface_model(CONFIGS[name]).double(), documents_and_positions()[0]
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch = collate([{"input_ids": document.tolist()} for document in documents])
    assert {"position_ids", "cu_seq_lens_q", "max_length_k", "seq_idx"} <= batch.keys()
    found = model(**batch).loss
    assert_close(found, loss_alone(model, documents))
    weight = model.language_model.embedding.weight
    (packed,), (apart,) = (torch.autograd.grad(loss, weight) for loss in (found, loss_alone(model, documents)))
    assert_close(packed, apart)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mosaic", "learned", "llama, grouped queries"])
def test_trl_packs(name: str, tmp_path: Path):
    """Losses and weights after steps on packed documents are those after the same documents side by side."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    texts = ["one two three four five six seven", "two", "four three two one", "six six six five four one"] * 2
    tokenizer = train_bpe(texts, vocabulary=260)
    torch.manual_seed(0)
    model = LanguageModel(replace(CONFIGS[name], vocabulary=tokenizer.vocabulary))
    checkpoint.save(model, tmp_path / "model", tokenizer=tokenizer)
    found: dict[bool, tuple[list[float], Tensor]] = {}
    for packing in (True, False):
        arguments = trl.SFTConfig(
            output_dir=str(tmp_path / f"run-{packing}"), max_steps=3, per_device_train_batch_size=8, max_length=64,
            packing=packing, use_cpu=True, bf16=False, report_to=[], save_strategy="no", learning_rate=1e-2,
            logging_steps=1, gradient_checkpointing=False,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the libraries
            trained = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
            trainer = trl.SFTTrainer(
                model=trained,
                args=arguments,
                train_dataset=datasets.Dataset.from_dict({"text": texts}),
                processing_class=AutoTokenizer.from_pretrained(tmp_path / "model"),
            )
            batch = next(iter(trainer.get_train_dataloader()))
            assert ("position_ids" in batch) == packing
            trainer.train()
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        found[packing] = losses, trained.language_model.embedding.weight.detach().clone()
    assert len(found[True][0]) == 3
    assert_close(found[True][0], found[False][0], rtol=1e-5, atol=1e-5)
    assert_close(found[True][1], found[False][1], rtol=1e-3, atol=1e-4)
