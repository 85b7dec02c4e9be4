"""Subscriptions and micro services of the in-memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from moesaic.shared.bus import ServiceError, TooLarge
from moesaic.shared.memory_bus.broker import Route, Sent
from moesaic.shared.micro import MicroService, Reply


class MemorySubscription:
    """A route at the broker, until closed."""

    def __init__(self, route: Route, forget: Callable[[MemorySubscription], None]) -> None:
        self.route = route
        self._forget: Callable[[MemorySubscription], None] | None = forget

    async def close(self) -> None:
        """See Subscription."""
        if self._forget is not None:
            self._forget(self)
            self._forget = None
            await self.route.inbox.close()


class MemoryService:
    """A micro service and its subscriptions."""

    def __init__(self, service: MicroService, subscriptions: list[MemorySubscription]) -> None:
        self._service = service
        self._subscriptions = subscriptions

    async def close(self) -> None:
        """See Subscription."""
        for subscription in self._subscriptions:
            await subscription.close()
        await self._service.close()


def responder(sent: Sent, limit: int) -> Callable[[bytes], Awaitable[None]]:
    """The `respond` of a delivery. Raises TooLarge."""

    async def respond(data: bytes) -> None:
        if len(data) > limit:
            raise TooLarge(len(data), limit)
        if sent.answer is not None:
            sent.answer(data)

    return respond


def reply_to(sent: Sent) -> Reply:
    """Where a micro service's answer goes."""

    async def reply(answer: bytes | ServiceError) -> None:
        if sent.answer is not None:
            sent.answer(answer)

    return reply


def fill(future: asyncio.Future[bytes | ServiceError]) -> Callable[[bytes | ServiceError], None]:
    """The `answer` of a request: the first one counts."""

    def answer(data: bytes | ServiceError) -> None:
        if not future.done():
            future.set_result(data)

    return answer
