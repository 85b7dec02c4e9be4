"""Experts that belong together kept together: where groups of experts may be. numpy."""

from __future__ import annotations

import numpy as np

from moesaic.planner.policy.eplb import pack_groups
from moesaic.planner.policy.problem import Hold, Problem
from moesaic.planner.topology import Groups, Topology
from moesaic.shared.arrays import Ints


def tied(problem: Problem) -> Hold | None:
    """Where copies may be `[L, E, R]` if groups stay together; None where there are none, or their number does not divide.

    Grouped routing (`each`): group after group has the ranks in order, several ranks for a group or several groups for a
    rank. Node-limited routing: every node has as many groups; where live placement ties them to nodes already they stay.
    """
    if problem.groups is None:
        return None
    if problem.groups.kind == "each":
        return _by_rank(problem, problem.groups)
    if problem.topology is None or problem.topology.nodes == 1 or problem.groups.count % problem.topology.nodes:
        return None
    return _by_node(problem, problem.groups, problem.topology)


def _by_rank(problem: Problem, groups: Groups) -> Hold | None:
    layers, experts, ranks = problem.shape
    if ranks % groups.count and groups.count % ranks:
        return None
    parts = max(ranks, groups.count)
    of, rank = groups.of(experts) * (parts // groups.count), np.arange(ranks) * (parts // ranks)
    size = parts // min(ranks, groups.count)
    mask = of[:, None] // size == rank[None, :] // size
    return np.broadcast_to(mask, (layers, experts, ranks)).copy()


def _by_node(problem: Problem, groups: Groups, topology: Topology) -> Hold:
    of = groups.of(problem.load.shape[1])
    mask = np.zeros(problem.live.shape, dtype=np.bool_)
    for layer in range(problem.live.shape[0]):
        home = _home(problem.live[layer], of, groups, topology)
        if home is None:
            load = np.asarray(np.bincount(of, weights=problem.load[layer], minlength=groups.count), dtype=np.float64)
            home = pack_groups(load, topology.nodes)
        mask[layer] = home[of][:, None] == topology.node[None, :]
    return mask


def _home(live: Hold, of: Ints, groups: Groups, topology: Topology) -> Ints | None:
    """Node of each group `[G]` where one layer's live copies `[E, R]` have every group on one node, equally many on each."""
    there = np.stack([live[:, topology.node == node].any(axis=1) for node in range(topology.nodes)], axis=1)
    by_group = np.stack([there[of == group].any(axis=0) for group in range(groups.count)])
    if (by_group.sum(axis=1) != 1).any() or len(set(by_group.sum(axis=0).tolist())) != 1:
        return None
    return np.asarray(by_group.argmax(axis=1))
