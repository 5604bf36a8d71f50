"""Where a process can crash: file-system events within a folder, counted, with an end of the process at one of them.

Python's audit hook sees files opened, renamed and removed, and folders made; writes go through a file class of ours;
os.fsync, os.write and the writers of libraries that are not Python are replaced by others that count.
"""

import builtins
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod"}
CODE = 137


class CrashPoints:
    """Counts events within `folder`, ends the process at number `at`, or writes the names of all into `trace`.

    A `torn` write has written half of its bytes.
    """

    def __init__(self, folder: Path, *, at: int = 0, torn: bool = False, trace: Path | None = None):
        self.folder, self.at, self.torn, self.count = f"{folder}{os.sep}", at, torn, 0
        self.trace = None if trace is None else os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def inside(self, path: Any) -> bool:
        """The working folder is within; what has no name, such as a pipe, is not."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
            if not path.startswith(self.folder):
                return False
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        path = os.fsdecode(path)
        within = path.startswith(self.folder) if os.path.isabs(path) else True
        return within and os.path.basename(path) not in ("stdout", "stderr")

    def event(self, name: str, path: Any, half: Callable[[], object] | None = None) -> None:
        """The process is about to do this; or it does half of it and ends."""
        if not self.inside(path):
            return
        self.count += 1
        if self.trace is not None:
            path = os.fsdecode(path) if not isinstance(path, int) else os.readlink(f"/proc/self/fd/{path}")
            _write(self.trace, f"{name} {os.path.basename(path)}\n".encode())
        if self.count == self.at:
            if self.torn and half is not None:
                half()
            os._exit(CODE)

    def install(self) -> None:
        """From now on, in this process, for ever."""
        points = self

        def hook(name: str, arguments: tuple[Any, ...]) -> None:
            if name == "open":
                path, _, flags = arguments
                if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                    points.event("open", path)
            elif name in CHANGES:
                points.event(name.removeprefix("os."), arguments[0])

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                points.event("write", self.fileno(), lambda: io.FileIO.write(self, bytes(data)[: len(data) // 2]))
                return super().write(data)

        def opened(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            if not set(mode) & set("wax+") or not points.inside(file):
                return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            raw = File(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline)

        def fsync(file: Any) -> None:
            points.event("fsync", file if isinstance(file, int) else file.fileno())
            _fsync(file)

        def write(descriptor: int, data: Any) -> int:
            points.event("write", descriptor, lambda: _write(descriptor, bytes(data)[: len(data) // 2]))
            return _write(descriptor, data)

        builtins.open = io.open = opened
        os.fsync, os.write = fsync, write
        self._count_save_file()
        sys.addaudithook(hook)

    def _count_save_file(self) -> None:
        import safetensors.torch as library

        real, points = library.save_file, self

        def save_file(tensors: Any, file: Any, *arguments: Any, **options: Any) -> None:
            points.event("open", file)
            real(tensors, file, *arguments, **options)
            points.event("write", file, lambda: os.truncate(file, os.path.getsize(file) // 2))

        library.save_file = save_file


_open, _fsync, _write = open, os.fsync, os.write
