"""The rim towards the engines: frames and heartbeats in, requests and cancellations out. It knows streams, not texts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moesaic.gateway.lives import Lives
from moesaic.gateway.metrics import Metrics
from moesaic.gateway.routing import Fleet
from moesaic.gateway.signals import Signal
from moesaic.gateway.streams import Arrivals
from moesaic.shared import log, subjects
from moesaic.shared.bus import Bus, BusError, Delivery
from moesaic.shared.messages import (
    Accepted,
    BadMessage,
    Cancel,
    EngineStatus,
    Frame,
    Frames,
    Generate,
    Refused,
    Replay,
    decode,
    decode_either,
    encode,
)


class Stream:
    """One request at one engine, as the relay sees it. Whoever waits for `changed` clears it."""

    def __init__(self, request: str, engine: str, arrivals: Arrivals) -> None:
        self.request = request
        self.engine = engine
        self.arrivals = arrivals
        self.boot: str | None = None
        self.changed = asyncio.Event()
        self.doubtful = False
        self.lost = ""
        self.trouble_since: float | None = None

    def hear(self, frame: Frame, boot: str) -> None:
        """Tokens from the engine."""
        self.boot = boot
        if not self.arrivals.take(frame):
            self.doubtful = True
        self.changed.set()

    def doubt(self) -> None:
        """Something may be missing: ask for it again."""
        self.doubtful = True
        self.changed.set()

    def lose(self, reason: str) -> None:
        """This engine will not finish it."""
        self.lost = reason
        self.changed.set()


class Relay:
    """All streams of this gateway."""

    def __init__(self, bus: Bus, gateway: str, fleet: Fleet, metrics: Metrics, timeout_s: float) -> None:
        self._bus = bus
        self._gateway = gateway
        self._fleet = fleet
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._lives = Lives()
        self._streams: dict[str, Stream] = {}
        self._cancels: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._log = log.get("gateway")
        self.news = Signal()
        """Fires at each heartbeat of an engine."""

    # --- from the bus ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Subscribed, and told of reconnects."""
        self._bus.on_reconnect(self._reconnected)
        frames = await self._bus.subscribe(subjects.frames(self._gateway), self._on_frames)
        status = await self._bus.subscribe(subjects.status(), self._on_status)
        try:
            yield
        finally:
            await status.close()
            await frames.close()

    async def _on_status(self, delivery: Delivery) -> None:
        try:
            status = decode(delivery.data, EngineStatus)
        except BadMessage as error:
            self._malformed(delivery, error)
            return
        if self._lives.see(status.source):
            self._fleet.heard(status, time.monotonic())
            self._end_former(status.source.producer)
            self.news.fire()

    async def _on_frames(self, delivery: Delivery) -> None:
        try:
            message = decode(delivery.data, Frames)
        except BadMessage as error:
            self._malformed(delivery, error)
            return
        source = message.source
        if not self._lives.see(source):
            return
        for frame in message.frames:
            stream = self._streams.get(frame.request)
            if stream is not None and stream.engine == source.producer:
                stream.hear(frame, source.boot)
            else:
                self._cancels.put_nowait((source.producer, frame.request))  # nobody waits for it
        missed = self._lives.missed(source)
        if missed:
            self._metrics.missed.inc(missed)
            self._doubt_all(source.producer)

    def _malformed(self, delivery: Delivery, error: BadMessage) -> None:
        self._metrics.malformed.inc()
        self._log.warning("a message was not understood", subject=delivery.subject, reason=str(error)[:200])

    def _end_former(self, engine: str) -> None:
        """Streams of an engine's former life will get nothing more."""
        boot = self._lives.boot(engine)
        for stream in self._streams.values():
            if stream.engine == engine and stream.boot not in {None, boot}:
                stream.lose("the engine has restarted")

    def _doubt_all(self, engine: str | None = None) -> None:
        for stream in self._streams.values():
            if engine in {None, stream.engine}:
                stream.doubt()

    def _reconnected(self) -> None:
        self._fleet.hearing_again(time.monotonic())
        self._doubt_all()

    def look(self) -> None:
        """To be called every second or so: whoever is in trouble or has a silent engine asks again."""
        self._metrics.bus.set(self._bus.connected)
        now = time.monotonic()
        for stream in self._streams.values():
            troubled = stream.trouble_since is not None or not self._bus.connected
            if troubled or self._fleet.silent(stream.engine, now):
                stream.doubt()

    # --- to the engines -------------------------------------------------------------------------------------------------

    def open(self, request: str, engine: str, arrivals: Arrivals) -> Stream:
        """From now on what that engine says of this request is kept."""
        stream = self._streams[request] = Stream(request, engine, arrivals)
        return stream

    def close(self, stream: Stream) -> None:
        """Done with it: the engine stops and forgets it."""
        if self._streams.pop(stream.request, None) is not None:
            self._cancels.put_nowait((stream.engine, stream.request))

    async def generate(self, engine: str, request: Generate) -> Accepted | Refused:
        """Offer a request to an engine. Raises BusError."""
        self._fleet.sent(engine)
        data = await self._bus.request(subjects.generate(engine), encode(request), self._timeout_s)
        try:
            return decode_either(data, Accepted, Refused)
        except BadMessage as error:
            raise BusError(f"{engine} answered {error}") from error

    async def replay(self, stream: Stream) -> Frame | Refused:
        """Ask for what has not arrived. Raises BusError."""
        asked = Replay(request=stream.request, from_index=stream.arrivals.next_index)
        data = await self._bus.request(subjects.replay(stream.engine), encode(asked), self._timeout_s)
        try:
            return decode_either(data, Frame, Refused)
        except BadMessage as error:
            raise BusError(f"{stream.engine} answered {error}") from error

    async def send_cancels(self) -> None:
        """Run until cancelled: tells engines what they need not keep."""
        while True:
            engine, request = await self._cancels.get()
            await self._bus.publish(subjects.cancel(engine), encode(Cancel(request=request)))

    async def flush_cancels(self) -> None:
        """Tell what is left, at the end."""
        while not self._cancels.empty():
            engine, request = self._cancels.get_nowait()
            await self._bus.publish(subjects.cancel(engine), encode(Cancel(request=request)))
