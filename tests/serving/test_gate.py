"""Who is let in, and how many at a time."""

import json
import socket
from contextlib import ExitStack

import pytest

from serving.conftest import asked_by_hand, in_a_thread, until

pytest.importorskip("fastapi", reason="pip install 'memory-mosaics[serve]'")
pytest.importorskip("uvicorn", reason="pip install 'memory-mosaics[serve]'")

from memory_mosaics.serving.gate import names


def test_a_page_of_another_site_is_refused(ask):
    own = f"127.0.0.1:{ask.address[1]}"
    status, _, answer = ask("/v1/completions", {"prompt": "a"}, host="site.example")
    called = f"call it by one of localhost:{ask.address[1]}, {own}"
    assert (status, answer["error"]["message"]) == (403, f"this server is not called 'site.example'; {called}")
    for headers in (
        {"host": "localhost:1"},
        {"host": "localhost"},
        {"origin": "http://site.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        assert ask("/v1/completions", {"prompt": "a"}, **headers)[0] == 403, headers
    assert ask("/v1/models", host="site.example")[0] == 403
    assert ask("/v1/completions", {"prompt": "a"}, content_type="text/plain")[0] == 415
    mine = {"host": own, "origin": f"http://{own}", "sec_fetch_site": "same-origin"}
    assert ask("/v1/completions", {"prompt": "a"}, **mine)[0] == 200


def test_two_names_are_none(ask):
    with socket.create_connection(ask.address) as client:
        own = b"host: localhost:%d\r\n" % ask.address[1]
        client.sendall(b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n" + own + own + b"\r\n")
        assert b" 40" in client.makefile("rb").readline()


def test_names_of_other_addresses():
    assert names("::1", 8000) == ("localhost:8000", "[::1]:8000")
    assert names("127.0.0.1", 80) == ("localhost:80", "127.0.0.1:80", "localhost", "127.0.0.1")


def test_a_body_that_is_too_large(ask):
    for headers in ({}, {"transfer_encoding": "chunked"}):
        body = json.dumps({"prompt": "a" * 20_000}).encode()
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        status, _, answer = ask("/v1/completions", chunked if headers else body, **headers)
        assert (status, answer["error"]["message"]) == (413, "a request may have 20000 bytes, and this one has more")


def test_more_requests_than_may_wait(story_run, monkeypatch):
    monkeypatch.setattr("memory_mosaics.serving.app.LOOK", 0.1)
    with in_a_thread(story_run, requests=1) as (service, ask):
        with asked_by_hand(ask.address, {"prompt": "a", "max_tokens": 2000, "n": 64}), monkeypatch.context() as unread:
            until(lambda: service.engine.load == 1)
            unread.setattr(service, "encode", None)
            status, headers, answer = ask("/v1/completions", {"prompt": "a"})
            assert (status, headers["retry-after"], answer["error"]["type"]) == (429, "1", "rate_limit_error")
            assert ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})[0] == 429
            assert ask("/health")[2]["requests"] == 1
        until(lambda: service.engine.load == 0)
        assert ask("/v1/completions", {"prompt": "a"})[0] == 200


def test_bodies_that_come_slowly(story_run, monkeypatch):
    """They end with 408, and so many of them leave room for nobody but /health."""
    monkeypatch.setattr("memory_mosaics.serving.gate.READING", 2.0)
    with in_a_thread(story_run, requests=1) as (service, ask), ExitStack() as slow:
        clients = [
            slow.enter_context(asked_by_hand(ask.address, {"prompt": "a"}, 5)) for _ in range(service.limits.places)
        ]
        until(lambda: ask("/v1/models")[0] == 429)
        status, headers, answer = ask("/v1/completions", {"prompt": "a"})
        assert (status, headers["retry-after"], answer["error"]["type"]) == (429, "1", "rate_limit_error")
        assert ask("/health")[0] == 200
        told = clients[0].makefile("rb").read().decode()  # to the end: the connection is closed
        assert told.startswith("HTTP/1.1 408 ")
        assert "the request did not come within 2 seconds" in told
        until(lambda: ask("/v1/completions", {"prompt": "a"})[0] == 200)


def test_connections_that_ask_for_nothing(story_run):
    """They are counted too; they go with their clients."""
    with in_a_thread(story_run, requests=1) as (service, ask):
        with ExitStack() as idle:
            for _ in range(2 * service.limits.places):
                idle.enter_context(socket.create_connection(ask.address))
            with asked_by_hand(ask.address, {"prompt": "a"}) as client:
                assert client.makefile("rb").readline().startswith(b"HTTP/1.1 503 ")
        until(lambda: raw_status(ask.address) == 200)


def raw_status(address) -> int:
    with asked_by_hand(address, {"prompt": "a"}) as client:
        return int(client.makefile("rb").readline().split()[1])
