from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.policy import ProblemError, check
from moesaic.planner.policy.eplb import eplb, pack_groups, replicate
from moesaic.planner.predict import even
from moesaic.planner.topology import Groups, Topology
from planner.problems import even_problem, zipf


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_every_placement_is_valid_for_any_sizes_that_hold_the_experts(data: st.DataObject) -> None:
    ranks, experts = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 14))
    slots = -(-experts // ranks) + data.draw(st.integers(0, 4))
    counts = st.lists(st.integers(0, 500), min_size=experts, max_size=experts)
    load = np.array(data.draw(st.lists(counts, min_size=1, max_size=3)))
    asked = even_problem(load, ranks, slots)
    hold = eplb(asked)
    check(asked, hold)
    assert (hold.sum(axis=(1, 2)) == min(slots, experts) * ranks).all()


def test_each_further_copy_goes_to_the_most_loaded_copy() -> None:
    assert replicate(np.array([90.0, 50.0, 10.0]), 6, 4).tolist() == [3, 2, 1]


def test_no_expert_has_more_copies_than_ranks() -> None:
    assert replicate(np.array([90.0, 5.0, 1.0]), 6, 2).tolist() == [2, 2, 2]


def test_groups_are_packed_heaviest_first_to_the_least_loaded_node() -> None:
    assert pack_groups(np.array([4.0, 3.0, 2.0, 1.0]), 2).tolist() == [0, 1, 1, 0]


def test_it_fits_its_own_window_as_well_as_published() -> None:
    """.998 with an even split over replicas."""
    asked = even_problem(zipf(layers=4), 32, 9)
    counts = np.rint(asked.load * 1e6).astype(np.int64)[None]
    assert even(counts, eplb(asked), asked.cost).balance >= 0.99


def test_groups_stay_on_their_nodes() -> None:
    draw = np.random.default_rng(0)
    asked = even_problem(draw.integers(1, 100, (2, 16)), 4, 6)
    asked = replace(asked, groups=Groups(4, 2), topology=Topology(np.array([0, 0, 1, 1])))
    hold = eplb(asked)
    check(asked, hold)
    nodes = np.stack([hold[:, :, :2].any(axis=2), hold[:, :, 2:].any(axis=2)], axis=2).reshape(2, 4, 4, 2)
    assert (nodes.any(axis=2).sum(axis=2) == 1).all()


def test_too_few_slots_are_told() -> None:
    asked = even_problem(np.ones((1, 8)), 2, 4)
    with pytest.raises(ProblemError, match="eplb needs 8 slots per layer, 2 ranks have 3 each"):
        eplb(replace(asked, slots=np.array([3, 8])))
