"""Changes of one layer that might relieve its busiest rank, best guesses first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.planner.policy.table import Bools, Table

REPLICAS = 3
"""Replicas tried exactly, of those that by estimate take most from the busiest rank."""
PARTNERS = 3
"""Least busy ranks with which a swap is tried."""


@dataclass(frozen=True)
class Change:
    """Copies (expert, rank) to add to and to remove from a layer."""

    add: tuple[tuple[int, int], ...]
    remove: tuple[tuple[int, int], ...] = ()

    def applied(self, hold: Bools) -> Bools:
        """`hold [E, R]` after the change."""
        after = hold.copy()
        for expert, rank in self.remove:
            after[expert, rank] = False
        for expert, rank in self.add:
            after[expert, rank] = True
        return after


def replicas(table: Table, room: Bools) -> list[Change]:
    """A further copy of an expert of the busiest rank, on a rank with `room [R]`."""
    busiest = int(table.levels.argmax())
    here = table.tokens[:, busiest].astype(np.float64)
    gap = (table.levels[busiest] - table.levels) / 2
    relief = np.minimum(here[:, None], gap[None, :])
    relief[table.hold | ~room[None, :] | (relief <= 0)] = -1.0
    score = relief + 1e-6 * np.where(relief > 0, here[:, None], 0.0)  # of equals the one with more tokens
    best = np.argsort(-score, axis=None, kind="stable")[:REPLICAS]
    pairs = [(int(i) // score.shape[1], int(i) % score.shape[1]) for i in best if score.flat[i] > 0]
    return [Change(add=(pair,)) for pair in pairs]


def swaps(table: Table) -> list[Change]:
    """An expert of the busiest rank against one of a less busy rank, neither being on both."""
    busiest = int(table.levels.argmax())
    order = [int(r) for r in np.argsort(table.levels, kind="stable") if r != busiest]
    changes = []
    for rank in order[:PARTNERS]:
        give = np.flatnonzero(table.hold[:, busiest] & ~table.hold[:, rank])
        take = np.flatnonzero(table.hold[:, rank] & ~table.hold[:, busiest])
        if not give.size or not take.size:
            continue
        shift = table.tokens[give, busiest][:, None] - table.tokens[take, rank][None, :]
        relief = np.minimum(shift, table.levels[busiest] - table.levels[rank] - shift)
        best = int(relief.argmax())
        if relief.flat[best] > 0:
            out, back = int(give[best // take.size]), int(take[best % take.size])
            changes.append(Change(((out, rank), (back, busiest)), ((out, busiest), (back, rank))))
    return changes
