"""What a stream holds, then what it receives: an ephemeral consumer that notices every gap, and the end of its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from moesaic.shared.nats_bus.errors import translated
from moesaic.shared.nats_bus.headers import LAST_CONSUMER, STATUS
from moesaic.shared.nats_bus.storage import Storage
from moesaic.shared.nats_bus.subscription import unsubscribe

HEARTBEAT = 5.0
"""Seconds of silence after which the server says that there was nothing; three such silences end the feed."""

FORGET = 1.0
"""Seconds after which the server forgets a feed that nobody listens to."""


class Feed:
    """Messages in order. `waiting`: how many there were at the start."""

    def __init__(self) -> None:
        self.waiting = 0
        self._received: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._next = 1

    def interrupt(self) -> None:
        """End the feed."""
        self._received.put_nowait(None)

    async def take(self, message: Msg) -> None:
        """What arrives at the inbox."""
        self._received.put_nowait(message)

    async def next(self) -> Msg | None:
        """The next message; None: the feed has ended, open another."""
        while True:
            try:
                async with asyncio.timeout(3 * HEARTBEAT):
                    message = await self._received.get()
            except TimeoutError:
                return None
            if message is None:
                return None
            head = message.headers or {}
            if STATUS in head and not message.data:
                if head[STATUS] != "100" or int(head.get(LAST_CONSUMER, 0)) >= self._next:
                    return None
                continue
            if message.metadata.sequence.consumer != self._next:
                return None
            self._next += 1
            return message

    async def stored(self) -> list[Msg] | None:
        """The messages that there were at the start; None: the feed has ended before."""
        messages: list[Msg] = []
        while len(messages) < self.waiting:
            message = await self.next()
            if message is None:
                return None
            messages.append(message)
            if message.metadata.num_pending == 0:
                break
        return messages


@asynccontextmanager
async def open_feed(
    storage: Storage, stream: str, subject: str, policy: DeliverPolicy, **settings: Any
) -> AsyncIterator[Feed]:
    """A feed of a stream's messages on a subject. Raises NoStream, BusDown, BusError."""
    feed = Feed()
    js, client = storage.js, storage.link.client
    storage.link.on_down.append(feed.interrupt)
    raw = None
    try:
        with translated(f"stream {stream}"):
            inbox = client.new_inbox()
            raw = await client.subscribe(inbox, cb=feed.take)
            config = ConsumerConfig(
                deliver_subject=inbox,
                deliver_policy=policy,
                filter_subject=subject,
                ack_policy=AckPolicy.NONE,
                idle_heartbeat=HEARTBEAT,
                inactive_threshold=FORGET,
                mem_storage=True,
                num_replicas=1,
                **settings,
            )
            info = await js.add_consumer(stream, config)
        feed.waiting = info.num_pending or 0
        yield feed
    finally:
        storage.link.on_down.remove(feed.interrupt)
        await unsubscribe(raw)
