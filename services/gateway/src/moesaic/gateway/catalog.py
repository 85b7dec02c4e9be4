"""The models of the mesh: cards from the bus, their tokenizers by digest. A rim: it holds the bus."""

from __future__ import annotations

import asyncio

from moesaic.gateway.errors import internal, no_such_model
from moesaic.gateway.models import FILES, BadModel, Model, build
from moesaic.gateway.signals import Signal
from moesaic.shared import log, subjects
from moesaic.shared.bus import Bucket, Bus, BusError
from moesaic.shared.messages import BadMessage, ModelCard, decode

RETRY_S = 2.0
"""After a failure of the bus that no reconnect follows."""


class Catalog:
    """What is known of each model. A model whose files are bad is kept with the reason."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._models: dict[str, Model | str] = {}
        self._cards: dict[str, ModelCard] = {}
        self._reconnected = Signal()
        self._log = log.get("gateway")
        bus.on_reconnect(self._reconnected.fire)

    def find(self, name: str) -> Model:
        """A model. Raises ApiError."""
        found = self._models.get(name)
        if found is None:
            raise no_such_model(name)
        if isinstance(found, str):
            raise internal(f"the model cannot be served: {found}", "model_broken")
        return found

    def cards(self) -> list[ModelCard]:
        """Cards of all models that were announced."""
        return [self._cards[name] for name in sorted(self._cards)]

    def usable(self) -> list[str]:
        """Names of the models that can be served."""
        return [name for name in sorted(self._models) if isinstance(self._models[name], Model)]

    async def watch(self) -> None:
        """Run until cancelled: follow the models' cards."""
        bucket = await self._bucket()
        async for entry in bucket.watch():
            if entry.value is None:
                self._cards.pop(subjects.untoken(entry.key), None)
                self._models.pop(subjects.untoken(entry.key), None)
                continue
            try:
                await self._learn(decode(entry.value, ModelCard))
            except BadMessage as error:
                self._log.warning("a model card was not understood", key=entry.key, reason=str(error)[:200])

    async def _bucket(self) -> Bucket:
        while True:
            try:
                return await self._bus.bucket(subjects.MODELS)
            except BusError:
                await self._reconnected.wait(RETRY_S)

    async def _learn(self, card: ModelCard) -> None:
        known = self._cards.get(card.model)
        loaded = self._models.get(card.model)
        if isinstance(loaded, Model) and known is not None and known.files == card.files:
            self._models[card.model] = Model(card, loaded.vocabulary, loaded.template)
        else:
            self._models[card.model] = await self._load(card)
        self._cards[card.model] = card

    async def _load(self, card: ModelCard) -> Model | str:
        try:
            files = {name: await self._file(digest) for name, digest in card.files.items() if name in FILES}
            model = await asyncio.to_thread(build, card, files)
        except BadModel as error:
            self._log.error("a model cannot be served", model=card.model, reason=str(error))
            return str(error)
        self._log.info("model", model=card.model, context=card.context)
        return model

    async def _file(self, digest: str) -> bytes:
        while True:
            try:
                data = await self._bus.get_file(subjects.FILES, digest)
            except BusError:
                await self._reconnected.wait(RETRY_S)
                continue
            if data is None:
                raise BadModel(f"its file {digest} is not in the object store")
            return data
