"""A crash at every file-system event of a writer, sometimes another in the run after it; then a run to the end.

Python's audit hook sees files opened, renamed and removed, and folders made; writes go through a file class of ours;
os.fsync and the one writer that is not Python, that of safetensors, are replaced by functions that count.
"""

import builtins
import io
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from .children import run
from .workloads import WORKLOADS, Given, difference

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CODE = 137
_open, _fsync = open, os.fsync


class CrashPoints:
    """Counts events within `folder`, and ends the process at number `at`; writes their names into the file `trace`.

    A `torn` write has written half of its bytes; a power `cut` takes all that was not yet flushed to the disk.
    """

    def __init__(self, folder: Path, *, at: int = 0, torn: bool = False, cut: bool = False, trace: Path | None = None):
        self.folder, self.at, self.torn, self.cut, self.count = f"{folder}{os.sep}", at, torn, cut, 0
        self.flushed: dict[str, int] = {}  # of files written since: how much of them is on the disk
        self.trace = None if trace is None else os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def inside(self, path: Any) -> str:
        """The name of a file within; the working folder is. Nothing for others, a pipe say."""
        found = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fsdecode(path or os.devnull)
        within = found.startswith(self.folder) or not (os.path.isabs(found) or isinstance(path, int))
        return os.path.basename(found) if within else ""

    def event(self, kind: str, path: Any, half: Callable[[], object] | None = None) -> None:
        """The process is about to do this; or it does half of it and ends."""
        if (name := self.inside(path)) in ("", "stdout", "stderr"):
            return
        self.count += 1
        if self.trace is not None:
            os.write(self.trace, f"{kind} {name}\n".encode())
        if self.count == self.at:
            if self.torn and half is not None:
                half()
            for file, size in self.flushed.items() if self.cut else ():
                with suppress(FileNotFoundError):
                    os.truncate(file, size)
            os._exit(CODE)

    def install(self) -> None:
        """From now on, in this process, for ever."""
        import safetensors.torch as library

        points, save = self, library.save_file

        def hook(name: str, arguments: tuple[Any, ...]) -> None:
            if name in CHANGES:
                points.event(name.removeprefix("os."), arguments[0])
                if name == "os.rename":
                    old, new = (os.path.abspath(os.fsdecode(path)) for path in arguments[:2])
                    moved = {file: re.sub(rf"^{re.escape(old)}(?=/|$)", new, file) for file in points.flushed}
                    points.flushed = {moved[file]: size for file, size in points.flushed.items()}
            elif name == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
                points.event("open", arguments[0])

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                points.event("write", self.fileno(), lambda: io.FileIO.write(self, bytes(data)[: len(data) // 2]))
                file = os.readlink(f"/proc/self/fd/{self.fileno()}")
                points.flushed.setdefault(file, os.fstat(self.fileno()).st_size)
                return super().write(data)

        def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+") or not points.inside(file):
                return _open(file, mode, buffering, *rest, **options)
            names = ("encoding", "errors", "newline", "closefd", "opener")
            options |= dict(zip(names, rest, strict=False))
            raw = File(file, mode.replace("b", "").replace("t", ""), opener=options.get("opener"))
            buffer = raw if buffering == 0 else io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            text = {name: options.get(name) for name in names[:3]}
            return buffer if "b" in mode else io.TextIOWrapper(buffer, **text)

        def fsync(file: Any) -> None:
            number = file if isinstance(file, int) else file.fileno()
            points.event("fsync", number)
            _fsync(file)
            points.flushed.pop(os.readlink(f"/proc/self/fd/{number}"), None)

        def save_file(tensors: Any, file: Any, *rest: Any, **options: Any) -> None:
            points.event("open", file)
            save(tensors, file, *rest, **options)
            points.event("write", file, lambda: os.truncate(file, os.path.getsize(file) // 2))
            points.flushed[os.path.abspath(file)] = 0

        builtins.open = io.open = opened
        os.fsync, library.save_file = fsync, save_file
        sys.addaudithook(hook)


def cases(given: Given, random: Random) -> Iterator[str]:
    """Each event of each workload once, and each write once more, torn in the middle; in an order of its own."""
    found = []
    for name, events in given.events.items():
        found += [f"{name}/{at}" for at in range(1, len(events) + 1)]
        found += [f"{name}/{at}/torn" for at, event in enumerate(events, start=1) if event.startswith("write")]
    random.shuffle(found)
    yield from found


def run_case(given: Given, case: str, random: Random, folder: Path) -> tuple[str | None, str]:
    """The problem, if there is one, and what was done."""
    name, at, *torn = case.split("/")
    events, commands = given.events[name], WORKLOADS[name].commands(given, folder / "out")
    cut = random.random() < 0.4
    points = [CrashPoints(folder, at=int(at), torn=bool(torn), cut=cut)]
    if random.random() < 0.3:
        points.append(CrashPoints(folder, at=random.randint(1, len(events)), torn=random.random() < 0.5, cut=cut))
    note = " and ".join(f"{events[each.at - 1]} ({each.at}{', torn' if each.torn else ''})" for each in points)
    note += ", power cut" if cut else ""
    for point in points:
        if problem := run(commands, folder, point.install).problem(allowed=(0, CODE)):
            return problem, note
    return finish(given, name, folder, without={"log", "samples"} if cut else ()), note  # which are not flushed


def finish(given: Given, name: str, folder: Path, without: Collection[str] = ()) -> str | None:
    """Run to the end: it must come to the same as one that was never disturbed."""
    if problem := run(WORKLOADS[name].commands(given, folder / "out"), folder).problem(allowed=(0,)):
        return f"the next run: {problem}"
    found = WORKLOADS[name].outcome(folder / "out")
    mine, other = ({k: v for k, v in each.items() if k not in without} for each in (given.outcomes[name], found))
    return None if mine == other else difference(mine, other)
