"""This engine's place in its group: follows the group's record in KV and acts on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from moesaic.engine import membership
from moesaic.engine.backend import Backend
from moesaic.shared import subjects
from moesaic.shared.bus import Bucket, BusError, Conflict, Entry
from moesaic.shared.messages import BadMessage, EngineStatus, Group, Member, Placement, decode, encode

SILENT_S = 5.0
"""A member that has not been heard for so long may be replaced when the group is full."""

ReadPlacement = Callable[[], Awaitable[tuple[int, Placement | None]]]


class Ejected(Exception):
    """Another engine has this one's place for good."""


class Membership:
    """Claims a rank, makes ready, opens the rendezvous as rank 0, joins; and again after every loss.

    Every reaction starts from the newest record, so a lost compare-and-set needs no retry of its own: the change that won
    comes through the watch.
    """

    def __init__(self, mine: Group, backend: Backend, groups: Bucket, read_placement: ReadPlacement) -> None:
        self.mine = mine
        self.me: Member = mine.members[0]
        self.record: Group | None = None
        self.rank: int | None = None
        self.joined = 0
        """The generation that steps here; 0: none."""
        self.lost_at: float | None = time.monotonic()
        self.reason = "waiting for the group"
        self._revision = 0
        self._member_of: Group | None = None
        """The newest record that this engine was part of."""
        self._joining = 0
        self._lost = 0
        self._backend = backend
        self._groups = groups
        self._read_placement = read_placement
        self._key = subjects.token(mine.group)
        self._heard: dict[tuple[str, str], float] = {}
        self._since = time.monotonic()
        self._again = asyncio.Event()
        self._log = structlog.get_logger().bind(group=mine.group, engine=self.me.engine)

    def heard(self, status: EngineStatus) -> None:
        """A heartbeat of any engine."""
        self._heard[status.source.producer, status.source.boot] = time.monotonic()

    def on_joined(self, generation: int) -> None:
        """The backend steps in this generation."""
        if generation == self._joining:
            self.joined, self.lost_at, self.reason = generation, None, ""
            self._log.info("joined", generation=generation, rank=self.rank)

    def on_lost(self, generation: int, reason: str) -> None:
        """The backend has left this generation."""
        if generation < self._joining or generation <= self._lost:
            return
        if self.lost_at is None:
            self.lost_at = time.monotonic()
        self.joined, self._joining, self._lost, self.reason = 0, 0, generation, reason
        self._log.warning("generation lost", generation=generation, reason=reason)
        self._again.set()

    def look_again(self) -> None:
        """Something outside the record may have changed (the bus is back, a member may be silent now)."""
        self._again.set()

    async def run(self) -> None:
        """Follow the record for ever. Raises Ejected."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            tasks.create_task(self._react())

    async def _watch(self) -> None:
        async for entry in self._groups.watch(self._key):
            if entry.revision >= self._revision:
                self._take(entry)
                self._again.set()

    def _take(self, entry: Entry) -> None:
        self._revision = entry.revision
        try:
            self.record = None if entry.value is None else decode(entry.value, Group)
        except BadMessage as error:
            self._log.error("the group's record is malformed and is replaced", reason=str(error))
            self.record = None

    async def _react(self) -> None:
        while True:
            try:
                await self._read()
                await self._advance()
            except Conflict:
                continue  # somebody else changed the record: look at it again
            except BusError as error:
                self._log.info("the bus is away", reason=str(error))
            wait = SILENT_S / 5 if self.rank is None else 2.0
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._again.wait()
            self._again.clear()

    async def _read(self) -> None:
        """The newest record; one that is gone (the bus lost its state) is put back under the next generation."""
        entry = await self._groups.get(self._key)
        if entry is not None and entry.value is not None:
            if entry.revision != self._revision:
                self._take(entry)
            return
        self._revision, self.record = 0, None
        if self._member_of is not None:
            await self._store(membership.renew(self._member_of))

    async def _advance(self) -> None:
        record = self.record
        rank = None if record is None else record.rank_of(self.me.engine, self.me.boot)
        if record is None or rank is None:
            await self._claim(record)
            return
        self.rank, self._member_of = rank, record
        if self._joining == record.generation:
            return
        if self._joining:
            self._backend.leave()  # its loss comes back as an event
            return
        if record.generation <= self._lost:
            await self._store(membership.renew(record))
        elif not record.members[rank].ready:
            await self._store(membership.ready(record, rank))
        elif record.formed:
            await self._join(record, rank)
        elif rank == 0 and membership.all_ready(record):
            await self._store(membership.opened(record, self._backend.rendezvous(record)))

    async def _claim(self, record: Group | None) -> None:
        self.rank = None
        if record is not None and self._member_of is not None:
            if any(m.engine == self.me.engine for m in record.members):
                raise Ejected(f"another engine has started under the name {self.me.engine!r}")
            if not membership.same_job(record, self.mine):
                raise Ejected(f"group {record.group!r} now serves another model or has another size")
        claimed = membership.claim(record, self.mine, self._silent)
        if claimed is None:
            self.reason = f"group {self.mine.group!r} is full"
            return
        await self._store(claimed)

    async def _join(self, record: Group, rank: int) -> None:
        epoch, placement = await self._read_placement()
        self._joining = record.generation
        self._backend.join(record, rank, epoch, placement)

    async def _store(self, record: Group) -> None:
        data = encode(record)
        if self._revision:
            self._revision = await self._groups.update(self._key, data, self._revision)
        else:
            self._revision = await self._groups.create(self._key, data)
        self.record = record
        self._again.set()

    def _silent(self, member: Member) -> bool:
        now = time.monotonic()
        heard = self._heard.get((member.engine, member.boot), self._since)
        return now - heard > SILENT_S
