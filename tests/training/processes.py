"""`mosaics train` in processes of its own: as a command, or forked from one that has imported all that it needs."""

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

from killing import kill_at
from memory_mosaics.cli import main
from memory_mosaics.training.config import Run
from waiting import HANG

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("COV_")} | {
    "OMP_NUM_THREADS": "1"
}
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["memory_mosaics.cli", "memory_mosaics.training.trainer", "torch.distributed.checkpoint"])


def flags(run: Run) -> list[str]:
    """The command line of a run."""
    words = [str(run.data), "--out", str(run.out), *(["--from", str(run.init_from)] if run.init_from else [])]
    for part in ("model", "training", "runtime"):
        for name, value in vars(getattr(run, part)).items():
            if isinstance(value, tuple | list):
                words += [f"--{part}.{name}", *map(str, value)] if value else []
            else:
                words.append(f"--{part}.{name}={'null' if value is None else value}")
    return words


def start(run: Run, *launcher: str) -> subprocess.Popen:
    """The command, perhaps behind torchrun and its flags."""
    command = [sys.executable, *(launcher or ()), "-m", "memory_mosaics.cli", "train", *flags(run)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=HANG)
    assert process.returncode == 0, err
    return out


def fork(run: Run, *, kill_before: int = 0, **environment: str) -> BaseProcess:
    """Such a process; it may be killed before an event in the folder of its run."""
    killed = (str(run.out), kill_before)
    words = (flags(run), {"OMP_NUM_THREADS": "1"} | environment, killed)
    process = FORKS.Process(target=_train, args=words, daemon=True)
    process.start()
    return process


def _train(words: list[str], environment: dict[str, str], killed: tuple[str, int] = ("", 0)) -> None:
    os.environ.update(environment)
    if killed[1]:
        kill_at(*killed)
    sys.exit(main(["train", *words]))


def fork_two(run: Run) -> None:
    """The two processes that torchrun would start, until they end."""
    in_two_processes(_train, flags(run))


def in_two_processes(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function in two such processes, with the environment of each as the last argument, until they end."""
    meet = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(reserved_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    each = [meet | {"OMP_NUM_THREADS": "1", "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    processes = [FORKS.Process(target=function, args=(*arguments, one), daemon=True) for one in each]
    for process in processes:
        process.start()
    for process in processes:
        process.join(HANG)
    ends = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert ends == [0, 0]


RESERVED: list[socket.socket] = []


def reserved_port() -> int:
    """Below those that the system gives to outgoing connections; no other test gets it while this process lives.

    The socket stays bound here without listening, which lets those in that reuse addresses, as torch does, and not
    those who look for a free port in this way.
    """
    while True:
        with contextlib.suppress(OSError):
            RESERVED.append(socket.socket())
            RESERVED[-1].bind(("localhost", random.SystemRandom().randrange(20_000, 30_000)))
            RESERVED[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return RESERVED[-1].getsockname()[1]
