from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moesaic.shared import dispatch, placement
from moesaic.shared.arrays import Ints
from moesaic.shared.placement import State
from shared.states import routed

Case = tuple[State, Ints, int, int]


@given(routed())
def test_every_route_goes_to_a_rank_that_holds_its_expert(case: Case) -> None:
    state, routes, experts, ranks = case
    to = dispatch.assign(routes, *placement.hosts(state[0], experts), ranks)
    assert to.shape == routes.shape
    for expert, rank in zip(routes.ravel().tolist(), to.ravel().tolist(), strict=True):
        assert expert in state[0].experts[rank]


@given(routed())
def test_replicas_get_exactly_their_quotas(case: Case) -> None:
    state, routes, experts, ranks = case
    at, shares = placement.hosts(state[0], experts)
    counts = np.bincount(routes.ravel(), minlength=experts)
    quotas = dispatch.quotas(counts, at, shares, ranks)
    assert (quotas >= 0).all()
    assert (quotas.sum(axis=1) == counts).all()
    to = dispatch.assign(routes, at, shares, ranks)
    for expert in range(experts):
        got = np.bincount(to[routes == expert], minlength=ranks)
        for rank, quota in zip(at[expert].tolist(), quotas[expert].tolist(), strict=True):
            assert rank < 0 or got[rank] == quota


@given(routed())
def test_with_every_expert_everywhere_the_ranks_differ_by_one_token_at_most(case: Case) -> None:
    _, routes, experts, ranks = case
    everywhere = placement.layer_of([range(experts)] * ranks)
    to = dispatch.assign(routes, *placement.hosts(everywhere, experts), ranks)
    loads = np.bincount(to.ravel(), minlength=ranks)
    assert loads.max() - loads.min() <= 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.integers(0, 200), st.data())
def test_water_fills_the_lowest_first(levels: list[int], amount: int, data: st.DataObject) -> None:
    shares = data.draw(st.lists(st.integers(1, 9), min_size=len(levels), max_size=len(levels)))
    at = np.array(
        [[*range(len(levels)), -1][: len(levels)]] + [[r] + [-1] * (len(levels) - 1) for r in range(len(levels))]
    )
    counts = np.array([amount, *levels])
    weights = np.where(at >= 0, 1, 0)
    weights[0] = shares
    quotas = dispatch.quotas(counts, at, weights, len(levels))
    after = np.array(levels) + quotas[0] if len(levels) > 1 else np.array(levels) + amount
    wet = [rank for rank in range(len(levels)) if after[rank] > levels[rank]]
    assert all(after[rank] <= after.min() + 1 for rank in wet)


def test_a_token_left_over_goes_to_the_larger_share() -> None:
    at, shares = np.array([[0, 1]]), np.array([[1, 2]])
    assert dispatch.quotas(np.array([3]), at, shares, 2).tolist() == [[1, 2]]
    assert dispatch.quotas(np.array([3]), at, np.array([[2, 2]]), 2).tolist() == [[2, 1]]


def test_tokens_stay_in_order_so_that_most_stay_near_home() -> None:
    everywhere = placement.layer_of([[0], [0]])
    routes = np.zeros((6, 1), dtype=np.int64)
    assert dispatch.assign(routes, *placement.hosts(everywhere, 1), 2).ravel().tolist() == [0, 0, 0, 1, 1, 1]


@given(routed())
def test_the_assignment_is_the_same_wherever_it_is_computed(case: Case) -> None:
    state, routes, experts, ranks = case
    hosts = placement.hosts(state[0], experts)
    again = placement.hosts(state[0], experts)
    assert (dispatch.assign(routes, *hosts, ranks) == dispatch.assign(routes.copy(), *again, ranks)).all()
