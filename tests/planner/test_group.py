from __future__ import annotations

import msgspec
import pytest

from moesaic.planner import decide
from moesaic.planner.config import PlannerConfig
from moesaic.planner.decide import No
from moesaic.planner.group import GroupPlanner, check_record
from moesaic.planner.policy.greedy import greedy
from moesaic.planner.proposal import Proposal, Question
from moesaic.shared import log
from moesaic.shared.messages import BadMessage, Group, Placement, PlacementEvent, PlacementEventName, Source
from moesaic.shared.placement import State, in_order, layer_of
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
    proposal = decide.answer(planner, question, greedy(question.problem), now, now, forced=False)
    assert isinstance(proposal, Proposal)
    planner.on_own(proposal, epoch, now, now)
    return proposal


def refusal(planner: GroupPlanner, now: float = 0.0, *, forced: bool = False) -> str:
    no = decide.question(planner, now, now, forced=forced)
    assert isinstance(no, No)
    return no.kind


def test_a_skewed_load_leads_to_a_placement_with_its_forecast() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0)
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
    planner.on_imbalance(window(skewed(scale=1), 1), 0.0)
    assert refusal(planner) == "few_tokens"
    planner.on_imbalance(window(skewed(), 2), 0.0)
    planner.paused = True
    assert refusal(planner) == "paused"
    assert isinstance(decide.question(planner, 0.0, 0.0, forced=True), Question)
    planner.paused = False
    assert refusal(planner, 1.0) == "too_soon"


def test_one_placement_at_a_time_until_its_last_instalment() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0)
    proposed(planner, 1)
    planner.on_event(event("committed", 1, 1, 2), 1.0, 1.0)
    assert refusal(planner, 5.0) == "on_the_way"
    planner.on_event(event("committed", 1, 2, 2), 6.0, 6.0)
    assert (planner.live.epoch, planner.live.settled) == (1, [0, 1])
    asked(planner, 7.0)


def test_windows_tell_of_a_commit_whose_event_was_lost() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0)
    steps = proposed(planner, 1).instalments
    planner.on_imbalance(window(skewed(), 2, epoch=1, instalment=steps), 3.0)
    assert planner.rollout.on_the_way is None
    assert planner.live.settled == [0, 1]


def test_a_steady_load_is_proposed_for_once() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0)
    proposed(planner, 1)
    planner.on_event(event("committed", 1), 1.0, 1.0)
    planner.on_imbalance(window(skewed(), 2, epoch=1, instalment=1), 5.0)
    question = asked(planner, 5.0)
    no = decide.answer(planner, question, greedy(question.problem), 5.0, 5.0, forced=False)
    assert isinstance(no, No)
    assert no.kind == "best_already"


def test_a_refused_placement_leads_back_to_what_is_live() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0)
    proposed(planner, 1)
    failed = planner.on_event(event("refused", 1), 1.0, 1.0)
    assert failed is not None
    back = decide.way_back(planner, failed, 1.0)
    assert back is not None
    assert (back.placement.layers, back.over) == (in_order(2, 8, 2), 1)
    assert "because" in back.placement.reason


def test_a_refused_way_back_is_not_tried_again() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0)
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
    planner.on_imbalance(window(skewed(), 1), 0.0)
    proposed(planner, 1)
    assert planner.on_time(29.0, 29.0) is None
    failed = planner.on_time(30.0, 30.0)
    assert failed is not None
    assert "no progress" in failed.reason


def test_a_placement_stored_by_somebody_else_is_followed() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0)
    stranger = Placement(group="g", generation=1, model_digest="m", layers=in_order(2, 8, 2)[::-1])
    planner.on_stored(4, stranger, 0.0)
    assert refusal(planner, 5.0) == "on_the_way"
    assert planner.on_event(event("refused", 4), 6.0, 6.0) is not None


def test_an_answer_to_an_old_question_is_not_used() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0)
    question = asked(planner)
    planner.on_record(record(generation=2), None)
    no = decide.answer(planner, question, greedy(question.problem), 0.0, 0.0, forced=False)
    assert isinstance(no, No)
    assert no.kind == "overtaken"


BROKEN: list[State] = [
    (),
    in_order(1, 8, 2),
    in_order(2, 7, 2),
    in_order(2, 8, 3),
    (layer_of([[0, 1, 2, 3], [4, 5, 6]]),) * 2,
    (layer_of([[0, 0, 1, 2, 3], [4, 5, 6, 7]]),) * 2,
    (layer_of([range(8), range(8)]),) * 2,
]


@pytest.mark.parametrize("target", BROKEN)
def test_an_invalid_answer_of_a_policy_is_never_proposed(target: State) -> None:
    planner = group(record(extra=0))
    planner.on_imbalance(window(skewed(), 1), 0.0)
    no = decide.answer(planner, asked(planner), target, 0.0, 0.0, forced=True)
    assert isinstance(no, No)
    assert (no.kind, planner.invalid) == ("invalid", 1)


def test_a_window_of_another_model_or_shape_is_refused_and_one_of_an_old_generation_counts() -> None:
    planner = group(record(generation=2))
    for bad in (window(skewed(), 1, digest="x"), window(skewed(experts=4), 1)):
        with pytest.raises(BadMessage):
            planner.on_imbalance(bad, 0.0)
    planner.on_imbalance(window(skewed(), 1), 0.0)
    assert planner.load is not None
    assert planner.load.enough
    assert not planner.live.confirmed


def test_a_repeated_window_counts_once() -> None:
    planner = group()
    for _ in range(2):
        planner.on_imbalance(window(skewed(), 1), 0.0)
    assert planner.load is not None
    assert planner.load.counts()[0, 0] == skewed()[0, 0]


def test_what_is_remembered_comes_back_and_of_another_model_does_not() -> None:
    planner = group()
    planner.on_imbalance(window(skewed(), 1), 0.0)
    remembered = planner.remembered(0.0)
    fresh = GroupPlanner("g", CONFIG, log.get("test"))
    fresh.on_record(record(generation=2), remembered)
    assert fresh.load is not None
    assert (fresh.load.counts() == skewed()).all()
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
