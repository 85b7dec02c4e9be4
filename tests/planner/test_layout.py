from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.layout import hold_of, shares_of, state_of
from moesaic.planner.policy import Problem
from moesaic.planner.predict import shared_out
from moesaic.shared.placement import SHARE, State, check_state, in_order, layer_of
from planner.problems import free_problems, state
from shared.states import states


@settings(max_examples=60, deadline=None, derandomize=True)
@given(states(2, 5, 3))
def test_a_state_survives_the_way_to_arrays_and_back(placed: State) -> None:
    hold, shares = hold_of(placed, 5), shares_of(placed, 5)
    assert state_of(hold, shares) == placed
    assert ((shares > 0) == hold).all()


def test_without_shares_copies_share_evenly() -> None:
    hold = hold_of((layer_of([[0], [0, 1], [0]]),), 2)
    assert state_of(hold)[0].shares == ((SHARE // 3,), (SHARE // 3, SHARE), (SHARE // 3,))


def test_a_share_is_one_at_least() -> None:
    hold = hold_of(in_order(1, 4, 2), 4)
    assert state_of(hold, np.zeros(hold.shape, dtype=np.int64))[0].shares == ((1, 1), (1, 1))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(free_problems())
def test_shares_of_an_expert_make_a_whole(asked: Problem) -> None:
    layers, experts, ranks = asked.shape
    placed = state(asked, asked.live)
    check_state(placed, layers=layers, experts=experts, ranks=ranks, slots=asked.slots.tolist())
    shares, copies = shares_of(placed, experts), asked.live.sum(axis=2)
    assert (shares[asked.live] >= 1).all()
    assert (abs(shares.sum(axis=2) - SHARE) <= copies).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(free_problems(), st.sampled_from([1e-9, 1e-3, 1e3, 1e9]))
def test_shares_do_not_depend_on_the_scale_of_the_load(asked: Problem, scale: float) -> None:
    shares = shared_out(asked.load, asked.live, asked.cost)
    other = shared_out(asked.load * scale, asked.live, asked.cost)
    assert abs(shares - other).max() <= 2  # where rounding a load to whole numbers falls the other way
