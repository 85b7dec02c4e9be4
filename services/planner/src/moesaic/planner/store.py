"""What the planner reads from and writes to the bus: records, placements, its memory, the audit trail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import msgspec

from moesaic.planner.config import PlannerConfig
from moesaic.planner.group import GroupPlanner
from moesaic.planner.live import KEPT
from moesaic.planner.memory import Remembered
from moesaic.planner.proposal import Proposal
from moesaic.shared import log, subjects
from moesaic.shared.bus import Bucket, Bus, BusError, Conflict, Entry
from moesaic.shared.messages import BadMessage, Placement, PlacementEvent, Sequencer, decode, encode, now

T = TypeVar("T", bound=msgspec.Struct)

AUDIT_BYTES = 64 << 20

Complain = Callable[[str, str], None]
"""(where, reason)."""


class Store:
    """Three buckets and the audit stream."""

    def __init__(self, bus: Bus, groups: Bucket, placements: Bucket, memory: Bucket, save_s: float) -> None:
        self.groups = groups
        self.placements = placements
        self._memory = memory
        self._bus = bus
        self._save_s = save_s
        self._saved: dict[str, float] = {}
        self._numbers = Sequencer("planner")
        self._log = log.get("planner")

    @classmethod
    async def open(cls, bus: Bus, config: PlannerConfig) -> Store:
        """Makes what is missing. Raises BusError."""
        await bus.stream(subjects.EVENTS, [f"{subjects.ROOT}.placement.>"], AUDIT_BYTES)
        groups = await bus.bucket(subjects.GROUPS)
        placements = await bus.bucket(subjects.PLACEMENTS, history=KEPT)
        return cls(bus, groups, placements, await bus.bucket(subjects.PLANNER_STATE), config.save_s)

    async def watch(self, bucket: Bucket, kind: type[T], complain: Complain) -> AsyncIterator[tuple[Entry, T | None]]:
        """Entries of a bucket with their content; None where deleted or unreadable."""
        async for entry in bucket.watch():
            yield entry, self._read(entry, kind, complain)

    def _read(self, entry: Entry, kind: type[T], complain: Complain) -> T | None:
        try:
            return None if entry.value is None else decode(entry.value, kind)
        except BadMessage as error:
            complain(f"KV {entry.key}", str(error))
            return None

    async def recall(self, group: GroupPlanner, at: float, complain: Complain) -> Remembered | None:
        """Give a new group its stored placements; what is remembered of it."""
        key = subjects.token(group.name)
        try:
            for entry in await self.placements.history(key):
                group.on_stored(entry.revision, self._read(entry, Placement, complain), at)
            found = await self._memory.get(key)
        except BusError as error:
            self._log.warning("nothing recalled", group=group.name, reason=str(error))
            return None
        return None if found is None else self._read(found, Remembered, complain)

    async def put(self, group: GroupPlanner, proposal: Proposal) -> int:
        """Store a placement over the revision it was planned on; its epoch. Raises BusError, Conflict where that has changed."""
        key, data = subjects.token(group.name), encode(proposal.placement)
        try:
            if proposal.over == 0:
                return await self.placements.create(key, data)
            return await self.placements.update(key, data, proposal.over)
        except Conflict:
            newest = await self.placements.history(key)
            group.live.correct(newest[-1].revision if newest else 0)
            raise

    async def tell(self, group: GroupPlanner, proposal: Proposal, epoch: int) -> None:
        """To the audit trail."""
        placement = proposal.placement
        event = PlacementEvent(
            event="rolled_back" if proposal.going_back else "proposed",
            source=self._numbers.next(),
            at=now(),
            group=group.name,
            generation=placement.generation,
            epoch=epoch,
            instalments=proposal.instalments,
            moves=placement.forecast.moves if placement.forecast else 0,
            bytes=placement.forecast.bytes if placement.forecast else 0,
            reason=placement.reason,
            forecast=placement.forecast,
        )
        await self._bus.publish(subjects.placement(group.name, event.event), encode(event))

    async def save(self, group: GroupPlanner, at: float, *, at_once: bool = False) -> None:
        """Keep what should survive a restart, not too often. `at`: seconds of a steady clock."""
        last = self._saved.get(group.name)
        remembered = group.remembered(now())
        if remembered is None or (last is not None and at - last < self._save_s and not at_once):
            return
        self._saved[group.name] = at
        try:
            await self._memory.put(subjects.token(group.name), encode(remembered))
        except BusError as error:
            self._log.info("not saved", group=group.name, reason=str(error))
