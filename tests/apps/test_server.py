"""Who is let in, and how many at a time."""

import asyncio
import json
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

from apps.conftest import asked_by_hand, in_a_thread
from waiting import HANG, until

pytest.importorskip("fastapi", reason="pip install 'memory-mosaics[serve]'")
pytest.importorskip("uvicorn", reason="pip install 'memory-mosaics[serve]'")

from memory_mosaics.apps.server import RequestGuard, local_hosts, peer_of


def test_a_page_of_another_site_is_refused(ask):
    own = f"127.0.0.1:{ask.address[1]}"
    status, _, answer = ask("/v1/completions", {"prompt": "a"}, host="site.example")
    hosts = f"use one of localhost:{ask.address[1]}, {own}"
    assert (status, answer["error"]["message"]) == (403, f"unknown host 'site.example'; {hosts}")
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
    assert local_hosts("::1", 8000) == ("localhost:8000", "[::1]:8000")
    assert local_hosts("127.0.0.1", 80) == ("localhost:80", "127.0.0.1:80", "localhost", "127.0.0.1")


def test_a_body_that_is_too_large(ask):
    for headers in ({}, {"transfer_encoding": "chunked"}):
        body = json.dumps({"prompt": "a" * 20_000}).encode()
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        status, _, answer = ask("/v1/completions", chunked if headers else body, **headers)
        assert (status, answer["error"]["message"]) == (413, "the request is larger than 20000 bytes")


def test_more_requests_than_may_wait(story_run, endless, monkeypatch):
    monkeypatch.setattr("memory_mosaics.apps.serve.app.DISCONNECT_POLL_SECONDS", 0.1)
    with in_a_thread(story_run, requests=1) as (service, ask):
        with asked_by_hand(ask.address, {"prompt": "a", "max_tokens": 2000, "n": 64}), monkeypatch.context() as unread:
            until(lambda: service.engine.unfinished == 1)
            unread.setattr(service, "encode", None)
            status, headers, answer = ask("/v1/completions", {"prompt": "a"})
            assert (status, headers["retry-after"], answer["error"]["type"]) == (429, "1", "rate_limit_error")
            assert ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})[0] == 429
            assert ask("/health")[2]["requests"] == 1
        until(lambda: service.engine.unfinished == 0)
        assert ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200


def test_bodies_that_come_slowly(story_run, monkeypatch):
    """They end with 408, and so many of them leave room for nobody but /health."""
    monkeypatch.setattr("memory_mosaics.apps.server.BODY_TIMEOUT", HANG)
    timeout_at, waiting = asyncio.timeout_at, []

    def noted(when):
        waiting.append((asyncio.get_running_loop(), timeout_at(when)))
        return waiting[-1][1]

    def end(timeout):
        with suppress(RuntimeError):  # it is over already
            timeout.reschedule(0.0)

    monkeypatch.setattr("memory_mosaics.apps.server.asyncio.timeout_at", noted)
    with in_a_thread(story_run, requests=1) as (service, ask), ExitStack() as slow:
        clients = [
            slow.enter_context(asked_by_hand(ask.address, {"prompt": "a"}, 5)) for _ in range(service.max_concurrent)
        ]
        until(lambda: ask("/v1/models")[0] == 429)
        status, headers, answer = ask("/v1/completions", {"prompt": "a"})
        assert (status, headers["retry-after"], answer["error"]["type"]) == (429, "1", "rate_limit_error")
        assert ask("/health")[0] == 200
        for loop, timeout in waiting:  # the time is over
            loop.call_soon_threadsafe(end, timeout)
        found = clients[0].makefile("rb").read().decode()  # to the end: the connection is closed
        assert found.startswith("HTTP/1.1 408 ")
        assert f"the request did not arrive within {HANG:g} seconds" in found
        until(lambda: ask("/v1/completions", {"prompt": "a"})[0] == 200)


@pytest.mark.parametrize("sent", [b"", b"GET /v1/models HTTP/1.1\r\nhost: localh"])
def test_connections_that_never_send_a_whole_head_lock_nobody_out(story_run, sent):
    """Ten times as many as there are places: the oldest ones go, and who sends a request is answered."""
    with in_a_thread(story_run, requests=8, key="secret") as (service, ask), ExitStack() as idle:
        clients = []
        for _ in range(10 * service.max_concurrent):
            clients.append(idle.enter_context(socket.create_connection(ask.address, timeout=HANG)))
            clients[-1].sendall(sent)
        assert ask("/health")[0] == 200
        assert ask("/v1/completions", {"prompt": "a"}, authorization="Bearer secret")[0] == 200
        with suppress(ConnectionError):  # closed before its half head was read
            assert ended(clients[0]).startswith(b"HTTP/1.1 408 ")
        clients[-1].sendall(b"GET /health HTTP/1.1\r\n" if not sent else b"ost\r\n")
        clients[-1].sendall(b"host: localhost:%d\r\nconnection: close\r\n\r\n" % ask.address[1])
        assert ended(clients[-1]).startswith(b"HTTP/1.1 ")  # the youngest ones are still there


@pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nhost: localhost:%d\r\n\r\n"])
def test_a_head_has_a_limited_time_however_it_is_sent(story_run, monkeypatch, first):
    """A letter at a time does not lengthen it, on a new connection as on one that was answered before."""
    monkeypatch.setattr("memory_mosaics.apps.server.HEAD_TIMEOUT", HANG if first else 0.3)
    with in_a_thread(story_run, requests=1) as (_, ask), socket.create_connection(ask.address, timeout=HANG) as client:
        until(
            lambda: (
                not first or any(getattr(one, "_head_timer", None) for one in [*ask.server.server_state.connections])
            )
        )
        monkeypatch.setattr("memory_mosaics.apps.server.HEAD_TIMEOUT", 0.3)  # of the head that stays half
        client.sendall((first % ask.address[1] if first else b"") + b"GET / HTTP/1.1\r\nname: ")
        received, seen = b"", select.poll()
        seen.register(client, select.POLLIN)
        while True:  # ends when the server closes, and only then
            with suppress(ConnectionError):
                client.sendall(b"x")
            if seen.poll(10):
                try:
                    data = client.recv(1 << 16)
                except ConnectionError:  # closed while letters were under way
                    break
                received += data
                if not data:
                    break
        # A connection that is reset may lose its response.
        assert received[:13] in ([b"HTTP/1.1 200 "] if first else [b"HTTP/1.1 408 ", b""])


def test_a_client_that_does_not_read_its_answers_is_dropped(story_run, monkeypatch):
    monkeypatch.setattr("memory_mosaics.apps.server.WRITE_TIMEOUT", 0.3)
    with in_a_thread(story_run, requests=1) as (_, ask), socket.socket() as client:
        ask.listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(HANG)
        client.connect(ask.address)
        with suppress(ConnectionError):  # it may be dropped before all is sent
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost:%d\r\n\r\n" % ask.address[1] * 2000)
        until(lambda: ask.server.server_state.total_requests and not ask.server.server_state.connections)


def test_requests_of_one_peer_leave_places_for_others():
    """Where others reach the server, half of the places at most are of one address."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        entered.set()
        await leave.wait()

    async def status(guard, client):
        sent = []

        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "http.request", "body": b""}

        await guard(
            {"type": "http", "method": "GET", "path": "/v1", "headers": [], "client": (client, 1)}, receive, send
        )
        return sent[0]["status"] if sent else None

    async def run():
        guard = RequestGuard(app, hosts=None, max_body=10, max_requests=4)
        held = [asyncio.create_task(status(guard, "192.0.2.1")) for _ in range(2)]
        await entered.wait()
        refused = await status(guard, "::ffff:192.0.2.1")
        leave.set()
        assert (refused, await status(guard, "192.0.2.2"), [await task for task in held]) == (429, None, [None, None])
        assert not guard.active

    with ThreadPoolExecutor() as thread:  # the main one may have the event loop of a browser
        thread.submit(asyncio.run, run()).result()


def test_what_counts_as_one_peer():
    assert peer_of(("2001:db8::1", 1)) == peer_of(("2001:db8::ffff:2", 2)) == "2001:db8::/64"
    assert peer_of(("fe80::1%eth0", 1)) == "fe80::/64"
    assert peer_of(("::ffff:192.0.2.1", 1)) == peer_of(("192.0.2.1", 9)) == "192.0.2.1"
    assert peer_of(None) == ""


def ended(client) -> bytes:
    """All that comes until the server closes the connection."""
    return client.makefile("rb").read()
