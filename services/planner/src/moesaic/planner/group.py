"""Everything the planner knows of one group. Pure: news and clocks come in. What follows from it is decided in `decide`.

`now` is seconds of a steady clock, `wall` unix seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from moesaic.planner.config import PlannerConfig
from moesaic.planner.cost import Cost, Fit
from moesaic.planner.forecast import Forecast, Memory
from moesaic.planner.journal import Decision, Journal, Kind
from moesaic.planner.live import Live
from moesaic.planner.measured import Trial, Window
from moesaic.planner.memory import Remembered, keep, recall
from moesaic.planner.proposal import ROLL_BACK, Proposal, instalments
from moesaic.planner.rollout import OnTheWay, Rollout
from moesaic.planner.topology import Topology
from moesaic.planner.wishes import Wishes
from moesaic.shared import messages
from moesaic.shared.arrays import Ints, unpack
from moesaic.shared.log import Log
from moesaic.shared.messages import BadMessage, Group, Imbalance, IntArray, Placement, PlacementEvent
from moesaic.shared.placement import PlacementError

FADING = 0.99
"""Of earlier timings, per window."""
COPIES = 1 << 20
"""More experts than that in a group are taken for nonsense."""


@dataclass(frozen=True)
class Failed:
    """A placement that did not come through, and why."""

    was: OnTheWay
    reason: str


class GroupPlanner:
    """One group."""

    def __init__(self, name: str, config: PlannerConfig, log: Log) -> None:
        self.name = name
        self.config = config
        self.live = Live()
        self.load: Forecast | None = None
        self.rollout = Rollout(config.timeout_s)
        self.journal = Journal(log)
        self.trial = Trial(config.worse, config.trial_windows)
        self.timings: dict[str, Fit] = {}
        """What experts took, by phase."""
        self.wishes = Wishes()
        self.paused = False
        self.invalid = 0
        """Targets of the policy that were no valid placement."""
        self._memory = Memory(config.fast_s, config.slow_s, config.same_domain, config.min_tokens)
        self._heard: dict[str, int] = {}
        self.asked_at = -math.inf
        """When the policy was asked last."""
        self.placed: tuple[float, int] = (-math.inf, 0)
        """When the last placement was committed, and the load's domain then."""

    # --- news ------------------------------------------------------------------------------------------------------------

    def on_record(self, record: Group, remembered: Remembered | None) -> None:
        """The group's record; `remembered` where this is the first. Another generation starts over, another model from nothing."""
        before = self.live.record
        same_model = before is not None and _model(before) == _model(record)
        if not same_model:
            self.load = Forecast(self._memory, record.layers, record.experts)
            self.timings = {}
        if before is None or not same_model or before.generation != record.generation:
            self.live.begin(record)
            self.rollout.start_over()
            self.trial.stop()
        else:
            self.live.update(record)
        if remembered is not None and before is None:
            self._remember(remembered, record)

    def _remember(self, remembered: Remembered, record: Group) -> None:
        self.paused = remembered.paused
        self.wishes = Wishes(frozenset(remembered.pinned), frozenset(remembered.forbidden))
        self.load = Forecast.remembered(self._memory, recall(remembered, record))
        inferred, self.live.settled = self.live.settled, []
        for epoch in (*remembered.settled, *inferred):
            self.live.settle(epoch)

    def on_stored(self, revision: int, placement: Placement | None, now: float) -> None:
        """A revision of the group's key in the placements' bucket; perhaps not ours."""
        if self.live.stored(revision, placement) and self.live.confirmed:
            self._follow(revision, now)

    def _follow(self, epoch: int, now: float) -> None:
        """A stored placement that the engines should be going to."""
        on_the_way = self.rollout.on_the_way
        if epoch <= self.live.epoch or (on_the_way is not None and on_the_way.epoch >= epoch):
            return
        placement, record, state = self.live.content(epoch), self.live.record, self.live.state(self.live.epoch)
        steps = 1
        if placement is not None and record is not None and state is not None:
            try:
                steps = instalments(state, placement, record)
            except PlacementError:
                steps = 1  # the engines will refuse it, and say why
        self.rollout.stored(OnTheWay(epoch, self.live.epoch, steps, self.domain, now))

    def on_imbalance(self, window: Imbalance, now: float, wall: float) -> Failed | None:
        """A load window; what failed, where it shows that steps are slower than before the last placement.

        Raises BadMessage where it is not of this group's model.
        """
        record = self.live.record
        if record is None or self.load is None or window.model_digest != record.model_digest:
            raise BadMessage(
                f"a window of model {window.model_digest[:64]!r}, which group {self.name!r} does not serve"
            )
        if self._heard.get(window.source.boot, 0) >= window.source.seq:
            return None
        shape = (record.layers, record.experts)
        tokens, active, steps = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64), 0
        for name, phase in window.phases.items():
            tokens += _counts(phase.tokens, shape)
            active += _counts(phase.active_steps, shape)
            steps += phase.steps
            if phase.timing:
                fit = self.timings.setdefault(name, Fit())
                fit.sums = FADING * fit.sums + Fit.of(phase.timing).sums
        self._heard = {**dict(list(self._heard.items())[-15:]), window.source.boot: window.source.seq}
        self.load.add(tokens, window.end - window.begin, steps, active)
        self._runs(window.generation, window.epoch, window.instalment, 0, now)
        return self._measure(window, now, wall)

    def _measure(self, window: Imbalance, now: float, wall: float) -> Failed | None:
        decode = window.phases.get("decode")
        moving = self.rollout.on_the_way is not None or window.epoch != self.live.epoch
        if moving or decode is None or decode.step_ms is None or not decode.steps:
            return None
        finding = self.trial.add(Window(float(unpack(decode.tokens).sum()) / decode.steps, decode.step_ms))
        if finding is None:
            return None
        self.note("slower" if finding.slower else "kept", str(finding), wall, epoch=finding.epoch)
        before = self.live.before(finding.epoch)
        if not finding.slower or before is None:
            return None
        self.rollout.failed(now)
        return Failed(OnTheWay(finding.epoch, before, 1, self.domain, now), f"epoch {finding.epoch}: {finding}")

    def _runs(self, generation: int, epoch: int, instalment: int, instalments: int, now: float) -> None:
        """An engine runs instalment k of n (n 0: it does not tell); instalment 0: its generation began with it."""
        known = self.live.confirmed
        if not self.live.reported(generation, epoch) or epoch != self.live.epoch:
            return
        if not known:
            self._follow_latest(now)
        if instalment == 0 or self.rollout.committed(epoch, instalment, instalments, now) == "done":
            self._settled(epoch, now)

    def _follow_latest(self, now: float) -> None:
        """After a restart: what is stored may be on its way."""
        record, newest = self.live.record, self.live.content(self.live.latest)
        if record is not None and newest is not None and newest.generation == record.generation:
            self._follow(self.live.latest, now)

    def _settled(self, epoch: int, now: float) -> None:
        if self.live.settled and self.live.settled[-1] == epoch:
            return
        self.live.settle(epoch)
        self.placed = (now, self.domain)
        content = self.live.content(epoch)
        back = content is not None and content.policy == ROLL_BACK
        self.trial.begin(epoch, judged=not back and self.live.before(epoch) is not None)

    def on_event(self, event: PlacementEvent, now: float, wall: float) -> Failed | None:
        """A line of the audit trail; what failed, where it says so of the placement on its way."""
        record = self.live.record
        if record is None or event.generation != record.generation:
            return None
        if event.event == "staged":
            self.rollout.staged(event.epoch, now)
        elif event.event == "committed":
            self._runs(event.generation, event.epoch, event.instalment, event.instalments, now)
            if event.instalment == event.instalments and event.epoch == self.live.epoch:
                self._settled(event.epoch, now)
                self.note("committed", f"in {event.instalments} instalments", wall, epoch=event.epoch)
        elif event.event == "refused" and (was := self.rollout.refused(event.epoch, event.reason, now)) is not None:
            self.note("refused", event.reason, wall, epoch=event.epoch)
            return Failed(was, f"epoch {event.epoch} was refused: {event.reason}")
        return None

    def on_time(self, now: float, wall: float) -> Failed | None:
        """A deadline has come; what failed, where a placement made no progress."""
        expired = self.rollout.expired(now)
        if expired is None:
            return None
        was, why = expired
        self.note("refused" if "refused" in why else "timed_out", why, wall, epoch=was.epoch)
        return Failed(was, f"epoch {was.epoch} {why}")

    def on_own(self, proposal: Proposal, epoch: int, now: float, wall: float) -> None:
        """A proposal of ours is in KV under this epoch."""
        self.live.confirmed = True  # what was planned from
        self.live.stored(epoch, proposal.placement)
        kind: Kind = "rolled_back" if proposal.going_back else "proposed"
        self.note(kind, proposal.placement.reason, wall, proposal.placement.forecast, epoch)
        if self.live.epoch < epoch:  # else committed before we were told that it is stored
            way = OnTheWay(epoch, proposal.before, proposal.instalments, proposal.domain, now, proposal.going_back)
            self.rollout.stored(way)

    # --- small -----------------------------------------------------------------------------------------------------------

    @property
    def domain(self) -> int:
        """Of the load."""
        return self.load.domain if self.load else 0

    def topology(self) -> Topology:
        """Of the ranks, by the nodes that they name."""
        record = self.live.record
        assert record is not None
        gb = 1e9
        return Topology.named(
            [member.node for member in record.members],
            self.config.inside_gb_per_s * gb,
            self.config.across_gb_per_s * gb,
        )

    def cost(self) -> Cost:
        """What a step costs: as measured, where that is wanted and was; else tokens."""
        record = self.live.record
        assert record is not None
        speed = np.array([member.speed for member in record.members], dtype=np.float64)
        fit = self.timings.get("decode")
        fitted = fit.solve(speed) if self.config.cost == "fitted" and fit is not None else None
        return fitted or Cost(speed)

    def remembered(self, wall: float) -> Remembered | None:
        """What should survive a restart."""
        record = self.live.record
        if record is None or self.load is None:
            return None
        return Remembered(
            group=self.name,
            model_digest=record.model_digest,
            slow=keep(self.load.slow),
            settled=tuple(self.live.settled),
            paused=self.paused,
            pinned=tuple(sorted(self.wishes.pinned)),
            forbidden=tuple(sorted(self.wishes.forbidden)),
            at=wall,
        )

    def note(
        self, kind: Kind, reason: str, wall: float, forecast: messages.Forecast | None = None, epoch: int | None = None
    ) -> None:
        """A decision; without an epoch it is about the live one."""
        self.journal.add(Decision(kind, reason, wall, self.live.epoch if epoch is None else epoch, forecast))


def _counts(packed: IntArray, shape: tuple[int, int]) -> Ints:
    counts = unpack(packed)
    if counts.shape != shape or (counts < 0).any():
        raise BadMessage(f"counts of shape {counts.shape} instead of {shape}, or negative")
    return counts


def check_record(record: Group) -> None:
    """Raise BadMessage where a record's numbers cannot be those of a group."""
    numbers = (record.size, record.layers, record.experts, record.slot_bytes)
    if min(numbers) < 1 or record.layers * record.experts > COPIES or record.size * record.layers > COPIES:
        raise BadMessage(f"a group of {record.size} ranks with {record.layers} layers of {record.experts} experts")
    if len(record.members) > record.size or min(record.budget, default=0) < 0:
        raise BadMessage(f"{len(record.members)} members of {record.size}, with slots {record.budget}")


def _model(record: Group) -> tuple[str, int, int]:
    return record.model_digest, record.layers, record.experts
