"""The link to the server: a fresh connection each time, for ever a next one.

The nats client's own reconnecting is not used. It would send what was written during the outage, it ends for good on any
error that the server names, and it waits without limit for a peer that is gone but was never closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from nats.aio.client import Client
from nats.errors import Error, StaleConnectionError

from moesaic.shared import log
from moesaic.shared.bus import BusDown
from moesaic.shared.inbox import Drops
from moesaic.shared.nats_bus.connection import CLOSE_SECONDS, FLUSH_SECONDS, Connection, dial
from moesaic.shared.nats_bus.errors import GONE, cancellable, reason

PING_SECONDS = 5.0
CANCEL_SECONDS = 0.1


class Attached(Protocol):
    """Something that lives on each connection in turn."""

    async def attach(self, client: Client) -> None:
        """The connection is new: subscribe again."""


class Link:
    """Keeps a connection. `up` is set while there is one; `attached`, `on_up` and `on_down` hear of each.

    A server that leaves two pings unanswered, `ping` seconds each, counts as gone.
    """

    def __init__(self, name: str, options: dict[str, Any], ping: float = PING_SECONDS) -> None:
        self.up = asyncio.Event()
        self.attached: list[Attached] = []
        self.on_up: list[Callable[[], None]] = []
        self.on_down: list[Callable[[], None]] = []
        self.drops = Drops()
        self.unsent = 0
        self._options = options
        self._every = ping
        self._log = log.get(name)
        self._said = ""
        self._connection = Connection()
        self._leaving: set[asyncio.Task[None]] = set()
        self._life = asyncio.create_task(self._live())
        self._life.add_done_callback(self._over)

    async def ready(self) -> None:
        """Wait for the first connection, for ever."""
        up = asyncio.create_task(self.up.wait())
        try:
            await asyncio.wait((up, self._life), return_when=asyncio.FIRST_COMPLETED)
        finally:
            up.cancel()
        if self._life.done():
            self._life.result()

    @property
    def client(self) -> Client:
        """The nats client of the present, or the last, connection."""
        return self._connection.client

    @property
    def connected(self) -> bool:
        """Whether a message sent now goes out."""
        return self.up.is_set() and self.client.is_connected

    def check(self) -> None:
        """Raise BusDown while not connected."""
        if not self.connected:
            raise BusDown("the NATS server cannot be reached")

    async def send(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Publish, or drop and count it while not connected. Waits while very much is unsent."""
        if not self.connected:
            self.unsent += 1
            return
        try:
            with cancellable():
                await self.client.publish(subject, data, headers=headers)
        except GONE:
            self.unsent += 1

    async def barrier(self) -> None:
        """Wait until the server has handled what was sent before, a little while at most."""
        if self.connected:
            await self._connection.answers(FLUSH_SECONDS)

    async def close(self) -> None:
        """Send what is written, disconnect; quickly, whatever the server does."""
        if self.connected:
            await self._connection.answers(CLOSE_SECONDS)
        self.up.clear()
        while not self._life.done():  # the client's own waits may swallow a cancellation
            self._life.cancel()
            await asyncio.wait([self._life], timeout=CANCEL_SECONDS)
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self._connection.leave()

    async def _live(self) -> None:
        while True:
            connection = await dial(self._options, self._complain)
            if await self._take_over(connection):
                await self._until_dead(connection)
            self._give_up(connection)

    def _over(self, life: asyncio.Task[None]) -> None:
        if not life.cancelled() and (error := life.exception()):
            self._log.error("the link to the bus has ended", exc_info=error)

    async def _take_over(self, connection: Connection) -> bool:
        self._connection = connection
        client = connection.client
        try:
            for attached in list(self.attached):
                await attached.attach(client)
        except Error as error:
            await self._complain(error)
            return False
        await connection.answers(FLUSH_SECONDS)  # who hears that we are back may ask us at once
        self._said = ""
        self.up.set()
        self._log.info("connected to the bus", server=client.connected_url.netloc if client.connected_url else "")
        self._tell(self.on_up)
        return True

    async def _until_dead(self, connection: Connection) -> None:
        """Return when the client has closed, or the server has not answered two pings."""
        ended = asyncio.create_task(connection.ended.wait())
        try:
            silent = 0
            while silent < 2 and not ended.done():
                await asyncio.wait([ended], timeout=self._every)
                silent = 0 if await connection.answers(self._every) else silent + 1
            if not ended.done():
                self._said = "the server does not answer"
        finally:
            ended.cancel()

    def _give_up(self, connection: Connection) -> None:
        self.up.clear()
        self._log.warning("lost the bus, reconnecting", reason=self._said or reason(connection.client.last_error))
        self._tell(self.on_down)
        leaving = asyncio.create_task(connection.leave())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _complain(self, error: Exception) -> None:
        """Log each new reason once. That a connection ended is told by `_give_up`."""
        text = reason(error)
        if text == self._said:
            return
        self._said = text
        if not isinstance(error, StaleConnectionError):
            self._log.warning("trouble on the bus" if self.up.is_set() else "waiting for the bus", reason=text)

    def _tell(self, callbacks: list[Callable[[], None]]) -> None:
        for callback in list(callbacks):
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - foreign code: the link must live on
                self._log.error("a callback failed", exc_info=error)
