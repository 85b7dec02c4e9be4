"""From the live placement, the change that relieves the busiest ranks most per copy moved, again and again.

One pool of slots per rank serves all layers, so the layers compete for it. Steps:
(1) make room on ranks that hold more than their budget; (2) climb: replicate an expert of a layer's busiest rank, in a free
slot or in that of a replica worth less, or swap experts of two ranks; (3) give slots that are still free to the experts with
most tokens per copy: such replicas do not change the average, but let each step be levelled; (4) repeat until nothing changes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from moesaic.planner.policy.candidates import Change, replicas, swaps
from moesaic.planner.policy.problem import Problem
from moesaic.planner.policy.table import Bools, Table
from moesaic.planner.predict import levelled
from moesaic.shared.arrays import Ints
from moesaic.shared.placement import State, layer_of

LEAST_GAIN = 0.01
"""Relief per moved copy below which a change is not worth it, as part of the layer's mean rank load."""
ROUNDS = 8


LINKS_TRIED = 3
"""Experts of a layer whose further copy did not fit before the layer is left alone."""

Copy = tuple[int, int, int]
"""(layer, expert, rank)."""


@dataclass(frozen=True)
class Step:
    """A change of a layer that moves `cost` copies, with the replica `victim` that makes room for it."""

    gain: float
    cost: int
    layer: int
    change: Change
    victim: Copy | None = None

    @property
    def score(self) -> float:
        """Relief per copy moved."""
        return self.gain / max(1, self.cost)


def greedy(problem: Problem) -> State:
    """See the module."""
    if len(problem.budget) < 2 or not problem.load.any():
        return problem.live
    work = Work(problem)
    work.evict()
    for _ in range(ROUNDS):
        climbed = work.climb()
        if not work.fill() and not climbed:
            break
    return work.state()


class Work:
    """All layers' tables, the free slots per rank, and the moves that are left."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._tables = [Table(layer, counts) for layer, counts in zip(problem.live, problem.load, strict=True)]
        used = sum(table.hold.sum(axis=0) for table in self._tables)
        self._free: Ints = np.array(problem.budget, dtype=np.int64) - used
        self._left = problem.max_moves

    def evict(self) -> None:
        """Give up the cheapest replicas of ranks over their budget."""
        for rank in range(self._free.size):
            while self._free[rank] < 0 and (victim := self._victims().get(rank)) is not None:
                self._remove(victim)

    def climb(self) -> bool:
        """Take steps, the best first, until there is none; whether any was taken."""
        climbed = False
        while self._pass():
            climbed = True
        return climbed

    def _pass(self) -> bool:
        taken = 0
        heap: list[tuple[float, int, int, Step | None]] = [(-np.inf, layer, -1, None) for layer in self._loaded()]
        while heap:
            _, layer, found_after, step = heapq.heappop(heap)
            if step is not None and found_after == taken:  # nothing has changed since it was weighed
                self._take(step)
                taken += 1
            step = self._best(layer)
            if step is not None:
                heapq.heappush(heap, (-step.score, layer, taken, step))
        return taken > 0

    def fill(self) -> bool:
        """Spend free slots on the experts with most tokens per copy; whether any was spent."""
        filled = False
        patience = dict.fromkeys(self._loaded(), LINKS_TRIED)
        heap = [wish for layer in patience for wish in self._wishes(layer)]
        heapq.heapify(heap)
        while heap and self._left > 0 and (self._free > 0).any():
            _, layer, expert = heapq.heappop(heap)
            if not patience[layer]:
                continue
            if self._link(layer, expert):
                filled = True
                if (again := self._wish(layer, expert)) is not None:
                    heapq.heappush(heap, again)
            else:
                patience[layer] -= 1
        return filled

    def _loaded(self) -> list[int]:
        return [layer for layer, table in enumerate(self._tables) if table.mean > 0]

    def state(self) -> State:
        """What was made of the live state; layers without a change are as they were."""
        layers = []
        for live, table in zip(self._problem.live, self._tables, strict=True):
            if not table.changed:
                layers.append(live)
                continue
            held = [np.flatnonzero(table.hold[:, rank]).tolist() for rank in range(self._free.size)]
            layers.append(levelled(table.counts, layer_of(held)))
        return tuple(layers)

    # --- steps ---------------------------------------------------------------------------------------------------------

    def _best(self, layer: int) -> Step | None:
        table = self._tables[layer]
        victims = self._victims()
        room: Bools = self._free > 0
        room[list(victims)] = True
        found = []
        for change in [*replicas(table, room), *swaps(table)]:
            rank = change.add[0][1]
            victim = victims.get(rank) if len(change.add) == 1 else None
            step = self._weigh(layer, change, victim)
            if step is not None:
                found.append(step)
        return max(found, key=lambda step: step.score, default=None)

    def _weigh(self, layer: int, change: Change, victim: Copy | None) -> Step | None:
        """The step, if it is allowed and worth its moves."""
        table = self._tables[layer]
        cost = sum(not table.live[copy] for copy in change.add)
        if cost > self._left:
            return None
        before, hold = table.strain, change.applied(table.hold)
        after = 0.0
        if victim is not None and victim[0] == layer:
            hold[victim[1:]] = False
        elif victim is not None:
            other = self._tables[victim[0]]
            before += other.strain
            after = other.strain_with(Change((), (victim[1:],)).applied(other.hold))
        gain = before - after - table.strain_with(hold)
        return Step(gain, cost, layer, change, victim) if gain >= LEAST_GAIN * table.mean * max(1, cost) else None

    def _take(self, step: Step) -> None:
        if step.victim is not None:
            self._remove(step.victim)
        table = self._tables[step.layer]
        before = table.hold.sum(axis=0)
        table.put(step.change.applied(table.hold))
        self._free -= table.hold.sum(axis=0) - before
        self._left -= step.cost

    def _victims(self) -> dict[int, Copy]:
        """The replica that pays least on each rank that is full."""
        pays = np.array([table.cheapest for table in self._tables])
        cheapest = pays.argmin(axis=0)
        found = {}
        for rank in np.flatnonzero(self._free < 1).tolist():
            layer = int(cheapest[rank])
            if np.isfinite(pays[layer, rank]):
                found[rank] = (layer, int(self._tables[layer].pays[:, rank].argmin()), rank)
        return found

    def _remove(self, victim: Copy) -> None:
        layer, expert, rank = victim
        table = self._tables[layer]
        table.put(Change((), ((expert, rank),)).applied(table.hold))
        self._free[rank] += 1

    # --- links ---------------------------------------------------------------------------------------------------------

    def _wishes(self, layer: int) -> list[tuple[float, int, int]]:
        found = (self._wish(layer, expert) for expert in range(self._tables[layer].counts.size))
        return [wish for wish in found if wish is not None]

    def _wish(self, layer: int, expert: int) -> tuple[float, int, int] | None:
        """(minus tokens per copy, layer, expert) of an expert whose copies have at least a mean expert's tokens."""
        table = self._tables[layer]
        per_copy = float(table.counts[expert]) / int(table.hold[expert].sum())
        return (-per_copy, layer, expert) if per_copy >= float(table.counts.mean()) else None

    def _link(self, layer: int, expert: int) -> bool:
        """One more copy, on the rank that shares least with others; not where the average would suffer."""
        table = self._tables[layer]
        open_to = np.flatnonzero((self._free > 0) & ~table.hold[expert])
        if not open_to.size:
            return False
        shared = table.tokens[table.hold.sum(axis=1) > 1].sum(axis=0)
        rank = min(open_to.tolist(), key=lambda r: (int(shared[r]), -int(self._free[r]), r))
        change = Change(((expert, rank),))
        if table.strain_with(change.applied(table.hold)) > table.strain:
            return False
        cost = int(not table.live[expert, rank])
        self._take(Step(0.0, cost, layer, change))
        return True
