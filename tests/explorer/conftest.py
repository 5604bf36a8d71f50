"""Small models with their tokenizers, and a server with them on a port of its own."""

import socket
from pathlib import Path
from threading import Thread

import pytest
import torch

from memory_mosaics import LanguageModel, memory_mosaic, transformer
from memory_mosaics.explorer import Explorer
from memory_mosaics.text.tokenizer import train_bpe
from memory_mosaics.trained import Trained

WORDS = "Once there was a girl named Lily. She had a red kite and a small dog. The dog saw the red kite. "


def small(name: str, kind, **options) -> Trained:
    """An untrained model far from uniform, so that what it expects is clear."""
    tokenizer = train_bpe([WORDS], 300, name="words")
    torch.manual_seed(1)
    options = {"width": 32, "blocks": 2, "heads": 4, "context": 512} | options
    model = LanguageModel(kind(vocabulary=tokenizer.vocabulary, **options))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.dim() > 1 else None
    return Trained(name, Path(), model, tokenizer)


@pytest.fixture(scope="session")
def mosaic() -> Trained:
    return small("mosaic", memory_mosaic)


@pytest.fixture(scope="session")
def twin() -> Trained:
    return small("twin", transformer)


@pytest.fixture(scope="session")
def rotary() -> Trained:
    return small("rotary", transformer, position="rotary")


class Served:
    """The page, served from a thread until it is stopped."""

    def __init__(self, models: list[Trained], port: int = 0):
        import uvicorn

        from memory_mosaics.explorer.app import build

        self.door = socket.create_server(("127.0.0.1", port))
        self.port = self.door.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.explorer = Explorer(models)
        app = build(self.explorer, frozenset({f"127.0.0.1:{self.port}", f"localhost:{self.port}"}))
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        self.thread = Thread(target=self.server.run, kwargs={"sockets": [self.door]}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=20)
        self.door.close()


@pytest.fixture(scope="session")
def served(mosaic, rotary):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    server = Served([mosaic, rotary])
    yield server
    server.stop()
