"""Texts of the arena: halves by hash, measures against a computation by hand, refusals."""

import json
import math
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import memory_mosaics.apps.story_world  # noqa: F401 - registers stories:COUNT
from memory_mosaics.config import from_plain, to_plain
from memory_mosaics.errors import UserError
from memory_mosaics.evaluation import cache_losses, unigram
from memory_mosaics.experiments.suite import Holder
from memory_mosaics.models import memory_mosaic
from memory_mosaics.tasks.text import TextData, documents, python_library, split_half
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
    whole = [document.tobytes() for document in documents(corpus, "valid")]
    assert b"".join(whole) == np.asarray(corpus.tokens("valid")).tobytes()
    choosing, report = ([one.tobytes() for one in split_half(corpus, half)] for half in ("choosing", "report"))
    assert sorted(choosing + report) == sorted(whole)
    assert not {*choosing} & {*report}
    assert 0.2 < len(choosing) / len(whole) < 0.8


def test_the_halves_are_the_same_texts_for_every_tokenizer(folder, tmp_path):
    bpe = replace(DATA, tokenizer="bpe", vocabulary=300, read={})
    bpe.prepare(tmp_path)
    halves = []
    for corpus in (Corpus.open(folder / "train"), Corpus.open(tmp_path / "train")):
        decode = corpus.tokenizer().decode
        halves.append({decode(one[one != corpus.end_of_text]) for one in split_half(corpus, "report")})
    assert halves[0] == halves[1]


def test_training_is_validated_on_the_choosing_half(folder):
    task = DATA.open(folder).task(batch_size=2, seed=0, steps=3)
    corpus = Corpus.open(folder / "train")
    assert np.array_equal(task.windows["valid"].tokens, np.concatenate(split_half(corpus, "choosing")))
    assert len(task.windows["train"].tokens) == corpus.manifest["splits"]["train"]["tokens"]


def test_measures_are_those_computed_by_hand(folder):
    torch.manual_seed(0)
    text = DATA.open(folder)
    model = memory_mosaic(width=8, heads=2, blocks=1, slots=4, vocabulary=DATA.vocabulary).build().eval()
    counts = np.bincount(np.asarray(text.corpus.tokens("train")), minlength=DATA.vocabulary)
    others = Corpus.open(folder / "others")
    texts = (text.corpus, split_half(text.corpus, "report")), (others, documents(others, "train"))
    for test, (corpus, parts) in zip(text.test_sets(), texts, strict=True):
        tokens = np.concatenate(parts).astype(np.int64)
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
    targets = np.concatenate([rows[:, 1:].numpy() for rows in text.test_sets()[1].windows.batches(2)])
    unigram = -np.log((counts[targets] + 1) / (counts.sum() + 257))
    assert anchors["unigram"]["loss"] == pytest.approx(unigram.mean())
    assert anchors["unigram"]["by_position"][0][2] == pytest.approx(unigram[:, 0].mean())
    assert anchors["3-gram cache"]["gain"] > anchors["unigram"]["gain"]  # it learns from its context


def test_documents_are_read_apart_by_models_and_anchors(folder):
    """A document starts at the end of text before it, which alone is what is remembered there."""
    torch.manual_seed(0)
    text = replace(DATA, documents=True, length=700).open(folder)
    task = text.task(batch_size=4, seed=0, steps=3)
    batch = task.batch(0)
    assert torch.equal(batch.starts, batch.inputs == text.corpus.end_of_text)
    assert batch.starts.any()
    assert DATA.open(folder).task(batch_size=4, seed=0, steps=3).batch(0).starts is None
    model = memory_mosaic(width=8, heads=2, blocks=1, slots=4, vocabulary=DATA.vocabulary).build().eval()
    test = text.test_sets()[1]
    prior = unigram(text.counts, 1.0).tolist()
    losses, cached = [], []
    for window in torch.cat(list(test.windows.batches(7))):
        starts = sorted({0, *(window[:-1] == text.corpus.end_of_text).nonzero().flatten().tolist(), 700})
        for first, end in pairwise(starts):
            piece = window[first : end + 1]
            losses.append(model.loss(piece[None, :-1], piece[None, 1:]).item() * (end - first))
            cached += cache_losses(piece.tolist(), prior, order=3)
    assert len(losses) > 7
    assert test.measure(model)["loss"] == pytest.approx(sum(losses) / (7 * 700), rel=1e-5)
    assert test.anchors()["3-gram cache"]["loss"] == pytest.approx(np.mean(cached), rel=1e-5)


@pytest.mark.parametrize("apart", [False, True])
def test_longer_windows_read_as_many_tokens_and_with_documents_lie_within_one(folder, apart):
    text = replace(DATA, documents=apart, windows=128, test_lengths=(64, 512)).open(folder)
    assert text.data.labels == ["valid", "others", "valid-64", "others-64", "valid-512", "others-512"]
    tests = {test.label: test for test in text.test_sets()}
    assert list(tests) == text.data.labels
    model = memory_mosaic(width=8, heads=2, blocks=1, slots=4, vocabulary=DATA.vocabulary, context=32).build().eval()
    found = {label: test.measure(model) for label, test in tests.items() if label.startswith("others")}
    assert [("disentanglement" in one, one["by_position"][-1][1]) for one in found.values()] == [
        (not apart, 32),  # the score goes on at the ends of documents
        (False, 64),
        (False, 512),
    ]
    assert len(tests["others-64"].windows) == 64
    assert 0 < len(tests["others-512"].windows) <= 8
    windows = torch.cat(list(tests["others-512"].windows.batches(8)))
    assert (windows[:, :-1] != text.corpus.end_of_text).all() == apart
    too_long, message = (9000, "the longest document of .* tokens, and a test 9,000") if apart else (60_000, "60,001")
    with pytest.raises(UserError, match=message):
        replace(text.data, test_lengths=(too_long,)).open(folder).test_sets()[2].check()


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


def test_documents_of_the_training_text_are_left_out_of_a_test(tmp_path):
    own, other = tmp_path / "own.jsonl", tmp_path / "other.jsonl"
    lines = [json.dumps(f"Once there were {number} cats in the garden.") for number in range(60)]
    own.write_text("\n".join(lines) + "\n")
    other.write_text(
        "\n".join([*lines[:30], *(json.dumps(f"A dog had {number} bones.") for number in range(9))]) + "\n"
    )
    data = TextData(train=(str(own),), valid_share=0.2, read={"other": (str(other),)}, length=8)
    data.prepare(tmp_path / "data")
    text = data.open(tmp_path / "data")
    kept = [bytes(one[:-1].tolist()).decode() for one in documents(text.corpus, "train")]
    found = text.test_sets()[1].describe()
    assert found["left_out"] == sum(json.loads(line) in kept for line in lines[:30])
    assert found["documents"] + found["left_out"] == 39
    assert found["left_out"] > 15


def test_a_text_without_a_window_is_found_before_training(tmp_path):
    short = tmp_path / "short.jsonl"
    short.write_text(json.dumps("Too short.") + "\n")
    data = TextData(train=("stories:60",), valid_share=0.3, read={"short": (str(short),)}, length=32)
    data.prepare(tmp_path / "data")
    with pytest.raises(UserError, match="short has 11 tokens, and a window of 32 wants at least 33"):
        [test.check() for test in data.open(tmp_path / "data").test_sets()]


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
        ({"read": {"train": ("a.txt",)}}, "'train' cannot be the name of another text"),
        ({"length": 0}, "length must be at least 1"),
        ({"test_lengths": (512,)}, "test_lengths must be at least 513"),
        ({"test_lengths": (600,), "read": {"valid-600": ("a.txt",)}}, "two tests would be called 'valid-600'; rename"),
    ],
)
def test_what_makes_no_sense_is_refused(fields, message):
    with pytest.raises(UserError, match=message):
        TextData(train=("stories:10",), **fields)
