"""Functions of untrusted input in a process of their own, bounded in time, memory and output.

A tokenizer that crashes its library, or a template that never ends, ends that process and is one line of error.
"""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from memory_mosaics.errors import UserError

MAX_RESULT = 16 << 20  # bytes
MAX_WAIT = 120  # seconds of wall time beyond the limit of CPU time, which does not depend on other processes

CPU_LIMIT_EXCEEDED = -getattr(signal, "SIGXCPU", 24)  # an exit code

# Reads a JSON value per line and prints [result, null] or [null, error]; sys.argv has the limits.
LOOP = """
import json, sys, time
seconds, memory, max_result = map(int, sys.argv[1:])
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
        result = json.dumps([function(json.loads(line)), None])
    except MemoryError:
        result = json.dumps([None, f"it takes more than {memory >> 20} MB of memory"])
    except BaseException as error:
        result = json.dumps([None, (str(error) or type(error).__name__)[:500]])
    print(result if len(result) < max_result else json.dumps([None, "its result is too long"]), flush=True)
"""


@contextmanager
def signal_handler(handler: Callable[[int, Any], Any], *signals: int) -> Iterator[None]:
    """Within, `handler` is called for these signals. Only the main thread receives any: in others nothing changes."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in signals} if main else {}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, such as the start of a process."""
    received: list[int] = []
    try:
        with signal_handler(lambda number, frame: received.append(number), signal.SIGINT):
            yield
    finally:
        if received:
            signal.raise_signal(signal.SIGINT)


class IsolatedFunction:
    """Calls the `function` that `code` defines in another Python process. Arguments and results are JSON values.

    The process starts with the first call; it is killed, and started again for the next one, when a call takes more
    than `seconds` of CPU time or `memory` bytes. Calls of several threads wait for each other.
    """

    def __init__(self, code: str, *, seconds: int = 10, memory: int = 1 << 30):
        self.code, self.seconds, self.memory = code, seconds, memory
        self._process: Any = None
        self._lock = threading.Lock()

    def __call__(self, argument: Any) -> Any:
        """Return what the function returns; UserError where it raises or is stopped."""
        with self._lock:
            found, failure = self._exchange(json.dumps(argument).encode() + b"\n")
        result, error = json.loads(found) if failure is None else (None, failure)
        if error is not None:
            raise UserError(error)
        return result

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def __del__(self) -> None:
        self.close()

    def _exchange(self, line: bytes) -> tuple[bytes, str | None]:
        """Return the line that answers this one, and why there is none."""
        if self._process is None:
            limits = [str(number) for number in (self.seconds, self.memory, MAX_RESULT)]
            command = [sys.executable, "-P", "-c", self.code + LOOP, *limits]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        process = self._process
        timer = threading.Timer(MAX_WAIT + self.seconds, process.kill)
        timer.start()
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(line)
                process.stdin.flush()
            found = process.stdout.readline()
            too_long = not timer.is_alive()
            if found.endswith(b"\n"):
                return found, None
            too_long = process.wait() == CPU_LIMIT_EXCEEDED or too_long
        except BaseException:  # Ctrl-C: half a result must not be taken for the next one
            self.close()
            raise
        finally:
            timer.cancel()
        self.close()
        slow = f"it takes more than {self.seconds} seconds"
        return found, slow if too_long else f"it crashes the process that reads it (exit code {process.returncode})"
