from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.policy import POLICIES, Problem
from moesaic.planner.policy.greedy import greedy
from moesaic.planner.predict import outlook
from moesaic.shared.arrays import Ints
from moesaic.shared.placement import State, check_state, in_order, layer_of, moves, path, used
from planner.samples import problem, skewed


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Any small one: divisible or not, layers without load, from none to plenty of room, few or many moves."""
    layers, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    experts = draw(st.integers(ranks, 12))
    count = st.one_of(st.just(0), st.integers(0, 30), st.integers(0, 1000))
    counts = draw(st.lists(st.lists(count, min_size=experts, max_size=experts), min_size=layers, max_size=layers))
    moves_allowed = draw(st.sampled_from([1, 4, 1000]))
    return problem(np.array(counts), ranks=ranks, extra=draw(st.integers(0, 6)), max_moves=moves_allowed)


def valid(asked: Problem, state: State) -> None:
    layers, experts = asked.load.shape
    check_state(state, layers=layers, experts=experts, ranks=len(asked.budget), slots=asked.budget)


def cost(asked: Problem, state: State) -> int:
    return outlook(asked.load, state).cost


def again(asked: Problem, state: State, load: Ints | None = None) -> Problem:
    return Problem(asked.load if load is None else load, state, asked.budget, asked.max_moves)


@pytest.mark.parametrize("name", ["static", "greedy"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems())
def test_every_placement_is_valid_and_moves_no_more_than_allowed(name: str, asked: Problem) -> None:
    target = POLICIES[name](asked)
    valid(asked, target)
    assert moves(asked.live, target) <= asked.max_moves


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems())
def test_no_placement_predicts_worse_than_the_live_one(asked: Problem) -> None:
    assert cost(asked, greedy(asked)) <= cost(asked, asked.live)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems())
def test_room_for_replicas_predicts_no_worse_than_none(asked: Problem) -> None:
    none = Problem(asked.load, asked.live, tuple(used(asked.live, r) for r in range(len(asked.budget))), 1000)
    more = Problem(asked.load, asked.live, asked.budget, 1000)
    assert cost(asked, greedy(more)) <= cost(asked, greedy(none)) * 1.02  # a greedy climb may end on a lower hill


@settings(max_examples=60, deadline=None, derandomize=True)
@given(problems())
def test_a_steady_load_moves_nothing_after_the_first_plan(asked: Problem) -> None:
    asked = Problem(asked.load, asked.live, asked.budget, 1000)
    target = greedy(asked)
    assert greedy(again(asked, target)) == target


@settings(max_examples=30, deadline=None, derandomize=True)
@given(problems(), st.integers(0, 2**32 - 1))
def test_plan_after_plan_stays_valid_and_can_be_reached(asked: Problem, seed: int) -> None:
    noise = np.random.default_rng(seed)
    for _ in range(3):
        target = greedy(asked)
        valid(asked, target)
        path(asked.live, target, (), [slots + 1 for slots in asked.budget])
        asked = again(asked, target, noise.permuted(asked.load, axis=1))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_skewed_load_becomes_balanced(ranks: int) -> None:
    asked = problem(skewed(layers=4, experts=32), ranks=ranks, extra=8)
    assert outlook(asked.load, greedy(asked)).balance > 0.95


def test_without_room_experts_are_swapped() -> None:
    asked = problem(skewed(), ranks=2, extra=0)
    target = greedy(asked)
    assert [used(target, r) for r in range(2)] == [8, 8]
    assert outlook(asked.load, target).balance > outlook(asked.load, asked.live).balance + 0.2


def test_room_goes_to_the_layer_that_needs_it() -> None:
    load = skewed()
    load[1] = 100
    target = greedy(problem(load, ranks=2, extra=1, max_moves=1))
    assert [sum(map(len, layer.experts)) for layer in target] == [9, 8]


def test_replicas_of_a_cooled_expert_give_their_slots_to_a_hot_one() -> None:
    first = problem(skewed(0), ranks=2, extra=2)
    target = greedy(first)
    second = greedy(again(first, target, skewed(4)))
    assert outlook(skewed(4), second).balance > 0.95
    assert moves(target, second) < 12


def test_a_state_over_its_budget_is_brought_within() -> None:
    both = tuple(layer_of([range(8), range(8)]) for _ in range(2))
    target = greedy(Problem(skewed(), both, (10, 10), 1000))
    check_state(target, layers=2, experts=8, ranks=2, slots=(10, 10))


def test_one_rank_and_no_load_are_left_alone() -> None:
    for asked in (problem(skewed(), ranks=1, extra=4), problem(skewed() * 0, ranks=2, extra=4)):
        assert greedy(asked) == asked.live


def test_layers_that_change_nothing_keep_their_shares() -> None:
    load = skewed()
    load[1] = 0
    target = greedy(problem(load, ranks=2, extra=2))
    assert target[1] is not None
    assert target[1] == in_order(2, 8, 2)[1]
