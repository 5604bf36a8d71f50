"""The whole way with no part played by another: a model trained here, served by `mosaics serve`, asked for stories."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from memory_mosaics.apps.babistories.collect import read_journal
from memory_mosaics.cli import main
from waiting import HANG, until

from .test_clients import start

pytest.importorskip("fastapi")
COUNT, CONCURRENCY, LENGTH = 24, 3, 40


class Counting(ThreadingHTTPServer):
    """Hands everything on to the real server, and counts how often each story was asked for."""

    daemon_threads = True

    def __init__(self, port: int):
        super().__init__(("127.0.0.1", 0), Handing)
        self.port, self.asked = port, Counter[str]()
        self.through, self.release = 1_000_000, threading.Event()  # after so many, requests wait for it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""


class Handing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Counting

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._hand_on(None)

    def do_POST(self) -> None:
        self.server.asked[self.headers["Idempotency-Key"]] += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if sum(self.server.asked.values()) > self.server.through:
            self.server.release.wait(HANG)
        self._hand_on(body)

    def _hand_on(self, body: bytes | None) -> None:
        real = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=HANG)
        try:
            real.request(self.command, self.path, body, {"Content-Type": "application/json"})
            answer = real.getresponse()
            data = answer.read()
        finally:
            real.close()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Trained for seconds: it has words and sentences, and no sense."""
    folder = tmp_path_factory.mktemp("teller")
    prepared = ["prepare", "stories:400", "--tokenizer", "bpe", "--vocabulary", "400", "--out", str(folder / "corpus")]
    assert main(prepared) == 0
    sizes = {"width": 32, "blocks": 1, "heads": 2, "slots": 64, "context": 64}
    words = ["train", str(folder / "corpus"), "--out", str(folder / "teller"), "--runtime.samples", "0"]
    words += [word for name, value in sizes.items() for word in (f"--model.{name}", str(value))]
    words += ["--training.steps", "40", "--training.batch", "8", "--training.warm_up", "4"]
    assert main([*words, "--training.learning_rate", "1e-2", "--training.evaluate_windows", "4"]) == 0
    return folder / "teller"


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Counting]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "memory_mosaics.cli", "serve", str(model), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    message = ""
    while not (found := re.search(r"http://127.0.0.1:(\d+)", message)):
        line = process.stdout.readline()
        assert line, f"the server ended: {message}"
        message += line
    threading.Thread(target=process.stdout.read, daemon=True).start()
    counting = Counting(int(found[1]))
    thread = threading.Thread(target=counting.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield counting
    counting.shutdown()
    counting.server_close()
    process.kill()
    process.wait()
    process.stdout.close()


def kept(journal: Path) -> list[dict[str, Any]]:
    return list(read_journal(journal))[1:] if journal.exists() else []


@pytest.mark.slow
def test_stories_of_a_served_model_survive_two_kills(served: Counting, tmp_path, capsys):
    out, journal = tmp_path / "babi", tmp_path / "babi" / "stories.journal"
    address = f"http://127.0.0.1:{served.server_port}"
    words = ["babistories", "stories", "--out", str(out), "--server", address, "--ask", "opening"]
    words += ["--count", str(COUNT), "--concurrency", str(CONCURRENCY), "--length", str(LENGTH)]
    before: list[dict[str, Any]] = []
    for enough in (COUNT // 4, COUNT // 2):
        already = sum(served.asked.values())
        served.through, served.release = already + enough - len(before), threading.Event()
        process = start(words)
        until(
            lambda enough=enough: (
                len(kept(journal)) == enough and sum(served.asked.values()) == served.through + CONCURRENCY
            )
        )
        process.kill()
        process.communicate()
        served.release.set()
        assert kept(journal)[: len(before)] == before
        before = kept(journal)
        asked = Counter(served.asked)
    process = start(words)
    errors, error = process.communicate(timeout=HANG)
    assert process.returncode == 0, error
    assert f"{COUNT} of {COUNT} stories" in errors
    found = kept(journal)
    assert sorted(entry["index"] for entry in found) == list(range(COUNT))
    assert sum((served.asked - asked).values()) == COUNT - len(before), "what is on the disk is not asked again"
    assert sum(served.asked.values()) <= COUNT + 2 * CONCURRENCY
    assert all(entry["text"].startswith(entry["opening"]) and sum(entry["tokens"]) > 5 for entry in found)

    clean = ["babistories", "clean", "--out", str(out), "--shortest", "5", "--valid-share", "0.2"]
    assert main([*clean, "--allow", "cut off", "other language"]) == 0
    counts = json.loads((out / "clean.json").read_text())
    assert counts["answers"] == COUNT == counts["kept"] + sum(counts["dropped"].values())
    assert counts["kept"] > COUNT // 2
    capsys.readouterr()
    assert main(["babistories", "stats", "--out", str(out)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [rows[1].split()[0], rows[2].split()[0]] == ["train", "valid"]


@pytest.mark.slow
def test_a_model_on_this_machine_writes_stories(model: Path, tmp_path, capsys):
    pytest.importorskip("transformers")
    words = [
        "babistories",
        "stories",
        "--out",
        str(tmp_path),
        "--model",
        str(model),
        "--ask",
        "opening",
        "--count",
        "5",
    ]
    assert main([*words, "--length", "12", "--concurrency", "2"]) == 0
    first = (tmp_path / "stories.journal").read_text()
    assert main([*words, "--length", "12", "--concurrency", "2"]) == 0
    assert (tmp_path / "stories.journal").read_text() == first, "nothing is asked twice"
    entries = kept(tmp_path / "stories.journal")
    assert [entry["index"] for entry in entries] == list(range(5))
    assert all(entry["text"].startswith(entry["opening"]) and len(entry["text"]) > 20 for entry in entries)
    assert main([*words, "--ask", "chat", "--out", str(tmp_path / "chat")]) == 2
    assert "has no chat template" in capsys.readouterr().err
