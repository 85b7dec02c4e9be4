"""What to do with a group: ask the policy or not, take its answer or not, go back. Pure; every answer is kept in the journal.

`now` is seconds of a steady clock, `wall` unix seconds. `forced`: a person asks, so pause, interval, few tokens and a small
gain are not in the way; only what would be invalid is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from moesaic.planner.config import PlannerConfig
from moesaic.planner.gate import Terms, Verdict, judge
from moesaic.planner.group import Failed, GroupPlanner
from moesaic.planner.journal import Kind
from moesaic.planner.layout import hold_of, state_of
from moesaic.planner.policy import Hold, Problem, ProblemError, check
from moesaic.planner.predict import drawn, shared_out
from moesaic.planner.proposal import ROLL_BACK, Expected, Proposal, Question, expected, instalments
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
    hold = hold_of(state, record.experts)
    wishes = group.wishes.within(*hold.shape)
    try:
        problem = Problem(
            load=load.per_step(),
            live=hold,
            slots=np.array(record.budget, dtype=np.int64),
            cost=group.cost(),
            active=load.active(),
            max_moves=group.config.max_moves or None,
            may=wishes.may(hold.shape),
            pinned=wishes.must(hold.shape),
            topology=group.topology(),
        )
    except ProblemError as error:
        return _noted(group, No("impossible", str(error)), wall)
    steps = drawn(problem.load, spread=load.spread())
    return Question(problem, state, steps, record, group.live.epoch, group.live.latest, load.domain)


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
    if group.load is None or not (group.load.seen > 0 or group.wishes):
        return No("load_unknown", "no load has been seen")
    return None


def due(group: GroupPlanner) -> bool:
    """Whether what is live breaks an order, so that something has to move whatever it gains."""
    record, state = group.live.record, group.live.state(group.live.epoch)
    if record is None or state is None or not group.wishes:
        return False
    hold = hold_of(state, record.experts)
    wishes = group.wishes.within(*hold.shape)
    may, must = wishes.may(hold.shape), wishes.must(hold.shape)
    return bool((may is not None and (hold & ~may).any()) or (must is not None and (must & ~hold).any()))


def _under_way(group: GroupPlanner) -> No | None:
    mine = group.rollout.on_the_way
    return No("on_the_way", f"epoch {mine.epoch} is on its way") if mine else None


def _should_not(group: GroupPlanner, now: float) -> No | None:
    load, config = group.load, group.config
    assert load is not None
    if group.paused:
        return No("paused", "paused by hand")
    if not load.enough and not due(group):
        return No("few_tokens", f"{load.seen:.1f} tokens per expert, {config.min_tokens:g} are needed")
    if now - group.asked_at < config.interval_ms / 1e3:
        return No("too_soon", f"less than {config.interval_ms} ms after the last plan")
    busy = group.rollout.busy(load.domain, now)
    return No("on_the_way", busy) if busy else None


def draft(group: GroupPlanner, asked: Question, hold: Hold, now: float, wall: float) -> Draft | No:
    """The policy's answer as a placement, checked and judged."""
    record, live = group.live.record, group.live
    moved_on = record is None or record.generation != asked.record.generation
    if moved_on or (live.epoch, live.latest) != (asked.epoch, asked.latest):
        return _noted(group, No("overtaken", "the group has changed meanwhile"), wall)
    try:
        check(asked.problem, hold)
    except ProblemError as error:
        return _invalid(group, str(error), wall)
    if (hold == asked.problem.live).all():
        return _noted(group, No("best_already", "the policy finds nothing better"), wall)
    try:
        proposal, outcome = _propose(group, asked, hold, wall)
    except PlacementError as error:
        return _invalid(group, str(error), wall)
    at, domain = group.placed
    settled_for = now - at if domain == asked.domain else math.inf
    verdict = judge(
        outcome.now, outcome.then, outcome.moving_s, proposal.instalments, _terms(group.config), settled_for
    )
    if not verdict.go and due(group):
        verdict = replace(verdict, go=True, reason="what is live breaks an order")
    return Draft(proposal, outcome, verdict)


def answer(group: GroupPlanner, asked: Question, hold: Hold, now: float, wall: float, *, forced: bool) -> Proposal | No:
    """What to store, if anything."""
    made = draft(group, asked, hold, now, wall)
    if isinstance(made, No) or made.verdict.go or forced:
        return made if isinstance(made, No) else made.proposal
    return _noted(group, No("not_worth", made.verdict.reason), wall, made.expected.forecast)


def _invalid(group: GroupPlanner, why: str, wall: float) -> No:
    group.invalid += 1
    return _noted(group, No("invalid", f"policy {group.config.policy!r} made an invalid placement: {why}"), wall)


def _propose(group: GroupPlanner, asked: Question, hold: Hold, wall: float) -> tuple[Proposal, Expected]:
    shares = shared_out(asked.problem.load, hold, asked.problem.cost)
    placement = _placement(group, state_of(hold, shares), group.config.policy, wall)
    outcome = expected(asked, hold, shares, group.topology())
    now, then = outcome.now.balance, outcome.then.balance
    placement = msgspec.structs.replace(
        placement,
        order=outcome.order,
        forecast=outcome.forecast,
        reason=f"balance {now:.3f} to {then:.3f} with {outcome.moves} copies",
    )
    steps = instalments(asked.live, placement, asked.record)
    return Proposal(placement, asked.latest, asked.epoch, steps, asked.domain), outcome


def back_to(group: GroupPlanner, epoch: int, reason: str, wall: float) -> Proposal | No:
    """An earlier content, to be stored as a new epoch."""
    record, state, live = group.live.record, group.live.state(epoch), group.live.state(group.live.epoch)
    if record is None or not record.formed:
        return No("not_formed", "the group is not complete")
    if state is None or live is None:
        return No("live_unknown", f"the content of epoch {epoch} is not known or does not fit this group")
    placement = _placement(group, state, ROLL_BACK, wall, reason)
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
    return Terms(config.min_gain, config.settle_s, config.horizon_s, config.drag, config.stall_ms / 1e3)


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
