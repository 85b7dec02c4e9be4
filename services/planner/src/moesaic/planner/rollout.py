"""What became of the last proposal: at most one placement is on its way. Pure; times are seconds of a steady clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

BACK_OFF_S = 5.0
BACK_OFF_MOST_S = 300.0

Step = Literal["progress", "done", "not mine"]


@dataclass(frozen=True)
class OnTheWay:
    """A stored placement that is not committed yet. `before`: the epoch to go back to."""

    epoch: int
    before: int
    instalments: int
    domain: int
    since: float
    """When it was stored, or last made progress."""
    going_back: bool = False


class Rollout:
    """Idle -> on the way -> committed in all instalments, or refused, or no progress for `timeout_s`."""

    def __init__(self, timeout_s: float) -> None:
        self.on_the_way: OnTheWay | None = None
        self.not_before = 0.0
        self.failures = 0
        self._timeout_s = timeout_s
        self._early: dict[int, str] = {}
        """Refusals of epochs not known yet: an engine may answer before we hear that they are stored."""

    def busy(self, domain: int, now: float) -> str:
        """Why nothing may be proposed now; empty if it may. A changed domain overtakes what is on its way."""
        if now < self.not_before:
            return f"backing off after {self.failures} failures"
        if self.on_the_way is not None and self.on_the_way.domain == domain:
            return f"epoch {self.on_the_way.epoch} is on its way"
        return ""

    def stored(self, on_the_way: OnTheWay) -> None:
        """A placement is in KV."""
        self.on_the_way = on_the_way

    def committed(self, epoch: int, instalment: int, instalments: int, now: float) -> Step:
        """An instalment is live, of `instalments` (0: not told, then of as many as were expected)."""
        mine = self.on_the_way
        if mine is None or mine.epoch != epoch:
            return "not mine"
        if instalment < (instalments or mine.instalments):
            self.on_the_way = replace(mine, since=now)
            return "progress"
        self.on_the_way = None
        if not mine.going_back:
            self.failures, self.not_before = 0, 0.0
        return "done"

    def staged(self, epoch: int, now: float) -> None:
        """A rank has an instalment ready."""
        if self.on_the_way is not None and self.on_the_way.epoch == epoch:
            self.on_the_way = replace(self.on_the_way, since=now)

    def refused(self, epoch: int, reason: str, now: float) -> OnTheWay | None:
        """What was refused, if it was on its way."""
        mine = self.on_the_way
        if mine is not None and mine.epoch == epoch:
            return self.failed(now)
        self._early = {**dict(list(self._early.items())[-15:]), epoch: reason}
        return None

    def expired(self, now: float) -> tuple[OnTheWay, str] | None:
        """What was refused before it was known, or makes no progress any more, and which of the two."""
        mine, due = self.on_the_way, self.deadline
        if mine is None or due is None or now < due:
            return None
        refusal = self._early.get(mine.epoch)
        self.failed(now)
        return mine, f"was refused: {refusal}" if refusal else f"made no progress for {self._timeout_s:g} s"

    def failed(self, now: float) -> OnTheWay | None:
        """The placement on its way, or the one that was committed last, did no good: wait, longer each time."""
        failed, self.on_the_way = self.on_the_way, None
        self.failures += 1
        self.not_before = now + min(BACK_OFF_MOST_S, BACK_OFF_S * 2 ** min(16, self.failures - 1))
        return failed

    @property
    def deadline(self) -> float | None:
        """When the placement on its way is overdue; at once where it was refused already."""
        mine = self.on_the_way
        if mine is None:
            return None
        return mine.since + (0.0 if mine.epoch in self._early else self._timeout_s)

    def hold(self, until: float) -> None:
        """Propose nothing for a while."""
        self.not_before = max(self.not_before, until)

    def start_over(self) -> None:
        """A new generation: what was on its way is void."""
        self.on_the_way, self.failures, self.not_before = None, 0, 0.0
        self._early = {}
