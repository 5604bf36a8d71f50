"""A language model's server on a real socket that misbehaves by a script, and counts who asked it for what."""

import gzip
import json
import re
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from memory_mosaics.apps.story_world import story
from waiting import HANG, until


def tell(prompt: str) -> str:
    """A story that keeps what the prompt asks for."""
    name = (re.search(r"main character is (.+)\.", prompt) or ["", "Tom"])[1]
    words = re.findall(r'"(\w+)"', prompt)
    opening = (re.search(r"exactly these words: (.+)", prompt) or ["", "One day"])[1]
    body = story(0, zlib.crc32(prompt.encode())).text.replace("\n", " ")
    return f"{opening}, {name} thought of {', '.join(words)}. {body}"


class Misbehaving(ThreadingHTTPServer):
    """`script` says what happens to the next requests, one after the other; then all goes well.

    `wrong` says it by the prompt, and more than `capacity` at once get 429. After the first `through` requests, each is
    answered once `release` is set; or all, `gather` of them at a time.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[str] = []
        self.always: str | None = None
        self.wrong: Callable[[str], str | None] = lambda prompt: None
        self.capacity = 1000
        self.through, self.release, self.gather = 1_000_000, threading.Event(), 0
        self.silent: set[str] = set()  # the keys of requests that get no answer
        self.retry_after = "0.3"
        self.asked: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.headers_seen: list[Any] = []
        self.at_once = self.most_at_once = 0
        self.answer: Callable[[str], str] = tell
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Misbehaving

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json({"object": "list", "data": [{"id": "teller", "object": "model"}]})

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.asked[self.headers["Idempotency-Key"]] += 1
            server.bodies.append(body)
            server.headers_seen.append(self.headers)
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
            what = server.script.pop(0) if server.script else server.always
            full, held = server.at_once > server.capacity, sum(server.asked.values()) > server.through
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        what = "429" if full else what or server.wrong(prompt)
        if held:
            server.release.wait(HANG)
        until(lambda: full or server.most_at_once >= server.gather)
        with server.lock:
            server.at_once -= 1
        if what is not None and what != "ok":
            self._misbehave(what)
        elif body.get("stream"):
            self._stream(server.answer(prompt), whole=True)
        else:
            text = server.answer(prompt)
            found = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
            usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": len(text.split())}
            self._json({"choices": [{"index": 0, "finish_reason": "stop", **found}], "usage": usage})

    def _misbehave(self, what: str) -> None:
        self.close_connection = True
        if what.isdecimal():
            self._json(
                {"error": {"message": f"told to say {what}"}}, int(what), {"Retry-After": self.server.retry_after}
            )
        elif what.startswith("{"):
            self._send(what.encode())
        elif what == "garbage":
            self._send(b"<html>an error page</html>")
        elif what == "no text":
            self._json({"choices": []})
        elif what == "half":
            self._send(b'{"choices": [{"text": "Once up', length=1000)
        elif what == "half a stream":
            self._stream("Once upon a time there was", whole=False)
        elif what == "long":
            self._json({"choices": [{"finish_reason": "stop", "text": "Once upon a time. " * 3000}]})
        elif what.startswith("endless"):
            self._endless(500 if what == "endless error" else 200)
        elif what == "bomb":
            self._send(gzip.compress(b" " * (64 << 20)), headers={"Content-Encoding": "gzip"})
        elif what.startswith("data: "):
            self._send(f"{what}\n\n".encode(), headers={"Content-Type": "text/event-stream"})
        elif what == "silence":
            self.server.silent.add(self.headers["Idempotency-Key"])
            self.server.release.wait(HANG)
        else:
            assert what == "nothing"

    def _endless(self, status: int) -> None:
        """A body that ends when the client goes."""
        self.send_response(status)
        self.send_header("Connection", "close")
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b"data: " + b"a" * 65536)

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), status, headers)

    def _send(self, data: bytes, status: int = 200, headers: dict[str, str] | None = None, length: int = 0) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(length or len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _stream(self, text: str, *, whole: bool) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        pieces = [{"delta": {"content": piece}, "finish_reason": None} for piece in re.findall(r"\S+\s*", text)]
        pieces += [{"delta": {}, "finish_reason": "stop"}] if whole else []
        for piece in pieces:
            self.wfile.write(b"data: " + json.dumps({"choices": [piece]}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n" if whole else b"")


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    server = Misbehaving()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.release.set()
    server.shutdown()
    server.server_close()
    thread.join()
