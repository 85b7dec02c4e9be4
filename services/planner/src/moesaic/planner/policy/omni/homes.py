"""A home for every expert of every layer where few places are allowed: the last resort of `allot.house`."""

from __future__ import annotations

import numpy as np

from moesaic.planner.policy.problem import Hold, Problem, ProblemError


def homes(problem: Problem) -> Hold:
    """Pinned copies and one copy of every other expert `[L, E, R]`, where they are live if that is possible.

    A maximum matching by augmenting paths: an expert takes a free slot, or that of one that finds another. Raises
    ProblemError where an expert is left over.
    """
    hold = np.zeros(problem.shape, dtype=np.bool_) if problem.pinned is None else problem.pinned.copy()
    may = np.ones(problem.shape, dtype=np.bool_) if problem.may is None else problem.may
    free = problem.slots - hold.sum(axis=(0, 1))
    guests: list[set[tuple[int, int]]] = [set() for _ in free]
    for layer, expert in np.argwhere(~hold.any(axis=2)).tolist():
        came: dict[int, tuple[tuple[int, int], int]] = {}  # rank: who would come there, from which rank (-1: homeless)
        queue = [((layer, expert), -1)]
        found = -1
        while queue and found < 0:
            who, rank = queue.pop(0)
            places = np.flatnonzero(may[who])
            for place in places[np.argsort(~problem.live[who][places], kind="stable")].tolist():
                if place in came:
                    continue
                came[place] = who, rank
                if len(guests[place]) < free[place]:
                    found = place
                    break
                queue.extend((guest, place) for guest in sorted(guests[place]))
        if found < 0:
            raise ProblemError(f"layer {layer} expert {expert} finds no slot on the ranks where it may be")
        while found >= 0:
            who, rank = came[found]
            guests[found].add(who)
            if rank >= 0:
                guests[rank].remove(who)
            found = rank
    for rank, seated in enumerate(guests):
        for layer, expert in seated:
            hold[layer, expert, rank] = True
    return hold
