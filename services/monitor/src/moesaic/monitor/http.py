"""The monitor's HTTP side: /metrics, /health, /state."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import orjson
from aiohttp import web

PROMETHEUS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


class Shown(Protocol):
    """What can be asked over HTTP."""

    def metrics(self) -> bytes:
        """The Prometheus text."""

    def state(self) -> dict[str, Any]:
        """Everything as a JSON object."""

    def health(self) -> dict[str, Any]:
        """`ok` and why not."""


def application(shown: Shown) -> web.Application:
    """The routes. /health answers 503 while the service is not well."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=shown.metrics(), headers=PROMETHEUS)

    async def state(_: web.Request) -> web.Response:
        return _json(shown.state())

    async def health(_: web.Request) -> web.Response:
        answer = shown.health()
        return _json(answer, 200 if answer["ok"] else 503)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/state", state)
    app.router.add_get("/health", health)
    return app


def _json(answer: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(answer), status=status, content_type="application/json")


@asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, failed: Callable[[str], Exception]
) -> AsyncIterator[int]:
    """Serve; the port in use. Raises failed(reason) where the address cannot be taken."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            raise failed(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
