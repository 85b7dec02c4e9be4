"""Load windows of one group: differences of the engines' newest counters, whatever was late, lost or repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moesaic.monitor.counters import Counters, Executed, Key, PhaseCounts, Routed
from moesaic.shared.messages import PHASES, BadMessage, Phase

REMEMBERED_GAPS = 256
"""Missing messages of one boot that may still come late; older ones stay lost."""
SILENT_CLOSES = 120
"""Windows after which a boot that says nothing more is forgotten."""
BOOTS = 4096
"""Boots remembered, so that one that was forgotten is not taken for a new one."""


class Series:
    """The counters of one boot of one engine: the newest, and those at the last close."""

    def __init__(self, first: Counters, *, from_zero: bool) -> None:
        self.newest = first
        self.base = None if from_zero else first
        self.lost = first.seq - 1 if from_zero else 0
        self.silent = 0
        self._lost_before = 0
        self._replaced = False
        self._missing = set(range(max(1, first.seq - REMEMBERED_GAPS), first.seq)) if from_zero else set[int]()

    def take(self, counters: Counters) -> None:
        """A further message. Raises BadMessage, and begins anew from it, where a count went down."""
        if counters.seq <= self.newest.seq:
            if counters.seq in self._missing:
                self._missing.remove(counters.seq)
                self.lost -= 1
            return
        before, self.newest, self.silent = self.newest, counters, 0
        gap = range(before.seq + 1, counters.seq)
        self.lost += len(gap)
        self._missing |= set(gap[-REMEMBERED_GAPS:])
        self._missing = {seq for seq in self._missing if seq > counters.seq - REMEMBERED_GAPS}
        replaced = counters.key != before.key
        self._replaced = self._replaced or replaced
        try:
            counters.since(before, replaced=replaced)
        except BadMessage:
            self.base = counters
            raise

    def close(self) -> tuple[Counters | None, int]:
        """(what came since the last close or None, messages found lost since, less those that came late)."""
        fresh = None if self.newest is self.base else self.newest.since(self.base, replaced=self._replaced)
        lost, self._lost_before = self.lost - self._lost_before, self.lost
        self.base, self._replaced = self.newest, False
        self.silent += 1
        return fresh, lost


@dataclass(frozen=True)
class Window:
    """What a group did between two closes. `executed` is only what ran under the placement `key`."""

    key: Key
    ranks: int
    model_digest: str
    engines: tuple[str, ...]
    routed: Mapping[Phase, Routed]
    executed: Mapping[Phase, Executed]
    lost: int
    begin: float
    end: float


class Windows:
    """All series of one group. Times are unix seconds, passed in."""

    def __init__(self, begin: float) -> None:
        self.lost = 0
        self._begin = begin
        self._series: dict[tuple[str, str], Series] = {}
        self._boots: dict[tuple[str, str], None] = {}
        self._model: tuple[str, tuple[int, int]] | None = None

    def take(self, counters: Counters) -> None:
        """One engine's message. Another model starts everything anew. Raises BadMessage."""
        model = (counters.model_digest, counters.shape)
        if self._model is not None and model != self._model:
            if model[0] == self._model[0]:
                raise BadMessage(f"shape {model[1]} instead of {self._model[1]} for the same model")
            self._series.clear()
        self._model = model
        boot = (counters.engine, counters.boot)
        series = self._series.get(boot)
        if series is None:
            self._series[boot] = Series(counters, from_zero=self._new_life(counters, boot))
            self._boots[boot] = None
        else:
            series.take(counters)

    def _new_life(self, counters: Counters, boot: tuple[str, str]) -> bool:
        """Whether all that this boot counted is new here: we would have heard it before, had it begun before us."""
        if boot in self._boots:
            return False
        return counters.seq == 1 or any(engine == counters.engine for engine, _ in self._boots)

    def close(self, end: float) -> Window | None:
        """End the window; None if no token was routed in it."""
        fresh, lost = self._fresh()
        self.lost += lost
        begin, self._begin = self._begin, end
        if not any(counts.routed.tokens.any() for c in fresh for counts in c.phases.values()):
            return None
        key = max(counters.key for counters in fresh)
        placed = sorted((c for c in fresh if c.key == key), key=lambda c: c.rank)
        return Window(
            key=key,
            ranks=placed[0].ranks,
            model_digest=placed[0].model_digest,
            engines=tuple(sorted({c.engine for c in fresh})),
            routed={phase: _added([c.phases[phase] for c in fresh]) for phase in PHASES},
            executed={phase: _one_of([c.phases[phase] for c in placed]) for phase in PHASES},
            lost=max(0, lost),
            begin=begin,
            end=end,
        )

    def _fresh(self) -> tuple[list[Counters], int]:
        fresh, lost = [], 0
        for boot, series in list(self._series.items()):
            counters, missed = series.close()
            lost += missed
            if counters is not None:
                fresh.append(counters)
            elif series.silent > SILENT_CLOSES:
                del self._series[boot]
        for boot in list(self._boots)[: max(0, len(self._boots) - BOOTS)]:
            del self._boots[boot]
        return fresh, lost


def _added(counts: list[PhaseCounts]) -> Routed:
    """Tokens of all engines; they step together, so the steps are those of the one with most."""
    total = counts[0].routed
    for one in counts[1:]:
        r = one.routed
        total = Routed(
            max(total.steps, r.steps),
            total.tokens + r.tokens,
            total.active_steps + r.active_steps,
            total.timing + r.timing,
        )
    return total


def _one_of(counts: list[PhaseCounts]) -> Executed:
    """The group's costs are the same on every rank: the lowest rank that has any."""
    return next((c.executed for c in counts if c.executed.steps), counts[0].executed)
