"""A small model trained on the embedded stories, and servers of it: in a process of their own, or in a thread here."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pytest

import memory_mosaics.apps.story_world  # noqa: F401 - registers stories:COUNT
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text import corpus as corpora
from memory_mosaics.training import trainer
from memory_mosaics.training.config import ModelArgs, Run, Training
from waiting import HANG, until

# Without what coverage puts there: the server must be one as users have it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "MOSAICS_"))}


# The command, with all the time that requests need to finish when it is to stop.
PATIENT = f"""
import sys
from memory_mosaics.cli import main
from memory_mosaics.apps import serve
serve.GRACE_SECONDS = {HANG:.0f}
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="session")
def story_run(tmp_path_factory) -> Path:
    """A training run of seconds, called teller."""
    folder = tmp_path_factory.mktemp("served")
    corpora.prepare(["stories:80"], out=folder / "corpus", tokenizer="bpe", vocabulary=300, valid_share=0.1)
    trainer.train(
        Run(
            data=folder / "corpus",
            out=folder / "teller",
            model=ModelArgs(name="memory-mosaic-tiny", width=32, blocks=2, heads=2, context=64),
            training=Training(steps=20, batch=8, learning_rate=3e-3, warm_up=3, evaluate_every=20, evaluate_windows=5),
            runtime=RuntimeConfig(device="cpu", samples=0),
        )
    )
    return folder / "teller"


class Process:
    """`mosaics serve` in a process of its own on a free port."""

    def __init__(self, run: Path, *flags: str, **environment: str):
        command = [sys.executable, "-c", PATIENT, "serve", str(run), "--port", "0", *flags]
        own = ENVIRONMENT | {"OMP_NUM_THREADS": "1"} | environment
        self.process = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @cached_property
    def address(self) -> str:
        """Where it is, once it is there."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"served at (http://\S+/v1);", line)
        assert found, line + self.process.communicate()[1]
        return found[1]

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def send(address: tuple[str, int], path: str, body: object = None, *, method: str | None = None, **headers: str):
    """The status, headers and body of the answer to a request."""
    connection = http.client.HTTPConnection(*address, timeout=HANG)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    kind = {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method or ("GET" if body is None else "POST"), path, data, kind)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    is_json = answer.headers["content-type"] == "application/json"
    return answer.status, dict(answer.headers), json.loads(text) if is_json else text


@contextmanager
def in_a_thread(run: Path, *, key: str | None = None, **limits: int):
    """The same server in this process. Gives its service, and a function that asks it: status, headers, body."""
    from memory_mosaics.apps.serve.app import Service, build_app
    from memory_mosaics.apps.server import Server, listen
    from memory_mosaics.checkpoint import LoadedModel

    service = Service(LoadedModel.open(run), **limits)
    listening = listen("127.0.0.1", 0)
    server = Server(
        build_app(service),
        listening,
        max_requests=service.max_concurrent,
        max_body=service.max_body,
        api_key=key,
        halt=service.engine.halt,
        grace=HANG,
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()

    def ask(path: str, body: object = None, **options: str):
        return send(listening.getsockname(), path, body, **options)

    ask.address, ask.listening, ask.server = listening.getsockname(), listening, server
    try:
        yield service, ask
    finally:
        server.should_exit = True
        thread.join()
        service.engine.stop()
        listening.close()


@pytest.fixture(scope="session")
def server(story_run):
    with in_a_thread(story_run, context=400, max_body=20_000) as server:
        yield server


@pytest.fixture
def ask(server):
    return server[1]


def asked_by_hand(address, body: object, size: int | None = None) -> socket.socket:
    """A connection that has sent the first `size` bytes of a body."""
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost:{address[1]}\r\ncontent-type: application/json\r\n"
    client = socket.create_connection(address, timeout=HANG)
    client.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data[:size])
    return client


@pytest.fixture
def endless(monkeypatch):
    """After one step of the model, a row goes on only when another of its batch has been ended from outside."""
    from memory_mosaics.apps.serve.engine import Batch

    step = Batch.step

    def one_step(batch: Batch) -> None:
        rows = batch.live
        step(batch)
        until(lambda: not rows or any(row.finished for row in rows))

    monkeypatch.setattr(Batch, "step", one_step)
