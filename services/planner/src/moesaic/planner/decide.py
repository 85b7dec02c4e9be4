"""What to do with a group: ask the policy or not, take its answer or not, go back. Pure; every answer is kept in the journal.

`now` is seconds of a steady clock, `wall` unix seconds. `forced`: a person asks, so pause, interval, few tokens and a small
gain are not in the way; only what would be invalid is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from moesaic.planner.config import PlannerConfig
from moesaic.planner.gate import Terms, Verdict, judge
from moesaic.planner.group import Failed, GroupPlanner
from moesaic.planner.journal import Kind
from moesaic.planner.policy import Problem
from moesaic.planner.proposal import Expected, Proposal, Question, expected, instalments
from moesaic.shared.messages import Forecast, Placement
from moesaic.shared.placement import PlacementError, State


@dataclass(frozen=True)
class No:
    """Nothing to do, and why."""

    kind: Kind
    reason: str


@dataclass(frozen=True)
class Draft:
    """A valid placement, what it would do, and whether that is worth it."""

    proposal: Proposal
    expected: Expected
    verdict: Verdict


def question(group: GroupPlanner, now: float, wall: float, *, forced: bool) -> Question | No:
    """What to ask the policy now."""
    no = _cannot(group) or (_under_way(group) if forced else _should_not(group, now))
    if no is not None:
        return no if forced else _noted(group, no, wall)
    record, load, state = group.live.record, group.load, group.live.state(group.live.epoch)
    assert record is not None
    assert load is not None
    assert state is not None
    group.asked_at = now
    problem = Problem(load.counts(), state, record.budget, group.config.max_moves)
    return Question(problem, record, group.live.epoch, group.live.latest, load.domain)


def _cannot(group: GroupPlanner) -> No | None:
    """What no person can overrule."""
    record, live = group.live.record, group.live
    if record is None or not record.formed:
        return No("not_formed", "the group is not complete")
    if record.size < 2:
        return No("one_rank", "a single rank has nothing to balance")
    if live.unknown is not None or live.state(live.epoch) is None:
        epoch = live.epoch if live.unknown is None else live.unknown
        return No("live_unknown", f"the content of live epoch {epoch} is not known")
    if group.load is None or not group.load.counts().any():
        return No("load_unknown", "no load has been seen")
    return None


def _under_way(group: GroupPlanner) -> No | None:
    mine = group.rollout.on_the_way
    return No("on_the_way", f"epoch {mine.epoch} is on its way") if mine else None


def _should_not(group: GroupPlanner, now: float) -> No | None:
    load, config = group.load, group.config
    assert load is not None
    if group.paused:
        return No("paused", "paused by hand")
    if not load.enough:
        return No("few_tokens", f"{load.seen:.1f} tokens per expert, {config.min_tokens:g} are needed")
    if now - group.asked_at < config.interval_ms / 1e3:
        return No("too_soon", f"less than {config.interval_ms} ms after the last plan")
    busy = group.rollout.busy(load.domain, now)
    return No("on_the_way", busy) if busy else None


def draft(group: GroupPlanner, asked: Question, target: State, now: float, wall: float) -> Draft | No:
    """The policy's target as a placement, checked and judged."""
    record, live = group.live.record, group.live
    moved_on = record is None or record.generation != asked.record.generation
    if moved_on or (live.epoch, live.latest) != (asked.epoch, asked.latest):
        return _noted(group, No("overtaken", "the group has changed meanwhile"), wall)
    if target == asked.problem.live:
        return _noted(group, No("best_already", "the policy finds nothing better"), wall)
    try:
        proposal, outcome = _propose(group, asked, target, wall)
    except PlacementError as error:
        group.invalid += 1
        reason = f"policy {group.config.policy!r} made an invalid placement: {error}"
        return _noted(group, No("invalid", reason), wall)
    at, domain = group.placed
    settled_for = now - at if domain == asked.domain else math.inf
    verdict = judge(outcome.now, outcome.then, outcome.bytes, _terms(group.config), settled_for)
    return Draft(proposal, outcome, verdict)


def answer(
    group: GroupPlanner, asked: Question, target: State, now: float, wall: float, *, forced: bool
) -> Proposal | No:
    """What to store, if anything."""
    made = draft(group, asked, target, now, wall)
    if isinstance(made, No) or made.verdict.go or forced:
        return made if isinstance(made, No) else made.proposal
    return _noted(group, No("not_worth", made.verdict.reason), wall, made.expected.forecast)


def _propose(group: GroupPlanner, asked: Question, target: State, wall: float) -> tuple[Proposal, Expected]:
    placement = _placement(group, target, group.config.policy, wall)
    instalments(asked.problem.live, placement, asked.record)  # raises before anything is computed from it
    outcome = expected(asked, target)
    now, then = outcome.now.balance, outcome.then.balance
    placement = msgspec.structs.replace(
        placement,
        order=outcome.order,
        forecast=outcome.forecast,
        reason=f"balance {now:.3f} to {then:.3f} with {outcome.moves} copies",
    )
    steps = instalments(asked.problem.live, placement, asked.record)
    return Proposal(placement, asked.latest, asked.epoch, steps, asked.domain), outcome


def back_to(group: GroupPlanner, epoch: int, reason: str, wall: float) -> Proposal | No:
    """An earlier content, to be stored as a new epoch."""
    record, state, live = group.live.record, group.live.state(epoch), group.live.state(group.live.epoch)
    if record is None or not record.formed:
        return No("not_formed", "the group is not complete")
    if state is None or live is None:
        return No("live_unknown", f"the content of epoch {epoch} is not known or does not fit this group")
    placement = _placement(group, state, "roll back", wall, reason)
    try:
        steps = instalments(live, placement, record)
    except PlacementError as error:
        return No("invalid", str(error))
    return Proposal(placement, group.live.latest, epoch, steps, group.domain, going_back=True)


def way_back(group: GroupPlanner, failed: Failed, wall: float) -> Proposal | None:
    """To what was live before; None where that itself has failed, or cannot be."""
    if failed.was.going_back:
        return None  # the engines do not even take what they had: wait for news
    proposal = back_to(group, failed.was.before, failed.reason, wall)
    if isinstance(proposal, No):
        _noted(group, No(proposal.kind, f"cannot go back: {proposal.reason}"), wall)
        return None
    return proposal


def _terms(config: PlannerConfig) -> Terms:
    return Terms(config.min_gain, config.settle_s, config.horizon_s, config.move_mb_per_s * 1e6)


def _noted(group: GroupPlanner, no: No, wall: float, forecast: Forecast | None = None) -> No:
    group.note(no.kind, no.reason, wall, forecast)
    return no


def _placement(group: GroupPlanner, state: State, policy: str, wall: float, reason: str = "") -> Placement:
    record = group.live.record
    assert record is not None
    return Placement(
        group=group.name,
        generation=record.generation,
        model_digest=record.model_digest,
        layers=state,
        policy=policy,
        reason=reason,
        at=wall,
    )
