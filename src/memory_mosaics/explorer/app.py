"""The page behind FastAPI, for this machine alone.

Whoever is not the page itself is refused: other hosts (so that no foreign name can be pointed here), other origins,
bodies that are not JSON or too long. There is nothing to serve but the page and what it asks. One request computes at a
time, and few may wait.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.explorer import moons, page
from memory_mosaics.explorer.sessions import Explorer
from memory_mosaics.serving.gate import refusal

BODY = 1 << 19  # bytes of a request
WAITING = 8  # requests that may wait for another to end
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Body(BaseModel):
    """What a page sends: no more than is named."""

    model_config = ConfigDict(extra="forbid")


class EditBody(Body):
    block: int
    kind: Literal["sequence", "channel"]
    head: int
    place: int | None = None
    text: str | None = Field(default=None, max_length=100)


class TextBody(Body):
    session: str = Field(max_length=40)
    model: int
    text: str
    edits: list[EditBody] = Field(default=[], max_length=1000)


Memory = tuple[int, Literal["sequence", "channel"], int]


class LookAtBody(Body):
    position: int | None
    memory: Memory | None
    target: int | None


class ReadBody(TextBody):
    page: int = -1
    look: LookAtBody | None = None


class LookBody(TextBody):
    position: int
    memory: Memory | None = None
    target: int | None = None


class RecordBody(TextBody):
    page: int = -1
    memory: Memory | None = None


class SkyBody(Body):
    periods: list[int] = Field(max_length=6)
    seed: int = Field(default=0, ge=0, lt=1 << 31)


class ExportBody(Body):
    panes: list[RecordBody] = Field(max_length=2)
    sky: SkyBody | None = None
    start: dict[str, Any] = {}


class Guard:
    """Lets through what the page itself sends from this machine."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]):
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        refused = self._refused(scope)
        if refused is None:
            await self.app(scope, receive, send)
        else:
            await _error(*refused)(scope, receive, send)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        refused = refusal(scope, hosts=tuple(sorted(self.hosts)), most=BODY)
        if refused is None and scope["method"] not in ("GET", "HEAD"):
            length = dict(scope["headers"]).get(b"content-length", b"")
            return None if length.isdigit() else (411, "say how long the request is")
        return refused


def _error(code: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=code, headers=HEADERS)


def build(explorer: Explorer, hosts: frozenset[str]) -> ASGIApp:
    """The application; `hosts` are the addresses, with the port, at which it is reached."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    html = page.build(explorer.about() | {"examples": explorer.examples})
    headers = HEADERS | {"content-security-policy": page.policy() + "; frame-ancestors 'none'"}
    places = BoundedSemaphore(WAITING)

    @contextmanager
    def place() -> Iterator[None]:
        if not places.acquire(blocking=False):
            raise HTTPException(503, "too much is asked at once; wait a moment")
        try:
            yield
        finally:
            places.release()

    @app.get("/")
    def home() -> HTMLResponse:
        return HTMLResponse(html, headers=headers)

    @app.post("/api/read")
    def read(body: ReadBody) -> JSONResponse:
        with place():
            return JSONResponse(explorer.read(**body.model_dump()), headers=HEADERS)

    @app.post("/api/look")
    def look(body: LookBody) -> JSONResponse:
        with place():
            return JSONResponse(explorer.look(**body.model_dump()), headers=HEADERS)

    @app.post("/api/moons")
    def sky(body: SkyBody) -> JSONResponse:
        with place(), explorer.lock:
            return JSONResponse(moons.watch(body.periods, seed=body.seed), headers=HEADERS)

    @app.post("/api/export")
    def export(body: ExportBody) -> HTMLResponse:
        with place():
            record: dict[str, Any] = {"panes": [explorer.record(**pane.model_dump()) for pane in body.panes]}
            if body.sky is not None:
                record["sky"] = moons.watch(body.sky.periods, seed=body.sky.seed)
            record["start"] = body.start
            return HTMLResponse(page.build(explorer.about() | {"record": record}), headers=HEADERS)

    @app.exception_handler(UserError)
    def wrong(_: Request, error: UserError) -> JSONResponse:
        return _error(400, one_line(error))

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]  # without its input, which may be no text at all
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return _error(422, one_line(ValueError(f"{where}: {first['msg']}" if where else first["msg"])))

    @app.exception_handler(HTTPException)
    def http(_: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, str(error.detail))

    @app.exception_handler(Exception)
    def defect(_: Request, error: Exception) -> JSONResponse:
        return _error(500, f"a defect of the explorer, {type(error).__name__}; the terminal has more")

    return Guard(app, hosts)
