"""DeepSeek's published expert-parallelism load balancer (EPLB), global and hierarchical, as the known baseline.

Source: the algorithm described with DeepSeek-V3 (arXiv 2412.19437, section 3.4) and released as EPLB in 2025. It plans each
layer from its load alone and looks neither at the present placement nor at what moving costs. One difference: here no expert
is put twice on one rank, which the engines would refuse.
"""

from __future__ import annotations

import numpy as np

from moesaic.planner.policy.problem import Hold, Problem, ProblemError
from moesaic.shared.arrays import Bytes, Floats, Ints
from moesaic.shared.kernel import kernel


def eplb(problem: Problem) -> Hold:
    """Every layer anew, with the same number of slots on every rank and in every layer.

    Hierarchical where experts come in groups, nodes have equally many ranks, and groups divide by nodes: groups are packed to
    nodes, then each node's experts replicated and packed inside it. Raises ProblemError if a layer has too few slots.
    """
    layers, experts, ranks = problem.shape
    slots = int(problem.slots.min()) // layers
    if slots * ranks < experts:
        raise ProblemError(f"eplb needs {experts} slots per layer, {ranks} ranks have {slots} each")
    slots = min(slots, experts)
    cells = _cells(problem, slots)
    hold = np.zeros(problem.live.shape, dtype=np.bool_)
    for layer, load in enumerate(problem.load):
        for of_cell, mine in _packed(load, problem, cells):
            part = np.zeros((of_cell.size, mine.size), dtype=np.uint8)
            pack(load[of_cell], replicate(load[of_cell], mine.size * slots, mine.size), slots, part)
            hold[layer][np.ix_(of_cell, mine)] = part.astype(np.bool_)
    return hold


def _cells(problem: Problem, slots: int) -> list[Ints]:
    """The ranks that are planned together: each node's, or all."""
    _, experts, ranks = problem.shape
    if problem.groups is None or problem.topology is None:
        return [np.arange(ranks)]
    node, nodes = problem.topology.node, problem.topology.nodes
    sizes = np.bincount(node)
    fits = sizes.min() == sizes.max() and problem.groups.count % nodes == 0
    if not fits or experts // nodes > slots * int(sizes[0]):
        return [np.arange(ranks)]
    return [np.flatnonzero(node == n) for n in range(nodes)]


def _packed(load: Floats, problem: Problem, cells: list[Ints]) -> list[tuple[Ints, Ints]]:
    """Experts and ranks of each cell."""
    if len(cells) == 1 or problem.groups is None:
        return [(np.arange(load.size), cells[0])]
    of = problem.groups.of(load.size)
    home = pack_groups(
        np.asarray(np.bincount(of, weights=load, minlength=problem.groups.count), dtype=np.float64), len(cells)
    )
    return [(np.flatnonzero(home[of] == n), ranks) for n, ranks in enumerate(cells)]


def pack_groups(load: Floats, nodes: int) -> Ints:
    """Node of each group `[G]`, as many groups on each: heaviest first, to the least loaded node with room."""
    home = np.zeros(load.size, dtype=np.int64)
    total = np.zeros(nodes)
    room = np.full(nodes, load.size // nodes)
    for group in np.argsort(-load, kind="stable"):
        node = min(np.flatnonzero(room).tolist(), key=lambda n: (total[n], n))
        home[group] = node
        total[node] += load[group]
        room[node] -= 1
    return home


@kernel
def replicate(load: Floats, total: int, most: int) -> Ints:
    """Copies per expert `[E]`, `total` in all and at most `most` each: each further one to the most loaded copy."""
    copies = np.ones(load.size, dtype=np.int64)
    per = load.astype(np.float64)
    for _ in range(min(total, most * load.size) - load.size):
        best = -1
        for e in range(load.size):
            if copies[e] < most and (best < 0 or per[e] > per[best]):
                best = e
        copies[best] += 1
        per[best] = load[best] / copies[best]
    return copies


@kernel
def pack(load: Floats, copies: Ints, slots: int, hold: Bytes) -> None:
    """Fill `hold [E, R]`: heaviest copy first, each to the least loaded rank that has room and not this expert yet.

    Where every rank with room has the expert, another expert makes way on a rank that has not.
    """
    ranks = hold.shape[1]
    weight = load / copies
    level = np.zeros(ranks)
    room = np.full(ranks, slots)
    for e in np.argsort(-weight, kind="mergesort"):
        for _ in range(copies[e]):
            best = -1
            for r in range(ranks):
                if room[r] > 0 and not hold[e, r] and (best < 0 or level[r] < level[best]):
                    best = r
            if best < 0:
                best = _make_way(e, weight, hold, level, room)
            if best < 0:
                break
            hold[e, best] = 1
            level[best] += weight[e]
            room[best] -= 1


@kernel
def _make_way(e: int, weight: Floats, hold: Bytes, level: Floats, room: Ints) -> int:
    """Move another expert from a rank without `e` to one with room; the rank that has room now, or -1."""
    experts, ranks = hold.shape
    for target in range(ranks):
        if room[target] < 1:
            continue
        for rank in range(ranks):
            if hold[e, rank]:
                continue
            moved = -1
            for m in range(experts):
                if hold[m, rank] and not hold[m, target] and (moved < 0 or weight[m] < weight[moved]):
                    moved = m
            if moved < 0:
                continue
            hold[moved, rank] = 0
            hold[moved, target] = 1
            level[rank] -= weight[moved]
            level[target] += weight[moved]
            room[target] -= 1
            room[rank] += 1
            return rank
    return -1
