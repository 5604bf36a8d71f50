"""How far a long computation is: a bar on a terminal, a line a minute in a log file."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MINUTE = 60.0


@contextmanager
def progress(name: str, total: int, unit: str) -> Iterator[Any]:
    """A tqdm bar on the error output, to `update`. What takes less than a minute leaves nothing in a log."""
    from tqdm import tqdm

    seldom: dict[str, Any] = {"mininterval": MINUTE, "maxinterval": MINUTE, "delay": MINUTE}
    how = {} if sys.stderr.isatty() else seldom | {"file": _Lines(), "ncols": 100}
    with tqdm(total=total, desc=name, unit=unit, **how) as bar:
        yield bar


class _Lines:
    """The error output for what would be drawn over itself again and again: here each is a line."""

    def write(self, text: str) -> None:
        if line := text.strip("\r\n"):
            sys.stderr.write(line + "\n")

    def flush(self) -> None:
        sys.stderr.flush()
