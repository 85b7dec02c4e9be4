"""What runs now: how many may, and how they end when the gateway stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from moesaic.gateway.errors import overloaded, unavailable
from moesaic.gateway.generation import Generation
from moesaic.gateway.metrics import Metrics
from moesaic.shared import log

GRACE_S = 1.0
"""For sending the last error events."""


class Admission:
    """All running generations."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self._limit = limit
        self._metrics = metrics
        self._running: set[Generation] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    def check(self) -> None:
        """Raise ApiError unless one more may begin."""
        self.check_draining()
        if len(self._running) >= self._limit:
            raise overloaded(f"{self._limit} requests are in flight; try again soon")

    def check_draining(self) -> None:
        """Raise ApiError if the gateway is stopping."""
        if self.draining:
            raise unavailable("the gateway is stopping", "draining")

    @contextmanager
    def holding(self, generation: Generation) -> Iterator[None]:
        """While it runs. Raises ApiError."""
        self.check()
        self._running.add(generation)
        self._changed()
        try:
            yield
        finally:
            self._running.discard(generation)
            self._changed()

    def _changed(self) -> None:
        self._metrics.open.set(len(self._running))
        if self._running:
            self._idle.clear()
        else:
            self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Refuse what is new, let what runs finish, then end the rest with an error."""
        self.draining = True
        if await self._quiet(seconds):
            return
        log.get("gateway").warning("ending requests that still run", requests=len(self._running))
        for generation in self._running:
            generation.abort(unavailable("the gateway is stopping", "draining"))
        await self._quiet(GRACE_S)

    async def _quiet(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
