"""See what every memory holds: on a page of this machine (`mosaics explore RUN`), or inline in a notebook (`show`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory_mosaics.apps.explorer.answers import PAGE, Explorer
from memory_mosaics.apps.explorer.page import View
from memory_mosaics.apps.explorer.sessions import Asked, Look
from memory_mosaics.checkpoint import LoadedModel, unique_names
from memory_mosaics.errors import UserError
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.text.tokenizer import Tokenizer

__all__ = ["Explorer", "View", "show"]


def show(
    model: str | Path | LoadedModel | LanguageModel | Sequence[str | Path | LoadedModel],
    text: str,
    *,
    tokenizer: Tokenizer | None = None,
    memory: tuple[int, str, int] | None = None,
    position: int | None = None,
) -> View:
    """The explorer's view of a text, to be the last line of a notebook's cell or saved as a file.

    `model` is a run, an opened one, or two of them to stand side by side; a bare LanguageModel needs its `tokenizer`.
    `memory` (block, "sequence" or "channel", head) and `position` (below zero: from the end) are where to look first.
    All that can be hovered is computed now: of all memories for a short text, of the chosen one for a long one.
    """
    given: Sequence[Any] = model if isinstance(model, list | tuple) else [model]
    models = [_opened(one, tokenizer) for one in given]
    if not 1 <= len(models) <= 2:
        raise UserError(f"one model can be shown, or two side by side, not {len(models)}")
    explorer = Explorer(models)
    chosen = [memory if memory and engine.has(memory) else None for engine in explorer.engines]
    if memory and not any(chosen):
        raise UserError(f"there is no memory {memory}: name its block, sequence or channel, and its head")
    places = [None] * len(models) if position is None else _places(explorer, text, position)
    panes = [
        explorer.record(
            Asked(model=number, text=text), page=(place or 0) // PAGE, look=Look(position=place, memory=memory)
        )
        for number, (place, memory) in enumerate(zip(places, chosen, strict=True))
    ]
    start = {"view": "compare" if len(models) > 1 else "explore"}
    return View(explorer.about() | {"record": {"panes": panes, "start": start}})


def _places(explorer: Explorer, text: str, position: int) -> list[int]:
    """A position among the first model's tokens, and that of the same letters among those of the others."""
    count = explorer.read(Asked(text=text))["count"]
    if not -count <= position < count:
        raise UserError(f"position {position} is outside a text of {count} tokens")
    position %= count
    page = explorer.read(Asked(text=text), page=position // PAGE)
    letters = page["offset"] + sum(map(len, page["tokens"][: position - page["first"] + 1]))
    others = [Asked(model=number, text=text) for number in range(1, len(explorer.models))]
    look = Look(letters=letters)
    return [position, *(explorer.read(asked, letters=letters, look=look)["look"]["position"] for asked in others)]


def _opened(model: Any, tokenizer: Tokenizer | None) -> LoadedModel:
    if isinstance(model, LoadedModel):
        return model
    if isinstance(model, LanguageModel):
        if tokenizer is None:
            raise UserError("a LanguageModel alone reads no text: give its tokenizer too")
        return LoadedModel("model", Path(), model, tokenizer)
    ((name, run),) = unique_names([model]).items()
    return LoadedModel.open(run, name=name)
