from __future__ import annotations

import numpy as np
import pytest

from moesaic.planner.layout import hold_of
from moesaic.planner.policy import Hold
from moesaic.planner.topology import Groups, Topology, moving_s, remote, sources
from moesaic.shared.placement import layer_of

TWO_NODES = Topology(np.array([0, 0, 1, 1]), inside=100.0, across=10.0)


def held(*ranks: list[int], experts: int = 4) -> Hold:
    """One layer with these experts on each rank."""
    return hold_of((layer_of(ranks),), experts)


def test_nodes_get_their_numbers_in_the_order_of_the_ranks() -> None:
    topology = Topology.named(["b", "a", "b", "c"])
    assert topology.node.tolist() == [0, 1, 0, 2]
    assert (topology.ranks, topology.nodes) == (4, 3)


@pytest.mark.parametrize("node", [[], [1], [0, 2], [-1, 0], [[0, 1]]])
def test_nodes_without_order_are_refused(node: list[int]) -> None:
    with pytest.raises(ValueError, match="without a gap"):
        Topology(np.array(node, dtype=np.int64))


@pytest.mark.parametrize("speeds", [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0)])
def test_bandwidths_are_above_zero(speeds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="bandwidths"):
        Topology(np.array([0]), *speeds)


def test_groups_are_equal_parts_in_order() -> None:
    assert Groups(2, 1).of(6).tolist() == [0, 0, 0, 1, 1, 1]
    for per_token in (0, 3):
        with pytest.raises(ValueError, match="1 to all"):
            Groups(2, per_token)


def test_a_copy_comes_from_the_own_node_where_that_has_one() -> None:
    live = held([0], [1], [2], [3])
    target = held([0, 1], [1, 3], [2, 3], [3, 0])  # 1 and 3 from beside, 3 and 0 from the other node
    inside, across = sources(live, target, TWO_NODES)
    assert (inside.tolist(), across.tolist()) == ([1, 0, 1, 0], [0, 1, 0, 1])
    assert not any(copies.any() for copies in sources(live, live, TWO_NODES))


def test_moving_lasts_as_long_as_the_busiest_rank_receives() -> None:
    live = held([0], [1], [2], [3])
    assert moving_s(live, live, 1000, TWO_NODES) == 0.0
    assert moving_s(live, held([0, 1], [1], [2], [3]), 1000, TWO_NODES) == pytest.approx(10)
    assert moving_s(live, held([0, 1, 2], [1], [2], [3, 2]), 1000, TWO_NODES) == pytest.approx(10 + 100)


def test_on_one_node_nothing_is_remote() -> None:
    one = Topology(np.zeros(4, dtype=np.int64))
    assert remote(np.ones((4, 4)), one, Groups(2, 1, top_k=2), tied=False) == pytest.approx(0)
    assert remote(np.zeros((4, 4)), TWO_NODES, Groups(2, 1, top_k=2), tied=False) == 0.0


def test_a_token_of_one_route_leaves_its_node_half_the_time() -> None:
    share = np.eye(4)
    assert remote(share, TWO_NODES, Groups(1, 1, top_k=1), tied=False) == pytest.approx(0.5)
    two = remote(share, TWO_NODES, Groups(1, 1, top_k=2), tied=False)
    assert two == pytest.approx(2 * (1 - 0.5**2) * 0.5)  # either node is hit by one of two routes three times in four


def test_tied_groups_reach_fewer_nodes() -> None:
    share = np.eye(4)  # groups of two experts, each on a node of its own
    groups = Groups(2, 1, top_k=2)
    assert remote(share, TWO_NODES, groups, tied=True) == pytest.approx(0.5)
    assert remote(share, TWO_NODES, groups, tied=True) < remote(share, TWO_NODES, groups, tied=False)
