"""Bounds on HTTP connections before a request is there: time for its head, number per peer address and in total.

A connection waits while no request of it is being answered: its head has not come, or the last answer is sent. Only
waiting connections are limited here; the requests of the others are limited by the gate. So a client that opens many
connections and sends nothing, or half a head, loses its own oldest ones, and everybody else is answered.
"""

import asyncio
import ipaddress
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT = 10.0  # seconds in which the whole head of a request must arrive, however it is sent
WRITE_TIMEOUT = 30.0  # seconds that a client may leave an answer unread
SETTLE = 0.1  # seconds between accepting a connection and counting it: what it has sent already is read first
TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def peer_of(client: Any) -> str:
    """What counts as one peer: an IPv4 address, or the /64 network that an IPv6 host chooses its addresses from."""
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except (TypeError, IndexError, ValueError):  # a socket without addresses, or a test without a socket
        return ""
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with `limit` waiting connections at most, half of them of one peer."""

    def __init__(self, *args: Any, limit: int, **others: Any):
        super().__init__(*args, **others)
        self.limit, self.peer = limit, ""
        self.waits_since: float | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.peer = peer_of(self.client)
        self._watch()
        self.loop.call_later(SETTLE, self._end_oldest)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.waits_since = None
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(WRITE_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def end(self) -> None:
        """Close a waiting connection; one that has not asked for anything yet is told 408."""
        self.waits_since = None
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # close() would wait for a client that does not read
            return
        if self.conn.our_state is h11.IDLE and not self.transport.is_closing():
            self.transport.write(TIMED_OUT)
        self.transport.close()

    def _end_oldest(self) -> None:
        """While too many connections wait, close the oldest one of the peer that has the most."""
        while True:
            waiting = [one for one in self.connections if isinstance(one, BoundedProtocol) and one.waits_since]
            (peer, most), *_ = Counter(one.peer for one in waiting).most_common(1) or [("", 0)]
            if most <= self.limit // 2 and len(waiting) <= self.limit:
                return
            min((one for one in waiting if one.peer == peer), key=lambda one: one.waits_since or 0.0).end()

    def _watch(self) -> None:
        """Start the clock when the connection begins to wait, stop it when a request is there."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.waits_since = None
            if self._head_timer is not None:
                self._head_timer.cancel()
        elif self.waits_since is None:
            self.waits_since = self.loop.time()
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT, self.end)
