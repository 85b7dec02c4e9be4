"""DeepSeek's published expert-parallelism load balancer (EPLB, global form), as the known baseline.

Source: the algorithm described with DeepSeek-V3 (arXiv 2412.19437, section 3.4) and released as EPLB in 2025. It plans each
layer from its load alone and looks neither at the present placement nor at what moving costs. One difference: here no expert
is put twice on one rank, which the engines would refuse.
"""

from __future__ import annotations

import heapq

import numpy as np

from moesaic.planner.policy.problem import Problem
from moesaic.shared.arrays import Ints
from moesaic.shared.messages import LayerPlacement
from moesaic.shared.placement import PlacementError, State, layer_of


def eplb(problem: Problem) -> State:
    """Every layer anew, with the same number of slots on every rank and in every layer.

    Raises PlacementError if a layer has fewer slots than experts.
    """
    layers, experts = problem.load.shape
    ranks = len(problem.budget)
    slots = min(problem.budget) // layers
    if slots * ranks < experts:
        raise PlacementError(f"eplb needs {experts} slots per layer, {ranks} ranks have {slots} each")
    return tuple(_layer(counts, ranks, min(slots, experts)) for counts in problem.load)


def _layer(counts: Ints, ranks: int, slots: int) -> LayerPlacement:
    copies = replicate(counts, ranks * slots, ranks)
    return layer_of(pack(counts, copies, ranks, slots))


def replicate(counts: Ints, total: int, most: int) -> Ints:
    """Copies per expert `[E]`, `total` in all and at most `most` each: each further one to the most loaded copy."""
    copies = np.ones(counts.size, dtype=np.int64)
    heap = [(-float(count), expert) for expert, count in enumerate(counts)]
    heapq.heapify(heap)
    left = min(total, most * counts.size) - counts.size
    while left and heap:
        _, expert = heapq.heappop(heap)
        if copies[expert] == most:
            continue
        copies[expert] += 1
        left -= 1
        heapq.heappush(heap, (-int(counts[expert]) / int(copies[expert]), expert))
    return copies


def pack(counts: Ints, copies: Ints, ranks: int, slots: int) -> list[set[int]]:
    """Experts per rank: heaviest copy first, each to the least loaded rank that has room and not this expert yet."""
    weight = counts / copies
    held: list[set[int]] = [set() for _ in range(ranks)]
    load = np.zeros(ranks)
    for expert in np.argsort(-weight, kind="stable").tolist():
        for _ in range(int(copies[expert])):
            open_ranks = [r for r in range(ranks) if len(held[r]) < slots and expert not in held[r]]
            rank = (
                min(open_ranks, key=lambda r: (load[r], r))
                if open_ranks
                else _make_way(held, load, weight, expert, slots)
            )
            held[rank].add(expert)
            load[rank] += weight[expert]
    return held


def _make_way(held: list[set[int]], load: np.ndarray, weight: np.ndarray, expert: int, slots: int) -> int:
    """Every rank with room has this expert: move another expert there from a rank that has not; that rank."""
    for target in sorted((r for r in range(len(held)) if len(held[r]) < slots), key=lambda r: load[r]):
        for rank in sorted(range(len(held)), key=lambda r: load[r]):
            movable = held[rank] - held[target]
            if expert in held[rank] or not movable:
                continue
            moved = min(movable, key=lambda e: (weight[e], e))
            held[rank].remove(moved)
            held[target].add(moved)
            load[rank] -= weight[moved]
            load[target] += weight[moved]
            return rank
    raise PlacementError(f"expert {expert} has more copies than ranks")
