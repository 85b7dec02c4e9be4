"""One connection to the server, with one nats client, from its handshake to its end. There is no reconnecting here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.client import Client
from nats.errors import Error

from moesaic.shared.nats_bus.errors import cancellable

CONNECT_SECONDS = 5
RETRY_SECONDS = 0.25
CLOSE_SECONDS = 1.0
FLUSH_SECONDS = 2.0
PENDING_BYTES = 8 << 20
"""Unsent bytes beyond which a publisher waits for the socket."""
NO_LIMIT = 10**6
"""Seconds: the client's own time limit on a ping breaks its read loop when the pong comes late, so ours is outside."""

Complain = Callable[[Exception], Awaitable[None]]


def options(name: str, servers: list[str], creds: str) -> dict[str, Any]:
    """How the nats client connects. `creds`: a file, or empty."""
    chosen: dict[str, Any] = {
        "servers": servers,
        "name": f"moesaic-{name}",
        "allow_reconnect": False,
        "connect_timeout": CONNECT_SECONDS,
        "reconnect_time_wait": RETRY_SECONDS,
        "max_reconnect_attempts": -1,
        "pending_size": PENDING_BYTES,
        "flush_timeout": FLUSH_SECONDS,
    }
    return chosen | ({"user_credentials": creds} if creds else {})


class Connection:
    """`ended` is set when the client has closed, for whatever reason."""

    def __init__(self) -> None:
        self.client = Client()
        self.ended = asyncio.Event()
        self._pings: set[asyncio.Task[bool]] = set()

    async def answers(self, seconds: float) -> bool:
        """Wait until the server has handled what was sent before; False if it did not in time."""
        ping = asyncio.create_task(self._ping())
        self._pings.add(ping)
        ping.add_done_callback(self._pings.discard)
        await asyncio.wait([ping], timeout=seconds)
        return ping.done() and not ping.cancelled() and ping.result()

    async def leave(self) -> None:
        """Close, quickly, whatever the server does."""
        closing = asyncio.create_task(self.client.close())
        await asyncio.wait([closing], timeout=CLOSE_SECONDS)
        if not closing.done():
            closing.cancel()
            self._abort()
        for ping in self._pings:
            ping.cancel()

    def _abort(self) -> None:
        transport = self.client._transport  # noqa: SLF001 - the client itself only closes after it has written everything
        writer = getattr(transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def closed(self) -> None:
        """The client's callback."""
        self.ended.set()

    async def _ping(self) -> bool:
        """Twice: the client may write a ping before what still waits to be written."""
        try:
            await self.client.flush(timeout=NO_LIMIT)
            await self.client.flush(timeout=NO_LIMIT)
        except (OSError, Error):
            return False
        return True


async def dial(chosen: dict[str, Any], complain: Complain) -> Connection:
    """A connection; tries for ever, and complains each time."""
    while True:
        connection = Connection()
        try:
            with cancellable():
                await connection.client.connect(error_cb=complain, closed_cb=connection.closed, **chosen)
        except asyncio.CancelledError:
            await connection.leave()
            raise
        except (OSError, Error, TimeoutError, ValueError) as error:
            await complain(error)
            await connection.leave()
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return connection
