"""See what every memory stores: on a local web page (`mosaics explore RUN`), or inline in a notebook (`show`)."""

import sys
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from memory_mosaics import checkpoint, pretrained
from memory_mosaics.apps.explorer.explorer import PAGE_TOKENS, Explorer, Look, PaneRequest, ReadRequest
from memory_mosaics.apps.explorer.page import View
from memory_mosaics.bounded_stores import StorePolicy
from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.runtime import find_device
from memory_mosaics.text.tokenizer import Tokenizer

__all__ = ["Explorer", "View", "explore", "show"]
MAX_MODELS = 4
SEARCH_DEPTH = 3  # folder levels in which runs are looked for, to name them in an error

PORT = 8642


def explore(
    runs: list[str] | None = None,
    *,
    memory: list[Path] | None = None,
    store: str | None = None,
    port: int = PORT,
    device: str = "auto",
    browser: bool = False,
) -> dict[str, Any]:
    """Look inside trained models on a web page that only this machine can open: type, hover, click, edit memories.

    Ctrl-C stops it. Nothing is written and nothing leaves the machine.

    Args:
        runs: training runs, of which the newest checkpoint is taken, or checkpoint folders; up to 4, such as a Memory
            Mosaic and the transformer to compare it with. null is those that come with the package, whose names can be
            given too: memory-mosaic-stories and llama-stories
        memory: one or several files of `mosaics read`: the text on the page is read after what they hold, and the page
            shows which of their pairs are retrieved, beside the same model without them
        store: which pairs contextual memories keep, such as lru:4096 (`mosaics read --help` has all; not indexed). null
            is exact, or as in the memory files; exact after a file with another store keeps its pairs and all new ones
        port: the port to listen on; 0 picks a free one
        device: cuda, mps or cpu; auto takes the first that is available
        browser: also open the page in the default browser
    """
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UserError("the explorer needs FastAPI and uvicorn: pip install 'memory-mosaics[explore]'")
    if runs is None:
        runs = [pretrained.MOSAIC] if memory else list(pretrained.NAMES)
    if len(runs) > MAX_MODELS:
        raise UserError(f"{len(runs)} runs are too many to explore at once; name at most {MAX_MODELS}")
    check_range(0, 65535, port=port)
    from memory_mosaics.apps.explorer.app import MAX_BODY, MAX_WAITING, build_app
    from memory_mosaics.apps.server import Server, listen

    for run in runs:
        _check_is_run(Path(run))
    if store is not None:
        StorePolicy.parse(store)  # a mistake in it is found before models are read
    models = list(iter_models(unique_names(runs), device=find_device(device)))
    for loaded in models:
        loaded.tokenizer.encode("a")  # a tokenizer that cannot be built fails here

    def on_ready(address: str) -> None:
        print(f"{', '.join(loaded.name for loaded in models)}: open {address}; press Ctrl-C to stop", flush=True)
        if browser:
            webbrowser.open(address)

    with listen("127.0.0.1", port, remedy="choose another --port, or 0 for a free one") as listening:
        if memory and store is not None:
            names = ", ".join(map(str, memory))
            print(f"sorting the pairs of {names} into a store {store} ...", file=sys.stderr, flush=True)
        explorer = Explorer(models, memory=memory or (), store=store)
        Server(
            build_app(explorer),
            listening,
            max_requests=1 + MAX_WAITING,
            max_body=MAX_BODY,
            on_ready=on_ready,
            halt=explorer.halt,
        ).run_until_interrupted()
    print()
    return {"study": "explore", "interrupted": False}


def _check_is_run(folder: Path) -> None:
    """Raise an error that names runs for a folder of runs, such as that of `mosaics demo`."""
    if not folder.is_dir() or (checkpoint.newest(folder) / "config.json").exists():
        return
    below = (path for depth in range(1, SEARCH_DEPTH + 1) for path in sorted(folder.glob("/".join("*" * depth))))
    found = [str(path) for path in islice(below, 10_000) if path.is_dir() and checkpoint.steps(path)]
    if found:
        raise UserError(f"{folder} is a folder of runs; name one of them, such as {' or '.join(found[:2])}")


def show(
    model: str | Path | LoadedModel | LanguageModel | Sequence[str | Path | LoadedModel],
    text: str,
    *,
    tokenizer: Tokenizer | None = None,
    memory: tuple[int, Any, int] | None = None,
    position: int | None = None,
    memory_files: Sequence[str | Path] = (),
    store: str | None = None,
) -> View:
    """Return the explorer's view of a text, to be the last line of a notebook's cell or saved as a file.

    `model` is a run, a loaded model, or two of these side by side; a bare LanguageModel needs its `tokenizer`. `memory`
    (block, "sequence" or "channel", head) and `position` (negative: from the end) are shown first. The
    text is read after the `memory_files` of `mosaics read`, and `store` is what memories keep. Everything that can be
    hovered is computed now: of all memories for a short text, of the chosen one for a long one.
    """
    given: Sequence[Any] = model if isinstance(model, list | tuple) else [model]
    models = [_load(one, tokenizer) for one in given]
    if not 1 <= len(models) <= 2:
        raise UserError(f"one model can be shown, or two side by side, not {len(models)}")
    explorer = Explorer(models, memory=[Path(file) for file in memory_files], store=store)
    del explorer.models[len(models) :]  # the model without the memory files
    if memory and not any(each.has(memory) for each in explorer.models):
        raise UserError(f"there is no memory {memory}: name its block, sequence or channel, and its head")
    characters = None  # up to the end of the token at `position`, by which the second model finds it
    if position is not None:
        position, characters = _find_position(explorer, text, position)
    panes = []
    for number, each in enumerate(explorer.models):
        where = {"position": position} if number == 0 else {"characters": characters}
        look = Look(**where, memory=memory if memory and each.has(memory) else None)
        page = {"page": (position or 0) // PAGE_TOKENS, "characters": look.characters}
        panes.append(explorer.record(PaneRequest(model=number, text=text, look=look, **page)))
    start = {"view": "compare" if len(models) > 1 else "explore"}
    return View(explorer.description | {"record": {"panes": panes, "start": start}})


def _find_position(explorer: Explorer, text: str, position: int) -> tuple[int, int]:
    """Return a position among the first model's tokens, not negative, and the characters up to the end of its token."""
    explorer.read(ReadRequest(text=text))
    ends = explorer.sessions["", 0].ends
    if not -len(ends) <= position < len(ends):
        raise UserError(f"position {position} is outside a text of {len(ends)} tokens")
    return position % len(ends), ends[position]


def _load(model: Any, tokenizer: Tokenizer | None) -> LoadedModel:
    if isinstance(model, LoadedModel):
        return model
    if isinstance(model, LanguageModel):
        if tokenizer is None:
            raise UserError("a bare LanguageModel needs its tokenizer: give tokenizer= too")
        return LoadedModel("model", Path(), model, tokenizer)
    ((name, run),) = unique_names([model]).items()
    return LoadedModel.open(run, name=name)
