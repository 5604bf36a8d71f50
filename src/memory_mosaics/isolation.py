"""Work on files of others in a process of its own, bounded in time, memory and output.

A tokenizer that crashes its library or a template that never ends costs that process, and one line.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memory_mosaics.errors import UserError

MAX_ANSWER = 16 << 20  # bytes
MAX_WAIT = 120  # seconds on the clock; what is bounded first is processor time, which other processes do not take

TOO_LONG = -getattr(signal, "SIGXCPU", 24)  # the exit code after too much processor time

# Reads a JSON value per line and answers with [value, null] or [null, why not]; sys.argv has the limits.
LOOP = """
import json, sys, time
seconds, memory, most = map(int, sys.argv[1:])
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
except (ImportError, OSError, ValueError):
    pass
for line in sys.stdin:
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + seconds + 1, resource.RLIM_INFINITY))
    except (NameError, OSError, ValueError):
        pass
    try:
        said = json.dumps([answer(json.loads(line)), None])
    except MemoryError:
        said = json.dumps([None, f"it takes more than {memory >> 20} MB of memory"])
    except BaseException as error:
        said = json.dumps([None, (str(error) or type(error).__name__)[:500]])
    print(said if len(said) < most else json.dumps([None, "its result is too long"]), flush=True)
"""


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Within, Ctrl-C waits for the end, such as that of starting a process. It comes to the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


class Isolated:
    """A Python process that defines `answer` by `code` and calls it with each value that `ask` is given.

    The process starts with the first question and is killed, and started again, when a question takes more than
    `seconds` of processor time or `memory` bytes. Questions of several threads wait for each other.
    """

    def __init__(self, code: str, *, seconds: int = 10, memory: int = 1 << 30):
        self.code, self.seconds, self.memory = code, seconds, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, question: Any) -> Any:
        """What `answer` returns; UserError where it raises, or is stopped."""
        with self._lock:
            value, why = self._exchange(json.dumps(question).encode() + b"\n")
        if why is not None:
            raise UserError(why)
        return value

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def __del__(self) -> None:
        self.close()

    def _exchange(self, line: bytes) -> tuple[Any, str | None]:
        if self._process is None:
            limits = [str(number) for number in (self.seconds, self.memory, MAX_ANSWER)]
            command = [sys.executable, "-P", "-c", self.code + LOOP, *limits]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
            found = _read_line(process.stdout.fileno(), MAX_WAIT + self.seconds)
            if found is not None:
                value, why = json.loads(found)
                return value, why
            code = process.wait(10)
        except (BrokenPipeError, ValueError):
            code = process.wait(10)
        except (TimeoutError, subprocess.TimeoutExpired):
            code = TOO_LONG
        except BaseException:  # Ctrl-C: half an answer must not be taken for the next one
            self.close()
            raise
        self.close()
        slow = f"it takes more than {self.seconds} seconds"
        return None, slow if code == TOO_LONG else f"it crashes the process that reads it (exit code {code})"


def _read_line(source: int, seconds: int) -> bytes | None:
    """The bytes up to the end of a line; None where the other side has closed. TimeoutError if they do not come."""
    found, until = bytearray(), time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while not found.endswith(b"\n"):
            if not selector.select(max(0.0, until - time.monotonic())):
                raise TimeoutError
            piece = os.read(source, 1 << 16)
            if not piece:
                return None
            found += piece
    return bytes(found)
