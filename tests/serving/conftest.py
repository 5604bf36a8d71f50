"""A small model trained on the embedded stories, and servers of it: in a process of their own, or in a thread here."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from memory_mosaics.text import corpus as corpora
from memory_mosaics.training import loop
from memory_mosaics.training.recipe import Machine, ModelChoice, Run, Training

# Without what coverage puts there: the server must be one as users have it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "MOSAICS_"))}


@pytest.fixture(scope="session")
def story_run(tmp_path_factory) -> Path:
    """A training run of seconds, called teller."""
    folder = tmp_path_factory.mktemp("served")
    corpora.run(["stories:80"], out=folder / "corpus", tokenizer="bpe", vocabulary=300, valid_share=0.1)
    loop.train(
        Run(
            data=folder / "corpus",
            out=folder / "teller",
            model=ModelChoice(name="memory-mosaic-tiny", width=32, blocks=2, heads=2, context=64),
            training=Training(steps=40, batch=8, learning_rate=3e-3, warm_up=3, evaluate_every=40, evaluate_windows=5),
            machine=Machine(device="cpu", samples=0),
        )
    )
    return folder / "teller"


@contextmanager
def process(run: Path, *flags: str, **environment: str):
    """`mosaics serve` in a process of its own on a free port, and where it is."""
    command = [sys.executable, "-m", "memory_mosaics.cli", "serve", str(run), "--port", "0", *flags]
    own = ENVIRONMENT | {"OMP_NUM_THREADS": "1"} | environment
    server = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.search(r"served at (http://\S+/v1);", line)
        assert found, line + server.communicate()[1]
        yield server, found[1]
    finally:
        server.kill()
        server.communicate()


@contextmanager
def in_a_thread(run: Path, *, key: str | None = None, **limits: int):
    """The same server in this process. Gives its service, and a function that asks it: status, headers, body."""
    import uvicorn

    from memory_mosaics.serving.app import Service, build
    from memory_mosaics.serving.limits import Limits
    from memory_mosaics.serving.listening import LOCAL, Server
    from memory_mosaics.serving.server import listen
    from memory_mosaics.trained import Trained

    service = Service(Trained.open(run), Limits(**limits))
    app = build(service, key=key, hosts=LOCAL)
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, lifespan="off", log_level="critical", timeout_graceful_shutdown=5)
    server = Server(config, service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()

    def ask(path: str, body: object = None, *, method: str | None = None, **headers: str):
        connection = http.client.HTTPConnection(*listening.getsockname(), timeout=60)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        kind = {"content-type": "application/json"} | {name.replace("_", "-"): said for name, said in headers.items()}
        connection.request(method or ("GET" if body is None else "POST"), path, data, kind)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        streams = answer.headers["content-type"].startswith("text/event-stream")
        return answer.status, dict(answer.headers), text if streams else json.loads(text)

    ask.address = listening.getsockname()
    try:
        yield service, ask
    finally:
        server.should_exit = True
        thread.join()
        service.engine.stop()
        listening.close()
