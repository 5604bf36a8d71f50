"""The HTTP server of `mosaics serve` and `mosaics explore`: uvicorn on one socket, with limits and one-line errors.

    listen             open the socket
    Server             run an application on it until Ctrl-C
    RequestGuard       middleware: host, origin and API key, size and time of bodies, number of concurrent requests
    LimitedProtocol    time and number of connections on which no request has arrived yet
    error_response     any error as OpenAI's {"error": {"message", "type", "param", "code"}}

Importing this module needs FastAPI and uvicorn.
"""

import asyncio
import hmac
import ipaddress
import os
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from memory_mosaics.errors import UserError, one_line

HEAD_TIMEOUT = 10.0  # seconds for the head of a request to arrive, however it is sent
BODY_TIMEOUT = 30.0  # seconds for the body
WRITE_TIMEOUT = 30.0  # seconds that a client may leave a response unread
SETTLE_SECONDS = 0.1  # between accepting a connection and counting it, so that data already sent is read first
MIN_IDLE_CONNECTIONS = 128  # a browser keeps several open
REQUEST_TIMEOUT_RESPONSE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
SECURITY_HEADERS = [
    ("cache-control", "no-store"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
]
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
ERROR_HEADERS = {
    401: {"www-authenticate": "Bearer"},
    408: {"connection": "close"},  # the rest of the body is not read
    413: {"connection": "close"},
    429: {"retry-after": "1"},
}


class ApiError(HTTPException):
    """An error response; `param` is the field at fault and `code` is what clients tell errors apart by."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(status, message)
        self.param, self.code = param, code


def error_response(error: Exception) -> JSONResponse:
    """Return the response for an error. An application's own exceptions have a `status`."""
    status = getattr(error, "status", 400 if isinstance(error, UserError) else 500)
    message, param = one_line(error), getattr(error, "param", None)
    if isinstance(error, RequestValidationError):
        status, (message, param) = 400, _first_error(error.errors())
    elif isinstance(error, HTTPException):
        status, message = error.status_code, one_line(ValueError(error.detail))
    elif status == 500:
        message = f"the server failed: {type(error).__name__}: {one_line(error, 200)}"
    kind = ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    message = message.encode(errors="replace").decode()  # a lone surrogate cannot be encoded
    content = {"message": message, "type": kind, "param": param, "code": getattr(error, "code", None)}
    return JSONResponse({"error": content}, status, ERROR_HEADERS.get(status))


def add_error_handlers(app: FastAPI, *own: type[Exception]) -> None:
    """Answer every error of an application, its own exceptions among them, with `error_response`."""

    async def respond(_: Request, error: Exception) -> JSONResponse:
        return error_response(error)

    for kind in (RequestValidationError, HTTPException, UserError, Exception, *own):
        app.add_exception_handler(kind, respond)


def _first_error(errors: Any) -> tuple[str, str | None]:
    """Return the first validation error on one line, and the field it is about."""
    error = errors[0]
    path = [str(part) for part in error["loc"] if part != "body"]
    kind, reason, name = error["type"], str(error["msg"]).removeprefix("Value error, "), ".".join(path)
    if kind == "json_invalid":
        return f"the body is not JSON: {one_line(ValueError(error.get('ctx', {}).get('error', reason)))}", None
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown field {name[:60]!r}", name
    if kind == "missing" and not path:
        return "the body is empty; it must be a JSON object", None
    if kind.startswith(("greater_than", "less_than")):
        reason += f", not {error['input']}"
    return (f"{name}: " if name else "") + one_line(ValueError(reason)), name or None


def peer_of(client: Any) -> str:
    """Return what counts as one peer: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except (TypeError, IndexError, ValueError):  # a socket without addresses
        return ""
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


class RequestGuard:
    """ASGI middleware that refuses requests before their body is read, and bodies that are too large or too slow.

    A web page may send requests to a local server, under a host name of its own or from another origin. `hosts` are the
    names with ports that a local server answers to; None is for a server that other machines reach.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: tuple[str, ...] | None,
        max_body: int,
        max_requests: int,
        api_key: str | None = None,
    ):
        self.app, self.hosts, self.max_body, self.max_requests = app, hosts, max_body, max_requests
        self.max_per_peer = max_requests // 2 if hosts is None else max_requests  # all local clients are one peer
        self.api_key = api_key
        self.active: Counter[str] = Counter()  # requests per peer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = peer_of(scope.get("client"))
        try:
            self._check(scope, Headers(scope=scope), peer)
        except ApiError as error:
            return await error_response(error)(scope, receive, send)
        self.active[peer] += 1
        try:
            await self.app(scope, self._limit(receive), send)
        finally:
            self.active[peer] -= 1
            self.active += Counter()  # removes zero counts

    def _check(self, scope: Scope, headers: Headers, peer: str) -> None:
        if self.hosts is not None:
            host = ", ".join(headers.getlist("host")).lower()
            if host not in self.hosts:
                raise ApiError(403, f"unknown host {host[:60]!r}; use one of {', '.join(self.hosts)}")
            foreign = any(origin != f"http://{host}" for origin in headers.getlist("origin"))
            cross_site = any(site != "same-origin" for site in headers.getlist("sec-fetch-site"))
            if foreign or (cross_site and scope["method"] not in ("GET", "HEAD")):
                raise ApiError(403, "cross-site requests are refused")
        content_type = headers.get("content-type", "").split(";")[0].strip().lower()
        if scope["method"] == "POST" and content_type != "application/json":
            raise ApiError(415, "the body must be a JSON object, with the header content-type: application/json")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.max_body:
            raise self._too_large()
        if scope["path"] in ("/health", "/docs"):
            return
        if self.api_key is not None and not self._is_authorized(headers.get("authorization", "")):
            raise ApiError(401, "wrong API key; send it as Authorization: Bearer KEY", code="invalid_api_key")
        if self.active.total() >= self.max_requests:
            raise ApiError(429, f"{self.max_requests} requests are open, the maximum; retry later")
        if self.active[peer] >= self.max_per_peer:
            raise ApiError(429, f"{self.max_per_peer} requests from your address are open, the maximum; retry later")

    def _limit(self, receive: Receive) -> Receive:
        size, more, deadline = 0, True, asyncio.get_running_loop().time() + BODY_TIMEOUT

        async def limited() -> Message:
            nonlocal size, more
            try:
                async with asyncio.timeout_at(deadline if more else None):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, f"the request did not arrive within {BODY_TIMEOUT:g} seconds") from None
            more = message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > self.max_body:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the request is larger than {self.max_body} bytes")

    def _is_authorized(self, header: str) -> bool:
        scheme, _, key = header.partition(" ")
        matches = hmac.compare_digest(key.strip().encode(), (self.api_key or "").encode())
        return matches and scheme.lower() == "bearer"


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with at most `max_idle` idle connections, half of them from one peer.

    A connection is idle while none of its requests is being answered: the head has not arrived, or the last response is
    sent. A client that opens many connections and sends nothing, or half a head, loses its own oldest connections, and
    all others are answered. uvicorn's `limit_concurrency` would answer 503 to everybody, /health included.
    """

    def __init__(self, *args: Any, max_idle: int, **others: Any):
        super().__init__(*args, **others)
        self.max_idle, self.peer = max_idle, ""
        self.idle_since: float | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.peer = peer_of(self.client)
        self._update_idle()
        self.loop.call_later(SETTLE_SECONDS, self._close_oldest)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_idle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.idle_since = None
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def close_idle(self) -> None:
        """Close an idle connection, with status 408 if it has not had a request yet."""
        self.idle_since = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait for a client that does not read
            return
        if self.conn.our_state is h11.IDLE and not self.transport.is_closing():
            self.transport.write(REQUEST_TIMEOUT_RESPONSE)
        self.transport.close()

    def _close_oldest(self) -> None:
        """While there are too many idle connections, close the oldest one of the peer that has the most."""
        while True:
            idle = [one for one in self.connections if isinstance(one, LimitedProtocol) and one.idle_since]
            (peer, count), *_ = Counter(one.peer for one in idle).most_common(1) or [("", 0)]
            if count <= self.max_idle // 2 and len(idle) <= self.max_idle:
                return
            min((one for one in idle if one.peer == peer), key=lambda one: one.idle_since or 0.0).close_idle()

    def _update_idle(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.idle_since = None
            if self._head_timer is not None:
                self._head_timer.cancel()
        elif self.idle_since is None:
            self.idle_since = self.loop.time()
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self.close_idle)


def listen(host: str, port: int, *, remedy: str = "choose another --port or --host") -> socket.socket:
    """Open a listening socket, or raise a UserError that ends with `remedy`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except UnicodeError as error:  # encoding the name fails before it is resolved
        raise UserError(f"cannot listen at {host[:60]!r}: not a host name; choose another --host") from error
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)  # negative: no such host
        raise UserError(f"cannot listen at {host}, port {port}: {reason}; {remedy}") from error


def is_local(listening: socket.socket) -> bool:
    """Return whether only this machine can reach the socket."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def local_hosts(host: str, port: int) -> tuple[str, ...]:
    """Return the Host headers that address a local server; clients leave out port 80."""
    names = ("localhost", f"[{host}]" if ":" in host else host)
    return tuple(f"{name}:{port}" for name in names) + (names if port == 80 else ())


class Server(uvicorn.Server):
    """Serve an application on an open socket until Ctrl-C or SIGTERM.

    `on_ready` is called with the address. After the first signal, unfinished requests have `grace` seconds; then, or on
    the second signal, `halt` is called, which makes them fail. `unfinished` returns how many there are.
    """

    def __init__(
        self,
        app: ASGIApp,
        listening: socket.socket,
        *,
        max_requests: int,
        max_body: int,
        api_key: str | None = None,
        on_ready: Callable[[str], None] = lambda address: None,
        halt: Callable[[], None] = lambda: None,
        unfinished: Callable[[], int] = lambda: 0,
        grace: float = 0.0,
    ):
        host, port = listening.getsockname()[:2]
        hosts = local_hosts(host, port) if is_local(listening) else None
        self.guard = RequestGuard(app, hosts=hosts, max_body=max_body, max_requests=max_requests, api_key=api_key)
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self.listening, self.on_ready, self.unfinished, self.grace = listening, on_ready, unfinished, grace
        self._halt, self.halted = halt, False
        protocol: Any = partial(LimitedProtocol, max_idle=max(max_requests, MIN_IDLE_CONNECTIONS))
        super().__init__(
            uvicorn.Config(
                self.guard,
                http=protocol,
                ws="none",
                lifespan="off",
                log_level="error",
                access_log=False,
                server_header=False,
                headers=SECURITY_HEADERS,
                timeout_graceful_shutdown=int(grace) + 10,
            )
        )

    def run_until_interrupted(self) -> None:
        """Run until Ctrl-C or SIGTERM."""
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after the shutdown
            self.run(sockets=[self.listening])

    def halt(self) -> None:
        """Make unfinished requests fail."""
        self.halted = True
        self._halt()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_ready(self.address)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finish requests after the first signal, make them fail on the second, wait for nothing on the third."""
        if self.should_exit and not self.halted:
            return self.halt()
        super().handle_exit(sig, frame)
        if not self.grace:
            self.halt()
        elif count := self.unfinished():
            print(f"\nfinishing {count} requests, {self.grace:g} seconds at most; Ctrl-C again ends now", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = asyncio.get_running_loop().call_later(self.grace, self.halt)
        await super().shutdown(sockets)
        timer.cancel()
