"""A corpus of real stories as bytes, and training runs of seconds on it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memory_mosaics.text import corpus as corpora
from memory_mosaics.training.recipe import Machine, ModelChoice, Run, Training

TINY = {"name": "memory-mosaic-tiny", "width": 16, "blocks": 2, "heads": 2, "context": 16}
STEPS = {"steps": 12, "batch": 4, "learning_rate": 3e-3, "warm_up": 3, "evaluate_every": 6, "evaluate_windows": 5}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "corpus"
    corpora.run(["stories:60"], out=folder, tokenizer="bytes", valid_share=0.1)
    return folder


@pytest.fixture
def run(corpus, tmp_path):
    """A run, with changes: of the training by name, and `model` and `machine` as dictionaries."""

    def build(out="run", *, model=None, machine=None, **training) -> Run:
        return Run(
            data=corpus,
            out=tmp_path / out,
            model=ModelChoice(**TINY | (model or {})),
            training=Training(**STEPS | training),
            machine=Machine(**{"device": "cpu", "samples": 0, "log_every": 1} | (machine or {})),
        )

    return build


def flags(run: Run) -> list[str]:
    """The command line of a run."""
    said = [str(run.data), "--out", str(run.out)]
    for part in ("model", "training", "machine"):
        for name, value in vars(getattr(run, part)).items():
            shown = "null" if value is None else str(list(value) if isinstance(value, tuple) else value)
            said.append(f"--{part}.{name}={shown}")
    return said


ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("COV_")} | {
    "OMP_NUM_THREADS": "1"
}


def start(run: Run, *launcher: str) -> subprocess.Popen:
    """`mosaics train` in a process of its own, perhaps behind torchrun and its flags."""
    command = [sys.executable, *(launcher or ()), "-m", "memory_mosaics.cli", "train", *flags(run)]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out
