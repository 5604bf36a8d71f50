"""How fast a server is asked: so much a minute, and so many at once as it takes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from memory_mosaics.babistories.writer import Stopped

GROWTH = 0.05  # more at once for each answer, while the server refuses none


class Pace:
    """So much a minute, evenly. What was taken too much or too little is made good by the next."""

    def __init__(self, per_minute: float | None):
        self.cost = 60.0 / per_minute if per_minute else 0.0
        self.free = 0.0

    def take(self, amount: float) -> float:
        """Seconds to wait before this amount."""
        start = max(time.monotonic(), self.free)
        self.free = start + amount * self.cost
        return start - time.monotonic()

    def correct(self, amount: float) -> None:
        self.free += amount * self.cost


class Room:
    """Requests that may be under way: at most `most`, half as many after a 429, and slowly more with each answer."""

    def __init__(self, most: int, stop: asyncio.Event):
        self.most, self.stop = most, stop
        self.limit, self.under_way, self.halved = float(most), 0, 0.0
        self.changed = asyncio.Condition()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[float]:
        """Room for one request; gives the time at which it was there."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.stop.is_set() or self.under_way < int(self.limit))
            if self.stop.is_set():
                raise Stopped("stopped")
            self.under_way += 1
        try:
            yield time.monotonic()
        finally:
            self.under_way -= 1
            async with self.changed:
                self.changed.notify_all()

    def halve(self, sent: float) -> None:
        """A request that was sent then came to a full server; those that were sent together count once."""
        if sent > self.halved:
            self.limit, self.halved = max(1.0, min(self.limit, self.under_way) // 2), time.monotonic()

    def grow(self) -> None:
        self.limit = min(float(self.most), self.limit + max(GROWTH, 1 / self.limit))
