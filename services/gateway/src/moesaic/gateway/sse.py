"""Server-sent events: one event per write."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
from aiohttp import web

from moesaic.gateway.errors import ApiError

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """A started answer of events."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    async def send(self, event: dict[str, Any]) -> None:
        """One event."""
        await self._response.write(b"data: " + orjson.dumps(event) + b"\n\n")

    async def comment(self) -> None:
        """Nothing new, still alive."""
        await self._response.write(b": keep-alive\n\n")

    async def fail(self, error: ApiError) -> None:
        """The stream ends with an error, if anybody is still there."""
        with suppress(ConnectionResetError):
            await self._response.write(b"data: " + error.body + b"\n\n")
            await self.done()

    async def done(self) -> None:
        """The last event."""
        await self._response.write(b"data: [DONE]\n\n")
        await self._response.write_eof()
