"""Who is let in, and errors as OpenAI tells them."""

import hmac
import re
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def told(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI tells it."""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    shown = message.encode(errors="replace").decode()  # half a character would not go over the wire
    return {"error": {"message": shown, "type": kind, "param": param, "code": code}}


def error(status: int, message: str, *, param: str | None = None, code: str | None = None) -> JSONResponse:
    """The answer that tells it."""
    headers = {"retry-after": "1"} if status == 429 else {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(told(status, message, param=param, code=code), status, headers)


class Gate:
    """Refuses what comes with the wrong key, by the wrong name, or is too large, before any of it is read.

    A page in a browser may send requests to a local server under a name of its own: a name that is not among `hosts`
    gives it away.
    """

    def __init__(self, app: ASGIApp, *, key: str | None, hosts: tuple[str, ...] | None, most: int):
        self.app, self.key, self.hosts, self.most = app, key, hosts, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope["path"], headers)
        if refusal is not None:
            return await refusal(scope, receive, send)
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.most:
                raise HTTPException(413, self._too_large)
            return message

        await self.app(scope, counted, send)

    def _refusal(self, path: str, headers: dict[str, str]) -> JSONResponse | None:
        host = re.sub(r":\d+$", "", headers.get("host", ""))
        if self.hosts is not None and host.lower() not in self.hosts:
            return error(400, f"this server is not called {host[:60]!r}; call it by one of {', '.join(self.hosts)}")
        if self.key is not None and path != "/health" and not self._knows_key(headers.get("authorization", "")):
            return error(401, "wrong API key: send the server's as Authorization: Bearer KEY", code="invalid_api_key")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.most:
            return error(413, self._too_large)
        return None

    def _knows_key(self, said: str) -> bool:
        scheme, _, key = said.partition(" ")
        right = hmac.compare_digest(key.strip().encode("latin-1"), (self.key or "").encode())
        return right and scheme.lower() == "bearer"

    @property
    def _too_large(self) -> str:
        return f"a request may have {self.most} bytes, and this one has more"
