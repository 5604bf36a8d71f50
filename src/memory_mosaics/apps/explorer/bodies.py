"""What the page may send: no more than is named here, and nothing of another kind."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from memory_mosaics.apps.explorer.sessions import Asked, Look, Wanted

Memory = tuple[int, Literal["sequence", "channel"], int]


class Body(BaseModel):
    """JSON with these fields."""

    model_config = ConfigDict(extra="forbid")


class EditBody(Body):
    block: int
    kind: Literal["sequence", "channel"]
    head: int
    place: int | None = None
    mark: int | None = None
    token: int | None = None
    text: str | None = Field(default=None, max_length=100)


class LookBody(Body):
    """Where to look, as `Look` says."""

    position: int | None = None
    letters: int | None = None
    memory: Memory | None = None
    target: int | str | None = Field(default=None, union_mode="left_to_right")

    def look(self) -> Look:
        return Look(**self.model_dump())


class TextBody(Body):
    """What a request is about, as `Asked` says."""

    session: str = Field(max_length=40)
    model: int
    text: str
    edits: list[EditBody] = Field(default=[], max_length=1000)

    def asked(self) -> Asked:
        edits = [Wanted(**edit.model_dump()) for edit in self.edits]
        return Asked(session=self.session, model=self.model, text=self.text, edits=edits)


class ReadBody(TextBody):
    page: int = -1
    letters: int | None = None
    look: LookBody | None = None


class LookingBody(TextBody):
    look: LookBody


class PaneBody(LookingBody):
    """A pane to be saved."""

    page: int = -1
    held: bool = False
    measure: Literal["adds", "effective", "lambda", "beta"] = "adds"


class SkyBody(Body):
    periods: list[int] = Field(max_length=6)
    seed: int = Field(default=0, ge=0, lt=1 << 31)


class ViewBody(Body):
    """What of the view to be saved is no pane's."""

    view: Literal["explore", "compare", "moons"] = "explore"
    theme: Literal["light", "dark"] | None = None
    guessing: bool = False
    time: int = Field(default=0, ge=0)


class ExportBody(Body):
    panes: list[PaneBody] = Field(max_length=2)
    sky: SkyBody | None = None
    start: ViewBody = ViewBody()
