"""Which rank plays which part of a new plan, so that few copies move. Compiled."""

from __future__ import annotations

import numpy as np

from moesaic.shared.arrays import Bytes, Ints
from moesaic.shared.kernel import kernel


@kernel
def match(live: Bytes, hold: Bytes, kind: Ints) -> None:
    """Rename the ranks of `hold [E, R]` in place, among ranks of the same `kind [R]`, to keep what `live` has: greedily."""
    experts, ranks = hold.shape
    common = np.zeros((ranks, ranks), dtype=np.int64)  # [live rank, part]
    at = np.zeros(ranks, dtype=np.int64)
    for e in range(experts):
        parts = 0
        for r in range(ranks):
            if hold[e, r]:
                at[parts] = r
                parts += 1
        for r in range(ranks):
            if live[e, r]:
                for p in range(parts):
                    common[r, at[p]] += 1
    part_of = np.full(ranks, -1)
    taken = np.zeros(ranks, dtype=np.uint8)
    for kept in range(common.max(), -1, -1):  # a rank holds few experts, so that is faster than sorting the pairs
        for r in range(ranks):
            if part_of[r] >= 0:
                continue
            for part in range(ranks):
                if common[r, part] == kept and not taken[part] and kind[r] == kind[part]:
                    part_of[r] = part
                    taken[part] = 1
                    break
    old = hold.copy()
    for r in range(ranks):
        for e in range(experts):
            hold[e, r] = old[e, part_of[r]]
