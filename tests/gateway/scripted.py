"""An engine that does as it is told. A `Script` decides what frames a request gets, and how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from gateway.tiny import NAME, STOP, ids
from moesaic.shared import subjects
from moesaic.shared.bus import Delivery, Subscription
from moesaic.shared.memory_bus import MemoryBroker, MemoryBus
from moesaic.shared.messages import (
    Accepted,
    Cancel,
    EngineState,
    EngineStatus,
    Frame,
    Frames,
    Generate,
    RefusalCode,
    Refused,
    Replay,
    Sequencer,
    TokenLogprob,
    WireError,
    decode,
    encode,
)

BEAT_S = 0.03


class ScriptedEngine:
    """On the bus like a real one; keeps what it said for `replay`, notes what it was asked."""

    def __init__(self, broker: MemoryBroker, name: str, script: Script) -> None:
        self.name = name
        self.script = script
        self.bus = MemoryBus(broker)
        self.numbers = Sequencer(name)
        self.frame_numbers = Sequencer(name, self.numbers.boot)
        self.refusals: list[RefusalCode] = []
        self.state: EngineState = "serving"
        self.running = 0
        self.deaf = False
        self.asked: list[Generate] = []
        self.requested: asyncio.Queue[Generate] = asyncio.Queue()
        self.spoke = asyncio.Event()
        self.replays: list[Replay] = []
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.kept: dict[str, tuple[int, list[int]]] = {}
        self.finished: dict[str, str] = {}
        self._tasks = asyncio.TaskGroup()
        self._heard: list[Subscription] = []
        self._beating: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        async with self._tasks as group:
            await self.connect()
            yield
            await self.bus.close()
            for task in group._tasks:
                task.cancel()

    async def connect(self) -> None:
        handlers = {"generate": self._on_generate, "replay": self._on_replay, "cancel": self._on_cancel}
        self._heard = [
            await self.bus.subscribe(getattr(subjects, name)(self.name), handler) for name, handler in handlers.items()
        ]
        self._beating = self._tasks.create_task(self._beat())

    async def disconnect(self) -> None:
        """Nothing is heard of it any more, and it hears nothing."""
        assert self._beating is not None
        self._beating.cancel()
        for subscription in self._heard:
            await subscription.close()

    def restart(self) -> None:
        """A new life that knows nothing of the former."""
        self.numbers = Sequencer(self.name)
        self.frame_numbers = Sequencer(self.name, self.numbers.boot)
        self.kept.clear()
        self.finished.clear()

    async def _beat(self) -> None:
        while True:
            await self.bus.publish(subjects.status(self.name), encode(self.status()))
            await asyncio.sleep(BEAT_S)

    def status(self) -> EngineStatus:
        return EngineStatus(
            source=self.numbers.next(),
            at=0.0,
            model=NAME,
            role="both",
            state=self.state,
            group="g",
            running=self.running,
            kv_blocks_used=1,
            kv_blocks_total=4,
        )

    async def _on_generate(self, delivery: Delivery) -> None:
        request = decode(delivery.data, Generate)
        self.asked.append(request)
        self.requested.put_nowait(request)
        if self.deaf:
            return
        if self.refusals:
            code = self.refusals.pop(0)
            await delivery.respond(encode(Refused(request=request.request, code=code, reason="as told")))
            return
        await delivery.respond(
            encode(Accepted(request=request.request, engine=self.name, boot=self.frame_numbers.boot))
        )
        self.kept[request.request] = (request.output_offset, [])
        self._tasks.create_task(self._play(request))

    async def _play(self, request: Generate) -> None:
        await self.script(self, request)

    async def _on_replay(self, delivery: Delivery) -> None:
        asked = decode(delivery.data, Replay)
        self.replays.append(asked)
        if asked.request not in self.kept:
            await delivery.respond(encode(Refused(request=asked.request, code="unknown", reason="no such request")))
            return
        first, tokens = self.kept[asked.request]
        await delivery.respond(
            encode(
                Frame(
                    request=asked.request,
                    from_index=asked.from_index,
                    tokens=tuple(tokens[asked.from_index - first :]),
                    finish=self.finished.get(asked.request),  # type: ignore[arg-type]  # the script says stop or length
                )
            )
        )

    async def _on_cancel(self, delivery: Delivery) -> None:
        self.cancelled.put_nowait(decode(delivery.data, Cancel).request)

    # --- what scripts use ------------------------------------------------------------------------------------------------

    def frame(self, request: Generate, index: int, tokens: list[int], finish: str | None = None) -> Frame:
        """Output `index` on, kept as if it had been computed just now."""
        first, kept = self.kept.setdefault(request.request, (request.output_offset, []))
        kept[index - first :] = tokens
        if finish is not None:
            self.finished[request.request] = finish
        logprobs = None
        if request.sampling.logprobs is not None:
            logprobs = tuple(TokenLogprob(logprob=-0.5, top=((token, -0.5), (7, -1e30))) for token in tokens)
        return Frame(
            request=request.request,
            from_index=index,
            tokens=tuple(tokens),
            finish=finish,  # type: ignore[arg-type]  # the script says stop or length
            logprobs=logprobs,
        )

    async def emit(self, request: Generate, *frames: Frame, lost: bool = False, times: int = 1) -> None:
        """One message; `lost` counts it without sending it."""
        message = encode(Frames(source=self.frame_numbers.next(), frames=frames))
        for _ in range(0 if lost else times):
            await self.bus.publish(subjects.frames(request.gateway), message)
        self.spoke.set()

    async def fail(self, request: Generate, error: WireError) -> None:
        _, kept = self.kept[request.request]
        frame = Frame(request=request.request, from_index=request.output_offset + len(kept), error=error)
        await self.emit(request, frame)


Script = Callable[[ScriptedEngine, Generate], Awaitable[None]]


def say(text: str, finish: str = "stop") -> Script:
    """One token per message; with `stop`, the end-of-text token last. A resumed request gets the rest."""

    async def script(engine: ScriptedEngine, request: Generate) -> None:
        tokens = ids(text) + ([STOP] if finish == "stop" else [])
        for index in range(request.output_offset, len(tokens)):
            ends = finish if index == len(tokens) - 1 else None
            await engine.emit(request, engine.frame(request, index, [tokens[index]], ends))
            await asyncio.sleep(0)

    return script


async def begin(engine: ScriptedEngine, request: Generate) -> None:
    """Two tokens, then nothing."""
    await engine.emit(request, engine.frame(request, 0, ids("one two")[:2]))


async def mute(_engine: ScriptedEngine, _request: Generate) -> None:
    """No token at all."""
