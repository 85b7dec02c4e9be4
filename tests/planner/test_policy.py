from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moesaic.planner.cost import Cost
from moesaic.planner.policy import Problem, ProblemError, check, named, names
from moesaic.planner.topology import Groups, Topology
from moesaic.shared.placement import check_state, moves, path
from planner.problems import due, even_problem, free_problems, loads, new, state

BASE = even_problem(np.ones((2, 4)), 2, 3)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(free_problems(), st.sampled_from(["static", "eplb", "omni"]))
def test_every_answer_is_valid_or_the_problem_is_refused(asked: Problem, name: str) -> None:
    layers, experts, ranks = asked.shape
    before = asked.live.copy()
    if name == "eplb" and int(asked.slots.min()) // layers * ranks < experts:
        with pytest.raises(ProblemError, match=f"eplb needs {experts} slots"):
            named(name)(asked)
        return
    hold = named(name)(asked)
    check(asked, hold)
    check_state(state(asked, hold), layers=layers, experts=experts, ranks=ranks, slots=asked.slots.tolist())
    assert (asked.live == before).all()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(free_problems(), st.sampled_from(["eplb", "omni"]))
def test_every_instalment_on_the_way_is_a_valid_state(asked: Problem, name: str) -> None:
    layers, experts, ranks = asked.shape
    assume(name == "omni" or int(asked.slots.min()) // layers * ranks >= experts)
    live, target = state(asked, asked.live), state(asked, named(name)(asked))
    slots = (asked.slots + 1).tolist()
    instalments = path(live, target, (), slots)
    for instalment in instalments:
        check_state(instalment, layers=layers, experts=experts, ranks=ranks, slots=slots)
    assert (instalments or [live])[-1] == target
    assert moves(live, target) == int((named(name)(asked) & ~asked.live).sum())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(free_problems(), st.data())
def test_plan_after_plan_stays_valid(asked: Problem, data: st.DataObject) -> None:
    for _ in range(3):
        hold = named("omni")(asked)
        check(asked, hold)
        asked = replace(asked.of(hold), load=data.draw(loads(*asked.load.shape)))
        assert not due(asked)
        assert new(asked, hold) == 0


def test_a_policy_that_is_not_there_is_told_with_those_that_are() -> None:
    assert set(names()) >= {"static", "eplb", "omni"}
    with pytest.raises(LookupError, match=r"no policy 'greedy', there are eplb, omni, static"):
        named("greedy")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"load": np.full((2, 4), np.nan)}, "not a number"),
        ({"load": np.full((2, 4), np.inf)}, "not a number, or infinite"),
        ({"load": np.array([[1.0] * 4, [1.0, 1.0, -2.0, 1.0]])}, "layer 1 expert 2 has a load of -2"),
        ({"load": np.full((2, 4), 1e18)}, r"layer 0 expert 0 has a load of 1e\+18"),
        ({"load": np.ones((2, 5))}, r"the load is \(2, 5\), the live placement \(2, 4, 2\)"),
        ({"load": np.ones(4)}, "the load is"),
        ({"slots": np.array([3, 4])}, "8 experts of 2 layers do not fit in 7 slots"),
        ({"slots": np.array([100, -1])}, "less than no slots"),
        ({"slots": np.array([0, 7])}, "do not fit in 7 slots"),
        ({"slots": np.array([6, 6, 6])}, "slots and speeds are needed for 2 ranks"),
        ({"cost": Cost.tokens(3)}, "slots and speeds are needed for 2 ranks"),
        ({"live": np.zeros((2, 4, 2), dtype=np.bool_)}, "layer 0 expert 0 is nowhere in the live placement"),
        ({"live": np.ones((2, 4, 2), dtype=np.int64)}, r"the live placement is int64 \(2, 4, 2\), not bool"),
        ({"live": np.ones((4, 2), dtype=np.bool_)}, "not bool"),
        ({"live": np.ones((0, 4, 2), dtype=np.bool_), "load": np.ones((0, 4))}, r"is bool \(0, 4, 2\), not"),
        ({"slots": np.array([np.nan, 6.0])}, "slots are whole numbers"),
        ({"may": np.ones((2, 4, 2))}, "may is float64"),
        ({"max_moves": -1}, "-1 moves are less than none"),
        ({"active": np.ones((2, 3))}, "active is"),
        ({"active": np.full((2, 4), np.nan)}, "active is a share of steps"),
        ({"active": np.full((2, 4), 1.5)}, "active is a share of steps"),
        ({"may": np.ones((2, 4, 3), dtype=np.bool_)}, "may is"),
        ({"pinned": np.ones((1, 4, 2), dtype=np.bool_)}, "pinned is"),
        ({"pinned": np.ones((2, 4, 2), dtype=np.bool_)}, "more experts are pinned to a rank than it has slots"),
        ({"topology": Topology(np.array([0, 0, 1]))}, "the topology has 3 ranks"),
        ({"groups": Groups(3, 1)}, "4 experts do not make 3 groups"),
    ],
)
def test_an_impossible_problem_is_refused_with_its_reason(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        replace(BASE, **wrong)  # type: ignore[arg-type] # each is of its field's type


@pytest.mark.parametrize("name", ["static", "eplb", "omni"])
@pytest.mark.parametrize("slots", [9, 10**5, 2**31, 2**40])
def test_slots_that_nothing_needs_stay_empty(name: str, slots: int) -> None:
    asked = replace(BASE, load=BASE.load * np.arange(1, 5), slots=np.array([slots, slots]))
    hold = named(name)(asked)
    check(asked, hold)


def test_copies_that_may_be_nowhere_or_are_pinned_elsewhere_are_refused() -> None:
    may = np.ones((2, 4, 2), dtype=np.bool_)
    may[1, 2] = False
    wide = replace(BASE, slots=np.array([8, 8]))
    with pytest.raises(ProblemError, match="layer 1 expert 2 may be nowhere"):
        replace(wide, may=may)
    may[1, 2, 0] = True
    pinned = np.zeros((2, 4, 2), dtype=np.bool_)
    pinned[1, 2, 1] = True
    with pytest.raises(ProblemError, match="layer 1 expert 2 is pinned to rank 1, where it may not be"):
        replace(wide, may=may, pinned=pinned)


def test_an_answer_that_breaks_a_rule_is_told() -> None:
    lost, full = BASE.live.copy(), np.ones((2, 4, 2), dtype=np.bool_)
    lost[1, 3] = False
    only = np.zeros((2, 4, 2), dtype=np.bool_)
    only[:, :, 0] = True
    wide = replace(BASE, slots=np.array([8, 8]))
    with pytest.raises(ProblemError, match="layer 1 expert 3 is homeless"):
        check(BASE, lost)
    with pytest.raises(ProblemError, match="rank 0 would need 8 slots, it has 6"):
        check(BASE, full)
    with pytest.raises(ProblemError, match="layer 0 expert 0 may not be on rank 1"):
        check(replace(wide, may=only), full)
    with pytest.raises(ProblemError, match="is pinned to rank 0"):
        check(replace(wide, pinned=only), BASE.live)
    with pytest.raises(ProblemError, match="the answer is int64"):
        check(BASE, BASE.live.astype(np.int64))
