"""kill -9 at a counted event of the file system: the same moment on a machine however busy."""

import os
import signal
import sys
from pathlib import Path

EVENTS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}


def kill_at(folder: Path | str, number: int, *, after: str = "") -> None:
    """Kill this process before its event of this number in a folder, counted from the first that names `after`."""
    left, begun = number, not after

    def see(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left, begun
        if event in EVENTS and str(folder) in str(arguments):
            begun = begun or after in str(arguments)
            left -= begun
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(see)
