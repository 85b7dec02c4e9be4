"""The rim of the engine: requests in, tokens out, load out, placement in. Holds a backend and knows nothing of its loop."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import structlog

from moesaic.engine.backend import Backend, ModelSpec, Output, PlacementReport
from moesaic.engine.config import EngineConfig
from moesaic.engine.group import Ejected, Membership
from moesaic.engine.outbox import HEARTBEAT_S, Outbox
from moesaic.shared import subjects
from moesaic.shared.bus import Bucket, Bus, BusError, Delivery, TooLarge
from moesaic.shared.messages import (
    Accepted,
    BadMessage,
    Cancel,
    EngineState,
    EngineStatus,
    Frames,
    Generate,
    Group,
    Load,
    Member,
    ModelCard,
    Placement,
    PlacementEvent,
    Refused,
    Replay,
    Sequencer,
    WireError,
    decode,
    encode,
    now,
)
from moesaic.shared.service import Fatal

MakeBackend = Callable[[EngineConfig], Backend]


class _FromBackend:
    """`Events` of the backend's threads, carried into the service's loop in order."""

    def __init__(self, service: EngineService) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()

    def _call(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(function)

    def outputs(self, outputs: Sequence[Output]) -> None:
        """See Events."""
        self._call(lambda: self._service.on_outputs(outputs))

    def joined(self, generation: int) -> None:
        """See Events."""
        self._call(lambda: self._service.on_joined(generation))

    def lost(self, generation: int, reason: str) -> None:
        """See Events."""
        self._call(lambda: self._service.on_lost(generation, reason))

    def placement(self, report: PlacementReport) -> None:
        """See Events."""
        self._call(lambda: self._service.on_placement(report))

    def failed(self, reason: str) -> None:
        """See Events."""
        self._call(lambda: self._service.on_failed(reason))


class EngineService:
    """One engine on the bus."""

    def __init__(self, config: EngineConfig, bus: Bus, backend: Backend, groups: Bucket, placements: Bucket) -> None:
        self._config = config
        self._bus = bus
        self._backend = backend
        self._spec = backend.spec
        self._placements = placements
        self._status_numbers = Sequencer(config.engine)
        boot = self._status_numbers.boot
        self._load_numbers = Sequencer(config.engine, boot)
        self._event_numbers = Sequencer(config.engine, boot)
        self._outbox = Outbox(config.engine, boot)
        self._outgoing: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self._state_changed = asyncio.Event()
        self._load_due = asyncio.Event()
        self._quiet = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._draining = False
        self._offered: tuple[int, Placement] | None = None
        self._log = structlog.get_logger().bind(engine=config.engine)
        self.membership = Membership(_claim(config, self._spec, boot), backend, groups, self._newest_placement)

    async def wait(self) -> None:
        """See Running."""
        await self._failed

    # --- from the backend, in the service's loop -----------------------------------------------------------------------

    def on_outputs(self, outputs: Sequence[Output]) -> None:
        """One step's tokens, to their gateways."""
        self._send(self._outbox.add(outputs, time.monotonic()))
        if not self._outbox.live():
            self._quiet.set()

    def on_joined(self, generation: int) -> None:
        """Steps begin; what was published meanwhile is offered."""
        self.membership.on_joined(generation)
        self._state_changed.set()
        if self._offered is not None:
            self._backend.offer(*self._offered)

    def on_lost(self, generation: int, reason: str) -> None:
        """Steps have ended."""
        self.membership.on_lost(generation, reason)
        self._state_changed.set()

    def on_placement(self, report: PlacementReport) -> None:
        """To the audit trail: what all ranks see alike is told by rank 0, a rank's own trouble by itself."""
        if report.event == "committed":
            self._load_due.set()
            self._state_changed.set()
        if self.membership.rank == 0 or report.local:
            self._tell(report)
        log = self._log.warning if report.event == "refused" else self._log.info
        log(f"placement {report.event}", epoch=report.epoch, instalment=report.instalment, reason=report.reason)

    def on_failed(self, reason: str) -> None:
        """The backend is dead."""
        if not self._failed.done():
            self._failed.set_exception(Fatal(reason))

    # --- from the bus --------------------------------------------------------------------------------------------------

    async def _generate(self, delivery: Delivery) -> None:
        try:
            request = decode(delivery.data, Generate)
        except BadMessage as error:
            await delivery.respond(encode(Refused(request="", code="invalid", reason=str(error))))
            return
        await delivery.respond(encode(self._admit(request)))

    def _admit(self, request: Generate) -> Accepted | Refused:
        accepted = Accepted(request=request.request, engine=self._config.engine, boot=self._status_numbers.boot)
        if request.request in self._outbox:
            return accepted  # asked again because the first answer was lost
        if self._draining:
            return Refused(request=request.request, code="draining", reason="the engine is stopping")
        if request.model != self._config.served_as:
            return Refused(request=request.request, code="wrong_model", reason=f"this is {self._config.served_as!r}")
        if not self.membership.joined:
            return Refused(request=request.request, code="not_ready", reason=self.membership.reason)
        self._outbox.open(request.request, request.gateway, request.output_offset)
        refusal = self._backend.submit(request)
        if refusal is None:
            self._quiet.clear()
            return accepted
        self._outbox.close(request.request)
        return Refused(request=request.request, code=refusal.code, reason=refusal.reason)

    async def _replay(self, delivery: Delivery) -> None:
        try:
            asked = decode(delivery.data, Replay)
        except BadMessage as error:
            await delivery.respond(encode(Refused(request="", code="invalid", reason=str(error))))
            return
        frame = self._outbox.replay(asked.request, asked.from_index)
        unknown = Refused(request=asked.request, code="unknown", reason="no such request here")
        await delivery.respond(encode(frame or unknown))

    async def _cancel(self, delivery: Delivery) -> None:
        try:
            request = decode(delivery.data, Cancel).request
        except BadMessage as error:
            self._log.warning("malformed cancel", reason=str(error))
            return
        if request in self._outbox:
            self._outbox.close(request)
            self._backend.cancel(request)
        if not self._outbox.live():
            self._quiet.set()

    async def _heard(self, delivery: Delivery) -> None:
        with suppress(BadMessage):
            status = decode(delivery.data, EngineStatus)
            if status.group == self._config.group_name:
                self.membership.heard(status)

    async def _watch_placement(self) -> None:
        key = subjects.token(self._config.group_name)
        async for entry in self._placements.watch(key):
            if entry.value is None:
                continue
            try:
                self._offered = (entry.revision, decode(entry.value, Placement))
            except BadMessage as error:
                reason = f"malformed placement: {error}"
                self.on_placement(PlacementReport("refused", entry.revision, 0, 0, reason=reason))
                continue
            if self.membership.joined:
                self._backend.offer(*self._offered)

    async def _newest_placement(self) -> tuple[int, Placement | None]:
        entry = await self._placements.get(subjects.token(self._config.group_name))
        if entry is None or entry.value is None:
            return 0, None
        try:
            return entry.revision, decode(entry.value, Placement)
        except BadMessage:
            return 0, None

    # --- to the bus ----------------------------------------------------------------------------------------------------

    def _send(self, messages: Sequence[tuple[str, Frames]]) -> None:
        for gateway, frames in messages:
            self._outgoing.put_nowait((subjects.frames(gateway), encode(frames)))

    def _tell(self, report: PlacementReport) -> None:
        event = PlacementEvent(
            event=report.event,
            source=self._event_numbers.next(),
            at=now(),
            group=self._config.group_name,
            generation=self.membership.joined,
            epoch=report.epoch,
            instalment=report.instalment,
            instalments=report.instalments,
            step=report.step,
            moves=report.moves,
            bytes=report.bytes,
            stall_ms=report.stall_ms,
            reason=report.reason,
        )
        self._outgoing.put_nowait((subjects.placement(event.group, event.event), encode(event)))

    async def _publish(self) -> None:
        while True:
            subject, data = await self._outgoing.get()
            try:
                await self._bus.publish(subject, data)
            except TooLarge as error:
                self._log.error("message dropped", subject=subject, reason=str(error))

    async def _beat(self) -> None:
        while True:
            self._send(self._outbox.tick(time.monotonic()))
            lost_at = self.membership.lost_at
            if lost_at is not None and time.monotonic() - lost_at > self._config.rejoin_timeout_s:
                limit = f"{self._config.rejoin_timeout_s:g} s"
                message = f"the group did not come back within {limit}: {self.membership.reason}"
                self._backend.fail_all(WireError(code="lost_group", message=message))
            await asyncio.sleep(HEARTBEAT_S / 2)

    async def _say_status(self) -> None:
        while True:
            self._outgoing.put_nowait((subjects.status(self._config.engine), encode(self.status())))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.status_interval_ms / 1e3):
                    await self._state_changed.wait()
            self._state_changed.clear()

    async def _say_load(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.load_interval_ms / 1e3):
                    await self._load_due.wait()
            self._load_due.clear()
            if self.membership.joined:
                subject = subjects.load(self._config.group_name, self._config.engine)
                self._outgoing.put_nowait((subject, encode(self._load())))

    def _load(self) -> Load:
        snapshot = self._backend.load()
        return Load(
            source=self._load_numbers.next(),
            at=now(),
            group=self._config.group_name,
            model_digest=self._spec.digest,
            rank=self.membership.rank or 0,
            ranks=self._config.ranks,
            generation=snapshot.generation,
            epoch=snapshot.epoch,
            instalment=snapshot.instalment,
            phases=dict(snapshot.phases),
        )

    def status(self) -> EngineStatus:
        """The heartbeat."""
        figures = self._backend.status()
        state: EngineState = "serving" if self.membership.joined else "joining"
        return EngineStatus(
            source=self._status_numbers.next(),
            at=now(),
            model=self._config.served_as,
            role=self._config.role,
            state="draining" if self._draining else state,
            group=self._config.group_name,
            generation=self.membership.joined,
            rank=-1 if self.membership.rank is None else self.membership.rank,
            ranks=self._config.ranks,
            reason=self.membership.reason,
            mode=self._config.mode,
            pid=os.getpid(),
            **{name: getattr(figures, name) for name in figures.__dataclass_fields__},
        )

    async def introduce(self) -> None:
        """Put the model's card and files where gateways find them, unless they are there."""
        files = {name: hashlib.blake2b(data, digest_size=16).hexdigest() for name, data in self._spec.files.items()}
        for name, digest in files.items():
            await self._bus.put_file(subjects.FILES, digest, self._spec.files[name])
        card = ModelCard(
            model=self._config.served_as,
            digest=self._spec.digest,
            architecture=self._spec.architecture,
            context=self._spec.context,
            vocab=self._spec.vocab,
            layers=self._spec.layers,
            experts=self._spec.experts,
            top_k=self._spec.top_k,
            eos_token_ids=self._spec.eos_token_ids,
            files=files,
            created=now(),
        )
        models = await self._bus.bucket(subjects.MODELS)
        await models.put(subjects.token(card.model), encode(card))

    async def _introduce(self, due: asyncio.Event) -> None:
        """At start, and after each reconnect: the bus may have lost its state."""
        while True:
            await due.wait()
            due.clear()
            self.membership.look_again()
            try:
                await self.introduce()
            except BusError as error:
                self._log.info("the bus is away", reason=str(error))

    # --- life ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Subscribed and at work inside."""
        due = asyncio.Event()
        due.set()
        self._bus.on_reconnect(due.set)
        tasks = asyncio.create_task(self._tasks(due))
        tasks.add_done_callback(self._ended)
        engine = self._config.engine
        handlers = {
            subjects.generate(engine): self._generate,
            subjects.replay(engine): self._replay,
            subjects.cancel(engine): self._cancel,
            subjects.status(): self._heard,
        }
        subscriptions = [await self._bus.subscribe(subject, handler) for subject, handler in handlers.items()]
        try:
            yield
            await self._drain()
        finally:
            for subscription in subscriptions:
                await subscription.close()
            tasks.cancel()
            with suppress(asyncio.CancelledError, BaseExceptionGroup):
                await tasks

    async def _tasks(self, due: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for task in (
                self._publish(),
                self._beat(),
                self._say_status(),
                self._say_load(),
                self._watch_placement(),
                self._introduce(due),
                self.membership.run(),
            ):
                group.create_task(task)

    def _ended(self, tasks: asyncio.Task[None]) -> None:
        if tasks.cancelled() or (error := tasks.exception()) is None or self._failed.done():
            return
        ejected = _find(error, Ejected)
        self._failed.set_exception(Fatal(str(ejected)) if ejected else error)

    async def _drain(self) -> None:
        """Take nothing new, let what runs finish for a while, and leave the group."""
        self._draining = True
        self._state_changed.set()
        if self._outbox.live() and self.membership.joined:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.drain_s):
                    await self._quiet.wait()


def _find(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return next((found for e in error.exceptions if (found := _find(e, kind))), None)
    return error if isinstance(error, kind) else None


def _claim(config: EngineConfig, spec: ModelSpec, boot: str) -> Group:
    """The group as this engine would begin it."""
    me = Member(
        engine=config.engine,
        boot=boot,
        node=config.node or socket.gethostname(),
        device=spec.device,
        host=config.host,
        bell=spec.bell,
        slots=spec.slots,
        spare=spec.spare,
    )
    return Group(
        group=config.group_name,
        generation=1,
        size=config.ranks,
        model=config.served_as,
        model_digest=spec.digest,
        layers=spec.layers,
        experts=spec.experts,
        top_k=spec.top_k,
        slot_bytes=spec.slot_bytes,
        members=(me,),
    )


@asynccontextmanager
async def open_service(config: EngineConfig, bus: Bus, make: MakeBackend) -> AsyncIterator[EngineService]:
    """A started engine; leaving drains and stops it."""
    backend = await asyncio.to_thread(make, config)
    groups = await bus.bucket(subjects.GROUPS)
    placements = await bus.bucket(subjects.PLACEMENTS, history=16)
    service = EngineService(config, bus, backend, groups, placements)
    backend.start(_FromBackend(service))
    try:
        async with service.running():
            yield service
    finally:
        await asyncio.to_thread(backend.close)
