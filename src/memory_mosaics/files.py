"""Files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
