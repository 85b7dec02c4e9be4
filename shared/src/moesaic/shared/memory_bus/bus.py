"""One connection to a memory broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from moesaic.shared import names
from moesaic.shared.bus import (
    Bucket,
    BusDown,
    Delivery,
    Endpoint,
    Handler,
    NoResponders,
    RequestTimeout,
    ServiceError,
    Subscription,
    TooLarge,
)
from moesaic.shared.inbox import MESSAGES, Drops, Inbox
from moesaic.shared.memory_bus.broker import Kept, MemoryBroker, Route, Sent, Trail
from moesaic.shared.memory_bus.kv import MemoryBucket
from moesaic.shared.memory_bus.subscription import MemoryService, MemorySubscription, fill, reply_to, responder
from moesaic.shared.micro import MicroService, Take


class MemoryBus:
    """See Bus. Buses meet at the broker they share (one of its own where none is given)."""

    def __init__(self, broker: MemoryBroker | None = None, pending: int = MESSAGES) -> None:
        self.broker = broker or MemoryBroker()
        self._messages = pending
        self._subscriptions: list[MemorySubscription] = []
        self._callbacks: list[Callable[[], None]] = []
        self._closed = False
        self._unsent = 0
        self._drops = Drops()
        self.broker.reconnected.append(self._reconnected)

    @property
    def connected(self) -> bool:
        """See Bus."""
        return self.broker.reachable and not self._closed

    @property
    def dropped(self) -> int:
        """See Bus."""
        return self._drops.count

    @property
    def unsent(self) -> int:
        """See Bus."""
        return self._unsent

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """See Bus."""
        self._callbacks.append(callback)

    async def publish(self, subject: str, data: bytes) -> None:
        """See Bus."""
        names.check_subject(subject)
        self._check_size(data)
        if self.connected:
            self.broker.send(Sent(subject, data))
        else:
            self._unsent += 1

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        """See Bus."""

        async def take(sent: Sent) -> None:
            await handler(Delivery(sent.subject, sent.data, responder(sent, self.broker.max_payload)))

        return self._listen(subject, queue, take)

    def _listen(self, subject: str, queue: str, take: Callable[[Sent], Awaitable[None]]) -> MemorySubscription:
        names.check_subject(subject, wild=True)
        route = Route(subject, queue, Inbox(subject, take, self._drops, self._messages))
        subscription = MemorySubscription(route, self._forget)
        self.broker.routes.append(route)
        self._subscriptions.append(subscription)
        return subscription

    def _forget(self, subscription: MemorySubscription) -> None:
        self.broker.routes.remove(subscription.route)
        self._subscriptions.remove(subscription)

    async def request(self, subject: str, data: bytes, timeout: float = 2.0) -> bytes:
        """See Bus."""
        names.check_subject(subject)
        self._check_size(data)
        self._check()
        reply: asyncio.Future[bytes | ServiceError] = asyncio.get_running_loop().create_future()
        if not self.broker.send(Sent(subject, data, fill(reply))):
            raise NoResponders(subject)
        try:
            async with asyncio.timeout(timeout):
                answer = await reply
        except TimeoutError as error:
            raise RequestTimeout(f"{subject}: no answer in {timeout} s") from error
        if isinstance(answer, ServiceError):
            raise answer
        return answer

    async def bucket(self, name: str, history: int = 1) -> Bucket:
        """See Bus."""
        self._check()
        names.check_service(name)
        kept = self.broker.buckets.setdefault(name, Kept())
        kept.history = max(kept.history, history)
        return MemoryBucket(self.broker, kept, self._check)

    async def stream(self, name: str, subjects: list[str], max_bytes: int) -> None:
        """See Bus."""
        self._check()
        self.broker.trails.setdefault(name, Trail(subjects, max_bytes))

    async def last(self, stream: str, subject: str, count: int) -> list[bytes]:
        """See Bus."""
        self._check()
        trail = self.broker.trails.get(stream)
        kept = [m.data for m in trail.messages if names.matches(subject, m.subject)] if trail else []
        return kept[max(0, len(kept) - count) :]

    async def put_file(self, bucket: str, name: str, data: bytes) -> None:
        """See Bus."""
        self._check()
        self.broker.files[bucket, name] = data

    async def get_file(self, bucket: str, name: str) -> bytes | None:
        """See Bus."""
        self._check()
        return self.broker.files.get((bucket, name))

    async def serve(self, name: str, version: str, description: str, endpoints: Mapping[str, Endpoint]) -> Subscription:
        """See Bus."""
        service = MicroService(name, version, description, endpoints)
        return MemoryService(service, [self._listen(s, queue, _served(take)) for s, queue, take in service.routes()])

    async def close(self) -> None:
        """See Bus."""
        if self._closed:
            return
        self._closed = True
        self.broker.reconnected.remove(self._reconnected)
        for subscription in list(self._subscriptions):
            await subscription.close()

    def _reconnected(self) -> None:
        for callback in self._callbacks:
            callback()

    def _check(self) -> None:
        if self._closed:
            raise BusDown("the memory bus is closed")
        self.broker.check()

    def _check_size(self, data: bytes) -> None:
        if len(data) > self.broker.max_payload:
            raise TooLarge(len(data), self.broker.max_payload)


def _served(take: Take) -> Callable[[Sent], Awaitable[None]]:
    async def serve(sent: Sent) -> None:
        await take(sent.subject, sent.data, reply_to(sent))

    return serve
