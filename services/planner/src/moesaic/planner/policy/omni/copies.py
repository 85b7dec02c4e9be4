"""A layer's copies, kept twice: `hold [E, R]` says whether, `n [E]` and `at [E, X]` say where, in no order. Compiled."""

from __future__ import annotations

import numpy as np

from moesaic.shared.arrays import Bytes, Ints
from moesaic.shared.kernel import kernel


@kernel
def most_copies(hold: Bytes, room: Ints) -> int:
    """X: copies that an expert of this layer has or may get at most."""
    experts, ranks = hold.shape
    most = min(ranks, 64, max(1, np.int64(room.sum()) - experts + 1))
    for e in range(experts):
        copies = 0
        for r in range(ranks):
            if hold[e, r]:
                copies += 1
        most = max(most, copies)
    return int(most)


@kernel
def read(hold: Bytes, n: Ints, at: Ints) -> None:
    """`n` and `at` from `hold`."""
    for e in range(hold.shape[0]):
        copies = 0
        for r in range(hold.shape[1]):
            if hold[e, r]:
                at[e, copies] = r
                copies += 1
        n[e] = copies


@kernel
def add(e: int, r: int, hold: Bytes, n: Ints, at: Ints) -> None:
    """A further copy."""
    hold[e, r] = 1
    at[e, n[e]] = r
    n[e] += 1


@kernel
def remove(e: int, r: int, hold: Bytes, n: Ints, at: Ints) -> None:
    """One copy less."""
    hold[e, r] = 0
    place = 0
    while at[e, place] != r:
        place += 1
    n[e] -= 1
    at[e, place] = at[e, n[e]]


@kernel
def received(live: Bytes, n: Ints, at: Ints) -> int:
    """Copies that are not in `live [E, R]`."""
    count = 0
    for e in range(n.size):
        for x in range(n[e]):
            if not live[e, at[e, x]]:
                count += 1
    return count
