"""The inbox of a subscription: takes messages at any speed, hands them to one handler, one at a time and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from moesaic.shared import log

T = TypeVar("T")

MESSAGES = 65_536
BYTES = 64 << 20


@dataclass
class Drops:
    """How many messages the inboxes of a bus have dropped."""

    count: int = 0


class Inbox(Generic[T]):
    """Bounded in messages and bytes: what exceeds it is dropped, and counted in `drops`."""

    def __init__(
        self,
        subject: str,
        handler: Callable[[T], Awaitable[None]],
        drops: Drops,
        messages: int = MESSAGES,
        size: int = BYTES,
    ) -> None:
        self._drops = drops
        self._subject = subject
        self._handler = handler
        self._messages = messages
        self._room = size
        self._waiting: asyncio.Queue[tuple[T, int]] = asyncio.Queue()
        self._open = True
        self._task = asyncio.create_task(self._run())

    def offer(self, item: T, size: int) -> None:
        """Take an item of `size` bytes if there is room."""
        if self._waiting.qsize() < self._messages and size <= self._room:
            self._room -= size
            self._waiting.put_nowait((item, size))
            return
        self._drops.count += 1
        so_far = self._drops.count
        if so_far & (so_far - 1) == 0:  # 1, 2, 4, 8, …: heard, but not once per message
            log.get("bus").warning("messages dropped, a handler is too slow", subject=self._subject, so_far=so_far)

    async def _run(self) -> None:
        while self._open:
            item, size = await self._waiting.get()
            self._room += size
            try:
                await self._handler(item)
            except asyncio.CancelledError:
                if not self._open or self._task.cancelling():
                    raise
                log.get("bus").error("a handler awaited something cancelled", subject=self._subject)
            except Exception as error:  # noqa: BLE001 - foreign code: whatever a handler raises must not end the subscription
                log.get("bus").error("a handler failed", subject=self._subject, error=repr(error), exc_info=error)

    async def close(self) -> None:
        """Take no more. A handler at work is cancelled, unless it is the caller."""
        self._open = False
        if self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.wait([self._task])
