"""Waiting for a mesh to come up, telling what it waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

import aiohttp

from moesaic.shared import subjects
from moesaic.shared.bus import Bus, Delivery
from moesaic.shared.messages import BadMessage, EngineStatus, decode
from moesaic.shared.nats_bus import connect

TELL_S = 5.0
POLL_S = 0.1


async def wait_ready(nats: str, api: str, monitor: str, model: str, engines: int, say: Callable[[str], None]) -> None:
    """Until the group steps, the API is healthy and the monitor listens. Says each when it is so."""
    began = time.monotonic()

    def told(what: str) -> None:
        say(f"  {what:<28} {time.monotonic() - began:5.1f} s")

    async with AsyncExitStack() as stack:
        async with _telling("nats-server", say):
            bus = await stack.enter_async_context(connect("up", nats))
        told("nats-server")
        async with _telling(f"{engines} engine(s)", say):
            generation = await _serving(bus, model, engines)
        told(f"{engines} engine(s), generation {generation}")
    async with _telling("gateway", say):
        await _healthy(api)
    told("gateway")
    async with _telling("monitor", say):
        await _healthy(monitor)
    told("monitor")


async def _serving(bus: Bus, model: str, engines: int) -> int:
    """Until so many engines of the model step in one generation; its number."""
    newest: dict[str, EngineStatus] = {}
    formed: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def heard(delivery: Delivery) -> None:
        with suppress(BadMessage):
            status = decode(delivery.data, EngineStatus)
            if status.model == model:
                newest[status.source.producer] = status
        serving = [s.generation for s in newest.values() if s.state == "serving"]
        if len(serving) == engines and len(set(serving)) == 1 and not formed.done():
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


class _telling:  # noqa: N801  # used like a function
    """While something is waited for, say so now and then."""

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        self._what = what
        self._say = say
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._tell())

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _tell(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(TELL_S)
            self._say(f"  … still waiting for {self._what} ({time.monotonic() - began:.0f} s)")
