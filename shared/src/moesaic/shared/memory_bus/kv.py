"""A KV bucket of the in-memory bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from moesaic.shared.bus import Entry, TooLarge
from moesaic.shared.memory_bus.broker import Kept, MemoryBroker
from moesaic.shared.names import check_key, matches


class MemoryBucket:
    """See Bucket. `check` raises BusDown while there is no connection."""

    def __init__(self, broker: MemoryBroker, kept: Kept, check: Callable[[], None]) -> None:
        self._broker = broker
        self._kept = kept
        self._check = check

    async def get(self, key: str) -> Entry | None:
        """See Bucket."""
        entries = await self.history(key)
        return entries[-1] if entries and entries[-1].value is not None else None

    async def put(self, key: str, value: bytes) -> int:
        """See Bucket."""
        return self._store(key, value, None)

    async def create(self, key: str, value: bytes) -> int:
        """See Bucket."""
        return self._store(key, value, 0)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """See Bucket."""
        return self._store(key, value, revision)

    async def delete(self, key: str) -> None:
        """See Bucket."""
        self._store(key, None, None)

    async def keys(self) -> list[str]:
        """See Bucket."""
        self._check()
        return [entry.key for entry in self._kept.latest() if entry.value is not None]

    async def history(self, key: str) -> list[Entry]:
        """See Bucket."""
        check_key(key)
        self._check()
        return list(self._kept.keys.get(key, []))

    async def watch(self, key: str = ">") -> AsyncIterator[Entry]:
        """See Bucket."""
        updates: asyncio.Queue[Entry] = asyncio.Queue()
        self._kept.watchers.append(updates)
        seen, given = 0, set()
        try:
            if self._broker.reachable:
                for entry in self._kept.latest():
                    updates.put_nowait(entry)
            while True:
                entry = await updates.get()
                if entry.revision <= seen or not matches(key, entry.key):
                    continue
                seen = entry.revision
                if entry.value is not None or entry.key in given:
                    given.add(entry.key)
                    yield entry
        finally:
            self._kept.watchers.remove(updates)

    def _store(self, key: str, value: bytes | None, revision: int | None) -> int:
        check_key(key)
        if value is not None and len(value) > self._broker.max_payload:
            raise TooLarge(len(value), self._broker.max_payload)
        self._check()
        if revision is not None:
            self._kept.check(key, revision)
        entry = self._kept.store(key, value)
        self._broker.announce(self._kept, entry)
        return entry.revision
