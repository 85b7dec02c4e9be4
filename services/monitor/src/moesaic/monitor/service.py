"""The rim of the monitor: counters, heartbeats and placement events in, load windows out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import orjson

from moesaic.monitor.config import MonitorConfig
from moesaic.monitor.http import application, listening
from moesaic.monitor.metrics import StateCollector, exposition
from moesaic.monitor.state import State
from moesaic.shared import log, subjects
from moesaic.shared.bus import Bucket, Bus, BusError, Delivery, Handler, Subscription, TooLarge
from moesaic.shared.complaints import Complaints
from moesaic.shared.messages import BadMessage, EngineStatus, Group, Load, PlacementEvent, decode, encode, now
from moesaic.shared.service import Fatal

NAME = "moesaic-monitor"
VERSION = "0.1.0"


class MonitorService:
    """The monitor on the bus."""

    def __init__(self, config: MonitorConfig, bus: Bus) -> None:
        self._config = config
        self._bus = bus
        self._log = log.get("monitor")
        self._complaints = Complaints(self._log)
        self._state = State(now(), time.monotonic())
        self._collector = StateCollector(self._state, time.monotonic, lambda: self._complaints.count)
        self._work: asyncio.Task[None]
        self.port = 0

    async def wait(self) -> None:
        """See Running."""
        await asyncio.shield(self._work)

    # --- what is shown -------------------------------------------------------------------------------------------------

    def metrics(self) -> bytes:
        """See Shown."""
        return exposition(self._collector)

    def state(self) -> dict[str, Any]:
        """See Shown."""
        return self._state.shown(time.monotonic(), self._complaints.count, self._bus.dropped)

    def health(self) -> dict[str, Any]:
        """See Shown."""
        return {"ok": self._bus.connected, "reason": "" if self._bus.connected else "the bus is down"}

    # --- from the bus --------------------------------------------------------------------------------------------------

    def _taking(self, kind: type[msgspec.Struct], take: Callable[[Any, float], None]) -> Handler:
        async def handle(delivery: Delivery) -> None:
            try:
                take(decode(delivery.data, kind), time.monotonic())
            except BadMessage as error:
                self._complaints.add(delivery.subject, str(error), time.monotonic())

        return handle

    async def _watch(self, groups: Bucket) -> None:
        async for entry in groups.watch():
            if entry.value is None:
                continue
            try:
                self._state.record(decode(entry.value, Group), time.monotonic())
            except BadMessage as error:
                self._complaints.add(f"{subjects.GROUPS}/{entry.key}", str(error), time.monotonic())

    async def _answer(self, _: bytes) -> bytes:
        return orjson.dumps(self.state())

    # --- to the bus ----------------------------------------------------------------------------------------------------

    async def _close_windows(self) -> None:
        """At every multiple of the interval; a late one is not made up for."""
        interval = self._config.interval_ms / 1e3
        due = time.monotonic() + interval
        while True:
            await asyncio.sleep(due - time.monotonic())
            for report in self._state.close(now(), time.monotonic()):
                try:
                    await self._bus.publish(subjects.imbalance(report.group), encode(report))
                except TooLarge as error:
                    self._log.error("window not published", group=report.group, reason=str(error))
            due = max(due + interval, time.monotonic())

    # --- life ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Subscribed, listening and at work inside. Raises Fatal."""
        async with AsyncExitStack() as stack:
            app = application(self)
            self.port = await stack.enter_async_context(listening(app, self._config.host, self._config.port, Fatal))
            await asyncio.to_thread(self._tell_port)
            try:
                groups = await self._bus.bucket(subjects.GROUPS)
                for subscription in await self._listen():
                    stack.push_async_callback(subscription.close)
            except BusError as error:
                raise Fatal(f"the bus is not ready: {error}") from error
            self._work = asyncio.create_task(self._run(groups))
            stack.push_async_callback(self._stop)
            self._log.info("started", url=f"http://{self._config.host}:{self.port}/state")
            yield

    async def _listen(self) -> list[Subscription]:
        handlers = {
            subjects.load(): self._taking(Load, self._state.load),
            subjects.status(): self._taking(EngineStatus, self._state.status),
            subjects.placement(): self._taking(PlacementEvent, self._state.event),
        }
        listening_to = [await self._bus.subscribe(subject, handler) for subject, handler in handlers.items()]
        description = "Load windows of Mixture-of-Experts groups"
        return [*listening_to, await self._bus.serve(NAME, VERSION, description, {"state": self._answer})]

    async def _run(self, groups: Bucket) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(groups))
            tasks.create_task(self._close_windows())

    async def _stop(self) -> None:
        self._work.cancel()
        with suppress(asyncio.CancelledError):
            await self._work

    def _tell_port(self) -> None:
        if self._config.port_file:
            path = Path(self._config.port_file)
            new = path.with_name(f"{path.name}.new")
            new.write_text(f"{self.port}\n", encoding="ascii")
            new.replace(path)


@asynccontextmanager
async def open_service(config: MonitorConfig, bus: Bus) -> AsyncIterator[MonitorService]:
    """A started monitor; leaving stops it."""
    service = MonitorService(config, bus)
    async with service.running():
        yield service
