from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from moesaic.planner import decide
from moesaic.planner.config import PlannerConfig
from moesaic.planner.cost import Fit
from moesaic.planner.decide import No
from moesaic.planner.group import Failed, GroupPlanner, check_record
from moesaic.planner.policy import Hold
from moesaic.planner.policy.omni import omni
from moesaic.planner.proposal import Proposal, Question
from moesaic.planner.wishes import Wishes
from moesaic.shared import log
from moesaic.shared.messages import BadMessage, Group, Placement, PlacementEvent, PlacementEventName, Source
from moesaic.shared.placement import in_order, used
from planner.samples import record, skewed, window

CONFIG = PlannerConfig()


def group(of: Group | None = None) -> GroupPlanner:
    planner = GroupPlanner("g", CONFIG, log.get("test"))
    planner.on_record(of or record(), None)
    return planner


def event(name: PlacementEventName, epoch: int, instalment: int = 1, of: int = 1) -> PlacementEvent:
    return PlacementEvent(
        event=name,
        source=Source(producer="e0", boot="b", seq=1),
        at=0.0,
        group="g",
        generation=1,
        epoch=epoch,
        instalment=instalment,
        instalments=of,
        reason="because",
    )


def asked(planner: GroupPlanner, now: float = 0.0) -> Question:
    question = decide.question(planner, now, now, forced=False)
    assert isinstance(question, Question)
    return question


def proposed(planner: GroupPlanner, epoch: int, now: float = 0.0) -> Proposal:
    """As far as KV."""
    question = asked(planner, now)
    proposal = decide.answer(planner, question, omni(question.problem), now, now, forced=False)
    assert isinstance(proposal, Proposal)
    planner.on_own(proposal, epoch, now, now)
    return proposal


def refusal(planner: GroupPlanner, now: float = 0.0, *, forced: bool = False) -> str:
    no = decide.question(planner, now, now, forced=forced)
    assert isinstance(no, No)
    return no.kind


def test_a_skewed_load_leads_to_a_placement_with_its_forecast() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    forecast = proposed(planner, 1).placement.forecast
    assert forecast is not None
    assert forecast.balance_next > forecast.balance_now + 0.2
    assert forecast.bytes == forecast.moves * 1000


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (record(ranks=1), "one_rank"),
        (msgspec.structs.replace(record(), store=""), "not_formed"),
        (record(), "load_unknown"),
    ],
)
def test_some_groups_cannot_be_planned_even_by_force(of: Group, kind: str) -> None:
    assert refusal(group(of), forced=True) == kind


def test_few_tokens_a_pause_and_the_interval_stop_planning_but_not_force() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(scale=1), 1), 0.0, 0.0)
    assert refusal(planner) == "few_tokens"
    planner.on_imbalance(window(skewed(), 2), 0.0, 0.0)
    planner.paused = True
    assert refusal(planner) == "paused"
    assert isinstance(decide.question(planner, 0.0, 0.0, forced=True), Question)
    planner.paused = False
    assert refusal(planner, 1.0) == "too_soon"


def test_one_placement_at_a_time_until_its_last_instalment() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    proposed(planner, 1)
    planner.on_event(event("committed", 1, 1, 2), 1.0, 1.0)
    assert refusal(planner, 5.0) == "on_the_way"
    planner.on_event(event("committed", 1, 2, 2), 6.0, 6.0)
    assert (planner.live.epoch, planner.live.settled) == (1, [0, 1])
    asked(planner, 7.0)


def test_windows_tell_of_a_commit_whose_event_was_lost() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    steps = proposed(planner, 1).instalments
    planner.on_imbalance(window(skewed(), 2, epoch=1, instalment=steps), 3.0, 3.0)
    assert planner.rollout.on_the_way is None
    assert planner.live.settled == [0, 1]


def test_a_steady_load_is_proposed_for_once() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    proposed(planner, 1)
    planner.on_event(event("committed", 1), 1.0, 1.0)
    planner.on_imbalance(window(skewed(), 2, epoch=1, instalment=1), 5.0, 5.0)
    question = asked(planner, 5.0)
    no = decide.answer(planner, question, omni(question.problem), 5.0, 5.0, forced=False)
    assert isinstance(no, No)
    assert no.kind == "best_already"


def test_a_refused_placement_leads_back_to_what_is_live() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    proposed(planner, 1)
    failed = planner.on_event(event("refused", 1), 1.0, 1.0)
    assert failed is not None
    back = decide.way_back(planner, failed, 1.0)
    assert back is not None
    assert (back.placement.layers, back.over) == (in_order(2, 8, 2), 1)
    assert "because" in back.placement.reason


def test_a_refused_way_back_is_not_tried_again() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    proposed(planner, 1)
    failed = planner.on_event(event("refused", 1), 1.0, 1.0)
    assert failed is not None
    back = decide.way_back(planner, failed, 1.0)
    assert back is not None
    planner.on_own(back, 2, 1.0, 1.0)
    again = planner.on_event(event("refused", 2), 2.0, 2.0)
    assert again is not None
    assert decide.way_back(planner, again, 2.0) is None


def test_a_placement_that_makes_no_progress_leads_back_too() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    proposed(planner, 1)
    assert planner.on_time(29.0, 29.0) is None
    failed = planner.on_time(30.0, 30.0)
    assert failed is not None
    assert "no progress" in failed.reason


def test_a_placement_stored_by_somebody_else_is_followed() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    stranger = Placement(group="g", generation=1, model_digest="m", layers=in_order(2, 8, 2)[::-1])
    planner.on_stored(4, stranger, 0.0)
    assert refusal(planner, 5.0) == "on_the_way"
    assert planner.on_event(event("refused", 4), 6.0, 6.0) is not None


def test_an_answer_to_an_old_question_is_not_used() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    question = asked(planner)
    planner.on_record(record(generation=2), None)
    no = decide.answer(planner, question, omni(question.problem), 0.0, 0.0, forced=False)
    assert isinstance(no, No)
    assert no.kind == "overtaken"


def homeless(live: Hold) -> Hold:
    left: Hold = live & (np.arange(live.shape[1]) != 3)[None, :, None]
    return left


BROKEN: list[Callable[[Hold], Hold]] = [
    lambda live: live[:1],
    lambda live: live[:, :7],
    lambda live: np.repeat(live, 2, axis=2)[:, :, :3],
    lambda live: live.astype(np.int64),
    homeless,
    np.ones_like,
]


@pytest.mark.parametrize("broken", BROKEN)
def test_an_invalid_answer_of_a_policy_is_never_proposed(broken: Callable[[Hold], Hold]) -> None:
    planner = group(record(extra=0))
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    question = asked(planner)
    no = decide.answer(planner, question, broken(question.problem.live), 0.0, 0.0, forced=True)
    assert isinstance(no, No)
    assert (no.kind, planner.invalid) == ("invalid", 1)


def test_a_window_of_another_model_or_shape_is_refused_and_one_of_an_old_generation_counts() -> None:
    planner = group(record(generation=2))
    for bad in (window(skewed(), 1, digest="x"), window(skewed(experts=4), 1)):
        with pytest.raises(BadMessage):
            planner.on_imbalance(bad, 0.0, 0.0)
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    assert planner.load is not None
    assert planner.load.enough
    assert not planner.live.confirmed


def test_a_repeated_window_counts_once() -> None:
    planner = group()
    for _ in range(2):
        planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    assert planner.load is not None
    assert planner.load.slow[0, 0] == skewed()[0, 0]


def test_what_is_remembered_comes_back_and_of_another_model_does_not() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    remembered = planner.remembered(0.0)
    fresh = GroupPlanner("g", CONFIG, log.get("test"))
    fresh.on_record(record(generation=2), remembered)
    assert fresh.load is not None
    assert (fresh.load.slow == skewed()).all()
    other = GroupPlanner("g", CONFIG, log.get("test"))
    with pytest.raises(BadMessage, match="another model"):
        other.on_record(msgspec.structs.replace(record(), model_digest="x"), remembered)


def test_decisions_not_to_move_are_kept_once_with_their_number() -> None:
    planner = group()
    for _ in range(3):
        refusal(planner)
    last = planner.journal.shown()[0]
    assert (last["kind"], last["times"]) == ("load_unknown", 3)


@pytest.mark.parametrize("fields", [{"layers": 0}, {"experts": 10**9}, {"size": 1}, {"slot_bytes": -1}])
def test_a_record_with_impossible_numbers_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(BadMessage):
        check_record(msgspec.structs.replace(record(), **fields))


def settled(planner: GroupPlanner, epoch: int) -> None:
    """A placement on trial, with four windows of 10 ms before it."""
    for seq in range(1, 5):
        planner.on_imbalance(window(skewed(), seq, step_ms=10.0), 0.0, 0.0)
    proposed(planner, epoch)
    planner.on_event(event("committed", epoch), 1.0, 1.0)


def measured(planner: GroupPlanner, epoch: int, step_ms: float) -> Failed | None:
    found = None
    for seq in range(5, 20):
        found = found or planner.on_imbalance(
            window(skewed(), seq, epoch=epoch, instalment=1, step_ms=step_ms), 2.0, 2.0
        )
    return found


def test_a_placement_that_makes_steps_slower_is_taken_back() -> None:
    planner = group()
    settled(planner, 1)
    failed = measured(planner, 1, 13.0)
    assert failed is not None
    assert "1.30 times" in failed.reason
    back = decide.way_back(planner, failed, 3.0)
    assert back is not None
    assert back.placement.layers == in_order(2, 8, 2)
    assert refusal(planner, 3.0) == "on_the_way"  # it waits before it tries again


def test_a_placement_that_makes_steps_no_slower_is_kept_and_told() -> None:
    planner = group()
    settled(planner, 1)
    assert measured(planner, 1, 9.0) is None
    assert [d["reason"] for d in planner.journal.shown() if d["kind"] == "kept"] == [
        "steps take 0.90 times what they took before, over 12 windows"
    ]


def test_a_forbidden_rank_is_emptied_whatever_it_gains() -> None:
    planner = group(record(ranks=3, extra=8))
    planner.on_imbalance(window(np.full((2, 8), 100), 1), 0.0, 0.0)
    planner.wishes = Wishes(frozenset({(1, 0, 2)}), frozenset({1}))
    proposal = proposed(planner, 1)
    assert used(proposal.placement.layers, 1) == 0
    assert 0 in proposal.placement.layers[1].experts[2]


def test_orders_that_leave_too_little_room_are_impossible_not_fatal() -> None:
    planner = group(record(extra=0))
    planner.on_imbalance(window(skewed(), 1), 0.0, 0.0)
    planner.wishes = Wishes(frozenset(), frozenset({1}))
    assert refusal(planner) == "impossible"
    assert "do not fit in 8 slots" in planner.journal.shown()[0]["reason"]


def test_a_fitted_cost_is_used_where_it_is_wanted() -> None:
    planner = GroupPlanner("g", PlannerConfig(cost="fitted"), log.get("test"))
    planner.on_record(record(), None)
    fit = Fit()
    draw = np.random.default_rng(0)
    experts, tokens = draw.integers(1, 9, 50), draw.integers(10, 200, 50)
    fit.add(experts, tokens, 0.5 + 0.1 * experts + 0.01 * tokens)
    timing = tuple(fit.sums[np.triu_indices(4)].tolist())
    assert planner.cost().unit == "tokens"
    planner.on_imbalance(window(skewed(), 1, timing=timing), 0.0, 0.0)
    cost = planner.cost()
    assert (round(cost.fixed, 3), round(cost.expert, 3), round(cost.token, 4), cost.unit) == (0.5, 0.1, 0.01, "ms")
    assert asked(planner).problem.cost.unit == "ms"


def test_what_went_back_is_not_judged_but_is_what_the_next_placement_is_compared_with() -> None:
    planner = group()
    settled(planner, 1)
    failed = measured(planner, 1, 13.0)
    assert failed is not None
    back = decide.way_back(planner, failed, 3.0)
    assert back is not None
    planner.on_own(back, 2, 3.0, 3.0)
    planner.on_event(event("committed", 2), 3.0, 3.0)
    assert planner.trial.epoch is None
    for seq in range(20, 24):
        planner.on_imbalance(window(skewed(), seq, epoch=2, instalment=1, step_ms=20.0), 4.0, 4.0)
    proposed(planner, 3, 100.0)
    planner.on_event(event("committed", 3), 101.0, 101.0)
    for seq in range(24, 40):
        assert (
            planner.on_imbalance(window(skewed(), seq, epoch=3, instalment=1, step_ms=20.0), 102.0, 102.0) is None
        )  # 20 ms is much by the windows of epoch 1, but as before by those of epoch 2
    assert "1.00 times" in next(d["reason"] for d in planner.journal.shown() if d["kind"] == "kept")
