"""Whom the server refuses: other sites, too much, too slow, too many at once."""

import socket
from threading import Thread

import pytest

pytest.importorskip("fastapi")

from fastapi import FastAPI

from memory_mosaics.apps.explorer.app import MAX_BODY, MAX_WAITING
from memory_mosaics.apps.server import Server
from waiting import HANG, until

from .conftest import Served, reading, send


def test_bytes_that_are_no_json_get_one_line(served):
    for raw in (b"{", b"\xff\xfe", b"[" * 5000, b""):
        status, answer, _ = send(served, raw=raw)
        assert status in (400, 411, 422), (raw[:5], answer)
        assert "error" in answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8642"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://127.0.0.1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Length": str(MAX_BODY + 1)}, 413),
    ],
    ids=str,
)
def test_others_are_refused(headers, status, served):
    found, answer, sent = send(served, body=reading(), headers=headers)
    assert found == status
    assert "tokens" not in answer
    assert "access-control-allow-origin" not in sent


def test_foreign_names_see_not_even_the_page(served):
    assert send(served, "GET", "/", headers={"Host": "evil.example"})[0] == 403
    assert send(served, "GET", "/", headers={"Host": f"localhost:{served.port}"})[0] == 200


def test_a_preflight_from_elsewhere_is_refused(served):
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    status, _, sent = send(served, "OPTIONS", headers=headers)
    assert status == 403
    assert "access-control-allow-origin" not in sent


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/assets/style.css", "/../../etc/passwd", "/api", "/%2e%2e/"]
)
def test_nothing_else_is_served(path, served):
    assert send(served, "GET", path)[0] == 404


def test_no_more_than_a_few_wait(served):
    """One is computed, some wait, and the others are told to come back."""
    with served.explorer.lock:
        answers: list[int] = []
        ask = lambda: answers.append(send(served, body=reading())[0])  # noqa: E731
        waiting = [Thread(target=ask) for _ in range(1 + MAX_WAITING + 3)]
        for thread in waiting:
            thread.start()
        until(lambda: len(answers) >= 3)
        assert answers == [429] * 3
    for thread in waiting:
        thread.join()
    assert sorted(answers) == [200] * (1 + MAX_WAITING) + [429] * 3


def by_hand(served, head: bytes, body: bytes = b"") -> bytes:
    """The first line of what comes back."""
    name = f"Host: 127.0.0.1:{served.port}\r\nContent-Type: application/json\r\n".encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=HANG) as client:
        client.sendall(head.replace(b"\r\n", b"\r\n" + name, 1) + b"\r\n")
        try:
            client.sendall(body)
            return client.makefile("rb").readline()
        except OSError:  # closed while more came
            return b""


def test_a_length_that_is_not_true_lets_no_more_in(served):
    assert by_hand(served, b"POST /api/read HTTP/1.1\r\nContent-Length: many\r\n").startswith(b"HTTP/1.1 400 ")
    chunk = b"80000\r\n" + b"a" * 0x80000 + b"\r\n"
    head = b"POST /api/read HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n"
    assert b" 200 " not in by_hand(served, head, 20 * chunk + b"0\r\n\r\n")
    assert by_hand(served, b"POST /api/read HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", 2 * chunk).startswith(
        b"HTTP/1.1 413 "
    )


def test_a_body_that_does_not_come_is_not_waited_for(mosaic, monkeypatch):
    monkeypatch.setattr("memory_mosaics.apps.server.BODY_TIMEOUT", 0.5)
    server = Served([mosaic])
    found = by_hand(server, b"POST /api/read HTTP/1.1\r\nContent-Length: 500\r\n", b"{")
    server.stop()
    assert found.startswith(b"HTTP/1.1 408 ")


def test_a_page_on_port_80_is_called_without_it():
    class OnPort80(socket.socket):
        def getsockname(self):
            return "127.0.0.1", 80

    with OnPort80() as listening:
        guard = Server(FastAPI(), listening, max_requests=1, max_body=1).guard
    assert {"127.0.0.1", "localhost", "127.0.0.1:80"} <= set(guard.hosts or ())


def test_the_head_of_the_page_can_be_asked_for(served):
    status, html, _ = send(served, "HEAD", "/")
    assert (status, html) == (200, "")
