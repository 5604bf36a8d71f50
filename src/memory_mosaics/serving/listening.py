"""uvicorn on a socket, and how it begins and ends."""

import asyncio
import socket
import sys
from types import FrameType
from typing import Any

import uvicorn

from memory_mosaics.serving.app import Service, build
from memory_mosaics.serving.limits import Limits
from memory_mosaics.trained import Trained

PATIENCE = 10  # seconds that unfinished requests get when the server is to stop
LOCAL = ("localhost", "127.0.0.1", "[::1]")


def serve(
    trained: Trained, limits: Limits, listening: socket.socket, *, local: bool, key: str | None
) -> dict[str, Any]:
    """Answer what comes to a socket until Ctrl-C or SIGTERM. `local` is whether only this machine reaches it."""
    if key is None and not local:
        print("mosaics: no API key: whoever reaches this address can use the model", file=sys.stderr)
    service = Service(trained, limits)
    app = build(service, key=key, hosts=(*LOCAL, listening.getsockname()[0]) if local else None)
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=2 * PATIENCE
    )
    try:
        Server(config, service).run(sockets=[listening])
    except KeyboardInterrupt:  # uvicorn raises it again when all is done
        pass
    finally:
        service.engine.stop()
    return {"answered": service.answered}


class Server(uvicorn.Server):
    """Says where it listens, that it is asked to stop, and goodbye."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self.service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            host, port = listening.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            print(f"{self.service.trained.name} is served at http://{host}:{port}/v1; Ctrl-C ends", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets requests finish, the second fails them, the third waits for nothing."""
        engine = self.service.engine
        if self.should_exit and not engine.stopped:
            engine.halt()
            return
        super().handle_exit(sig, frame)
        if engine.load:
            print(f"\nfinishing {engine.load} requests, {PATIENCE} seconds at most; Ctrl-C again ends now", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        halting = asyncio.get_running_loop().call_later(PATIENCE, self.service.engine.halt)
        await super().shutdown(sockets)
        halting.cancel()
        print(f"\ngoodbye; requests answered: {self.service.answered}", flush=True)
