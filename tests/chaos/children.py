"""Commands in forked children, which import nothing anew, under watch of a clock and of their memory."""

import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LONGEST = 120.0  # seconds after which a command counts as hanging
LARGEST = 1536 << 20  # bytes of memory beyond what it has at the start

Commands = Sequence[Sequence[str]]
Before = Callable[[], object] | None


@dataclass(frozen=True)
class Ended:
    """How a child ended: its exit code, or minus the number of a signal; or why the watch has stopped it."""

    code: int
    out: str
    err: str
    seconds: float
    stopped: str | None = None

    def problem(self, allowed: Sequence[int] = (0, 2)) -> str | None:
        """What is wrong with it: only these exit codes are allowed, and exit code 2 has one line."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        last = " | ".join(lines[-3:])[-500:]
        if self.stopped:
            return self.stopped
        if re.search(r"Traceback \(most|Exception ignored|Exception in thread", self.err + self.out):
            return f"traceback, exit code {self.code}: {last}"
        if self.code not in allowed:
            return f"exit code {self.code}: {last}"
        if re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b]", self.err):
            return f"control characters on the error output: {last!r}"
        if self.code == 2 and (len(lines) != 1 or not lines[0].startswith("mosaics: ")):
            return f"exit code 2 with {len(lines)} lines: {last}"
        return None


class Child:
    """A child that runs commands one after the other until one fails. `before` is called first, in the child."""

    def __init__(self, commands: Commands, folder: Path, before: Before = None):
        self.files = folder / "stdout", folder / "stderr"
        ready, started = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ready)
            _run(commands, folder, self.files, before, started)
        os.close(started)
        os.read(ready, 1)  # until the first command begins
        os.close(ready)
        self.start, self.memory = time.monotonic(), self._memory()
        self.status: int | None = None
        self.stopped: str | None = None

    def _memory(self) -> int:
        with suppress(OSError, IndexError):
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def signal(self, number: int, *, group: bool = False) -> None:
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def alive(self) -> bool:
        """Whether it still runs; the watch ends one that takes too long or too much memory."""
        if self.status is None:
            if self._memory() - self.memory > LARGEST:
                self.stopped = f"more than {LARGEST >> 20} MiB of memory"
            elif time.monotonic() - self.start > LONGEST:
                self.stopped = f"hangs: not ended after {LONGEST:.0f} seconds"
            if self.stopped:
                self.signal(signal.SIGKILL, group=True)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is None

    def wait(self, seconds: float = 1e9) -> bool:
        """Wait so long; whether it still runs."""
        until = time.monotonic() + seconds
        while self.alive() and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.01))
        return self.status is None

    def end(self) -> Ended:
        """Wait for its end; whatever it has started ends too."""
        try:
            self.wait()
        finally:
            self.signal(signal.SIGKILL, group=True)
            if self.status is None:
                _, self.status = os.waitpid(self.pid, 0)
        out, err = (file.read_text(encoding="utf-8", errors="replace") for file in self.files)
        return Ended(os.waitstatus_to_exitcode(self.status), out, err, time.monotonic() - self.start, self.stopped)


def run(commands: Commands, folder: Path, before: Before = None) -> Ended:
    """Run commands in a child to their end."""
    return Child(commands, folder, before).end()


def _within(name: str, error: BaseException) -> bool:
    """Whether an error came out of a call of a function of that name."""
    return any(frame.f_code.co_name == name for frame, _ in traceback.walk_tb(error.__traceback__))


def _run(commands: Commands, folder: Path, files: tuple[Path, Path], before: Before, started: int) -> None:
    """The life of a child. It never returns to what forked it."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, file in enumerate(files, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
        os.chdir(folder)
        from memory_mosaics import cli

        if before is not None:
            before()
        os.write(started, b"!")
        os.close(started)
        code = next((code for words in commands if (code := cli.main(words))), 0)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        early = isinstance(error, KeyboardInterrupt) and not _within("main", error)
        code = 130 if early else 1  # before a command begins, where Ctrl-C ends Python itself
        if not early:
            traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
