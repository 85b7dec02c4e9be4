"""Which engine gets a request: of those that serve its model and were heard lately, one with the least load. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from random import Random

from moesaic.shared.messages import EngineStatus


@dataclass
class Engine:
    """The newest status of an engine, when it came, and what was sent to it since."""

    status: EngineStatus
    heard_at: float
    sent: int = 0
    doubted: bool = False

    @property
    def load(self) -> tuple[int, int]:
        """Requests there, then those of them that wait."""
        waiting = self.status.waiting + self.sent
        return waiting + self.status.running, waiting


class Fleet:
    """All engines that were heard. Times are monotonic seconds, passed in."""

    def __init__(self, stale_s: float, silent_s: float, random: Random) -> None:
        self._stale_s = stale_s
        self._silent_s = silent_s
        self._random = random
        self._engines: dict[str, Engine] = {}
        self._deaf_until = 0.0

    def heard(self, status: EngineStatus, now: float) -> None:
        """A heartbeat. One that was overtaken by a newer is ignored."""
        known = self._engines.get(status.source.producer)
        if known and known.status.source.boot == status.source.boot and known.status.source.seq >= status.source.seq:
            return
        self._engines[status.source.producer] = Engine(status, now)

    def choose(self, model: str, now: float, exclude: Container[str] = ()) -> str | None:
        """An engine for a request, or None."""
        able = [e for e in self.serving(model, now) if not e.doubted and e.status.source.producer not in exclude]
        if not able:
            return None
        least = min(engine.load for engine in able)
        return self._random.choice([e for e in able if e.load == least]).status.source.producer

    def serving(self, model: str, now: float) -> Iterator[Engine]:
        """Engines that say they serve the model and were heard lately."""
        for engine in self._engines.values():
            status = engine.status
            fresh = now - engine.heard_at <= self._stale_s
            if status.model == model and status.state == "serving" and status.role == "both" and fresh:
                yield engine

    def sent(self, engine: str) -> None:
        """A request went there."""
        if engine in self._engines:
            self._engines[engine].sent += 1

    def doubt(self, engine: str) -> None:
        """It does not answer as its status says: nothing more until the next heartbeat."""
        if engine in self._engines:
            self._engines[engine].doubted = True

    def hearing_again(self, now: float) -> None:
        """The bus was away: silence before now means nothing."""
        self._deaf_until = now

    def silent(self, engine: str, now: float) -> bool:
        """Whether it was not heard for so long that it may be dead."""
        known = self._engines.get(engine)
        return known is None or now - max(known.heard_at, self._deaf_until) > self._silent_s

    def known(self, model: str) -> bool:
        """Whether an engine ever announced this model."""
        return any(engine.status.model == model for engine in self._engines.values())

    def statuses(self, now: float) -> list[EngineStatus]:
        """Of the engines that were heard lately, whatever they say."""
        return [e.status for e in self._engines.values() if now - e.heard_at <= self._stale_s]
