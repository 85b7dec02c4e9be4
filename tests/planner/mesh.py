"""A planner on a memory bus, with somebody who plays monitor, engines and person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import orjson

from moesaic.planner.config import PlannerConfig
from moesaic.planner.service import open_service
from moesaic.shared import subjects
from moesaic.shared.arrays import Ints
from moesaic.shared.bus import Delivery
from moesaic.shared.memory_bus import MemoryBroker, MemoryBus
from moesaic.shared.messages import Group, Placement, PlacementEvent, PlacementEventName, Sequencer, decode, encode
from planner.samples import record, window

CONFIG = PlannerConfig(interval_ms=0, settle_s=0.0)


class Others:
    """Everybody but the planner. `events` are those that the planner publishes."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.events: asyncio.Queue[PlacementEvent] = asyncio.Queue()
        self._monitor = Sequencer("monitor")
        self._engine = Sequencer("e0")

    async def hear(self, delivery: Delivery) -> None:
        event = decode(delivery.data, PlacementEvent)
        if event.source.producer == "planner":
            self.events.put_nowait(event)

    async def event(self, name: PlacementEventName) -> PlacementEvent:
        async with asyncio.timeout(10):
            event = await self.events.get()
        assert event.event == name
        return event

    async def form(self, group: Group) -> None:
        groups = await self.bus.bucket(subjects.GROUPS)
        await groups.put(subjects.token(group.group), encode(group))

    async def load(self, tokens: Ints, *, epoch: int = 0, instalment: int = 0, generation: int = 1) -> None:
        said = window(tokens, 1, epoch=epoch, instalment=instalment, generation=generation)
        said = msgspec.structs.replace(said, source=self._monitor.next())
        await self.bus.publish(subjects.imbalance("g"), encode(said))

    async def engines(self, name: PlacementEventName, epoch: int, *, of: int = 1, reason: str = "") -> None:
        said = PlacementEvent(
            event=name,
            source=self._engine.next(),
            at=0.0,
            group="g",
            generation=1,
            epoch=epoch,
            instalment=of,
            instalments=of,
            reason=reason,
        )
        await self.bus.publish(subjects.placement("g", name), encode(said))

    async def ask(self, endpoint: str, **order: Any) -> dict[str, Any]:
        subject = subjects.service("moesaic-planner", endpoint)
        answer: dict[str, Any] = orjson.loads(await self.bus.request(subject, orjson.dumps(order)))
        return answer

    async def until(self, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The group's status once it is so: each turn is a question over the bus."""
        async with asyncio.timeout(10):
            while True:
                groups = (await self.ask("status"))["groups"]
                for shown in groups.values():
                    if true(shown):
                        return dict(shown)

    async def stored(self) -> tuple[int, Placement]:
        placements = await self.bus.bucket(subjects.PLACEMENTS)
        entry = await placements.get("g")
        assert entry is not None
        assert entry.value is not None
        return entry.revision, decode(entry.value, Placement)


@asynccontextmanager
async def planning(
    broker: MemoryBroker, config: PlannerConfig = CONFIG, *, group: Group | None = None
) -> AsyncIterator[Others]:
    """A planner that knows its group (formed anew unless one is there)."""
    others = Others(MemoryBus(broker))
    await others.bus.subscribe(subjects.placement(), others.hear)
    await others.form(group or record())
    async with open_service(config, MemoryBus(broker)):
        await others.until(lambda shown: bool(shown["formed"]))
        yield others
    await others.bus.close()
