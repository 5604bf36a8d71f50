"""`mosaics explore`: open models, serve the page on this machine."""

import socket
import webbrowser
from importlib.util import find_spec
from threading import Timer
from typing import Any

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.trained import named, one_by_one
from memory_mosaics.training.parallel import find_device

HOST, PORT, MODELS = "127.0.0.1", 8642, 4


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
    import uvicorn

    from memory_mosaics.explorer.app import build
    from memory_mosaics.explorer.sessions import Explorer

    models = list(one_by_one(named(runs), device=find_device(device)))
    with _bound(port) as door:
        address = f"{HOST}:{door.getsockname()[1]}"
        app = build(Explorer(models), frozenset({address, address.replace(HOST, "localhost")}))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", server_header=False))
        print(f"{', '.join(trained.name for trained in models)}: open http://{address} (Ctrl-C ends it)", flush=True)
        if browser:
            Timer(0.5, webbrowser.open, [f"http://{address}"]).start()
        try:
            server.run(sockets=[door])
        except KeyboardInterrupt:  # the way to end it
            print()
    return {"study": "explore", "interrupted": False}


def _bound(port: int) -> socket.socket:
    door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind((HOST, port))
        door.listen()  # from now on whoever comes waits, and is not turned away
    except OSError as error:
        door.close()
        remedy = "name another with --port, or 0 for any that is free"
        raise UserError(f"port {port} cannot be used: {one_line(error)}; {remedy}") from error
    return door
