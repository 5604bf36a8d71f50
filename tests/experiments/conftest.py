"""A small model with its tokenizer, as a training run leaves it; runs of RegBench; a suite of the arena."""

from pathlib import Path

import pytest
import torch
import yaml

import memory_mosaics.apps.story_world  # noqa: F401 - registers stories:COUNT
from experiments.arenas import MIXED, TASK
from memory_mosaics import LanguageModel, checkpoint, memory_mosaic, transformer
from memory_mosaics.experiments import figures, regbench
from memory_mosaics.experiments.regbench import Choices
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text import corpus as corpora
from memory_mosaics.text.tokenizer import byte_tokenizer


@pytest.fixture
def every_format() -> None:
    """For tests that look at a figure's PDF or SVG."""


@pytest.fixture(autouse=True)
def _png_alone(request, monkeypatch) -> None:
    """Other tests draw PNG files: each format takes as long as laying a figure out does."""
    if "every_format" not in request.fixturenames:
        monkeypatch.setattr(figures, "FORMATS", {".png": figures.FORMATS[".png"]})


SETTINGS = {  # seconds on a CPU
    "architecture": "gla",
    "environments": 40,
    "in_distribution": False,
    "blocks": 1,
    "heads": 2,
    "width": 16,
    "weight_decay": 0.1,
    "learning_rate": 1e-2,
    "seed": 0,
    "epochs": 3,
    "max_steps": None,
    "patience": None,
    "held_out": 6,
    "distinct": False,
    "data_seed": 0,
}


def train_regbench(settings: dict, folder: Path, **runtime):
    """Train one model in FOLDER/trials/run."""
    return regbench.train(RuntimeConfig(**{"device": "cpu"} | runtime), settings, folder / "trials" / "run")


@pytest.fixture
def suite(tmp_path) -> Path:
    file = tmp_path / "suite.yaml"
    plain = {"contestants": ["memory-mosaic", "transformer"], "seeds": 2, "tasks": {"recall": TASK, "mixed": MIXED}}
    plain["defaults"] = {"training": {"weight_decay": 0.0}}
    file.write_text(yaml.safe_dump(plain))
    return file


SIZES = {"width": 32, "blocks": 2, "heads": 4, "vocabulary": 257}


def small_regbench(out: Path, **changes):
    """One LSTM on eight languages, or what else is asked."""
    sizes = {"choices": Choices(blocks=[1], width=[16]), "epochs": 2, "held_out": 6, "device": "cpu"}
    return regbench.run(out, **sizes | {"architectures": ["lstm"], "environments": [8]} | changes)


def small_run(folder: Path, kind, context: int = 512) -> Path:
    """An untrained model far from uniform, so that what it chooses is clear."""
    torch.manual_seed(0)
    model = LanguageModel(kind(context=context, **SIZES))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.dim() > 1 else None
    byte_tokenizer().save(checkpoint.save(model, folder))
    return folder


@pytest.fixture(scope="session")
def mosaic(tmp_path_factory) -> Path:
    return small_run(tmp_path_factory.mktemp("models") / "mosaic", memory_mosaic)


@pytest.fixture(scope="session")
def twin(tmp_path_factory) -> Path:
    return small_run(tmp_path_factory.mktemp("models") / "twin", transformer)


@pytest.fixture(scope="session")
def place(tmp_path_factory) -> Path:
    """A folder with a corpus, and the models mosaic, learned, rotary and alibi, made for 24 tokens."""
    folder = tmp_path_factory.mktemp("untrained")
    corpora.prepare(["stories:60"], out=folder / "corpus", tokenizer="bytes", valid_share=0.1)
    size = {"width": 16, "blocks": 1, "heads": 2, "vocabulary": 257, "context": 24}
    models = {"mosaic": memory_mosaic(**size)}
    models |= {position: transformer(position=position, **size) for position in ("learned", "rotary", "alibi")}
    for name, config in models.items():
        byte_tokenizer().save(checkpoint.save(LanguageModel(config), folder / name))
    return folder
