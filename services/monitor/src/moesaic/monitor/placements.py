"""What the audit trail tells of a group's placements, and what the last one gained."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from moesaic.monitor.balance import balance
from moesaic.monitor.counters import Key
from moesaic.monitor.windows import Window
from moesaic.shared.messages import PHASES, Phase, PlacementEvent

COMPARED = 10
"""Windows before and after a placement whose balance is compared."""
PROPOSALS = 16
"""Proposals remembered until they are committed or superseded."""


@dataclass(frozen=True)
class Measured:
    """One window's balance per phase, and the tokens executed as its weight."""

    key: Key
    phases: dict[Phase, tuple[float, int]]


@dataclass
class Committed:
    """A placement whose first instalment is live. `stall_ms`: the worst of its switches."""

    key: tuple[int, int]
    at: float
    instalment: int = 0
    instalments: int = 0
    moves: int = 0
    bytes: int = 0
    stall_ms: float = 0.0
    before: tuple[Measured, ...] = ()
    after: list[Measured] = field(default_factory=list)


def measure(window: Window) -> Measured:
    """The balance of the steps that ran under the window's placement."""
    phases: dict[Phase, tuple[float, int]] = {}
    for phase, executed in window.executed.items():
        mean = balance(executed.total, executed.most, window.ranks).mean
        if mean is not None:
            phases[phase] = (mean, int(executed.total.sum()))
    return Measured(window.key, phases)


def weighed(windows: Iterable[Measured], phase: Phase) -> float | None:
    """Mean balance of a phase over windows, weighted with their tokens; None without any."""
    seen = [window.phases[phase] for window in windows if phase in window.phases]
    tokens = sum(weight for _, weight in seen)
    return sum(value * weight for value, weight in seen) / tokens if tokens else None


def _compared(last: Committed) -> Phase:
    """Decode, unless only prefill was executed before and after."""
    sides = {phase: [weighed(side, phase) is not None for side in (last.before, last.after)] for phase in PHASES}
    return "prefill" if sum(sides["prefill"]) > sum(sides["decode"]) else "decode"


class Placements:
    """Follows placement events and windows of one group, in whatever order they come."""

    def __init__(self) -> None:
        self.moves = 0
        self.bytes = 0
        self.commits = 0
        self.refusals = 0
        self.refused: PlacementEvent | None = None
        self._last: Committed | None = None
        self._proposals: dict[int, PlacementEvent] = {}
        self._windows: deque[Measured] = deque(maxlen=2 * COMPARED)
        self._heard: dict[tuple[str, str], int] = {}

    def take(self, event: PlacementEvent) -> None:
        """One line of the audit trail; what was heard before is ignored."""
        who = (event.source.producer, event.source.boot)
        if event.source.seq <= self._heard.pop(who, 0):
            self._heard[who] = event.source.seq
            return
        self._heard[who] = event.source.seq
        if len(self._heard) > 1024:
            del self._heard[next(iter(self._heard))]
        if event.event in {"proposed", "rolled_back"}:
            self._proposals[event.epoch] = event
            if len(self._proposals) > PROPOSALS:
                del self._proposals[next(iter(self._proposals))]
        elif event.event == "committed":
            self._committed(event)
        elif event.event == "refused":
            self.refused = event
            self.refusals += 1

    def _committed(self, event: PlacementEvent) -> None:
        self.moves += event.moves
        self.bytes += event.bytes
        self.commits += 1
        key = (event.generation, event.epoch)
        if self._last is None or self._last.key != key:
            earlier = [window for window in self._windows if window.key[:2] != key]
            later = [window for window in self._windows if window.key == (*key, event.instalments)]
            self._last = Committed(key, event.at, before=tuple(earlier[-COMPARED:]), after=later[:COMPARED])
        last = self._last
        last.at, last.instalment, last.instalments = event.at, event.instalment, event.instalments
        last.moves += event.moves
        last.bytes += event.bytes
        last.stall_ms = max(last.stall_ms, event.stall_ms)

    def window(self, measured: Measured) -> None:
        """A window with work, in order."""
        self._windows.append(measured)
        last = self._last
        if last and len(last.after) < COMPARED and measured.key == (*last.key, last.instalments):
            last.after.append(measured)

    def last(self) -> dict[str, Any] | None:
        """The last committed placement as a JSON object. Balances are of one `phase`."""
        if self._last is None:
            return None
        last = self._last
        proposal = self._proposals.get(last.key[1])
        phase = _compared(last)
        return {
            "epoch": last.key[1],
            "generation": last.key[0],
            "at": last.at,
            "instalment": last.instalment,
            "instalments": last.instalments,
            "moves": last.moves,
            "bytes": last.bytes,
            "stall_ms": last.stall_ms,
            "reason": proposal.reason if proposal else "",
            "forecast": msgspec.to_builtins(proposal.forecast) if proposal else None,
            "phase": phase,
            "balance_before": weighed(last.before, phase),
            "balance_after": weighed(last.after, phase),
        }

    def last_refused(self) -> dict[str, Any] | None:
        """The last refusal as a JSON object."""
        if self.refused is None:
            return None
        return {"epoch": self.refused.epoch, "at": self.refused.at, "reason": self.refused.reason}
