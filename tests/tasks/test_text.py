"""Texts of the arena: halves by hash, measures against a computation by hand, refusals."""

import json
import math
import sys

import numpy as np
import pytest
import torch

import memory_mosaics.apps.story_world  # noqa: F401 - registers stories:COUNT
from memory_mosaics.config import from_plain, to_plain
from memory_mosaics.errors import UserError
from memory_mosaics.experiments.arena import Holder
from memory_mosaics.models import memory_mosaic
from memory_mosaics.tasks.text import TextData, python_library, split_half
from memory_mosaics.text.corpus import Corpus

DATA = TextData(
    train=("stories:300",), valid_share=0.3, read={"others": ("stories:60:5",)}, length=32, windows=7, order=3
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text") / "data"
    DATA.prepare(folder)
    return folder


def test_the_halves_have_every_document_once(folder):
    corpus = Corpus.open(folder / "train")
    whole = np.asarray(corpus.tokens("valid"))
    halves = [split_half(corpus, "valid", half) for half in ("choosing", "report")]
    assert sum(map(len, halves)) == len(whole)

    def documents(tokens):
        return [tuple(one) for one in np.split(tokens, np.flatnonzero(tokens == corpus.end_of_text) + 1) if len(one)]

    choosing, report = (set(documents(half)) for half in halves)
    assert choosing
    assert report
    assert not choosing & report
    assert choosing | report == set(documents(whole))
    assert 0.2 < len(choosing) / len(choosing | report) < 0.8


def test_training_is_validated_on_the_choosing_half(folder):
    task = DATA.open(folder).task(batch_size=2, seed=0, steps=3)
    corpus = Corpus.open(folder / "train")
    assert np.array_equal(task.windows["valid"].tokens, split_half(corpus, "valid", "choosing"))
    assert len(task.windows["train"].tokens) == corpus.manifest["splits"]["train"]["tokens"]


def test_measures_are_those_computed_by_hand(folder):
    torch.manual_seed(0)
    text = DATA.open(folder)
    model = memory_mosaic(width=8, heads=2, blocks=1, slots=4, vocabulary=DATA.vocabulary).build().eval()
    counts = np.bincount(np.asarray(text.corpus.tokens("train")), minlength=DATA.vocabulary)
    for test, corpus, split in zip(
        text.test_sets(), (text.corpus, Corpus.open(folder / "others")), ("valid", "train"), strict=True
    ):
        tokens = split_half(corpus, split, "report").astype(np.int64)
        available = (len(tokens) - 1) // 32
        starts = [number * available // 7 * 32 for number in range(7)]
        losses, known, size = [], [], 0
        for start in starts:
            window = tokens[start : start + 33]
            with torch.no_grad():
                logits = model(torch.from_numpy(window[None, :-1]))[0][0]
            probabilities = logits.double().softmax(-1).numpy()
            losses.append([-math.log(probabilities[at, window[at + 1]]) for at in range(32)])
            known.append([counts[token] > 0 for token in window[1:]])
            size += sum(token != corpus.end_of_text for token in window[1:])  # one byte per token
        losses, known = np.array(losses), np.array(known)
        found = test.measure(model)
        assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
        assert found["seen"] == pytest.approx(losses[known].mean(), rel=1e-5)
        assert found["seen_share"] == pytest.approx(known.mean())
        assert found["gain"] == pytest.approx(losses[:, :4].mean() - losses[:, -8:].mean(), rel=1e-4)
        assert found["bits_per_byte"] == pytest.approx(losses.sum() / size / math.log(2), rel=1e-5)
        assert [span[:2] for span in found["by_position"]] == [[0, 1], [1, 2], [2, 4], [4, 8], [8, 16], [16, 32]]
        assert found["by_position"][3][2] == pytest.approx(losses[:, 4:8].mean(), rel=1e-5)


def test_anchors_have_the_same_measures(folder):
    text = DATA.open(folder)
    anchors = text.test_sets()[1].anchors()
    assert list(anchors) == ["guess", "unigram", "unigram cache", "3-gram cache"]
    assert anchors["guess"]["loss"] == pytest.approx(math.log(257))
    counts = np.bincount(np.asarray(text.corpus.tokens("train")), minlength=257)
    targets = np.concatenate([batch.targets.numpy() for batch in text.test_sets()[1].batches(2)])
    unigram = -np.log((counts[targets] + 1) / (counts.sum() + 257))
    assert anchors["unigram"]["loss"] == pytest.approx(unigram.mean())
    assert anchors["unigram"]["by_position"][0][2] == pytest.approx(unigram[:, 0].mean())
    assert anchors["3-gram cache"]["gain"] > anchors["unigram"]["gain"]  # it learns from its context


def test_a_text_of_plain_values_is_the_same(folder):
    plain = json.loads(json.dumps(to_plain(Holder(data=DATA))))
    assert plain["data"]["read"] == {"others": ["stories:60:5"]}
    assert from_plain(Holder, plain).data == DATA


def test_a_bpe_of_the_training_text_reads_the_others(tmp_path):
    data = TextData(train=("stories:200",), read={"others": ("stories:30:5",)}, tokenizer="bpe", vocabulary=300)
    facts = data.prepare(tmp_path)
    assert facts["corpora"].keys() == {"train", "others"}
    fingerprints = {Corpus.open(tmp_path / name).manifest["tokenizer"]["fingerprint"] for name in ("train", "others")}
    assert len(fingerprints) == 1
    assert Corpus.open(tmp_path / "train").vocabulary == 300


def test_a_corpus_is_opened_where_its_sources_are_not(tmp_path, capsys):
    source = tmp_path / "stories.jsonl"
    source.write_text("".join(json.dumps(f"Once there were {number} cats.") + "\n" for number in range(40)))
    data = TextData(train=(str(source),), valid_share=0.3, length=8)
    facts = data.prepare(tmp_path / "data")
    source.write_text(json.dumps("Another text.") + "\n")
    with pytest.raises(UserError, match="was prepared without"):
        data.prepare(tmp_path / "data")
    source.unlink()
    assert data.prepare(tmp_path / "data") == facts
    assert "is taken as it is: source" in capsys.readouterr().out
    with pytest.raises(UserError, match="does not exist"):
        data.prepare(tmp_path / "elsewhere")


def test_a_text_that_is_read_once_must_be_long_enough(folder):
    once = TextData(train=DATA.train, valid_share=0.3, length=32, once=True)
    windows = DATA.open(folder).task(batch_size=1, seed=0, steps=1).windows["train"].per_epoch
    once.open(folder).task(batch_size=1, seed=0, steps=windows)
    with pytest.raises(UserError, match=rf"has {windows:,} windows, and {windows + 1:,} steps of 1 windows need"):
        once.open(folder).task(batch_size=1, seed=0, steps=windows + 1)


def test_the_standard_library_of_another_version_is_refused():
    running = ".".join(map(str, sys.version_info[:3]))
    assert any("def dataclass" in text for text in python_library(f"python:{running}"))
    with pytest.raises(UserError, match=r"python:2\.7\.18: this is Python 3"):
        python_library("python:2.7.18")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocabulary": 512}, "the tokenizer of bytes has a vocabulary of 257, not 512"),
        ({"read": {"valid": ("a.txt",)}}, "'valid' cannot be the name of another text"),
        ({"length": 0}, "length must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        TextData(train=("stories:10",), **fields)
