import os
import platform
import subprocess
import sys

import pytest

from memory_mosaics import files
from memory_mosaics.errors import UserError, within_memory
from memory_mosaics.files import atomic_write


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="it exists and is not a regular file"), atomic_write(pipe) as tmp:
        tmp.write_text("never")
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "words", ["CUDA out of memory. Tried to allocate", "DefaultCPUAllocator: can't allocate memory"]
)
def test_too_little_memory_is_one_line(words):
    with pytest.raises(UserError, match="out of memory: take less"), within_memory("take less"):
        raise RuntimeError(words)
    with pytest.raises(RuntimeError, match="other"), within_memory("take less"):
        raise RuntimeError("other")


def test_files_of_others_are_read_within_bounds(tmp_path):
    (tmp_path / "large.json").write_text("[" + "1," * 100 + "1]")
    assert files.read_json(tmp_path / "large.json") == [1] * 101
    with pytest.raises(UserError, match="larger than the 100 bytes"):
        files.read_text(tmp_path / "large.json", limit=100)
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("fifo.json", "zero.json"):
        with pytest.raises(UserError, match="not a regular file"):
            files.read_json(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        files.read_json(tmp_path / "missing.json")


@pytest.mark.parametrize(
    "content", [b"{", b"[" * 100_000, b"\xff", b"1" * 5000, b"[NaN]", b'{"seconds": Infinity}', b"1e999", b'"\\ud800"']
)
def test_damaged_json_is_one_line(tmp_path, content):
    (tmp_path / "damaged.json").write_bytes(content)
    with pytest.raises(UserError, match=r"damaged\.json") as caught:
        files.read_json(tmp_path / "damaged.json")
    assert "\n" not in str(caught.value)


def dead_process() -> int:
    """The number of a process that has ended."""

    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_killed_writers_left_is_removed_by_the_next(tmp_path):
    host, dead, alive = platform.node(), dead_process(), os.getppid()
    gone = [
        f".state.bin.0.{dead}@{host}.part",
        f".other.0.{dead}@{host}.part",
    ]
    kept = [
        f".a.0.{alive}@{host}.part",  # its process is there
        f".a.0.{dead}@another.host.part",  # of a process of another machine nothing is known
        f".b.{dead}.part",  # perhaps not ours
        f"a.{dead}@{host}.part",
    ]
    for name in (*gone[1:], *kept):
        (tmp_path / name).write_text("half")
    (tmp_path / gone[0]).mkdir()
    (tmp_path / gone[0] / "half").write_text("half")
    with atomic_write(tmp_path / "a") as tmp:
        tmp.write_text("whole")
        with atomic_write(tmp_path / "a") as other:  # another thread does not remove what this one writes
            other.write_text("other")
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "a"])
    assert (tmp_path / "a").read_text() == "whole"


@pytest.mark.parametrize("text", [r'{"a": "\ud800"}', r'{"\uDFFF": 1}', r'["\uD83D\u0041"]'])
def test_half_a_character_is_damage(tmp_path, text):
    (tmp_path / "whole.json").write_text(r'["\ud83d\ude00"]')
    assert files.read_json(tmp_path / "whole.json") == ["\U0001f600"]
    (tmp_path / "half.json").write_text(text)
    with pytest.raises(UserError, match=r"half\.json is damaged or not JSON: .*surrogates not allowed"):
        files.read_json(tmp_path / "half.json")
