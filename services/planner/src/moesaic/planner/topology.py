"""Where ranks are, how fast the ways between them are, and which experts a token takes together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from moesaic.shared.arrays import Bools, Floats, Ints


@dataclass(frozen=True)
class Topology:
    """`node [R]` numbers the node of each rank from 0; bandwidths in bytes per second and rank."""

    node: Ints
    inside: float = 100e9
    across: float = 25e9
    hop: float = 0.0
    """What sending one token to another node costs a rank, in the unit of the cost model; 0: not known."""

    def __post_init__(self) -> None:
        if self.node.ndim != 1 or not self.node.size or sorted(set(self.node.tolist())) != list(range(self.nodes)):
            raise ValueError("nodes are numbered from 0 without a gap")
        if not self.inside > 0 or not self.across > 0:
            raise ValueError("bandwidths are above zero")

    @property
    def ranks(self) -> int:
        """How many."""
        return int(self.node.size)

    @property
    def nodes(self) -> int:
        """How many."""
        return int(self.node.max()) + 1

    @classmethod
    def named(cls, names: list[str], inside: float = 100e9, across: float = 25e9) -> Topology:
        """Of ranks whose nodes have these names, in order."""
        known = list(dict.fromkeys(names))
        return cls(np.array([known.index(name) for name in names]), inside, across)


@dataclass(frozen=True)
class Groups:
    """Experts in `count` groups of equal size, in order, of which a token takes experts from `per_token`.

    `limited`: the groups with the best scores (DeepSeek's node-limited routing). `each`: every group, the same number of
    experts from each (Pangu's grouped routing, MoGE): there only what happens inside a group can be out of balance.
    """

    count: int
    per_token: int
    kind: Literal["limited", "each"] = "limited"
    top_k: int = 8
    """Experts that a token takes in all."""

    def __post_init__(self) -> None:
        if not 1 <= self.per_token <= self.count:
            raise ValueError("a token takes from 1 to all of the groups")

    def of(self, experts: int) -> Ints:
        """Group of each expert `[E]`."""
        return np.arange(experts) * self.count // experts


def sources(live: Bools, target: Bools, topology: Topology) -> tuple[Ints, Ints]:
    """Copies that the target `[L, E, R]` brings to each rank `[R]`: from inside its node, from another."""
    new = target & ~live
    there = np.stack([live[:, :, topology.node == node].any(axis=2) for node in range(topology.nodes)], axis=2)
    inside = (new & there[:, :, topology.node]).sum(axis=(0, 1))
    return inside, new.sum(axis=(0, 1)) - inside


def moving_s(live: Bools, target: Bools, slot_bytes: int, topology: Topology) -> float:
    """Seconds of the busiest rank to receive its new copies, each from the nearest rank that has it."""
    inside, across = sources(live, target, topology)
    return float((slot_bytes * (inside / topology.inside + across / topology.across)).max(initial=0.0))


def remote(share: Floats, topology: Topology, groups: Groups, *, tied: bool) -> float:
    """Nodes other than its own that a token's experts are on, on average, for shares of routes `[E, R]` of one layer.

    A token is sent once to each node that has any of its experts. Where groups are `tied` to nodes, a node is hit if one of
    its groups is taken; else each of a token's routes hits a node with the node's share of all routes. Both take routes
    for independent, which overstates the nodes somewhat, alike in both.
    """
    total = float(share.sum())
    if total <= 0:
        return 0.0
    by_node = np.stack([share[:, topology.node == n].sum(axis=1) for n in range(topology.nodes)], axis=1) / total
    if tied:
        of = groups.of(share.shape[0])
        group_node = np.stack([by_node[of == g].sum(axis=0) for g in range(groups.count)])
        taken = np.minimum(1.0, groups.per_token * group_node.sum(axis=1))
        belongs = group_node / np.maximum(group_node.sum(axis=1, keepdims=True), 1e-300)
        hit = 1.0 - np.prod(1.0 - taken[:, None] * belongs, axis=0)
    else:
        hit = 1.0 - (1.0 - np.minimum(1.0, by_node.sum(axis=0))) ** groups.top_k
    at_home = np.bincount(topology.node, minlength=topology.nodes) / topology.ranks
    return float((hit * (1.0 - at_home)).sum())
