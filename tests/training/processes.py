"""`mosaics train` in processes of its own: as a command, or forked from one that has imported all that it needs."""

import contextlib
import os
import random
import socket
import subprocess
import sys
from multiprocessing import get_context
from multiprocessing.process import BaseProcess

from memory_mosaics.cli import main
from memory_mosaics.training.recipe import Run

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("COV_")} | {
    "OMP_NUM_THREADS": "1"
}
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["memory_mosaics.cli", "memory_mosaics.training.loop", "torch.distributed.checkpoint"])


def flags(run: Run) -> list[str]:
    """The command line of a run."""
    said = [str(run.data), "--out", str(run.out)]
    for part in ("model", "training", "machine"):
        for name, value in vars(getattr(run, part)).items():
            shown = "null" if value is None else str(list(value) if isinstance(value, tuple) else value)
            said.append(f"--{part}.{name}={shown}")
    return said


def start(run: Run, *launcher: str) -> subprocess.Popen:
    """The command, perhaps behind torchrun and its flags."""
    command = [sys.executable, *(launcher or ()), "-m", "memory_mosaics.cli", "train", *flags(run)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def fork(run: Run, **environment: str) -> BaseProcess:
    process = FORKS.Process(target=_train, args=(flags(run), {"OMP_NUM_THREADS": "1"} | environment), daemon=True)
    process.start()
    return process


def _train(words: list[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.exit(main(["train", *words]))


def fork_two(run: Run) -> None:
    """The two processes that torchrun would start, until they end."""
    meet = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    processes = [fork(run, RANK=rank, LOCAL_RANK=rank, **meet) for rank in "01"]
    for process in processes:
        process.join(timeout=200)
    ends = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert ends == [0, 0]


def free_port() -> int:
    """Below those that the system gives to outgoing connections, so that none takes it meanwhile."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("localhost", random.randrange(20_000, 30_000)))
            return probe.getsockname()[1]
