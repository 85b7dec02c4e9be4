"""The rim of the planner: load windows and placement events in, placements out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec

from moesaic.planner.config import PlannerConfig
from moesaic.planner.desk import Desk
from moesaic.planner.group import GroupPlanner, check_record
from moesaic.planner.policy import Policy, named
from moesaic.planner.store import Store
from moesaic.planner.warm import warm
from moesaic.planner.work import Work
from moesaic.shared import log, subjects
from moesaic.shared.bus import Bus, BusError, Delivery, Handler, Subscription
from moesaic.shared.messages import BadMessage, Group, Imbalance, Placement, PlacementEvent, decode, now
from moesaic.shared.service import Fatal

NAME = "moesaic-planner"
VERSION = "0.1.0"
GROUPS = 64
"""Groups at a time."""


class PlannerService:
    """The planner on the bus."""

    def __init__(self, config: PlannerConfig, bus: Bus, policy: Policy, store: Store) -> None:
        self._config = config
        self._bus = bus
        self._store = store
        self._log = log.get("planner")
        self._changed = asyncio.Event()
        self._work = Work(config, policy, store, self._changed.set)
        self._running: asyncio.Task[None]

    async def wait(self) -> None:
        """See Running."""
        await asyncio.shield(self._running)

    # --- from the bus --------------------------------------------------------------------------------------------------

    def _taking(self, kind: type[msgspec.Struct], take: Callable[[Any], Any]) -> Handler:
        async def handle(delivery: Delivery) -> None:
            try:
                await take(decode(delivery.data, kind))
            except BadMessage as error:
                self._work.complaints.add(delivery.subject, str(error), time.monotonic())
            self._changed.set()

        return handle

    async def _on_imbalance(self, window: Imbalance) -> None:
        group = self._work.groups.get(window.group)
        if group is not None:
            failed = group.on_imbalance(window, time.monotonic(), now())
            if failed is not None:
                await self._work.go_back(group, failed)
            await self._work.consider(group, forced=False)
            await self._store.save(group, time.monotonic())

    async def _on_event(self, event: PlacementEvent) -> None:
        group = self._work.groups.get(event.group)
        failed = None if group is None else group.on_event(event, time.monotonic(), now())
        if group is not None and failed is not None:
            await self._work.go_back(group, failed)

    async def _watch_groups(self) -> None:
        async for key, record in self._store.watch(self._store.groups, Group, self._complain):
            if record is None or subjects.token(record.group) != key.key:
                continue
            try:
                await self._on_record(record)
            except BadMessage as error:
                self._complain(f"{subjects.GROUPS}/{key.key}", str(error))

    async def _on_record(self, record: Group) -> None:
        check_record(record)
        group = self._work.groups.get(record.group)
        remembered = None
        if group is None:
            if len(self._work.groups) >= GROUPS:
                raise BadMessage(f"group {record.group[:64]!r} is one too many")
            group = self._work.groups[record.group] = GroupPlanner(record.group, self._config, self._log)
            remembered = await self._store.recall(group, time.monotonic(), self._complain)
        group.on_record(record, remembered)
        self._changed.set()

    async def _watch_placements(self) -> None:
        async for entry, placement in self._store.watch(self._store.placements, Placement, self._complain):
            for group in self._work.groups.values():
                if subjects.token(group.name) == entry.key:
                    group.on_stored(entry.revision, placement, time.monotonic())
            self._changed.set()

    def _complain(self, where: str, reason: str) -> None:
        self._work.complaints.add(where, reason, time.monotonic())

    async def _watch_deadlines(self) -> None:
        """Whatever changes may move the next deadline."""
        while True:
            deadlines = [g.rollout.deadline for g in self._work.groups.values() if g.rollout.deadline is not None]
            left = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()
            self._changed.clear()
            for group in list(self._work.groups.values()):
                failed = group.on_time(time.monotonic(), now())
                if failed is not None:
                    await self._work.go_back(group, failed)

    # --- life ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Subscribed and at work inside. Raises Fatal."""
        async with AsyncExitStack() as stack:
            try:
                for subscription in await self._listen():
                    stack.push_async_callback(subscription.close)
            except BusError as error:
                raise Fatal(f"the bus is not ready: {error}") from error
            self._running = asyncio.create_task(self._run())
            stack.push_async_callback(self._stop)
            self._log.info("started", policy=self._config.policy)
            yield

    async def _listen(self) -> list[Subscription]:
        handlers = {
            subjects.imbalance(): self._taking(Imbalance, self._on_imbalance),
            subjects.placement(): self._taking(PlacementEvent, self._on_event),
        }
        listening_to = [await self._bus.subscribe(subject, handler) for subject, handler in handlers.items()]
        description = "Placements of Mixture-of-Experts groups"
        return [*listening_to, await self._bus.serve(NAME, VERSION, description, Desk(self._work).endpoints())]

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_groups())
            tasks.create_task(self._watch_placements())
            tasks.create_task(self._watch_deadlines())

    async def _stop(self) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running
        for group in self._work.groups.values():
            await self._store.save(group, time.monotonic(), at_once=True)


@asynccontextmanager
async def open_service(config: PlannerConfig, bus: Bus) -> AsyncIterator[PlannerService]:
    """A started planner; leaving stops it. Raises Fatal."""
    try:
        policy = await asyncio.to_thread(named, config.policy)
    except LookupError as error:
        raise Fatal(str(error.args[0])) from error
    await asyncio.to_thread(warm)
    try:
        store = await Store.open(bus, config)
    except BusError as error:
        raise Fatal(f"the bus is not ready: {error}") from error
    service = PlannerService(config, bus, policy, store)
    async with service.running():
        yield service
