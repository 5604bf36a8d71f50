"""A file of token ids, read where they are used: a window at a time, and each id is checked.

Read by position, not mapped into memory: a mapped file that is truncated or lost ends the process with SIGBUS.
"""

import hashlib
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from memory_mosaics.errors import UserError, one_line

CHECKED_AT_ONCE = 1 << 30  # bytes; a larger file is checked where it is read, it takes too long to read all of it
_checked: set[tuple[Path, tuple[int, ...], str]] = set()  # what this process has read to the end and found right


class TokenFile:
    """`count` ids below `vocabulary`, as a sequence that is sliced: `tokens[10:20]` is an array."""

    def __init__(self, file: Path, dtype: np.dtype, count: int, vocabulary: int):
        self.file, self.dtype, self.count, self.vocabulary = file, dtype, count, vocabulary
        try:
            self._open = file.open("rb", buffering=0)
        except OSError as error:
            raise UserError(f"cannot read {file}: {one_line(error)}") from error
        weakref.finalize(self, self._open.close)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, step = part.indices(self.count)
        if step != 1:
            raise ValueError(f"a slice of a token file has a step of 1, not {step}")
        width = self.dtype.itemsize
        wanted = max(0, stop - start) * width
        ids = np.frombuffer(self._read(start * width, wanted), self.dtype)
        if len(ids) * width != wanted:
            size = os.fstat(self._open.fileno()).st_size
            raise UserError(f"{self.file} was truncated to {size:,} bytes while it was read: prepare the corpus again")
        if ids.size and ids.max() >= self.vocabulary:
            at = int((ids >= self.vocabulary).argmax())
            raise UserError(
                f"{self.file} is damaged: token {start + at:,} is {ids[at]}, the vocabulary has {self.vocabulary:,}; "
                "prepare the corpus again"
            )
        return ids

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All ids, for NumPy's functions."""
        return self[:] if dtype is None else self[:].astype(dtype)

    def check(self, sha256: str, *, limit: int | None = CHECKED_AT_ONCE) -> None:
        """Read it once to the end and compare every id and the checksum; None for a file of any size."""
        about = os.fstat(self._open.fileno())
        identity = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        seen = (self.file.absolute(), identity, sha256)
        if (limit is not None and about.st_size > limit) or seen in _checked:
            return
        found, step = hashlib.sha256(), 1 << 22
        for start in range(0, self.count, step):
            found.update(self[start : start + step].tobytes())
        if found.hexdigest() != sha256:
            raise UserError(
                f"{self.file} is damaged: sha256 {found.hexdigest()[:12]}, not {sha256[:12]}; prepare the corpus again"
            )
        _checked.add(seen)

    def _read(self, start: int, size: int) -> bytearray:
        """`size` bytes from `start`, or as many as there are."""
        data = bytearray()
        try:
            while len(data) < size:
                if hasattr(os, "pread"):
                    more = os.pread(self._open.fileno(), size - len(data), start + len(data))
                else:  # Windows
                    with self._lock:
                        self._open.seek(start + len(data))
                        more = self._open.read(size - len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise UserError(f"cannot read {self.file}: {one_line(error)}") from error
        return data
