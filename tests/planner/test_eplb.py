from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.policy import Problem
from moesaic.planner.policy.eplb import eplb, replicate
from moesaic.shared.placement import PlacementError, check_state, hosts, in_order


def _problem(load: np.ndarray, ranks: int, slots: int) -> Problem:
    layers, experts = load.shape
    return Problem(load, in_order(layers, experts, ranks), (slots * layers,) * ranks, max_moves=1)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_every_placement_is_valid_for_any_sizes_that_hold_the_experts(data: st.DataObject) -> None:
    ranks, experts = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 14))
    slots = -(-experts // ranks) + data.draw(st.integers(0, 4))
    counts = st.lists(st.integers(0, 500), min_size=experts, max_size=experts)
    load = np.array(data.draw(st.lists(counts, min_size=1, max_size=3)))
    state = eplb(_problem(load, ranks, slots))
    budget = (slots * len(load),) * ranks
    check_state(state, layers=len(load), experts=experts, ranks=ranks, slots=budget)


def test_each_further_copy_goes_to_the_most_loaded_copy() -> None:
    assert replicate(np.array([90, 50, 10]), total=6, most=4).tolist() == [3, 2, 1]


def test_it_fits_its_own_window_as_well_as_published() -> None:
    """32 ranks x 9 slots, 256 experts, Zipf 1.0: .998 with an even split over replicas."""
    draw = np.random.default_rng(0)
    zipf = np.minimum(1 / np.arange(1, 257), np.sum(1 / np.arange(1, 257)) / 8)
    load = np.array([(draw.permutation(zipf) * 1e6).astype(np.int64) for _ in range(2)])
    for counts, layer in zip(load, eplb(_problem(load, 32, 9)), strict=True):
        at, _ = hosts(layer, 256)
        rank_load = np.zeros(32)
        for expert in range(256):
            copies = at[expert][at[expert] >= 0]
            rank_load[copies] += counts[expert] / copies.size
        assert rank_load.mean() / rank_load.max() > 0.99


def test_too_few_slots_are_told() -> None:
    with pytest.raises(PlacementError, match="needs 8 slots"):
        eplb(_problem(np.ones((1, 8), dtype=np.int64), ranks=2, slots=3))
