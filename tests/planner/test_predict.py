from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moesaic.planner.predict import levelled, levels, outlook
from moesaic.shared.placement import SHARE, in_order, layer_of
from planner.samples import skewed


def test_an_even_load_is_balanced() -> None:
    result = outlook(np.full((2, 8), 5), in_order(2, 8, 2))
    assert (result.balance, result.cost) == (1.0, 40)


def test_no_load_counts_as_balanced_and_costs_nothing() -> None:
    result = outlook(np.zeros((2, 8), dtype=np.int64), in_order(2, 8, 2))
    assert (result.balance, result.cost) == (1.0, 0)


def test_a_layer_without_load_does_not_count() -> None:
    load = np.array([[4, 0, 0, 0], [0, 0, 0, 0]])
    assert outlook(load, in_order(2, 4, 2)).balance == 0.5


def test_a_replica_shares_the_load_of_its_expert() -> None:
    layer = layer_of([[0, 1], [0, 2, 3]])
    assert levels(np.array([90, 10, 5, 5]), layer).tolist() == [55, 55]


def test_shares_follow_the_levelled_tokens() -> None:
    layer = levelled(np.array([90, 30, 5, 5]), layer_of([[0, 1], [0, 2, 3]]))
    assert [rank[0] for rank in layer.shares] == [round(SHARE * 35 / 90), round(SHARE * 55 / 90)]


def test_an_expert_without_tokens_keeps_even_shares() -> None:
    layer = levelled(np.array([0, 30, 5, 5]), layer_of([[0, 1], [0, 2, 3]]))
    assert layer.shares[0][0] == layer.shares[1][0] == SHARE // 2


@given(st.permutations(range(4)), st.integers(0, 7))
def test_renaming_the_ranks_changes_no_prediction(order: list[int], hot: int) -> None:
    load = skewed(hot)
    state = in_order(2, 8, 4)
    renamed = tuple(layer_of(layer.experts[rank] for rank in order) for layer in state)
    assert outlook(load, renamed).cost == outlook(load, state).cost
    assert outlook(load, renamed).balance == outlook(load, state).balance
