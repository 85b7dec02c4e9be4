"""Output tokens on their way to gateways: kept until acknowledged, numbered, asked for again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from moesaic.engine.backend import Output
from moesaic.shared.messages import Frame, Frames, Source, TokenLogprob, WireError

KEEP_S = 60.0
"""A finished stream that nobody acknowledges is kept this long."""
HEARTBEAT_S = 1.0
"""A gateway with streams here hears something at least this often."""


@dataclass
class Stream:
    """Tokens of one request since `first` (its output offset)."""

    gateway: str
    first: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish: str | None = None
    error: WireError | None = None
    cached_tokens: int = 0
    ended_at: float | None = None

    def frame(self, request: str, from_index: int) -> Frame:
        """Everything from an output index on."""
        skip = max(0, from_index - self.first)
        return Frame(
            request=request,
            from_index=self.first + skip,
            tokens=tuple(self.tokens[skip:]),
            logprobs=None if self.logprobs is None else tuple(self.logprobs[skip:]),
            finish=self.finish,  # type: ignore[arg-type]  # a backend says stop or length
            error=self.error,
            cached_tokens=self.cached_tokens,
        )


class Outbox:
    """Streams by request, and a message number per gateway. Pure: the clock is passed in."""

    def __init__(self, engine: str, boot: str) -> None:
        self._engine = engine
        self._boot = boot
        self._streams: dict[str, Stream] = {}
        self._seq: dict[str, int] = {}
        self._spoke: dict[str, float] = {}

    def __contains__(self, request: str) -> bool:
        return request in self._streams

    def open(self, request: str, gateway: str, first: int) -> None:
        """A request was taken."""
        self._streams[request] = Stream(gateway, first)

    def close(self, request: str) -> None:
        """Acknowledged or cancelled: forget it."""
        self._streams.pop(request, None)

    def live(self) -> int:
        """Streams that have not ended."""
        return sum(stream.ended_at is None for stream in self._streams.values())

    def add(self, outputs: Sequence[Output], now: float) -> list[tuple[str, Frames]]:
        """One step's outputs: keep them, and one message per gateway."""
        by_gateway: dict[str, list[Frame]] = {}
        for output in outputs:
            stream = self._streams.get(output.request)
            if stream is None or stream.ended_at is not None:
                continue  # cancelled meanwhile
            _append(stream, output, now)
            by_gateway.setdefault(stream.gateway, []).append(stream.frame(output.request, output.from_index))
        return [(gateway, self._message(gateway, frames, now)) for gateway, frames in by_gateway.items()]

    def replay(self, request: str, from_index: int) -> Frame | None:
        """A request's tokens again, or None if it is not known here."""
        stream = self._streams.get(request)
        return None if stream is None else stream.frame(request, from_index)

    def tick(self, now: float) -> list[tuple[str, Frames]]:
        """Heartbeats that are due; forgets finished streams nobody asked about."""
        for request, stream in list(self._streams.items()):
            if stream.ended_at is not None and now - stream.ended_at > KEEP_S:
                del self._streams[request]
        gateways = {stream.gateway for stream in self._streams.values()}
        due = [g for g in sorted(gateways) if now - self._spoke.get(g, 0.0) >= HEARTBEAT_S]
        return [(gateway, self._message(gateway, [], now)) for gateway in due]

    def _message(self, gateway: str, frames: list[Frame], now: float) -> Frames:
        self._seq[gateway] = self._seq.get(gateway, 0) + 1
        self._spoke[gateway] = now
        source = Source(producer=self._engine, boot=self._boot, seq=self._seq[gateway])
        return Frames(source=source, frames=tuple(frames))


def _append(stream: Stream, output: Output, now: float) -> None:
    stream.tokens.extend(output.tokens)
    if output.logprobs is not None:
        stream.logprobs = [*(stream.logprobs or []), *output.logprobs]
    stream.finish = output.finish
    stream.error = output.error
    stream.cached_tokens = output.cached_tokens or stream.cached_tokens
    if output.finish or output.error:
        stream.ended_at = now
