from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moesaic.planner.cost import Cost
from moesaic.planner.policy import Problem, ProblemError, check
from moesaic.planner.policy.omni import omni
from moesaic.planner.predict import dispatched, drawn, even, outlook, shared_out
from moesaic.planner.topology import Groups, Topology
from planner.problems import bound_problems, due, even_problem, free_problems, loads, new, possible, window, zipf
from planner.samples import skewed


@settings(max_examples=150, deadline=None, derandomize=True)
@given(bound_problems())
def test_it_answers_where_there_is_an_answer_and_refuses_where_there_is_none(asked: Problem) -> None:
    if not possible(asked):
        with pytest.raises(ProblemError):
            omni(asked)
        return
    hold = omni(asked)
    check(asked, hold)
    if asked.max_moves is not None and not due(asked):
        assert new(asked, hold) <= asked.max_moves


@settings(max_examples=150, deadline=None, derandomize=True)
@given(free_problems())
def test_it_moves_no_more_than_it_may_and_never_for_the_worse(asked: Problem) -> None:
    hold = omni(asked)
    assert asked.max_moves is None or new(asked, hold) <= asked.max_moves
    assert window(asked, hold).cost <= window(asked, asked.live).cost * 1.005 + 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(free_problems())
def test_the_same_problem_has_the_same_answer(asked: Problem) -> None:
    again = replace(asked, load=asked.load.copy(), live=asked.live.copy(), slots=asked.slots.copy())
    assert (omni(asked) == omni(again)).all()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(free_problems(limits=False))
def test_planning_again_gains_nothing_more(asked: Problem) -> None:
    hold = omni(asked)
    again = omni(asked.of(hold))
    assert window(asked, again).cost >= window(asked, hold).cost * 0.9


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("seed", range(4))
def test_a_steady_load_moves_nothing_after_the_first_plan(ranks: int, seed: int) -> None:
    load = np.random.default_rng(seed).lognormal(3, 1, (3, 32))
    asked = even_problem(load, ranks, 32 // ranks + 2)
    hold = omni(asked)
    assert (omni(asked.of(hold)) == hold).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(free_problems(limits=False), st.integers(1, 4))
def test_more_room_is_hardly_ever_worse(asked: Problem, more: int) -> None:
    few, many = omni(asked), omni(replace(asked, slots=asked.slots + more))
    assert window(asked, many).cost <= window(asked, few).cost * 1.02 + 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(free_problems(least_ranks=2, limits=False), st.data())
def test_a_forbidden_rank_is_emptied(asked: Problem, data: st.DataObject) -> None:
    layers, experts, ranks = asked.shape
    rank = data.draw(st.integers(0, ranks - 1))
    may = np.ones(asked.shape, dtype=np.bool_)
    may[:, :, rank] = False
    slots = np.maximum(asked.slots, -(-layers * experts // (ranks - 1)))
    hold = omni(replace(asked, may=may, slots=slots))
    assert not hold[:, :, rank].any()
    assert hold.any(axis=2).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(free_problems(least_ranks=2), st.data())
def test_a_pinned_copy_stays_over_plans(asked: Problem, data: st.DataObject) -> None:
    layer, expert, rank = (data.draw(st.integers(0, size - 1)) for size in asked.shape)
    assume(asked.slots[rank] > 0)
    pinned = np.zeros(asked.shape, dtype=np.bool_)
    pinned[layer, expert, rank] = True
    asked = replace(asked, pinned=pinned)
    assume(possible(asked))
    for _ in range(3):
        hold = omni(asked)
        check(asked, hold)
        assert hold[layer, expert, rank]
        asked = replace(asked.of(hold), load=data.draw(loads(*asked.load.shape)))


def test_a_copy_is_pinned_where_there_was_none() -> None:
    asked = even_problem(np.ones((1, 4)), 4, 1)
    pinned = np.zeros(asked.shape, dtype=np.bool_)
    pinned[0, 0, 3] = True
    hold = omni(replace(asked, pinned=pinned))
    assert hold[0].argmax(axis=1)[0] == 3
    assert (hold.sum(axis=(0, 1)) == 1).all()


def test_the_last_expert_finds_its_place_by_a_chain_of_others() -> None:
    live = np.zeros((1, 3, 3), dtype=np.bool_)
    live[0, :, 0] = True
    may = np.array([[[1, 1, 0], [0, 1, 1], [1, 0, 0]]], dtype=np.bool_)
    asked = Problem(np.ones((1, 3)), live, np.array([1, 1, 1]), Cost.tokens(3), may=may)
    assert omni(asked)[0].argmax(axis=1).tolist() == [1, 2, 0]


@pytest.mark.parametrize("pace", [1.0, 2.0])
def test_slots_that_change_hands_do_so_only_once(pace: float) -> None:
    """What one expert got made others needy that share its host, for ever."""
    load = [
        [24.0, 0.0, 63.0, 337.0, 2.0, 3.0, 0.0, 0.0, 0.0, 39.0, 317.0],
        [246.0, 368.0, 186.0, 0.0, 248.0, 1.0, 3.0, 63.0, 0.0, 11.0, 182.0],
    ]
    first = [[0, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0], [0, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1]]
    live = np.array(first)[:, :, None] == np.arange(2)
    asked = Problem(np.array(load), live, np.array([14, 12]), Cost(np.ones(2) / pace))
    check(asked, omni(asked))


def test_a_layer_without_load_keeps_its_replicas() -> None:
    live = np.zeros((2, 4, 3), dtype=np.bool_)
    live[0, [0, 1, 3], 1] = live[0, 2, 0] = live[0, 2, 2] = True
    live[1, [2, 3], 2] = live[1, 0, [0, 2]] = live[1, 1, [0, 1]] = True
    load = np.array([[0.0] * 4, [8.0] * 4])
    hold = omni(Problem(load, live, np.array([8, 8, 11]), Cost(np.array([1.0, 2.0, 1.0])), max_moves=1))
    assert (hold[0] >= live[0]).all()


def test_one_rank_and_no_load_are_left_alone() -> None:
    for asked in (even_problem(skewed(), 1, 12), even_problem(skewed() * 0, 2, 8)):
        assert (omni(asked) == asked.live).all()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_skewed_load_becomes_balanced(ranks: int) -> None:
    asked = even_problem(skewed(layers=4, experts=32), ranks, -(-32 // ranks) + 2)
    assert window(asked, omni(asked)).balance > 0.95


def test_without_room_experts_are_swapped() -> None:
    asked = even_problem(skewed(), 2, 4)
    hold = omni(asked)
    assert hold.sum(axis=(0, 1)).tolist() == [8, 8]
    assert window(asked, hold).balance > window(asked, asked.live).balance + 0.2


def test_room_goes_to_the_layer_that_needs_it() -> None:
    load = skewed()
    load[1] = 100
    asked = replace(even_problem(load, 2, 5), slots=np.array([9, 9]))
    assert omni(asked).sum(axis=(1, 2)).tolist() == [10, 8]


def test_replicas_of_a_cooled_expert_give_their_slots_to_a_hot_one() -> None:
    asked = even_problem(skewed(0), 2, 5)
    then = replace(asked.of(omni(asked)), load=skewed(4).astype(np.float64))
    hold = omni(then)
    assert window(then, hold).balance > 0.95
    assert new(then, hold) < 12


def test_a_state_over_its_slots_is_brought_within() -> None:
    asked = replace(even_problem(skewed(), 2, 5), live=np.ones((2, 8, 2), dtype=np.bool_))
    check(asked, omni(asked))


def test_its_own_window_is_level() -> None:
    asked = even_problem(zipf(layers=4), 32, 9)
    hold = omni(asked)
    counts = np.rint(asked.load * 1e6).astype(np.int64)[None]
    check(asked, hold)
    assert outlook(counts, hold, asked.cost, shared_out(asked.load, hold, asked.cost)).balance >= 0.99
    assert (omni(asked.of(hold)) == hold).all()


def test_single_steps_are_more_level_than_with_an_even_split() -> None:
    asked = even_problem(zipf(layers=4) * 64 * 8 * 32, 32, 9)
    hold, steps = omni(asked), drawn(asked.load)
    assert outlook(steps, hold, asked.cost).balance > 0.94
    assert outlook(steps, hold, asked.cost).balance > even(steps, hold, asked.cost).balance + 0.1


def test_a_slow_rank_gets_about_half_the_load() -> None:
    speed = np.ones(32)
    speed[5] = 0.5
    asked = replace(even_problem(zipf(layers=4) * 1e6, 32, 9), cost=Cost(speed))
    hold, prices = omni(asked), asked.cost.prices()
    counts = np.rint(asked.load).astype(np.int64)[None]
    tokens, _ = dispatched(counts, hold.astype(np.int64), prices.token, prices.expert, 8)
    part = tokens[0].sum(axis=0) / tokens.sum()
    assert part[5] == pytest.approx(0.5 / 31.5, rel=0.05)
    assert window(asked, hold).balance >= 0.98


def test_few_moves_go_where_they_gain_most() -> None:
    load = np.stack([np.full(16, 10.0), skewed(layers=1, experts=16)[0]])
    asked = even_problem(load, 4, 5, max_moves=2)
    hold = omni(asked)
    assert new(asked, hold) <= 2
    assert (hold[0] >= asked.live[0]).all()
    assert window(asked, hold).most[1] < window(asked, asked.live).most[1]


def test_groups_that_every_token_visits_stay_on_their_ranks() -> None:
    load = np.random.default_rng(0).lognormal(3, 1, (2, 16))
    asked = replace(even_problem(load, 4, 6), groups=Groups(4, 4, kind="each"))
    hold = omni(asked)
    check(asked, hold)
    assert (hold.reshape(2, 4, 4, 4).any(axis=2).sum(axis=2) == 1).all()


def test_node_limited_groups_stay_on_their_nodes_where_that_costs_nothing() -> None:
    load = np.full((2, 16), 10.0)
    asked = even_problem(load, 4, 6)
    asked = replace(asked, groups=Groups(4, 2), topology=Topology(np.array([0, 0, 1, 1])))
    nodes = omni(asked).reshape(2, 4, 4, 2, 2).any(axis=(2, 4))
    assert (nodes.sum(axis=2) == 1).all()
