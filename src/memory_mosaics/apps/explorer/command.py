"""`mosaics explore`: open models, serve the page on this machine."""

import webbrowser
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from threading import Timer
from typing import Any

from memory_mosaics import checkpoint
from memory_mosaics.checkpoint import iter_models, unique_names
from memory_mosaics.errors import UserError
from memory_mosaics.runtime import find_device

HOST, PORT, MODELS = "127.0.0.1", 8642, 4
DEPTH = 3  # folders in which runs are looked for, to name them


def run(runs: list[str], *, port: int = PORT, device: str = "auto", browser: bool = False) -> dict[str, Any]:
    """Look inside trained models on a web page that this machine alone can open: type, hover, click, edit memories.

    Ctrl-C ends it. Nothing is written and nothing leaves the machine.

    Args:
        runs: training runs, of which the newest checkpoint is taken, or checkpoint folders; up to 4, such as a Memory
            Mosaic and the transformer to compare it with
        port: where the page is served; 0 for any that is free
        device: cpu, cuda, mps, or auto for the best there is
        browser: also open it in the default browser
    """
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UserError("the explorer needs fastapi and uvicorn: pip install 'memory-mosaics[explore]'")
    if len(runs) > MODELS:
        raise UserError(f"{len(runs)} runs are too many to explore at once; name at most {MODELS}")
    if not 0 <= port < 1 << 16:
        raise UserError(f"port must be between 0 and 65535, not {port}")
    from memory_mosaics.apps.explorer.answers import Explorer
    from memory_mosaics.apps.explorer.server import Server
    from memory_mosaics.apps.serve.listening import listen

    for one in runs:
        _check_is_one(Path(one))
    models = list(iter_models(unique_names(runs), device=find_device(device)))
    for trained in models:
        trained.tokenizer.encode("a")  # one that cannot be built is found here
    with listen(HOST, port, remedy="name another --port, or 0 for any that is free") as listening:
        server = Server(Explorer(models), listening)
        address = f"http://{HOST}:{listening.getsockname()[1]}"
        print(f"{', '.join(trained.name for trained in models)}: open {address} (Ctrl-C ends it)", flush=True)
        if browser:
            Timer(0.5, webbrowser.open, [address]).start()
        server.answer()
    return {"study": "explore", "interrupted": False}


def _check_is_one(folder: Path) -> None:
    """A folder of runs, such as that of `mosaics demo`, is none: name those in it."""
    if not folder.is_dir() or (checkpoint.newest(folder) / "config.json").exists():
        return
    below = (place for depth in range(1, DEPTH + 1) for place in sorted(folder.glob("/".join("*" * depth))))
    found = [str(place) for place in islice(below, 10_000) if place.is_dir() and checkpoint.steps(place)]
    if found:
        raise UserError(f"{folder} is a folder of runs; name one of them, such as {' or '.join(found[:2])}")
