"""Corpora: every document comes back, any number of workers writes the same bytes, a run is whole or nothing."""

import errno
import gzip
import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory_mosaics.apps.story_world import stories
from memory_mosaics.errors import UserError
from memory_mosaics.tasks.language_modeling import Windows
from memory_mosaics.text import corpus as module
from memory_mosaics.text import sources
from memory_mosaics.text.corpus import Corpus, TokenFile
from memory_mosaics.text.sources import Piece, Source, find_sources, read_documents
from memory_mosaics.text.tokenizer import Tokenizer, byte_tokenizer, gpt2, train_bpe
from waiting import HANG, until

DATA = Path(__file__).parents[3] / "shared" / "data"
DOCUMENTED = (Path(__file__).parents[1] / "bad_input.md").read_text(encoding="utf-8")
STORIES = ["Once upon a time.\nThe end.", "  Two  cats'  naïve café 東京 🙂", "<|endoftext|> is a text here", "Four"]


def documents(corpus: Corpus, split: str) -> list[str]:
    """The texts of a split, read back from its file."""
    ids = corpus.tokens(split)[:]
    ends = np.flatnonzero(ids == corpus.end_of_text)
    assert len(ids) == 0 or ends[-1] == len(ids) - 1, "every document ends"
    tokenizer = corpus.tokenizer()
    return [tokenizer.decode(part[:-1]) for part in np.split(ids, ends + 1) if len(part)]


def prepare(*names: Path | str, out: Path, **options) -> Corpus:
    options = {"tokenizer": "bytes", "valid_share": 0.0, "workers": 1} | options
    return module.prepare([str(name) for name in names], out=out, **options)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


LAYOUTS = {
    "strings.jsonl": "".join(json.dumps(text) + "\n" for text in STORIES),
    "unicode.jsonl": "\n\n".join(json.dumps(text, ensure_ascii=False) for text in STORIES),
    "objects.ndjson": "".join(json.dumps({"title": "x", "text": text}) + "\r\n" for text in STORIES),
    "tiny.txt": "".join(f"{text}\n<|endoftext|>\n\n" for text in STORIES),
    "tight.txt": "\n<|endoftext|>\n".join(STORIES),
    "windows.md": "\ufeff" + "".join(f"{text}\r\n<|endoftext|>\r\n" for text in STORIES) + "\r\n",
}


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_its_documents_back(name, zipped, tmp_path):
    file = tmp_path / (name + ".gz" * zipped)
    data = LAYOUTS[name].encode()
    file.write_bytes(gzip.compress(data) if zipped else data)
    corpus = prepare(file, out=tmp_path / "corpus")
    assert documents(corpus, "train") == STORIES
    assert corpus.manifest["sources"][0]["bytes"] == file.stat().st_size
    assert corpus.manifest["splits"]["train"]["characters"] == sum(map(len, STORIES))
    assert corpus.manifest["splits"]["train"]["bytes"] == sum(len(text.encode()) for text in STORIES)


@pytest.mark.parametrize("separator", ["", "\n<|endoftext|>\n"], ids=["one document", "six"])
def test_the_tail_of_a_text_of_few_documents_is_held_out(separator, tmp_path):
    parts = [f"Chapter {number}: naïve cafés in 東京.\n" * 5 for number in range(6)]
    (tmp_path / "book.txt").write_text(separator.join(parts))
    corpus = prepare(tmp_path / "book.txt", out=tmp_path / "corpus", valid_share=0.1, seed=3)
    splits, tokenizer = corpus.manifest["splits"], corpus.tokenizer()
    corpus.verify()
    train, valid = documents(corpus, "train"), documents(corpus, "valid")
    texts = [part.strip("\n") for part in parts] if separator else ["".join(parts).strip("\n")]
    assert [*train[:-1], train[-1] + valid[0]] == texts, "cut between two characters"
    assert 0.05 < splits["valid"]["tokens"] / splits["train"]["tokens"] < 0.15
    for split, found in (("train", train), ("valid", valid)):
        counts = {"documents": len(found), "characters": len("".join(found)), "bytes": len("".join(found).encode())}
        assert splits[split].items() >= counts.items()
        assert splits[split]["bytes"] == tokenizer.count_bytes(corpus.tokens(split)[:])


def test_a_text_without_separators_is_one_document(tmp_path):
    text = "A line.\n\n  Another with <|endoftext|> inside.\n\tThird"
    (tmp_path / "book.txt").write_text(f"\n{text}\n\n", newline="")
    assert documents(prepare(tmp_path / "book.txt", out=tmp_path / "corpus"), "train") == [text]


def test_a_directory_is_its_texts_by_name(tmp_path):
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "one.jsonl").write_text('"third"\n')
    (folder / "a.txt").write_text("first")
    (folder / "b" / "a.md.gz").write_bytes(gzip.compress(b"second"))
    (folder / "manifest.json").write_text("{}")
    (folder / ".hidden.txt").write_text("no")
    (tmp_path / "elsewhere.txt").write_text("fourth")
    (folder / "c.TXT").symlink_to(tmp_path / "elsewhere.txt")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    corpus = prepare(folder, out=tmp_path / "corpus")
    assert documents(corpus, "train") == ["first", "second", "third", "fourth"]
    names = [source["name"] for source in corpus.manifest["sources"]]
    assert names == ["texts/a.txt", "texts/b/a.md.gz", "texts/b/one.jsonl", "texts/c.TXT"]
    assert str(tmp_path) not in json.dumps(corpus.manifest)


def test_stories_are_a_source(tmp_path):
    corpus = prepare("stories:30:7", out=tmp_path / "corpus")
    assert documents(corpus, "train") == [story.text for story in stories(30, seed=7)]
    prepare("stories:30:7", out=tmp_path / "corpus")  # recognised
    with pytest.raises(UserError, match="prepared without stories:30:8"):
        prepare("stories:30:8", out=tmp_path / "corpus")


def test_a_generator_that_no_app_registered(tmp_path, monkeypatch):
    monkeypatch.delitem(sources.GENERATORS, "stories")
    with pytest.raises(UserError, match="stories:30 does not exist; to generate it, import the app that registers sto"):
        prepare("stories:30", out=tmp_path / "corpus")


def test_hugging_face_datasets_are_sources(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"story": STORIES})
    data.save_to_disk(tmp_path / "one:more")
    datasets.DatasetDict({"train": data, "test": data.select([3])}).save_to_disk(tmp_path / "two")
    data.to_parquet(tmp_path / "rows.parquet")
    for number, name in enumerate((tmp_path / "one:more", f"hf:{tmp_path / 'two'}", tmp_path / "rows.parquet")):
        corpus = prepare(name, out=tmp_path / f"corpus{number}", field="story", valid=[f"hf:{tmp_path / 'two'}:test"])
        assert documents(corpus, "train") == STORIES
        assert documents(corpus, "valid") == STORIES[3:]
    with pytest.raises(UserError, match="no split 'dev'; it has train, test: write hf:"):
        prepare(f"hf:{tmp_path / 'two'}:dev", out=tmp_path / "x")
    with pytest.raises(
        UserError, match=r"rows.parquet, row 1 has no field 'text'; it has story: name one with --field"
    ):
        prepare(tmp_path / "rows.parquet", out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_dataset_out_of_reach_is_one_line(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def unreachable(*arguments, **options):
        asked.append((arguments, options))
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    for name in ("hf:a/b", "hf:a/b:dev", "hf:a/b:small:dev"):
        with pytest.raises(UserError, match=r"^source hf:a/b.* cannot be read by datasets: no network$"):
            prepare(name, out=tmp_path / "corpus")
    assert [(arguments[1], options["split"]) for arguments, options in asked] == [
        (None, "train"),
        (None, "dev"),
        ("small", "dev"),
    ]


@pytest.mark.parametrize("library", ["datasets", "tokenizers"])
def test_a_missing_library_is_named_with_its_extra(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("table.parquet").write_bytes(b"PAR1")
    Path("one.txt").write_text("one")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError) as error:
        prepare("table.parquet" if library == "datasets" else "one.txt", out=Path("corpus"), tokenizer="bpe")
    assert f"`mosaics: {error.value}`" in DOCUMENTED
    assert left_in(tmp_path) == ["one.txt", "table.parquet"]


WORDS = st.text("ab \n\u3000\r<|é'", max_size=12) | st.just("<|endoftext|>") | st.just("\n<|endoftext|>\n")


@pytest.fixture(scope="module")
def own() -> Tokenizer:
    return train_bpe(["ab ab  ab\n\nab é'é <|endoftext|> " * 30], 270)


def encode(tokenizer: Tokenizer, pieces: list[Piece]) -> list[int]:
    rows = zip(pieces, tokenizer.encode_batch([piece.text for piece in pieces]), strict=True)
    return [index for piece, ids in rows for index in [*ids.tolist(), *[tokenizer.end_of_text] * piece.is_end]]


@given(words=st.lists(WORDS, max_size=60), size=st.integers(64, 90), whole=st.booleans())
@settings(max_examples=300)
def test_cutting_a_text_into_blocks_changes_no_token(tmp_path_factory, own, words, size, whole):
    file = tmp_path_factory.getbasetemp() / "blocks.txt"
    file.write_bytes("".join(words).encode())
    results = []
    for length in (size, 1 << 20):
        source = Source("blocks.txt", "text", str(file))
        pieces = list(read_documents(source, text_field="", whole=whole, block_bytes=length))
        assert source.bytes_read == file.stat().st_size
        assert not whole or all(piece.is_start or not piece.text for piece in pieces), "documents stay whole"
        results.append(
            (encode(own, pieces), sum(piece.is_start for piece in pieces), sum(piece.is_end for piece in pieces))
        )
    assert results[0] == results[1]
    assert results[0][1] == results[0][2]


def test_a_long_text_is_read_in_blocks(tmp_path, own):
    """With lines, without line ends; without any blank in larger ones."""
    for text, several in (("ab é\n" * 5000, True), ("ab é " * 5000, True), ("abé" * 5000, False)):
        (tmp_path / "long.txt").write_text(text)
        (source,) = find_sources([str(tmp_path / "long.txt")])
        pieces = list(read_documents(source, text_field="", block_bytes=1000))
        assert (len(pieces) > 10) == several
        assert "".join(piece.text for piece in pieces).rstrip("\n") == text.rstrip("\n")


UNCUT = st.text("abé東🙂<|", max_size=40) | st.sampled_from(["<|endoftext|>", "\n<|endoftext|>\n", "\n", " "])


@given(words=st.lists(UNCUT, max_size=60))
@settings(max_examples=200, deadline=None)
def test_a_text_without_blanks_is_cut_between_characters(tmp_path_factory, words):
    """Never within a character or near a separator: the documents stay what they are."""
    file = tmp_path_factory.getbasetemp() / "flat.txt"
    file.write_bytes("".join(words).encode())
    results = []
    for longest in (100, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("memory_mosaics.text.sources.MAX_RUN_BYTES", longest)
            pieces = list(read_documents(Source("", "text", str(file)), text_field="", block_bytes=70))
        results.append(encode(byte_tokenizer(), pieces))
        if longest == 100 and "<|endoftext|>" not in words:
            assert max((len(piece.text.encode()) for piece in pieces), default=0) < 100 + 2 * 70
    assert results[0] == results[1]


def test_a_text_without_blanks_takes_little_memory(tmp_path):
    """Blocks of about a megabyte, whatever it holds: a word, blanks, lines of no letters."""
    for text in ("0123456789abcdef", "\n", "é", "东"):
        (tmp_path / "flat.txt").write_text(text * (8_000_000 // len(text.encode())))
        source = Source("flat.txt", "text", str(tmp_path / "flat.txt"))
        sizes = [len(piece.text.encode()) for piece in read_documents(source, text_field="")]
        assert max(sizes) <= 2 << 20
        assert text == "\n" or sum(sizes) == source.bytes_read


def test_a_document_that_has_to_be_read_whole_is_limited(tmp_path, monkeypatch, own):
    monkeypatch.setattr("memory_mosaics.text.sources.MAX_DOCUMENT_BYTES", 3 << 20)
    message = "would have to be read whole; "
    (tmp_path / "a.jsonl").write_text('"short"\n' + json.dumps("some words " * 500_000) + "\n")
    with pytest.raises(UserError, match=rf"a.jsonl, line 2: a line of more than 3 MiB {message}make several documents"):
        prepare(tmp_path / "a.jsonl", out=tmp_path / "corpus")
    (tmp_path / "a.txt").write_text("some words " * 500_000)
    with pytest.raises(UserError, match=rf"a.txt, line 1: a text of more than 3 MiB {message}put lines <\|endoftext"):
        list(read_documents(Source("", "text", str(tmp_path / "a.txt")), text_field="", whole=True))
    monkeypatch.setitem(sources.GENERATORS, "stories", lambda _: iter(["a", "b" * (4 << 20)]))
    with pytest.raises(UserError, match=f"stories:2, row 2: a row of more than 3 MiB {message}make several documents"):
        prepare("stories:2", out=tmp_path / "corpus")
    assert left_in(tmp_path) == ["a.jsonl", "a.txt"]


@pytest.mark.parametrize("end", ["\n", "\n\n", " \n", "\r\n", "\r\n\r\n"])
def test_whole_documents_are_read_one_after_the_other_whatever_ends_them(end, tmp_path, monkeypatch):
    """Blank lines before a separator do not make one long document of a file."""
    monkeypatch.setattr("memory_mosaics.text.sources.MAX_DOCUMENT_BYTES", 500)
    (tmp_path / "many.txt").write_text(f"A story.{end}<|endoftext|>\n" * 100, newline="")
    pieces = list(
        read_documents(Source("", "text", str(tmp_path / "many.txt")), text_field="", whole=True, block_bytes=90)
    )
    assert [piece for piece in pieces if piece.text] == [Piece("A story." + end.rstrip("\r\n"))] * 100


def test_errors_in_later_blocks_name_the_right_line(tmp_path):
    lines = [f"line {number}" for number in range(1, 500)]
    data = "\n".join(lines).encode()
    at = data.index(b"line 400") + 2
    (tmp_path / "bad.txt").write_bytes(data[:at] + b"\xff" + data[at:])
    (source,) = find_sources([str(tmp_path / "bad.txt")])
    with pytest.raises(UserError, match=rf"line 400: byte {at} is 0xff, which is not UTF-8"):
        list(read_documents(source, text_field="", block_bytes=100))


def make_lines(file: Path, count: int) -> Path:
    with file.open("w") as lines:
        for number in range(count):
            lines.write(json.dumps(f"Story {number}. " + STORIES[number % 4] * (number % 7)) + "\n")
    return file


def test_the_result_does_not_depend_on_the_workers(tmp_path, own):
    own.save(tmp_path / "own")
    file = make_lines(tmp_path / "many.jsonl", 40_000)
    for workers in (1, 2):
        prepare(file, out=tmp_path / f"by{workers}", tokenizer=str(tmp_path / "own"), valid_share=0.1, workers=workers)
    assert left_in(tmp_path / "by1") == left_in(tmp_path / "by2")
    for name in left_in(tmp_path / "by1"):
        assert (tmp_path / "by1" / name).read_bytes() == (tmp_path / "by2" / name).read_bytes(), name


def test_errors_come_from_workers_too(tmp_path):
    (tmp_path / "bad.jsonl").write_text('"One."\n{}\n')
    with pytest.raises(UserError, match="line 2 has no field 'text'"):
        prepare(tmp_path / "bad.jsonl", out=tmp_path / "corpus", workers=2)
    assert left_in(tmp_path) == ["bad.jsonl"]


def test_errors_come_from_learning_too(tmp_path):
    (tmp_path / "bad.jsonl").write_text('"One."\n{}\n')
    with pytest.raises(UserError, match="line 2 has no field 'text'"):
        prepare(tmp_path / "bad.jsonl", out=tmp_path / "corpus", tokenizer="bpe")
    assert left_in(tmp_path) == ["bad.jsonl"]


def test_documents_are_held_out_by_a_hash(tmp_path):
    file = make_lines(tmp_path / "many.jsonl", 3000)
    corpora = [prepare(file, out=tmp_path / f"{seed}", valid_share=0.1, seed=seed) for seed in (0, 1)]
    held_out = [set(documents(corpus, "valid")) for corpus in corpora]
    for corpus, held in zip(corpora, held_out, strict=True):
        assert 230 < len(held) < 370
        counts = [corpus.manifest["splits"][name]["documents"] for name in ("train", "valid")]
        assert counts == [3000 - len(held), len(held)] == [len(documents(corpus, name)) for name in ("train", "valid")]
        assert not held & set(documents(corpus, "train"))
    assert len(held_out[0] & held_out[1]) < 80


def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    layout = json.loads(byte_tokenizer().canonical)
    layout["added_tokens"][0]["id"] = 70_000
    large = Tokenizer(layout, "large", end_of_text=70_000)
    assert large.vocabulary == 70_001
    assert (large.dtype, byte_tokenizer().dtype) == ("<u4", "<u2")
    large.save(tmp_path / "large")
    corpus = prepare(make_lines(tmp_path / "few.jsonl", 1), out=tmp_path / "corpus", tokenizer=str(tmp_path / "large"))
    assert corpus.manifest["dtype"] == "uint32"
    assert corpus.tokens("train")[-1:].tolist() == [70_000]


def test_a_learnt_bpe_never_saw_the_validation_documents(tmp_path):
    lines = [json.dumps(f"Story {number} of zebras") for number in range(200)]
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    corpus = prepare(tmp_path / "some.jsonl", out=tmp_path / "a", tokenizer="bpe", vocabulary=300, valid_share=0.2)
    again = train_bpe(documents(corpus, "train"), 300)
    assert corpus.tokenizer().fingerprint == again.fingerprint
    assert corpus.vocabulary == again.vocabulary == 300
    assert sorted(documents(corpus, "train") + documents(corpus, "valid")) == sorted(map(json.loads, lines))


def test_the_same_again_is_left_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_lines(Path("some.jsonl"), 50)
    prepare("some.jsonl", out=Path("corpus"))
    stamp = Path("corpus/train.bin").stat().st_mtime_ns
    errors = capsys.readouterr().out
    assert re.search(r"train\s+50\s+[\d,]+ ", errors)
    assert "MB/s (bytes, 1 thread)\nwritten: corpus\n" in errors
    prepare("some.jsonl", out=Path("corpus"))
    assert f"`{capsys.readouterr().out.strip()}`" in DOCUMENTED
    assert Path("corpus/train.bin").stat().st_mtime_ns == stamp
    make_lines(Path("some.jsonl"), 51)
    with pytest.raises(UserError, match=r"prepared without some.jsonl as it is now; name another --out"):
        prepare("some.jsonl", out=Path("corpus"))


def test_a_disk_that_fills_leaves_nothing(tmp_path, monkeypatch):
    make_lines(tmp_path / "some.jsonl", 10)
    monkeypatch.chdir(tmp_path)

    def full(writer, piece, ids):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.SplitWriter, "write", full)
    with pytest.raises(UserError) as error:
        prepare("some.jsonl", out=Path("corpus"))
    assert f"`mosaics: {error.value}`" in DOCUMENTED
    with pytest.raises(UserError):
        prepare("some.jsonl", out=Path("new/folders/corpus"))
    assert left_in(tmp_path) == ["some.jsonl"]


def python(code: str, *arguments: str | Path, **options) -> subprocess.Popen:
    code = f"import sys\nfrom pathlib import Path\nfrom memory_mosaics.text.corpus import prepare\n{code}"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


PREPARE = "prepare([sys.argv[1]], out=Path(sys.argv[2]), tokenizer=sys.argv[3], workers=int(sys.argv[4]))"


@pytest.mark.skipif(sys.platform == "win32", reason="limits of processes are POSIX")
def test_a_file_that_cannot_grow_leaves_nothing(tmp_path):
    make_lines(tmp_path / "some.jsonl", 5000)
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    process = python(limit + PREPARE, tmp_path / "some.jsonl", tmp_path / "corpus", "bytes", "1")
    _, errors = process.communicate()
    assert "UserError: cannot write" in errors
    assert "File too large" in errors
    assert left_in(tmp_path) == ["some.jsonl"]


@pytest.fixture
def much(tmp_path, own) -> Path:
    """A folder with a tokenizer and a text that takes a while."""
    own.save(tmp_path / "own")
    line = json.dumps("ab é " * 2000) + "\n"
    (tmp_path / "much.jsonl").write_text(line * 10_000)
    return tmp_path


def written(folder: Path) -> bool:
    return any(file.stat().st_size > 0 for file in folder.glob(".corpus.*.part/train.bin"))


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_leaves_nothing(much, workers):
    process = python(PREPARE, much / "much.jsonl", much / "corpus", much / "own", workers, start_new_session=True)
    until(lambda: written(much))
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=HANG)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode != 0
    assert left_in(much) == ["much.jsonl", "own"]


@pytest.mark.slow
def test_a_killed_run_leaves_nothing_that_looks_finished(much):
    process = python(PREPARE, much / "much.jsonl", much / "corpus", much / "own", "2", start_new_session=True)
    until(lambda: written(much))
    process.kill()
    process.communicate()
    assert not (much / "corpus").exists()
    hidden = [name for name in left_in(much) if name.startswith(".corpus")]
    assert len(hidden) == 1
    with pytest.raises(UserError, match="is not a corpus"):
        Corpus.open(much / hidden[0])
    alive = much / hidden[0].replace(f".{process.pid}@", f".{os.getppid()}@")
    alive.mkdir()
    prepare(make_lines(much / "few.jsonl", 3), out=much / "corpus")
    assert left_in(much) == [alive.name, "corpus", "few.jsonl", "much.jsonl", "own"]


PEAK = 'print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]))'


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("name", ["lines.jsonl", "one_document.txt", "flat.txt"])
def test_memory_does_not_grow_with_the_corpus(name, tmp_path):
    peaks = []
    for megabytes in (8, 64):
        line = json.dumps("Some words and more. " * 40) if name.endswith("jsonl") else "Some words and more. " * 40
        line = line.replace(" ", "") if name == "flat.txt" else f"{line}\n"
        (tmp_path / name).write_text(line * (megabytes * 1_000_000 // len(line)))
        share = PREPARE.replace("workers", "valid_share=0.0, workers")
        process = python(f"{share}\n{PEAK}", tmp_path / name, tmp_path / f"corpus{megabytes}", "bytes", "1")
        out, errors = process.communicate()
        assert process.returncode == 0, errors
        peaks.append(int(out.splitlines()[-1]) / 1024)
    assert peaks[1] < peaks[0] + 16, f"MiB: {peaks}"


def test_a_changed_corpus_is_refused(tmp_path):
    folder = tmp_path / "corpus"
    corpus = prepare(make_lines(tmp_path / "some.jsonl", 20), out=folder)
    corpus.verify()
    data = (folder / "train.bin").read_bytes()
    (folder / "train.bin").write_bytes(data[:-2])
    with pytest.raises(
        UserError, match=rf"train.bin holds {len(data) - 2} bytes, the manifest says {len(data)}: prepare"
    ):
        Corpus.open(folder)
    (folder / "train.bin").write_bytes(data[:-2] + b"\0\0")
    with pytest.raises(UserError, match=r"train.bin is damaged: sha256 \w{12}, not \w{12}"):
        Corpus.open(folder).verify()
    with pytest.raises(UserError, match=r"train\.bin is damaged"):  # rather than left as it is
        prepare(tmp_path / "some.jsonl", out=folder)
    (folder / "train.bin").unlink()
    with pytest.raises(UserError, match="holds 0 bytes"):
        Corpus.open(folder)
    (folder / "train.bin").write_bytes(data)
    train_bpe(["other"], 260).save(folder)
    with pytest.raises(UserError, match=r"tokenizer.json is not the one that made the corpus: \w{12}"):
        Corpus.open(folder).tokenizer()
    with pytest.raises(UserError, match="no split 'test'; it has train, valid"):
        corpus.tokens("test")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "is not a corpus: it has no manifest.json; make one with mosaics prepare"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ("{}", "is damaged: KeyError 'format'; prepare it again"),
        ('{"format": 2}', "is of format 2, this version reads 1: prepare it again"),
        ('{"format": 1, "dtype": "words"}', "is damaged"),
    ],
)
def test_what_is_no_corpus_is_refused(manifest, message, tmp_path):
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(UserError) as error:
        Corpus.open(tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize("same", [True, False])
def test_the_slower_of_two_processes_reports_the_other(same, tmp_path, monkeypatch, capsys):
    """It takes the corpus of the winner where it is the same one, and never speaks of space."""
    file, out = make_lines(tmp_path / "some.jsonl", 20), tmp_path / "corpus"

    def win_meanwhile(*arguments, **options):
        monkeypatch.undo()
        prepare(file, out=out, seed=0 if same else 1)
        return write_splits(*arguments, **options)

    write_splits = module.write_splits
    monkeypatch.setattr("memory_mosaics.text.corpus.write_splits", win_meanwhile)
    if same:
        assert prepare(file, out=out).manifest == Corpus.open(out).manifest
    else:
        with pytest.raises(UserError, match="was prepared with seed 1, not 0; name another --out, or remove it first"):
            prepare(file, out=out)
    output = capsys.readouterr()
    assert output.err == f"mosaics: another process has written {out} meanwhile\n"
    assert ("holds this corpus already: left as it is" in output.out) == same
    assert left_in(tmp_path) == ["corpus", "some.jsonl"]


DAMAGES = {
    "dtype float32": (("dtype",), "float32", "dtype is 'float32', not uint16 or uint32"),
    "dtype object": (("dtype",), "O", "dtype is 'O', not uint16 or uint32"),
    "no checksum": (("splits", "train", "sha256"), None, "sha256 of train is None, not a checksum"),
    "a vocabulary of text": (("tokenizer", "vocabulary"), "257", "vocabulary is '257', not a number up to 65536"),
    "more than the dtype holds": (("tokenizer", "vocabulary"), 10**9, "vocabulary is 1000000000, not a number up to"),
    "an end outside": (("tokenizer", "end_of_text"), 257, "end_of_text is 257, not an id below the vocabulary of 257"),
    "a negative end": (("tokenizer", "end_of_text"), -1, "end_of_text is -1, not an id"),
    "half a token": (("splits", "train", "tokens"), 3.5, "tokens of train is 3.5, not a number"),
    "less than nothing": (("splits", "valid", "tokens"), -1, "tokens of valid is -1, not a number"),
    "a file elsewhere": (("splits", "train", "file"), "../a.bin", "the file of train is '../a.bin', not train.bin"),
    "no valid split": (("splits",), {}, "splits is [], not train and valid"),
    "sources of text": (("sources", 0), "some.jsonl", "sources is ['some.jsonl'], not a list of records"),
    "a number of sources": (("sources",), 1.5, "sources is 1.5, not a list of records"),
    "options in a list": (("options",), ["documents"], "options is ['documents'], not names and values"),
    "another split": (("splits", "test"), 3, "splits is ['train', 'valid', 'test'], not train and valid"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_manifest_that_prepare_cannot_have_written_is_refused_on_opening(name, tmp_path):
    (*places, last), value, message = DAMAGES[name]
    prepare(make_lines(tmp_path / "some.jsonl", 20), out=tmp_path / "corpus")
    file = tmp_path / "corpus" / "manifest.json"
    manifest = json.loads(file.read_text())
    part = manifest
    for place in places:
        part = part[place]
    part[last] = value
    file.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=re.escape(message)):
        Corpus.open(tmp_path / "corpus")


def test_a_vocabulary_that_is_not_the_tokenizers_is_refused(tmp_path):
    prepare(make_lines(tmp_path / "some.jsonl", 20), out=tmp_path / "corpus")
    file = tmp_path / "corpus" / "manifest.json"
    file.write_text(file.read_text().replace('"vocabulary": 257', '"vocabulary": 60000'))
    with pytest.raises(UserError, match=r"its vocabulary has 60000 ids, that of tokenizer.json 257; prepare it again"):
        Corpus.open(tmp_path / "corpus").tokenizer()


def test_ids_beyond_the_vocabulary_and_changed_bytes_are_refused_before_training(tmp_path):
    """Each process reads a file once; one that is too large for that is checked where it is read."""
    corpus = prepare(make_lines(tmp_path / "some.jsonl", 20), out=tmp_path / "corpus")
    file = tmp_path / "corpus" / "train.bin"
    data = file.read_bytes()
    file.write_bytes(data[:20] + b"\xff\xff" + data[22:])
    message = "train.bin is damaged: token 10 is 65535, the vocabulary has 257; prepare the corpus again"
    with pytest.raises(UserError, match=message):
        corpus.tokens("train")
    tokens = TokenFile(file, np.dtype("<u2"), len(data) // 2, 257)
    assert tokens[:10].tolist() == np.frombuffer(data[:20], "<u2").tolist()
    with pytest.raises(UserError, match=message):
        tokens[5:15]
    file.write_bytes(data[:20] + b"\0\0" + data[22:])
    with pytest.raises(UserError, match=r"train.bin is damaged: sha256 \w{12}, not \w{12}"):
        corpus.tokens("train")
    file.write_bytes(data)
    corpus.tokens("train")


def test_a_file_truncated_while_it_is_read_is_an_error_and_no_signal(tmp_path):
    """A mapped file ends the process with SIGBUS."""
    corpus = prepare(make_lines(tmp_path / "some.jsonl", 2000), out=tmp_path / "corpus")
    windows = Windows(corpus.tokens("train"), 8)
    windows.batch(0, 2)
    os.truncate(tmp_path / "corpus" / "train.bin", 10)
    with pytest.raises(UserError, match=r"train.bin was truncated to 10 bytes while it was read: prepare the corpus"):
        windows.batch(1, 2)
    os.truncate(tmp_path / "corpus" / "train.bin", 11)  # half a token
    with pytest.raises(UserError, match=r"train.bin was truncated to 11 bytes while it was read"):
        windows.tokens[:20]


def test_a_slice_of_a_token_file_is_that_of_an_array(tmp_path):
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.bin")
    tokens, array = TokenFile(tmp_path / "a.bin", np.dtype("<u2"), 100, 100), np.arange(100)
    for part in (slice(None), slice(5), slice(-5, None), slice(90, 200), slice(7, 3), slice(100, None)):
        assert tokens[part].tolist() == array[part].tolist()
    assert np.bincount(tokens).tolist() == [1] * 100
    assert np.asarray(tokens, dtype=np.int64).dtype == np.int64


def test_reading_needs_numpy_and_the_standard_library(tmp_path):
    """Beyond what the package itself needs."""
    corpus = prepare(make_lines(tmp_path / "some.jsonl", 20), out=tmp_path / "corpus")
    code = (
        "import memory_mosaics; before = set(sys.modules)\n"
        "from memory_mosaics.text.corpus import Corpus\n"
        "print(len(Corpus.open(sys.argv[1]).tokens('train')))\n"
        "print({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    run_ = subprocess.run(
        [sys.executable, "-c", "import sys\n" + code, str(corpus.folder)], capture_output=True, text=True, check=True
    )
    assert run_.stdout.splitlines() == [str(len(corpus.tokens("train"))), "set()"]


@pytest.mark.skipif(not (DATA / "tinystories").exists(), reason=f"no texts in {DATA}")
def test_tinystories_in_gpt2s_tokens(tmp_path):
    if not (DATA / "gpt2_bpe").exists():
        pytest.skip(f"GPT-2's files are not in {DATA / 'gpt2_bpe'}")
    stories, articles = DATA / "tinystories" / "valid.jsonl", DATA / "wikipedia"
    corpus = prepare(stories, out=tmp_path / "corpus", tokenizer=str(DATA / "gpt2_bpe"), valid=[str(articles)])
    with stories.open(encoding="utf-8") as lines:
        texts = [json.loads(line) for line in lines]
    assert documents(corpus, "train") == texts
    assert (
        corpus.manifest["splits"]["train"]["tokens"] == sum(map(len, gpt2(DATA / "gpt2_bpe").encode_batch(texts))) + 997
    )
    assert corpus.manifest["splits"]["valid"]["documents"] == 752
    assert corpus.manifest["dtype"] == "uint16"


def test_a_file_that_vanishes_is_named(tmp_path):
    with pytest.raises(UserError, match=r"source gone.txt cannot be read: No such file"):
        list(read_documents(Source("gone.txt", "text", "gone.txt"), text_field="text"))


def test_what_a_dead_namesake_left_is_removed(tmp_path):
    """In a container the process number of the killed run comes again."""
    left = tmp_path / f".corpus.0.{os.getpid()}@{platform.node()}.part"
    left.mkdir()
    (left / "train.bin").write_text("half")
    prepare(make_lines(tmp_path / "some.jsonl", 5), out=tmp_path / "corpus")
    assert left_in(tmp_path) == ["corpus", "some.jsonl"]


def test_the_difference_is_named(tmp_path):
    file = make_lines(tmp_path / "some.jsonl", 20)
    for name in ("one", "two"):
        train_bpe([f"{name} {name}"], 260, name="own").save(tmp_path / name)
    prepare(file, file, out=tmp_path / "corpus", tokenizer=str(tmp_path / "one"))
    with pytest.raises(UserError, match="prepared with another tokenizer called own; name another --out"):
        prepare(file, file, out=tmp_path / "corpus", tokenizer=str(tmp_path / "two"))
    with pytest.raises(UserError, match="prepared from 2 sources, not these"):
        prepare(file, out=tmp_path / "corpus", tokenizer=str(tmp_path / "one"))
    with pytest.raises(UserError, match="no source was named"):
        prepare(out=tmp_path / "other")
