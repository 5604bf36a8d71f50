"""Files that are written whole or not at all, and files of others that are read within bounds."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memory_mosaics.errors import UserError, one_line


@contextmanager
def written_whole(file: Path) -> Iterator[Path]:
    """A path beside `file` to write to: flushed to the disk and renamed to it at the end, removed if anything fails."""
    if file.exists() and not file.is_file():
        raise UserError(f"cannot write {file}: it is there, and no file")
    aside = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        yield aside
        flush(aside)
        aside.replace(file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {one_line(error)}") from error
    finally:
        aside.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


MAX_JSON_BYTES = 64 << 20  # the largest configuration, tokenizer or manifest that is read


def check_regular(file: Path) -> int:
    """The size of a file; OSError where it is missing, UserError for a device, FIFO or folder, before it is opened."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{file} is not a regular file")
    return found.st_size


def read_bytes(file: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The content of a regular file of at most `limit` bytes; links are followed, devices and FIFOs never opened.

    Raises OSError where there is no such file, and UserError for one that is too large or not a regular file.
    """
    check_regular(file)
    with file.open("rb") as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise UserError(f"{file} is larger than the {limit:,} bytes that such a file may have")
    return content


def read_text(file: Path, limit: int = MAX_JSON_BYTES) -> str:
    """The UTF-8 text of such a file."""
    try:
        return read_bytes(file, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {one_line(error)}") from error


def read_json(file: Path, limit: int = MAX_JSON_BYTES) -> Any:
    """The JSON value in such a file. A file that is missing raises FileNotFoundError, a damaged one UserError."""
    try:
        return json.loads(read_text(file, limit))
    except (FileNotFoundError, UserError):
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged or not JSON: {one_line(error)}") from error
