"""Who is let in, and errors as OpenAI tells them."""

import asyncio
import hmac
from collections import Counter
from collections.abc import Callable
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory_mosaics.apps.serve.connections import peer_of

READING = 30.0  # seconds in which the body of a request must have come
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
HEADERS = {
    401: {"www-authenticate": "Bearer"},
    408: {"connection": "close"},  # the rest of the body is not wanted
    413: {"connection": "close"},
    429: {"retry-after": "1"},
}


def told(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI tells it."""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    shown = message.encode(errors="replace").decode()  # half a character would not go over the wire
    return {"error": {"message": shown, "type": kind, "param": param, "code": code}}


def error(status: int, message: str, *, param: str | None = None, code: str | None = None) -> JSONResponse:
    """The answer that tells it."""
    return JSONResponse(told(status, message, param=param, code=code), status, HEADERS.get(status))


def names(host: str, port: int) -> tuple[str, ...]:
    """What a server that only this machine reaches is called by, with the port, which clients leave out if it is 80."""
    called = ("localhost", f"[{host}]" if ":" in host else host)
    return tuple(f"{name}:{port}" for name in called) + (called if port == 80 else ())


def refusal(scope: Scope, *, hosts: tuple[str, ...] | None, most: int) -> tuple[int, str] | None:
    """Status and reason, if a request comes from a page of another site, is not JSON or has more than `most` bytes.

    A page in a browser may send requests to a local server, under a name of its own or as another origin. `hosts` are
    the `names` to call this one by; None lets in all, for a server that others may reach.
    """
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    if hosts is not None:
        host = ", ".join(headers.get("host", [""])).lower()
        if host not in hosts:
            return 403, f"this server is not called {host[:60]!r}; call it by one of {', '.join(hosts)}"
        origins, sites = headers.get("origin", []), headers.get("sec-fetch-site", [])
        foreign = any(origin != f"http://{host}" for origin in origins)
        if foreign or (scope["method"] not in ("GET", "HEAD") and any(site != "same-origin" for site in sites)):
            return 403, "requests from pages of other sites are refused"
    kind = headers.get("content-type", [""])[0].split(";")[0].strip().lower()
    if scope["method"] == "POST" and kind != "application/json":
        return 415, "the body should be a JSON object, with the header content-type: application/json"
    length = headers.get("content-length", ["0"])[0]
    if length.isdecimal() and int(length) > most:
        return 413, _too_large(most)
    return None


class Gate:
    """Refuses what comes from elsewhere or with the wrong key, too much of it, and what comes too slowly.

    Of whatever is refused at once, nothing is read. `most` is the bytes of a request, `places` how many requests may be
    inside, `per_peer` how many of one peer address (None: as many as `places`), and `tell` makes the answer that says
    why one is refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: tuple[str, ...] | None,
        most: int,
        places: int,
        per_peer: int | None = None,
        key: str | None = None,
        tell: Callable[[int, str], JSONResponse] = error,
    ):
        self.app, self.hosts, self.most, self.places, self.key, self.tell = app, hosts, most, places, key, tell
        self.per_peer = per_peer or places
        self.inside: Counter[str] = Counter()  # by peer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        refused = self._refused(scope)
        if refused is not None:
            return await refused(scope, receive, send)
        peer = peer_of(scope.get("client"))
        self.inside[peer] += 1
        try:
            await self.app(scope, self._limited(receive), send)
        finally:
            self.inside[peer] -= 1
            self.inside += Counter()  # drops those at zero

    def _refused(self, scope: Scope) -> JSONResponse | None:
        why = refusal(scope, hosts=self.hosts, most=self.most)
        if why is not None:
            return self.tell(*why)
        if scope["path"] == "/health":
            return None
        if self.key is not None and not self._knows_key(dict(scope["headers"]).get(b"authorization", b"")):
            return error(401, "wrong API key: send the server's as Authorization: Bearer KEY", code="invalid_api_key")
        if self.inside.total() >= self.places:
            return self.tell(429, f"{self.places} requests are here at once, more are not read; come back later")
        if self.inside[peer_of(scope.get("client"))] >= self.per_peer:
            reason = f"{self.per_peer} requests of your address are here at once, more are not read; come back later"
            return self.tell(429, reason)
        return None

    def _limited(self, receive: Receive) -> Receive:
        size, more, until = 0, True, asyncio.get_running_loop().time() + READING

        async def limited() -> Message:
            nonlocal size, more
            try:
                async with asyncio.timeout_at(until if more else None):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the request did not come within {READING:g} seconds") from None
            more = message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > self.most:
                raise HTTPException(413, _too_large(self.most))
            return message

        return limited

    def _knows_key(self, said: bytes) -> bool:
        scheme, _, key = said.partition(b" ")
        right = hmac.compare_digest(key.strip(), (self.key or "").encode())
        return right and scheme.lower() == b"bearer"


def _too_large(most: int) -> str:
    return f"a request may have {most} bytes, and this one has more"
