"""The page behind FastAPI, for this machine alone.

The gate of `mosaics serve` stands before it and refuses whoever is not the page itself. There is nothing to serve but
the page and what it asks. One request computes at a time, and few may wait.
"""

from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from memory_mosaics.apps.explorer import page
from memory_mosaics.apps.explorer.answers import Explorer
from memory_mosaics.apps.explorer.bodies import ExportBody, LookingBody, ReadBody, SkyBody
from memory_mosaics.apps.serve.gate import Gate
from memory_mosaics.errors import UserError, one_line

BODY = 1 << 19  # bytes of a request
WAITING = 8  # requests that may wait for the one that computes
HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def build(explorer: Explorer, hosts: tuple[str, ...]) -> ASGIApp:
    """The application; `hosts` are the names, with the port, by which it is called."""
    about = explorer.about()

    def same_models(request: Request) -> None:
        """A page that was opened when others were served would show their names over these numbers."""
        if request.headers.get("x-identity", about["identity"]) != about["identity"]:
            raise HTTPException(409, "other models are served here now; reload the page")

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(same_models)])
    html = page.build(about | {"examples": explorer.examples})
    headers = HEADERS | {"content-security-policy": page.policy() + "; frame-ancestors 'none'"}

    @app.api_route("/", methods=["GET", "HEAD"])
    def home() -> HTMLResponse:
        return HTMLResponse(html, headers=headers)

    _answer(app, explorer, about)
    _tell_errors(app)
    return Gate(app, hosts=hosts, most=BODY, places=1 + WAITING, tell=_error)


def _answer(app: FastAPI, explorer: Explorer, about: dict[str, Any]) -> None:
    @app.post("/api/read")
    def read(body: ReadBody) -> JSONResponse:
        look = body.look and body.look.look()
        found = explorer.read(body.asked(), page=body.page, letters=body.letters, look=look)
        return JSONResponse(found, headers=HEADERS)

    @app.post("/api/look")
    def look(body: LookingBody) -> JSONResponse:
        return JSONResponse(explorer.look(body.asked(), body.look.look()), headers=HEADERS)

    @app.post("/api/moons")
    def sky(body: SkyBody) -> JSONResponse:
        return JSONResponse(explorer.sky(body.periods, body.seed), headers=HEADERS)

    @app.post("/api/export")
    def export(body: ExportBody) -> HTMLResponse:
        panes = [
            explorer.record(pane.asked(), page=pane.page, look=pane.look.look())
            | {"held": pane.held, "measure": pane.measure}
            for pane in body.panes
        ]
        record: dict[str, Any] = {"panes": panes, "start": body.start.model_dump()}
        if body.sky is not None:
            record["sky"] = explorer.sky(body.sky.periods, body.sky.seed)
        return HTMLResponse(page.build(about | {"record": record}), headers=HEADERS)


def _tell_errors(app: FastAPI) -> None:
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


def _error(code: int, message: str) -> JSONResponse:
    shown = message.encode(errors="replace").decode()  # half a character would not go over the wire
    return JSONResponse({"error": shown}, status_code=code, headers=HEADERS)
