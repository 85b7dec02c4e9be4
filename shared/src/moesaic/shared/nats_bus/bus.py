"""The bus on NATS: one link, and what hangs on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from nats import errors
from nats.aio.msg import Msg

from moesaic.shared import names
from moesaic.shared.bus import (
    Bucket,
    Bus,
    BusDown,
    Endpoint,
    Handler,
    NoResponders,
    RequestTimeout,
    Subscription,
)
from moesaic.shared.micro import MicroService
from moesaic.shared.nats_bus import files, headers, kv, trail
from moesaic.shared.nats_bus.connection import options
from moesaic.shared.nats_bus.errors import GONE, cancellable, reason
from moesaic.shared.nats_bus.link import Link
from moesaic.shared.nats_bus.storage import Storage
from moesaic.shared.nats_bus.subscription import NatsService, NatsSubscription, delivery, served
from moesaic.shared.service import Fatal


@asynccontextmanager
async def connect(name: str, url: str, creds: str = "") -> AsyncIterator[Bus]:
    """The bus at `url` (several, comma-separated: a cluster). Waits for the server for ever. Raises Fatal on bad settings."""
    servers = [part.strip() for part in url.split(",")]
    for server in servers:
        if urlsplit(server).scheme not in {"nats", "tls", "ws", "wss"} or not urlsplit(server).hostname:
            raise Fatal(f"not the URL of a NATS server: {server!r}")
    if creds and not await asyncio.to_thread(Path(creds).is_file):
        raise Fatal(f"no such NATS credentials file: {creds}")
    if creds and find_spec("nkeys") is None:
        raise Fatal("NATS credentials need the Python package nkeys, which is not installed")
    bus = NatsBus(Link(name, options(name, servers, creds)))
    try:
        await bus.start()
        yield bus
    finally:
        await bus.close()


class NatsBus:
    """See Bus."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._storage = Storage(link)
        self._restoring: asyncio.Task[None] | None = None
        self._open: list[NatsSubscription | NatsService] = []

    async def start(self) -> None:
        """Wait for the first connection; those after it are reconnections."""
        await self.link.ready()
        self.link.on_up.append(self._restore)

    @property
    def connected(self) -> bool:
        """See Bus."""
        return self.link.connected

    @property
    def dropped(self) -> int:
        """See Bus."""
        return self.link.drops.count

    @property
    def unsent(self) -> int:
        """See Bus."""
        return self.link.unsent

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """See Bus."""
        self.link.on_up.append(callback)

    async def publish(self, subject: str, data: bytes) -> None:
        """See Bus."""
        names.check_subject(subject)
        headers.check_size(data, self.link.client.max_payload)
        await self.link.send(subject, data)

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        """See Bus."""

        async def take(message: Msg) -> None:
            await handler(delivery(self.link, message))

        subscription = NatsSubscription(self.link, subject, queue, take)
        self._open.append(subscription)
        await subscription.start()
        await self.link.barrier()
        return subscription

    async def request(self, subject: str, data: bytes, timeout: float = 2.0) -> bytes:
        """See Bus."""
        names.check_subject(subject)
        headers.check_size(data, self.link.client.max_payload)
        self.link.check()
        try:
            with cancellable():
                message = await self.link.client.request(subject, data, timeout=timeout)
        except errors.NoRespondersError as error:
            raise NoResponders(subject) from error
        except errors.TimeoutError as error:
            raise RequestTimeout(f"{subject}: no answer in {timeout} s") from error
        except GONE as error:
            raise BusDown(f"{subject}: {reason(error)}") from error
        if failure := headers.error_of(message.headers):
            raise failure
        return bytes(message.data)

    async def bucket(self, name: str, history: int = 1) -> Bucket:
        """See Bus. Raises Fatal if the server has no JetStream."""
        names.check_service(name)
        await self._storage.want(kv.config_of(name, history))
        return kv.NatsBucket(self._storage, name)

    async def stream(self, name: str, subjects: list[str], max_bytes: int) -> None:
        """See Bus. Raises Fatal if the server has no JetStream."""
        await trail.keep(self._storage, name, subjects, max_bytes)

    async def last(self, stream: str, subject: str, count: int) -> list[bytes]:
        """See Bus."""
        return await trail.last(self._storage, stream, subject, count)

    async def put_file(self, bucket: str, name: str, data: bytes) -> None:
        """See Bus. Raises Fatal if the server has no JetStream."""
        await files.put(self._storage, bucket, name, data)

    async def get_file(self, bucket: str, name: str) -> bytes | None:
        """See Bus."""
        return await files.get(self._storage, bucket, name)

    async def serve(self, name: str, version: str, description: str, endpoints: Mapping[str, Endpoint]) -> Subscription:
        """See Bus."""
        service = MicroService(name, version, description, endpoints)
        subscriptions = [
            NatsSubscription(self.link, subject, queue, served(self.link, take))
            for subject, queue, take in service.routes()
        ]
        running = NatsService(service, subscriptions)
        self._open.append(running)
        for subscription in subscriptions:
            await subscription.start()
        await self.link.barrier()
        return running

    async def close(self) -> None:
        """See Bus. Takes a few seconds at most, whatever the server does."""
        for opened in self._open:
            await opened.close()
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait([self._restoring])
        await self.link.close()

    def _restore(self) -> None:
        self._restoring = asyncio.create_task(self._storage.restore())
