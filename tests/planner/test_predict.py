from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.cost import Cost
from moesaic.planner.layout import hold_of
from moesaic.planner.policy import Hold, Problem
from moesaic.planner.predict import drawn, even, outlook, shared_out
from moesaic.shared.arrays import Ints
from moesaic.shared.placement import SHARE, in_order, layer_of
from planner.problems import free_problems

TWO = Cost.tokens(2)


def one_step(*layers: list[int]) -> Ints:
    return np.array([layers])


def held(*ranks: list[int], experts: int = 4) -> Hold:
    """One layer with these experts on each rank."""
    return hold_of((layer_of(ranks),), experts)


def test_an_even_load_is_balanced() -> None:
    result = outlook(np.full((1, 2, 8), 5), hold_of(in_order(2, 8, 2), 8), TWO)
    assert (result.balance, result.worst, result.cost) == (1.0, 1.0, 40)


def test_no_load_counts_as_balanced_and_costs_nothing() -> None:
    cost = Cost(np.ones(2), fixed=3.0, expert=1.0)
    for result in (outlook, even):
        nothing = result(np.zeros((2, 2, 8), dtype=np.int64), hold_of(in_order(2, 8, 2), 8), cost)
        assert (nothing.balance, nothing.worst, nothing.cost) == (1.0, 1.0, 0)


def test_a_layer_without_load_does_not_count() -> None:
    assert outlook(one_step([4, 0, 0, 0], [0, 0, 0, 0]), hold_of(in_order(2, 4, 2), 4), TWO).balance == 0.5


def test_the_cost_is_that_of_each_steps_busiest_rank() -> None:
    steps = np.array([[[6, 2]], [[1, 3]]])
    result = outlook(steps, held([0], [1], experts=2), TWO)
    assert (result.most.tolist(), result.mean.tolist()) == ([4.5], [3.0])


def test_a_replica_shares_the_load_of_its_expert() -> None:
    assert outlook(one_step([90, 10, 5, 5]), held([0, 1], [0, 2, 3]), TWO).cost == 55


def test_an_even_split_leaves_the_rest_where_it_is() -> None:
    assert even(one_step([90, 20, 5, 5]), held([0, 1], [0, 2, 3]), TWO).cost == 45 + 20


def test_every_part_of_the_cost_counts_and_a_slow_rank_takes_longer() -> None:
    cost = Cost(np.array([1.0, 0.5]), token=0.1, expert=2.0, fixed=7.0)
    result = outlook(one_step([10, 0, 20, 30]), held([0, 1], [2, 3]), cost)
    assert result.cost == pytest.approx((7 + 2 * 2 + 0.1 * 50) * 2)
    assert result.mean[0] == pytest.approx(((7 + 2 + 1) + 32) / 2)


def test_engines_that_level_tokens_leave_a_slow_rank_behind() -> None:
    cost = Cost(np.array([1.0, 0.5]))
    steps = one_step([90])
    hold = held([0], [0], experts=1)
    assert outlook(steps, hold, cost).cost == 60
    assert outlook(steps, hold, cost, prices=TWO.prices()).cost == 90


def test_shares_follow_the_levelled_tokens() -> None:
    shares = shared_out(np.array([[90.0, 30.0, 5.0, 5.0]]), held([0, 1], [0, 2, 3]), TWO)
    assert shares[0, 0].tolist() == [round(SHARE * 35 / 90), round(SHARE * 55 / 90)]
    assert shares[0, 1].tolist() == [SHARE, 0]


def test_an_expert_without_tokens_keeps_even_shares() -> None:
    shares = shared_out(np.array([[0.0, 30.0, 5.0, 5.0]]), held([0, 1], [0, 2, 3]), TWO)
    assert shares[0, 0].tolist() == [SHARE // 2, SHARE // 2]


def test_drawn_steps_are_the_same_for_the_same_seed_and_near_the_load() -> None:
    load = np.array([[100.0, 1.0, 0.0]])
    steps = drawn(load, steps=500, spread=np.full((1, 3), 0.3))
    assert (steps == drawn(load, steps=500, spread=np.full((1, 3), 0.3))).all()
    assert steps.mean(axis=0)[0] == pytest.approx([100, 1, 0], rel=0.15)
    assert steps[:, 0, 0].std() > drawn(load, steps=500)[:, 0, 0].std()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(free_problems())
def test_no_prediction_is_below_the_mean_and_tokens_are_none_lost(asked: Problem) -> None:
    steps = drawn(asked.load)
    for result in (outlook(steps, asked.live, asked.cost), even(steps, asked.live, asked.cost)):
        assert (result.mean <= result.most * (1 + 1e-9)).all()
        assert 0 < result.worst <= result.balance <= 1 + 1e-9
    plain = outlook(steps, asked.live, Cost.tokens(asked.shape[2]))
    assert plain.mean.sum() * asked.shape[2] * len(steps) == pytest.approx(steps.sum())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(free_problems(), st.integers(0, 1000))
def test_renaming_the_ranks_changes_no_prediction(asked: Problem, seed: int) -> None:
    """But for a token per layer, which of equal ranks goes on where; what an active expert costs would be such a step too."""
    order = np.random.default_rng(seed).permutation(asked.shape[2])
    steps = drawn(asked.load)
    cost = Cost(asked.cost.speed, asked.cost.token, 0.0, asked.cost.fixed)
    renamed = Cost(cost.speed[order], cost.token, 0.0, cost.fixed)
    was, now = outlook(steps, asked.live, cost), outlook(steps, asked.live[:, :, order], renamed)
    assert now.cost == pytest.approx(was.cost, rel=0.005, abs=asked.shape[0] * cost.token * cost.pace.max())
