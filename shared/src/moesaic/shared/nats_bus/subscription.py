"""Subscriptions and micro services on NATS: they outlive connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error

from moesaic.shared import names
from moesaic.shared.bus import Delivery, ServiceError, TooLarge
from moesaic.shared.inbox import Inbox
from moesaic.shared.micro import MicroService, Reply, Take
from moesaic.shared.nats_bus import headers
from moesaic.shared.nats_bus.errors import cancellable
from moesaic.shared.nats_bus.link import Link


class NatsSubscription:
    """One subject, subscribed again on each connection; messages wait in an inbox of ours, which no lost connection empties."""

    def __init__(self, link: Link, subject: str, queue: str, take: Callable[[Msg], Awaitable[None]]) -> None:
        names.check_subject(subject, wild=True)
        self._inbox: Inbox[Msg] = Inbox(subject, take, link.drops)
        self._link = link
        self._subject = subject
        self._queue = queue
        self._client: Client | None = None
        self._raw: Any = None
        self._open = True

    async def start(self) -> None:
        """Subscribe now, or as soon as there is a connection."""
        self._link.attached.append(self)
        if self._link.client.is_connected:
            with suppress(Error):  # lost meanwhile: the next connection attaches
                await self.attach(self._link.client)

    async def attach(self, client: Client) -> None:
        """See Attached."""
        if client is not self._client:
            self._client = client
            with cancellable():
                self._raw = await client.subscribe(self._subject, queue=self._queue, cb=self._offer)

    async def close(self) -> None:
        """See Subscription."""
        if not self._open:
            return
        self._open = False
        self._link.attached.remove(self)
        await unsubscribe(self._raw)
        await self._inbox.close()

    async def _offer(self, message: Msg) -> None:
        self._inbox.offer(message, len(message.data))


class NatsService:
    """A micro service and its subscriptions."""

    def __init__(self, service: MicroService, subscriptions: list[NatsSubscription]) -> None:
        self._service = service
        self._subscriptions = subscriptions

    async def close(self) -> None:
        """See Subscription."""
        for subscription in self._subscriptions:
            await subscription.close()
        await self._service.close()


async def unsubscribe(raw: Any) -> None:
    """Unsubscribe where there still is a connection."""
    if raw is not None:
        with suppress(Error):  # the connection is gone, and the subscription with it
            await raw.unsubscribe()


def delivery(link: Link, message: Msg) -> Delivery:
    """A received message as handlers see it."""

    async def respond(data: bytes) -> None:
        if message.reply:
            await answer(link, message.reply, data)

    return Delivery(message.subject, message.data, respond)


def served(link: Link, take: Take) -> Callable[[Msg], Awaitable[None]]:
    """A micro service's taker as a message handler."""

    def reply_to(subject: str) -> Reply:
        async def reply(result: bytes | ServiceError) -> None:
            try:
                await answer(link, subject, result)
            except TooLarge as error:
                await answer(link, subject, ServiceError(500, f"the answer is too large: {error}"))

        return reply

    async def serve(message: Msg) -> None:
        if message.reply:
            await take(message.subject, message.data, reply_to(message.reply))

    return serve


async def answer(link: Link, subject: str, result: bytes | ServiceError) -> None:
    """Send an answer, or drop it where the connection is gone: the asker times out. Raises TooLarge."""
    data, head = (b"", headers.of_error(result)) if isinstance(result, ServiceError) else (result, None)
    headers.check_size(data, link.client.max_payload, head)
    await link.send(subject, data, head)
