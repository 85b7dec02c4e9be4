"""What the monitor knows: per group its windows, engines and placements. Pure: messages and clocks come in, messages go out."""

from __future__ import annotations

from typing import Any

import msgspec

from moesaic.monitor.counters import Key, read
from moesaic.monitor.engines import Engines
from moesaic.monitor.placements import Placements, measure
from moesaic.monitor.report import imbalance, tokens_of
from moesaic.monitor.windows import Windows
from moesaic.shared.arrays import Ints
from moesaic.shared.messages import (
    BadMessage,
    EngineStatus,
    Group,
    Imbalance,
    Load,
    Phase,
    PlacementEvent,
    Sequencer,
)

RECENT = 0.3
"""Weight of the newest window in the moving average of balance."""
GROUPS = 64
"""Groups at a time; more is taken for nonsense."""
IDLE_S = 600.0
"""A group unheard for longer, and without a record, is forgotten."""


class GroupState:
    """One group. `wall` is unix seconds, `now` seconds of a steady clock."""

    def __init__(self, name: str, wall: float) -> None:
        self.name = name
        self.record: Group | None = None
        self.windows = Windows(wall)
        self.engines = Engines()
        self.placements = Placements()
        self.newest: Imbalance | None = None
        self.recent: float | None = None
        """Moving average of decode balance under the live placement."""
        self.closed = 0
        self.tokens: dict[Phase, int] = {}
        """Routed tokens since start, all layers together."""
        self.heard = 0.0
        self._key: Key | None = None
        self._tokens: Ints | None = None

    def close(self, wall: float, numbers: Sequencer) -> Imbalance | None:
        """End the window; the message to publish if there was work."""
        window = self.windows.close(wall)
        if window is None:
            return None
        for phase, routed in window.routed.items():
            self.tokens[phase] = self.tokens.get(phase, 0) + int(routed.tokens.sum())
        report = imbalance(window, self.name, numbers.next(), self._tokens)
        self.placements.window(measure(window))
        self._average(report)
        self._tokens, self.newest = tokens_of(window), report
        self.closed += 1
        return report

    def _average(self, report: Imbalance) -> None:
        key = (report.generation, report.epoch, report.instalment)
        if key != self._key:
            self._key, self.recent = key, None
        decode = report.phases.get("decode")
        if decode is not None and decode.balance is not None:
            before = decode.balance if self.recent is None else self.recent
            self.recent = (1 - RECENT) * before + RECENT * decode.balance

    @property
    def epoch(self) -> tuple[int, int]:
        """(epoch, instalment) that the engines say they are on."""
        return max(((s.epoch, s.instalment) for s in self._current()), default=(0, 0))

    @property
    def generation(self) -> int:
        """The newest generation of the record, or that the engines tell."""
        told = [s.generation for s in self.engines.newest()]
        return self.record.generation if self.record else max(told, default=0)

    def _current(self) -> list[EngineStatus]:
        return [s for s in self.engines.newest() if s.generation == self.generation]

    def shown(self, now: float) -> dict[str, Any]:
        """The group as a JSON object."""
        statuses = self.engines.newest()
        epoch, instalment = self.epoch
        return {
            "generation": self.generation,
            "epoch": epoch,
            "instalment": instalment,
            "ranks": self.record.size if self.record else max((s.ranks for s in statuses), default=0),
            "model": self.record.model if self.record else next((s.model for s in statuses), ""),
            "formed": self.record.formed if self.record else False,
            "engines": self.engines.listed(now),
            "window": None if self.newest is None else msgspec.to_builtins(self.newest),
            "balance_recent": self.recent,
            "windows": self.closed,
            "last_placement": self.placements.last(),
            "last_refused": self.placements.last_refused(),
            "moves": self.placements.moves,
            "bytes": self.placements.bytes,
            "lost": self.windows.lost,
        }


class State:
    """All groups. Methods that take a message raise BadMessage where it makes no sense."""

    def __init__(self, wall: float, now: float) -> None:
        self.groups: dict[str, GroupState] = {}
        self.numbers = Sequencer("monitor")
        self._started = now
        self._wall = wall

    def load(self, load: Load, now: float) -> None:
        """An engine's counters."""
        counters = read(load)
        self._group(load.group, now).windows.take(counters)

    def status(self, status: EngineStatus, now: float) -> None:
        """An engine's heartbeat."""
        self._group(status.group, now).engines.take(status, now)

    def event(self, event: PlacementEvent, now: float) -> None:
        """A line of the audit trail."""
        self._group(event.group, now).placements.take(event)

    def record(self, record: Group, now: float) -> None:
        """A group's record in KV."""
        self._group(record.group, now).record = record

    def _group(self, name: str, now: float) -> GroupState:
        if name not in self.groups:
            if not name or len(self.groups) >= GROUPS:
                raise BadMessage(f"group {name[:64]!r} is one too many, there are {len(self.groups)}")
            self.groups[name] = GroupState(name, self._wall)
        self.groups[name].heard = now
        return self.groups[name]

    def close(self, wall: float, now: float) -> list[Imbalance]:
        """End every group's window; the messages to publish."""
        self._wall = wall
        for name, group in list(self.groups.items()):
            group.engines.expire(now)
            if group.record is None and now - group.heard > IDLE_S:
                del self.groups[name]
        reports = [group.close(wall, self.numbers) for group in self.groups.values()]
        return [report for report in reports if report is not None]

    def shown(self, now: float, bad: int, dropped: int) -> dict[str, Any]:
        """Everything as a JSON object. `bad` messages and those `dropped` by the bus are counted outside."""
        return {
            "groups": {name: group.shown(now) for name, group in sorted(self.groups.items())},
            "lost": sum(group.windows.lost for group in self.groups.values()),
            "bad": bad,
            "dropped": dropped,
            "uptime": round(now - self._started, 3),
        }
