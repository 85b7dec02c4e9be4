"""The engines of a group as their heartbeats tell."""

from __future__ import annotations

from typing import Any

import msgspec

from moesaic.shared.messages import EngineStatus

SILENT_S = 5.0
"""An engine unheard for longer is marked silent."""
GONE_S = 60.0
"""An engine unheard for longer is no longer listed."""


class Engines:
    """The newest heartbeat of each engine. Times are seconds of a steady clock, passed in."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[EngineStatus, float]] = {}

    def take(self, status: EngineStatus, now: float) -> None:
        """A heartbeat; one that is older than what is known of the same boot is ignored."""
        engine = status.source.producer
        known = self._heard.get(engine)
        if known and known[0].source.boot == status.source.boot and status.source.seq <= known[0].source.seq:
            return
        self._heard[engine] = (status, now)

    def __len__(self) -> int:
        return len(self._heard)

    def expire(self, now: float) -> None:
        """Forget who has gone."""
        self._heard = {engine: (s, at) for engine, (s, at) in self._heard.items() if now - at <= GONE_S}

    def states(self, now: float) -> dict[str, int]:
        """How many engines are in each state, silent ones apart."""
        counts: dict[str, int] = {"joining": 0, "serving": 0, "draining": 0, "failed": 0, "silent": 0}
        for status, at in self._heard.values():
            counts["silent" if now - at > SILENT_S else status.state] += 1
        return counts

    def newest(self) -> list[EngineStatus]:
        """All heartbeats, by rank and name."""
        statuses = [status for status, _ in self._heard.values()]
        return sorted(statuses, key=lambda s: (s.rank if s.rank >= 0 else 1 << 20, s.source.producer))

    def listed(self, now: float) -> list[dict[str, Any]]:
        """All heartbeats as JSON objects, with `silent` and `heard_s`, the seconds since."""
        rows = []
        for status in self.newest():
            quiet = now - self._heard[status.source.producer][1]
            rows.append(msgspec.to_builtins(status) | {"silent": quiet > SILENT_S, "heard_s": round(quiet, 3)})
        return rows
