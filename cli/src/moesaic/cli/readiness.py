"""Waiting for a mesh to come up, telling what it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

import aiohttp

from moesaic.shared import subjects
from moesaic.shared.bus import Bus, Delivery
from moesaic.shared.messages import BadMessage, EngineStatus, decode
from moesaic.shared.nats_bus import connect

T = TypeVar("T")

TELL_S = 5.0
POLL_S = 0.1

Say = Callable[[str], None]


async def wait_ready(
    nats: str, api: str, monitor: str, engines: int, pids: Callable[[], Collection[int | None]], say: Say
) -> str:
    """Until the group steps, the API is healthy and the monitor listens. The name of the served model.

    `pids`: the processes of our engines, now; a NATS server of others may know more engines. Raises Fatal for a NATS
    address that is none.
    """
    wait = _Waits(say)
    async with AsyncExitStack() as stack:
        bus = await wait.until(f"NATS at {nats}", stack.enter_async_context(connect("up", nats)))
        status = await wait.until(f"{engines} engine(s)", _serving(bus, pids, engines))
    await wait.until(f"gateway at {api}", _healthy(api))
    await wait.until(f"monitor at {monitor}", _healthy(monitor))
    return status.model


class _Waits:
    """Says what has been waited for, and now and then what still is."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._began = time.monotonic()

    async def until(self, what: str, there: Awaitable[T]) -> T:
        telling = asyncio.create_task(self._tell(what))
        try:
            found = await there
        finally:
            telling.cancel()
        self._say(f"  {what:<40} {self._elapsed:6.1f} s")
        return found

    async def _tell(self, what: str) -> None:
        while True:
            await asyncio.sleep(TELL_S)
            self._say(f"  … still waiting for {what} ({self._elapsed:.0f} s)")

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began


async def _serving(bus: Bus, pids: Callable[[], Collection[int | None]], engines: int) -> EngineStatus:
    """Until so many of these processes step in one generation; what one of them says."""
    newest: dict[str, EngineStatus] = {}
    formed: asyncio.Future[EngineStatus] = asyncio.get_running_loop().create_future()

    async def heard(delivery: Delivery) -> None:
        with suppress(BadMessage):
            status = decode(delivery.data, EngineStatus)
            newest[status.source.producer] = status
        serving = [s for s in newest.values() if s.state == "serving" and s.pid in pids()]
        if len(serving) == engines and len({s.generation for s in serving}) == 1 and not formed.done():
            formed.set_result(serving[0])

    await bus.subscribe(subjects.status(), heard)
    return await formed


async def _healthy(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async with http.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=2)) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(POLL_S)
