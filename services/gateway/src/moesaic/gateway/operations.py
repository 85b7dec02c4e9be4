"""Endpoints beside generation: models, health, figures."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version

import orjson
from aiohttp import web

from moesaic.gateway.admission import Admission
from moesaic.gateway.catalog import Catalog
from moesaic.gateway.errors import no_such_model, unavailable
from moesaic.gateway.runner import Mesh
from moesaic.shared.messages import ModelCard

VERSION = version("moesaic")


class Operations:
    """Handlers that only look. `connected`: whether the bus is there."""

    def __init__(self, mesh: Mesh, catalog: Catalog, admission: Admission, connected: Callable[[], bool]) -> None:
        self._mesh = mesh
        self._catalog = catalog
        self._admission = admission
        self._connected = connected

    def routes(self) -> list[web.RouteDef]:
        """Every endpoint."""
        return [
            web.get("/v1/models", self._models),
            web.get("/v1/models/{model:.+}", self._model),
            web.get("/health", self._health),
            web.get("/ready", self._ready),
            web.get("/live", self._live),
            web.get("/version", self._version),
            web.get("/metrics", self._metrics),
        ]

    async def _models(self, _http: web.Request) -> web.Response:
        return answer({"object": "list", "data": [_described(card) for card in self._served()]})

    async def _model(self, http: web.Request) -> web.Response:
        name = http.match_info["model"]
        card = next((card for card in self._served() if card.model == name), None)
        if card is None:
            raise no_such_model(name)
        return answer(_described(card))

    def _served(self) -> list[ModelCard]:
        """Models that an engine has announced since this gateway started: cards outlive their engines."""
        return [card for card in self._catalog.cards() if self._mesh.fleet.known(card.model)]

    async def _health(self, _http: web.Request) -> web.Response:
        self._admission.check_draining()
        return answer({"status": "ok"})

    async def _ready(self, _http: web.Request) -> web.Response:
        self._admission.check_draining()
        if not self._connected():
            raise unavailable("the bus is down", "bus_down")
        now = time.monotonic()
        models = [name for name in self._catalog.usable() if any(self._mesh.fleet.serving(name, now))]
        if not models:
            raise unavailable("no engine serves a model now")
        return answer({"status": "ready", "models": models})

    async def _live(self, _http: web.Request) -> web.Response:
        return answer({"status": "alive"})

    async def _version(self, _http: web.Request) -> web.Response:
        return answer({"version": VERSION})

    async def _metrics(self, _http: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
        return web.Response(body=self._mesh.metrics.text(), headers=headers)


def answer(content: object) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(content), content_type="application/json")


def _described(card: ModelCard) -> dict[str, object]:
    return {
        "id": card.model,
        "object": "model",
        "created": int(card.created),
        "owned_by": "moesaic",
        "root": card.model,
        "parent": None,
        "max_model_len": card.context,
    }
