"""bad_input.md is true: each command of its tables prints that line, and leaves nothing behind."""

import gzip
import json
import re
import shlex
from pathlib import Path

import pytest

from memory_mosaics import LanguageModel, checkpoint, memory_mosaic, transformer
from memory_mosaics.cli import main
from memory_mosaics.text import corpus
from memory_mosaics.text.tokenizer import byte_tokenizer, train_bpe

TABLE = Path(__file__).parents[1] / "bad_input.md"
ROW = re.compile(r"^\| `mosaics (?P<command>[^`]*)`[^|]*\| `(?P<message>[^`]*)` \| (?P<code>\d+) \|$", re.M)


def make_files(folder: Path) -> None:
    """The files that the commands of the table name."""
    good = "".join(json.dumps(f"Story {number}.") + "\n" for number in range(300))
    (folder / "good.jsonl").write_text(good)
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text("\n \n<|endoftext|>\n\n")
    (folder / "one.txt").write_text("One document.\n")
    (folder / "song.mp3").write_text("la la la")
    (folder / "loop.txt").symlink_to("loop.txt")
    (folder / "latin1.txt").write_bytes("Hello.\nA café.\n".encode("latin-1"))
    (folder / "latin1.jsonl").write_bytes('"Hello."\n"A café."\n'.encode("latin-1"))
    (folder / "broken.jsonl").write_text('"One."\n"Two.\n')
    (folder / "fields.jsonl").write_text('{"title": "One", "story": "Once."}\n')
    (folder / "rules.jsonl").write_text('{"prompt": "Once", "rule": {"some": ["cat"]}}\n')
    (folder / "number.jsonl").write_text('{"text": "One."}\n{"text": 2}\n')
    (folder / "numbers.jsonl").write_text("1\n2\n")
    (folder / "list.json").write_text('["One.", "Two."]\n')
    (folder / "half.jsonl").write_text('"One \\ud83d two."\n')
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"Hello. " * 1000, mtime=0)[:-20])
    (folder / "fake.txt.gz").write_bytes(b"Hello.\n")
    (folder / "pictures").mkdir()
    (folder / "pictures" / "cat.png").write_bytes(b"\x89PNG")
    (folder / "notes").mkdir()
    (folder / "notes" / "todo").write_text("nothing")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "tokenizer.json").write_text("{")
    train_bpe(["some other words, some other bytes"], 260, name="own").save(folder / "own")
    for name, kind in (("tiny", memory_mosaic), ("short", transformer)):
        config = kind(width=16, blocks=1, heads=2, vocabulary=257, context=16)
        byte_tokenizer().save(checkpoint.save(LanguageModel(config), folder / name))
    (folder / "a_file").write_text("here")
    (folder / "broken.yaml").write_text("training: {steps: [}\n")
    (folder / "unknown.yaml").write_text("training:\n  speed: 3\n")
    corpus.prepare([str(folder / "good.jsonl")], out=folder / "prepared", tokenizer="bytes")
    corpus.prepare([str(folder / "good.jsonl")], out=folder / "other", tokenizer=str(folder / "own"))
    shortened = folder / "shortened"
    corpus.prepare([str(folder / "good.jsonl")], out=shortened, tokenizer="bytes")
    (shortened / "train.bin").write_bytes((shortened / "train.bin").read_bytes()[:-1])


def rows() -> list[tuple[str, str, int]]:
    found = ROW.finditer(TABLE.read_text(encoding="utf-8"))
    return [(row["command"], row["message"], int(row["code"])) for row in found]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bad_input")
    make_files(folder)
    return folder


def test_the_table_is_read():
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| `mosaics")]
    assert len(lines) == len(rows()) >= 50


@pytest.mark.parametrize(("command", "message", "code"), rows(), ids=[command for command, _, _ in rows()])
def test_the_documented_message_is_printed(command, message, code, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    before = sorted(files.rglob("*"))
    words = shlex.split(command)
    if words[0] == "prepare" and "--tokenizer" not in words:
        words += ["--tokenizer", "bytes"]  # GPT-2's may not be at hand
    try:
        ended = main(words)
    except SystemExit as stop:  # of the parser
        ended = stop.code
    assert ended == code
    assert capsys.readouterr().err == message + "\n"
    assert sorted(files.rglob("*")) == before, "nothing half-written is left behind"
