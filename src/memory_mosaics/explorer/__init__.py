"""See what every memory holds: on a page of this machine (`mosaics explore RUN`), or inline in a notebook (`show`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory_mosaics.errors import UserError
from memory_mosaics.explorer.page import View
from memory_mosaics.explorer.sessions import Explorer
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.text.tokenizer import Tokenizer
from memory_mosaics.trained import Trained, named

__all__ = ["Explorer", "View", "show"]


def show(
    model: str | Path | Trained | LanguageModel | Sequence[str | Path | Trained],
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
    chosen = [memory if memory and explorer.has(number, memory) else None for number in range(len(models))]
    if memory and not any(chosen):
        raise UserError(f"there is no memory {memory}: name its block, sequence or channel, and its head")
    panes = [explorer.record(model=number, text=text, page=0, memory=one) for number, one in enumerate(chosen)]
    if position is not None and position < 0:
        position += panes[0]["read"]["last"]
    start = {"view": "compare" if len(models) > 1 else "explore", "memories": chosen, "position": position}
    return View(explorer.about() | {"record": {"panes": panes, "start": start}})


def _opened(model: Any, tokenizer: Tokenizer | None) -> Trained:
    if isinstance(model, Trained):
        return model
    if isinstance(model, LanguageModel):
        if tokenizer is None:
            raise UserError("a LanguageModel alone reads no text: give its tokenizer too")
        return Trained("model", Path(), model, tokenizer)
    ((name, run),) = named([model]).items()
    return Trained.open(run, name=name)
