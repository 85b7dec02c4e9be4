"""The gateway's life: listen to the mesh, open the port, and end in phases: refuse, finish, close."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from aiohttp import web

from moesaic.gateway.admission import Admission
from moesaic.gateway.api import Api
from moesaic.gateway.catalog import Catalog
from moesaic.gateway.config import GatewayConfig
from moesaic.gateway.envelope import envelope
from moesaic.gateway.metrics import Metrics
from moesaic.gateway.operations import Operations
from moesaic.gateway.relay import Relay
from moesaic.gateway.routing import Fleet
from moesaic.gateway.runner import Mesh
from moesaic.shared import log
from moesaic.shared.bus import Bus
from moesaic.shared.service import Fatal


@dataclass(frozen=True)
class GatewayService:
    """A started gateway and the port it listens on."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Where it is."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def wait(self) -> None:
        """See Running."""
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def open_service(config: GatewayConfig, bus: Bus) -> AsyncIterator[GatewayService]:
    """A started gateway; leaving drains and stops it. Raises Fatal if it cannot listen."""
    fleet = Fleet(config.stale_s, config.silent_s, Random())
    metrics = Metrics(lambda: fleet.statuses(time.monotonic()))
    name = config.gateway or f"gateway-{secrets.token_hex(4)}"
    relay = Relay(bus, name, fleet, metrics, config.accept_timeout_s)
    mesh = Mesh(relay, fleet, metrics, config, name)
    catalog = Catalog(bus)
    admission = Admission(config.max_open, metrics)
    app = web.Application(middlewares=[envelope(metrics)], client_max_size=config.body_limit_kb * 1024)
    app.add_routes(Api(mesh, catalog, admission).routes())
    app.add_routes(Operations(mesh, catalog, admission, lambda: bus.connected).routes())
    async with relay.listening(), _listening(app, config, name) as service, asyncio.TaskGroup() as tasks:
        background = [
            tasks.create_task(catalog.watch()),
            tasks.create_task(relay.send_cancels()),
            tasks.create_task(_look(relay, config.check_s)),
        ]
        try:
            yield service
        finally:
            await admission.drain(config.drain_s)
            for task in background:
                task.cancel()
            await relay.flush_cancels()


async def _look(relay: Relay, seconds: float) -> None:
    while True:
        relay.look()
        await asyncio.sleep(seconds)


@asynccontextmanager
async def _listening(app: web.Application, config: GatewayConfig, name: str) -> AsyncIterator[GatewayService]:
    # without handler_cancellation a client that leaves before the first token goes unnoticed
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, config.host, config.port).start()
        except OSError as error:
            raise Fatal(f"cannot listen on {config.host}:{config.port}: {error.strerror}") from error
        service = GatewayService(config.host, runner.addresses[0][1])
        log.get("gateway").info("listening", url=service.url, gateway=name)
        if config.port_file:
            await asyncio.to_thread(_write, Path(config.port_file), str(service.port))
        yield service
    finally:
        await runner.cleanup()


def _write(path: Path, text: str) -> None:
    """So that a reader sees all or nothing."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)
