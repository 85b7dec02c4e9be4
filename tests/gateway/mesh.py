"""A gateway with scripted engines on a bus in memory, and an HTTP client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from gateway.scripted import BEAT_S, Script, ScriptedEngine
from gateway.tiny import NAME, publish_model
from moesaic.gateway.config import GatewayConfig
from moesaic.gateway.service import GatewayService, open_service
from moesaic.shared import subjects
from moesaic.shared.memory_bus import MemoryBroker, MemoryBus
from moesaic.shared.messages import EngineState, encode


class Mesh:
    """A gateway, its engines and an HTTP client."""

    def __init__(
        self,
        broker: MemoryBroker,
        gateway: GatewayService,
        engines: list[ScriptedEngine],
        http: aiohttp.ClientSession,
        stop: Callable[[], Awaitable[None]],
    ) -> None:
        self.broker = broker
        self.gateway = gateway
        self.engines = engines
        self.http = http
        self.stop = stop

    @property
    def engine(self) -> ScriptedEngine:
        return self.engines[0]

    async def post(self, content: dict[str, Any], path: str = "/v1/chat/completions") -> tuple[int, Any]:
        async with self.http.post(path, json={"model": NAME} | content) as response:
            return response.status, await response.json()

    async def tell(self, place: int, *, running: int = 0, state: EngineState = "serving") -> None:
        """An engine's state changes, and the gateway has heard of it."""
        engine = self.engines[place]
        engine.running, engine.state = running, state
        await engine.bus.publish(subjects.status(engine.name), encode(engine.status()))
        await self.get("/live")  # a round trip: what was published before is taken before

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(path) as response:
            return response.status, await response.json()


HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@asynccontextmanager
async def meshed(
    *scripts: Script, settings: dict[str, Any] | None = None, models: bool = True, wait: bool = True
) -> AsyncIterator[Mesh]:
    """A gateway with one engine per script, ready (unless told not to wait)."""
    broker = MemoryBroker()
    bus = MemoryBus(broker)
    quick = {"route_timeout_s": 1.0, "resume_timeout_s": 2.0, "check_s": 0.05, "silent_s": 0.3, "drain_s": 0.2}
    config = GatewayConfig(**{"port": 0, "accept_timeout_s": 0.3, "stale_s": 0.3} | quick | (settings or {}))
    if models:
        await publish_model(bus)
    async with AsyncExitStack() as stack:
        engines = [ScriptedEngine(broker, f"engine-{place}", script) for place, script in enumerate(scripts)]
        life = await stack.enter_async_context(AsyncExitStack())
        gateway = await life.enter_async_context(open_service(config, bus))
        for engine in engines:
            await stack.enter_async_context(engine.alive())
        http = await stack.enter_async_context(aiohttp.ClientSession(gateway.url))
        mesh = Mesh(broker, gateway, engines, http, life.aclose)
        if wait:
            await until_ready(mesh)
        yield mesh
    await bus.close()


async def until_ready(mesh: Mesh) -> None:
    async def ready() -> bool:
        return (await mesh.get("/ready"))[0] == 200

    await eventually(ready)


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what can only be seen from outside."""
    async with asyncio.timeout(10):
        while not await check():  # noqa: ASYNC110  # HTTP tells nobody when its answer changes
            await asyncio.sleep(BEAT_S)
