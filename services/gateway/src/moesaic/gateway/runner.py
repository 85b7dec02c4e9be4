"""One request's life: find an engine, follow its tokens, go on at another when it is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from moesaic.gateway.config import GatewayConfig
from moesaic.gateway.errors import internal, invalid, overloaded, unavailable
from moesaic.gateway.metrics import Metrics
from moesaic.gateway.relay import Relay, Stream
from moesaic.gateway.routing import Fleet
from moesaic.gateway.streams import Arrivals, Piece
from moesaic.shared.bus import BusDown, BusError, NoResponders, RequestTimeout, TooLarge
from moesaic.shared.messages import Frame, Generate, Refused, Sampling, WireError

Sink = Callable[[Piece], bool]
"""Takes tokens; True: it needs no more."""

FRUITLESS = 3
"""Engines that may be lost one after another without a new token: a request that kills engines must not kill all."""


@dataclass(frozen=True)
class Job:
    """What is to be generated. `name` is unique; `deadline` in Unix seconds."""

    name: str
    model: str
    prompt: tuple[int, ...]
    sampling: Sampling
    deadline: float


@dataclass(frozen=True)
class Mesh:
    """What a runner works with."""

    relay: Relay
    fleet: Fleet
    metrics: Metrics
    config: GatewayConfig
    name: str


class Runner:
    """Drives one job to its end. The caller sees tokens in order, each once, whatever happens underneath."""

    def __init__(self, mesh: Mesh, job: Job, sink: Sink) -> None:
        self._mesh = mesh
        self._job = job
        self._sink = sink
        self._arrivals = Arrivals()
        self._offers = 0
        self._resumed_at = -1
        self._fruitless = 0
        self._stream: Stream | None = None

    async def run(self) -> None:
        """Return when the sink has all. Raises ApiError where that is impossible; cancelling it frees the engine."""
        try:
            stream = await self._place(self._mesh.config.route_timeout_s, patient=False)
            while reason := await self._follow(stream):
                stream = await self._resume(reason)
        finally:
            self._drop()

    def _drop(self) -> None:
        if self._stream is not None:
            self._mesh.relay.close(self._stream)
            self._stream = None

    # --- finding an engine ----------------------------------------------------------------------------------------------

    async def _resume(self, reason: str) -> Stream:
        self._drop()
        self._mesh.metrics.resumes.labels(reason).inc()
        self._arrivals.begin_again()
        done = self._arrivals.next_index
        self._fruitless = self._fruitless + 1 if done == self._resumed_at else 0
        self._resumed_at = done
        if self._fruitless >= FRUITLESS:
            raise unavailable("the engines that worked on this request were lost", "engine_lost")
        return await self._place(self._mesh.config.resume_timeout_s, patient=True)

    async def _place(self, limit_s: float, *, patient: bool) -> Stream:
        """The stream at an engine that took the request. `patient`: wait also while all are full."""
        begun = time.monotonic()
        refusals: dict[str, str] = {}
        while True:
            engine = self._mesh.fleet.choose(self._job.model, time.monotonic(), refusals)
            if engine is not None:
                stream, refusal = await self._offer(engine)
                if not refusal:
                    self._mesh.metrics.route.labels(self._job.model).observe(time.monotonic() - begun)
                    return stream
                refusals[engine] = refusal
                self._mesh.metrics.retries.labels(refusal).inc()
                continue
            if refusals and set(refusals.values()) == {"full"} and not patient:
                raise overloaded("all engines are full; try again soon")
            refusals.clear()
            left = begun + limit_s - time.monotonic()
            if not await self._mesh.relay.news.wait(max(0.0, left)):
                raise unavailable(f"no engine was ready within {limit_s:g} s")

    async def _offer(self, engine: str) -> tuple[Stream, str]:
        """Offer it to an engine: the stream, and why it was not taken (empty: it was). Raises ApiError."""
        self._offers += 1
        relay = self._mesh.relay
        stream = self._stream = relay.open(f"{self._job.name}.{self._offers}", engine, self._arrivals)
        try:
            answer = await relay.generate(engine, self._message(stream.request))
        except TooLarge as error:
            raise invalid(f"the request is too large for the bus ({error.limit} bytes)") from error
        except BusError as error:
            if stream.boot is not None:
                return stream, ""  # the answer was lost, but tokens are there
            return stream, self._refuse(engine, _trouble(error))
        if isinstance(answer, Refused):
            return stream, self._refuse(engine, self._heed(answer))
        stream.boot = stream.boot or answer.boot
        return stream, ""

    def _refuse(self, engine: str, why: str) -> str:
        self._drop()
        if why not in {"full", "bus_down"}:
            self._mesh.fleet.doubt(engine)
        return why

    def _heed(self, refused: Refused) -> str:
        if refused.code in {"invalid", "too_long"}:
            code = "context_length_exceeded" if refused.code == "too_long" else "invalid_request"
            raise invalid(refused.reason, code=code)
        return refused.code

    def _message(self, request: str) -> Generate:
        done = tuple(self._arrivals.tokens)
        return Generate(
            request=request,
            gateway=self._mesh.name,
            model=self._job.model,
            tokens=self._job.prompt + done,
            sampling=self._job.sampling,
            output_offset=len(done),
            deadline=self._job.deadline,
        )

    # --- following its tokens -------------------------------------------------------------------------------------------

    async def _follow(self, stream: Stream) -> str:
        """Hand on tokens until the end (empty) or until this engine is lost (why). Raises ApiError."""
        while True:
            stream.changed.clear()
            piece = self._arrivals.give()
            if piece is not None and self._sink(piece):
                return ""
            if self._arrivals.error is not None:
                return _judge(self._arrivals.error)
            if stream.lost:
                return "restarted"
            if not stream.doubtful:
                await stream.changed.wait()
                continue
            stream.doubtful = False
            lost = await self._ask_again(stream)
            if lost:
                return lost

    async def _ask_again(self, stream: Stream) -> str:
        """Repair a gap. Why the engine must be taken for lost, or empty."""
        try:
            answer = await self._mesh.relay.replay(stream)
        except BusError as error:
            self._mesh.metrics.replays.labels(_trouble(error)).inc()
            return self._endure(stream, error)
        stream.trouble_since = None
        self._mesh.metrics.replays.labels("frame" if isinstance(answer, Frame) else answer.code).inc()
        if isinstance(answer, Refused):
            return "forgotten"
        return "" if self._arrivals.take(answer) else "forgotten"

    def _endure(self, stream: Stream, error: BusError) -> str:
        """No answer: a silent engine is lost; otherwise wait, but not for ever."""
        now = time.monotonic()
        if not isinstance(error, BusDown) and self._mesh.fleet.silent(stream.engine, now):
            return "silent"
        stream.trouble_since = now if stream.trouble_since is None else stream.trouble_since
        if now - stream.trouble_since > self._mesh.config.resume_timeout_s:
            raise unavailable("the connection to the engine did not come back", "engine_lost")
        return ""


def _trouble(error: BusError) -> str:
    kinds = {NoResponders: "gone", RequestTimeout: "no_answer", BusDown: "bus_down"}
    return kinds.get(type(error), "bad_answer")


def _judge(error: WireError) -> str:
    """What the engine's error means: go on elsewhere (why), or the end. Raises ApiError."""
    if error.code == "lost_group":
        return "lost_group"
    if error.code == "deadline":
        raise internal(error.message, "deadline_exceeded", 504)
    raise internal(error.message)
