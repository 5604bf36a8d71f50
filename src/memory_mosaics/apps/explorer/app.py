"""The page and its requests behind FastAPI. One request computes at a time, and a few may wait."""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse
from pydantic import Field

from memory_mosaics.apps.explorer import explorer as requests
from memory_mosaics.apps.explorer import page
from memory_mosaics.apps.explorer.explorer import Explorer, PaneRequest
from memory_mosaics.apps.explorer.moons import LONGEST, SHORTEST, TASK
from memory_mosaics.apps.server import ApiError, add_error_handlers
from memory_mosaics.config import MAX_SEED

MAX_BODY = 1 << 19  # bytes of a request
MAX_WAITING = 8  # requests that may wait for the one that computes
Period = Annotated[int, Field(ge=SHORTEST, le=LONGEST)]


@dataclass(frozen=True, kw_only=True)
class MoonsRequest(requests.Request):
    """The periods of the moons, and the seed of their phases."""

    periods: Annotated[list[Period], Field(min_length=TASK.moons, max_length=TASK.moons)]
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0


@dataclass(frozen=True, kw_only=True)
class ViewRequest(requests.Request):
    """The state of the page beside that of its panes."""

    view: Literal["explore", "compare", "moons"] = "explore"
    theme: Literal["light", "dark"] | None = None
    guessing: bool = False
    time: int = 0


@dataclass(frozen=True, kw_only=True)
class ExportRequest(requests.Request):
    """A view to be saved."""

    panes: Annotated[list[PaneRequest], Field(max_length=2)]
    moons: MoonsRequest | None = None
    start: ViewRequest = field(default_factory=ViewRequest)


def build_app(explorer: Explorer) -> FastAPI:
    """Build the application."""
    description = explorer.description

    def check_identity(request: Request) -> None:
        """Refuse a page that was opened when other models were served: it would show their names."""
        if request.headers.get("x-identity", description["identity"]) != description["identity"]:
            raise ApiError(409, "other models are served here now; reload the page")

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(check_identity)])
    add_error_handlers(app)
    html = page.build(description | {"examples": explorer.examples})
    policy = {"content-security-policy": page.policy() + "; frame-ancestors 'none'"}

    @app.api_route("/", methods=["GET", "HEAD"])
    def home() -> HTMLResponse:
        return HTMLResponse(html, headers=policy)

    app.post("/api/read")(explorer.read)
    app.post("/api/look")(explorer.look)
    app.post("/api/continue")(explorer.continuation)

    @app.post("/api/moons")
    def moons(body: MoonsRequest) -> dict[str, Any]:
        return explorer.moons(body.periods, body.seed)

    @app.post("/api/export")
    def export(body: ExportRequest) -> HTMLResponse:
        record: dict[str, Any] = {"panes": list(map(explorer.record, body.panes)), "start": asdict(body.start)}
        if body.moons is not None:
            record["moons"] = explorer.moons(body.moons.periods, body.moons.seed)
        return HTMLResponse(page.build(description | {"record": record}))

    return app
