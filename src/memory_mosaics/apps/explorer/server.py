"""uvicorn with the page on a socket. Imported when it is known that uvicorn is there."""

import socket
from types import FrameType

import uvicorn

from memory_mosaics.apps.explorer.answers import Explorer
from memory_mosaics.apps.explorer.app import WAITING, build
from memory_mosaics.apps.serve.gate import names
from memory_mosaics.apps.serve.listening import bounded_config


class Server(uvicorn.Server):
    """Answers what comes to a socket until Ctrl-C, which also ends what is being read."""

    def __init__(self, explorer: Explorer, listening: socket.socket):
        self.explorer, self.listening = explorer, listening
        app = build(explorer, names(*listening.getsockname()[:2]))
        connections = 16 * (1 + WAITING)  # that wait with no request; a browser keeps several open
        super().__init__(
            bounded_config(
                app, connections=connections, log_level="warning", server_header=False, timeout_graceful_shutdown=10
            )
        )

    def answer(self) -> None:
        """Until Ctrl-C or SIGTERM."""
        try:
            self.run(sockets=[self.listening])
        except KeyboardInterrupt:  # uvicorn raises it again when all is done
            print()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Whoever waits for a long text is told, and the command ends."""
        self.explorer.stop()
        super().handle_exit(sig, frame)
