"""A socket, uvicorn on it, and how that begins and ends. Imported when it is known that uvicorn is there."""

import asyncio
import ipaddress
import os
import socket
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from memory_mosaics.apps.serve.app import Service, build
from memory_mosaics.apps.serve.connections import BoundedProtocol
from memory_mosaics.apps.serve.gate import names
from memory_mosaics.errors import UserError

PATIENCE = 10  # seconds that unfinished requests get when the server is to stop


def listen(host: str, port: int, *, remedy: str = "name another --port or --host") -> socket.socket:
    """A socket at this address, or a line that says why not."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except UnicodeError as error:  # of the encoding of names, before anybody is asked for it
        raise UserError(f"cannot listen at {host[:60]!r}: this cannot be a host; name another --host") from error
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)  # below 0: no such host
        raise UserError(f"cannot listen at {host}, port {port}: {reason}; {remedy}") from error


def is_local(listening: socket.socket) -> bool:
    """Whether only this machine reaches it."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def bounded_config(app: Any, *, connections: int, **options: Any) -> uvicorn.Config:
    """Configure uvicorn: at most so many connections that wait with no request, no websockets and no lifespan events.

    Not uvicorn's own `limit_concurrency`: it answers 503 to everybody, /health included.
    """
    protocol: Any = partial(BoundedProtocol, limit=connections)
    return uvicorn.Config(app, http=protocol, ws="none", lifespan="off", **options)


class Server(uvicorn.Server):
    """Answers what comes to a socket. Says where it listens, that it is asked to stop, and goodbye."""

    def __init__(self, service: Service, listening: socket.socket, *, key: str | None = None):
        self.service, self.listening = service, listening
        host, port = listening.getsockname()[:2]
        app = build(service, key=key, hosts=names(host, port) if is_local(listening) else None)
        super().__init__(
            bounded_config(
                app,
                connections=service.limits.places,
                log_level="error",
                access_log=False,
                timeout_graceful_shutdown=2 * PATIENCE,
            )
        )

    def answer(self) -> None:
        """Until Ctrl-C or SIGTERM."""
        try:
            self.run(sockets=[self.listening])
        except KeyboardInterrupt:  # uvicorn raises it again when all is done
            pass
        finally:
            self.service.engine.stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        host, port = self.listening.getsockname()[:2]
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
