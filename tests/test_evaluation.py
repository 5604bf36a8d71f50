"""Losses against a direct computation and training's own measurement, and the windows they are of."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import memory_mosaics.apps.story_world  # noqa: F401 - registers stories:COUNT
from memory_mosaics import evaluation
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError
from memory_mosaics.evaluation import evaluate, sample_windows, smooth, token_losses
from memory_mosaics.extractors import LeakyAverageConfig
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.memory import OutputGateConfig
from memory_mosaics.models import (
    ARCHITECTURES,
    PRESETS,
    architecture_name,
    memory_mosaic,
    mixer_config,
    preset,
    transformer,
)
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.scales import ConstantSharpnessConfig
from memory_mosaics.stores import Visibility
from memory_mosaics.text import corpus as corpora
from memory_mosaics.text.tokenizer import byte_tokenizer, train_bpe
from memory_mosaics.training import trainer
from memory_mosaics.training.config import ModelArgs, Run, Training

SIZE = {"width": 16, "blocks": 1, "heads": 2, "vocabulary": 257, "context": 24}
TEXTS = ["Grüße, kleine Welt.", "Ein längerer Text, der über viele Zeichen geht und nicht aufhört.", "Und noch einer."]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text") / "corpus"
    return corpora.prepare(["stories:60"], out=folder, tokenizer="bytes", valid_share=0.1)


@pytest.fixture
def trained(tmp_path):
    return LoadedModel("it", tmp_path, LanguageModel(memory_mosaic(**SIZE)).eval(), byte_tokenizer())


def test_losses_are_those_of_all_logits_at_once(trained, monkeypatch):
    tokens = torch.randint(257, (3, 20))
    with torch.no_grad():
        logits = trained.model(tokens[:, :-1])[0]
    wanted = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    for at_once in (1, 5 * 257, 1 << 25):
        monkeypatch.setattr(evaluation, "MAX_LOGITS", at_once)
        torch.testing.assert_close(token_losses(trained.model, tokens[:, :-1], tokens[:, 1:]), wanted)


def test_numbers_are_those_of_a_direct_computation(trained, corpus):
    text = sample_windows(corpus, length=24, count=7)
    measured = evaluate(trained, text, batch=3)
    rows = torch.stack([torch.from_numpy(text.tokens[at : at + 25].astype(np.int64)) for at in text.starts])
    losses = token_losses(trained.model, rows[:, :-1], rows[:, 1:]).double().numpy()
    summary, curves = measured.summary(), measured.curves()
    assert (summary["windows"], summary["tokens"], len(set(text.starts))) == (7, 7 * 24, 7)
    np.testing.assert_allclose(curves["by_position"], losses.mean(axis=0), rtol=1e-6)
    within = 1.959964 * losses.std(axis=0, ddof=1) / math.sqrt(7)
    np.testing.assert_allclose(curves["by_position_within"], within, rtol=1e-4)
    assert measured.loss == pytest.approx(losses.mean())
    assert summary["loss_within"] == pytest.approx(1.959964 * losses.mean(axis=1).std(ddof=1) / math.sqrt(7), rel=1e-4)
    assert summary["perplexity"] == pytest.approx(math.exp(losses.mean()))
    letters = int((rows[:, 1:] != 256).sum())
    assert summary["bytes"] == letters
    assert summary["bits_per_byte"] == pytest.approx(losses.sum() / math.log(2) / letters)
    assert measured.mean_between(10, 20) == pytest.approx(losses[:, 10:20].mean())
    assert measured.mean_between(20, 25) is None


def test_it_is_the_loss_that_training_measures(corpus, tmp_path):
    model = ModelArgs(width=16, heads=2, blocks=1, context=24)
    training = Training(steps=2, batch=4, warm_up=1, evaluate_every=2, evaluate_windows=9)
    runtime = RuntimeConfig(device="cpu", samples=0)
    run = Run(data=corpus.folder, out=tmp_path / "run", model=model, training=training, runtime=runtime)
    results = trainer.train(run)
    trained = LoadedModel.open(tmp_path / "run")
    for split in ("valid", "train"):
        measured = evaluate(trained, sample_windows(corpus, split=split, length=24, count=9), batch=2)
        assert measured.loss == pytest.approx(results[f"{split}_loss"], abs=1e-6)


def test_all_windows_lie_side_by_side(corpus):
    text = sample_windows(corpus, length=100)
    assert list(text.starts) == [100 * number for number in range(len(text))]
    assert 0 <= len(text.tokens) - 1 - 100 * len(text) < 100
    assert sum(len(rows) for rows in text.batches(7, length=100)) == len(text)


def test_overlapping_windows_are_as_many_as_asked_for(corpus):
    tokens = len(corpus.tokens("valid"))
    text = sample_windows(corpus, length=100, count=tokens // 2, overlap=True)
    assert len(set(text.starts)) == tokens // 2
    assert all(len(row) == 101 for rows in text.batches(50, length=100) for row in rows)


def test_windows_begin_with_documents_and_stay_within(tmp_path):
    (tmp_path / "a.txt").write_text("\n<|endoftext|>\n".join(TEXTS))
    corpus = corpora.prepare([str(tmp_path / "a.txt")], out=tmp_path / "corpus", tokenizer="bytes", valid_share=0.0)
    documents = {len(text.encode()): text for text in TEXTS}
    text = sample_windows(corpus, split="train", length=16, at_documents=True)
    found = [bytes(row[:16].tolist()).decode(errors="ignore") for [row] in text.batches(1, length=16)]
    assert found == [text.encode()[:16].decode(errors="ignore") for text in TEXTS if len(text.encode()) >= 16]
    longest = max(documents)
    [row] = next(sample_windows(corpus, split="train", length=longest, at_documents=True).batches(1, length=longest))
    assert bytes(row[:-1].tolist()).decode() == documents[longest]
    assert row[-1] == 256, "the last token to predict is the end of the text"
    with pytest.raises(UserError, match=f"the longest has {longest}; take a shorter --length"):
        sample_windows(corpus, split="train", length=longest + 1, at_documents=True)


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_bytes_are_those_of_the_text(tmp_path, kind):
    """Wherever windows cut: within a letter too."""
    (tmp_path / "a.txt").write_text("\n<|endoftext|>\n".join(TEXTS))
    tokenizer = byte_tokenizer() if kind == "bytes" else train_bpe(TEXTS, 280)
    tokenizer.save(tmp_path / "own")
    corpus = corpora.prepare(
        [str(tmp_path / "a.txt")], out=tmp_path / "corpus", tokenizer=str(tmp_path / "own"), valid_share=0.0
    )
    tokens = corpus.tokens("train")
    counted = sum(tokenizer.count_bytes(tokens[at : at + 3]) for at in range(0, len(tokens), 3))
    assert counted == corpus.manifest["splits"]["train"]["bytes"] == sum(len(text.encode()) for text in TEXTS)


def test_learned_positions_are_read_up_to_the_last_of_them(trained, corpus):
    text = sample_windows(corpus, length=30, count=5)
    learned = replace(trained, model=LanguageModel(transformer(**SIZE)).eval())
    short, long = evaluate(learned, text), evaluate(trained, text)
    assert [len(measured.curves()["by_position"]) for measured in (short, long)] == [24, 30]
    assert (short.summary()["tokens"], short.bytes < long.bytes) == (5 * 24, True)
    first = evaluate(learned, replace(text, length=24))
    np.testing.assert_allclose(short.curves()["by_position"], first.curves()["by_position"])  # the same windows


def test_of_one_window_no_band_is_known(trained, corpus):
    measured = evaluate(trained, sample_windows(corpus, length=24, count=1))
    intervals = measured.summary() | measured.curves()
    assert [intervals[f"{name}_within"] for name in ("loss", "by_position", "smoothed")] == [None] * 3


def test_a_smoothed_curve_keeps_what_is_straight_and_its_ends():
    line = np.linspace(3, 2, 1000)
    np.testing.assert_allclose(smooth(line, 10), line)
    noise = np.random.default_rng(0).normal(size=(2, 1000))
    assert smooth(noise, 10)[:, 50:-50].std() < 0.4
    np.testing.assert_allclose(smooth(noise, 10)[:, [0, -1]], noise[:, [0, -1]])
    np.testing.assert_allclose(smooth(noise, 10)[1], smooth(noise[1], 10))


def test_a_model_that_is_broken_is_named(trained, corpus):
    with torch.no_grad():
        trained.model.embedding.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="the loss of it is nan"):
        evaluate(trained, sample_windows(corpus, length=24, count=2))


@pytest.mark.parametrize("options", [{"length": 0}, {"count": 0}, {"length": 10**6}, {"split": "test"}])
def test_windows_that_cannot_be(corpus, options):
    with pytest.raises(UserError):
        sample_windows(corpus, **options)


def test_models_are_called_by_their_kind():
    names = {name: architecture_name(preset(name)) for name in PRESETS}
    assert names["memory-mosaic-12"] == names["memory-mosaic-tiny"] == "memory-mosaic"
    assert names["transformer-12"] == "transformer"
    for code in ("rotary", "alibi", "none"):
        assert names[f"transformer-{code}-12"] == f"transformer-{code}"
    assert names["llama-12"] == names["llama-small"] == names["llama-8b"] == "llama"
    assert names["memory-mosaic-v2-8b"] == names["memory-mosaic-v2-tiny"] == "memory-mosaic-v2"
    both = replace(transformer(position="rotary"), positions=transformer().positions)
    assert architecture_name(both) == "transformer-learned+rotary"


def test_only_the_parts_of_v2_are_called_v2():
    config = preset("memory-mosaic-v2-tiny")
    memories = config.sequence_mixer
    short, long = memories.visibility

    def name(**changes):
        return architecture_name(replace(config, sequence_mixer=replace(memories, **changes)))

    assert name(heads=16, head_width=8) == name(visibility=(short, Visibility(delay=7))) == "memory-mosaic-v2"
    variants = [
        {"key": LeakyAverageConfig()},
        {"sharpness": ConstantSharpnessConfig()},
        {"gate": OutputGateConfig()},
        {"visibility": (long, short)},
        {"visibility": (short, short)},
        {"visibility": short},
    ]
    assert {name(**changes) for changes in variants} == {"contextual-memory"}


@pytest.mark.parametrize("kind", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_the_mixer_of_every_architecture_needs_heads_alone(kind):
    config = mixer_config(kind.mixer, 4)
    assert getattr(config, "heads", 4) == 4
    assert isinstance(config, type(kind.config().sequence_mixer))
    with torch.device("meta"):
        config.build(32)
