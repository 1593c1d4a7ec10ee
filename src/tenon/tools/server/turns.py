"""As many requests at a time as the model answers: the others wait for their turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tenon.tools.server.api_errors import ApiError


class Turns:
    """A queue in front of the generator, of at most ``limit`` waiting requests, ``count`` of which are answered."""

    def __init__(self, limit: int, count: int = 1) -> None:
        self._limit, self._waiting = limit, 0
        self._lock = asyncio.Semaphore(count)

    def check(self) -> None:
        """Raises ApiError (429) if no further request can wait."""
        if self._lock.locked() and self._waiting >= self._limit:
            raise ApiError(429, f"{self._waiting} requests are waiting: try again later", code="queue_full")

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn, and keep it inside."""
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._lock.release()
