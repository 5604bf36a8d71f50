"""A corpus of real stories as bytes, and training runs of seconds on it."""

from pathlib import Path

import pytest

import memory_mosaics.apps.story_world  # noqa: F401 - registers stories:COUNT
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text import corpus as corpora
from memory_mosaics.training.config import ModelArgs, Run, Training

TINY = {"name": "memory-mosaic-tiny", "width": 16, "blocks": 2, "heads": 2, "context": 16}
STEPS = {"steps": 12, "batch": 4, "learning_rate": 3e-3, "warm_up": 3, "evaluate_every": 6, "evaluate_windows": 5}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text") / "corpus"
    corpora.prepare(["stories:60"], out=folder, tokenizer="bytes", valid_share=0.1)
    return folder


@pytest.fixture
def run(corpus, tmp_path):
    """A run, with changes: of the training by name, and `model` and `runtime` as dictionaries."""

    def build(out="run", *, model=None, runtime=None, **training) -> Run:
        return Run(
            data=corpus,
            out=tmp_path / out,
            model=ModelArgs(**TINY | (model or {})),
            training=Training(**STEPS | training),
            runtime=RuntimeConfig(**{"device": "cpu", "samples": 0, "log_every": 1} | (runtime or {})),
        )

    return build
