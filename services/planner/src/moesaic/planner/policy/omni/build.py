"""A layer's copies planned afresh. Compiled; names as in `levels`.

`room [R]` slots of this layer on each rank, `may [E, R]` where copies may be, `pin [E, R]` copies that must be there.
"""

from __future__ import annotations

import numpy as np

from moesaic.shared.arrays import Bytes, Floats, Ints
from moesaic.shared.kernel import kernel


@kernel
def replicate(weight: Floats, extra: int, most: Ints) -> Ints:
    """Copies per expert: each further one to the expert with most weight per copy, at most `most [E]`."""
    n = np.ones(weight.size, dtype=np.int64)
    per = weight.copy()
    for e in range(weight.size):
        if most[e] < 2:
            per[e] = -1.0
    for _ in range(extra):
        best = int(np.argmax(per))
        if per[best] < 0.0:
            break
        n[best] += 1
        per[best] = weight[best] / n[best] if n[best] < most[best] else -1.0
    return n


@kernel
def build(
    work: Floats, fixed: Floats, pace: Floats, room: Ints, may: Bytes, pin: Bytes, softness: float, plain: bool
) -> Bytes:
    """`hold [E, R]`. Steps.

    (1) Copies in proportion to `work ** softness`: below 1, experts that may become hot get some of what the hottest have.
    (2) Experts with several copies, most work first: the first copy of each joins the rank whose other replicated expert has
    most work and so can make way best; the others go to ranks without one, then to ranks not linked with it yet. `plain`, for
    layers short of memory: all experts, most work per copy first, to the least loaded rank.
    (3) The others, most work first, to the least loaded rank. An expert that finds no slot takes a replica's.
    """
    experts, ranks = may.shape
    hold = pin.copy()
    free = room.copy()
    most = np.zeros(experts, dtype=np.int64)
    for e in range(experts):
        for r in range(ranks):
            most[e] += may[e, r]
            free[r] -= hold[e, r]
    n = replicate(work**softness, max(0, room.sum() - experts), most)
    cost = work / n + fixed
    load = np.zeros(ranks)
    for e in range(experts):
        for r in range(ranks):
            if hold[e, r]:
                load[r] += cost[e] * pace[r]
    link = np.arange(ranks)
    buffer = np.zeros(ranks)
    hot = np.zeros(ranks, dtype=np.int64)
    for e in np.argsort(-cost if plain else -work, kind="mergesort"):
        if n[e] < 2 and not plain:
            continue
        for copy in range(hold[e].sum(), n[e]):
            best = _for_replica(e, copy == 0, plain, hold, may, free, load, link, buffer, hot)
            if best < 0:
                break
            hold[e, best] = 1
            free[best] -= 1
            load[best] += cost[e] * pace[best]
            hot[best] += 1
            buffer[best] = max(buffer[best], work[e])
            if not plain:
                _join(e, best, hold, link)
    for e in np.argsort(-cost, kind="mergesort"):
        if hold[e].sum() > 0:
            continue
        best = -1
        for r in range(ranks):
            if free[r] > 0 and may[e, r] and (best < 0 or load[r] < load[best]):
                best = r
        if best >= 0:
            hold[e, best] = 1
            free[best] -= 1
            load[best] += cost[e] * pace[best]
    for e in range(experts):
        if hold[e].sum() == 0:
            squeeze(e, hold, may, pin, work)
    return hold


@kernel
def _for_replica(
    e: int, first: bool, plain: bool, hold: Bytes, may: Bytes, free: Ints, load: Floats, link: Ints, buffer: Floats,
    hot: Ints,
) -> int:  # fmt: skip
    """Step (2) for one copy: a rank, or -1 where there is none."""
    ranks = free.size
    best = -1
    rated = np.zeros(4)
    rate = np.zeros(4)
    joins = first and hot.sum() > 0
    linked = np.zeros(ranks, dtype=np.uint8)
    if not plain and not first:
        for r in range(ranks):
            if hold[e, r]:
                linked[link[r]] = 1
    for r in range(ranks):
        if free[r] < 1 or hold[e, r] or not may[e, r]:
            continue
        if plain:
            rate[:] = 0.0
        elif joins:
            rate[0] = 0.0 if hot[r] == 1 else (1.0 if hot[r] > 1 else 2.0)
            rate[1] = 0.0
            rate[2] = -buffer[r]
        else:
            rate[0] = float(hot[r])
            rate[1] = float(linked[link[r]])
            rate[2] = -buffer[r]
        rate[3] = load[r]
        if best < 0 or _less(rate, rated):
            best = r
            rated[:] = rate
    return best


@kernel
def _less(a: Floats, b: Floats) -> bool:
    for i in range(a.size):
        if a[i] != b[i]:
            return bool(a[i] < b[i])
    return False


@kernel
def _join(e: int, rank: int, hold: Bytes, link: Ints) -> None:
    """Ranks that an expert's copies connect carry the same number in `link`."""
    for q in range(link.size):
        if hold[e, q] and link[q] != link[rank]:
            old = link[rank]
            new = link[q]
            for r in range(link.size):
                if link[r] == old:
                    link[r] = new
            break


@kernel
def squeeze(e: int, hold: Bytes, may: Bytes, pin: Bytes, work: Floats) -> bool:
    """A homeless expert takes the slot of the replica with least work on a rank where it may be; whether there was one."""
    experts, ranks = hold.shape
    victim = -1
    rank = -1
    for v in range(experts):
        if hold[v].sum() < 2 or (victim >= 0 and work[v] >= work[victim]):
            continue
        for r in range(ranks):
            if hold[v, r] and may[e, r] and not pin[v, r]:
                victim = v
                rank = r
                break
    if victim < 0:
        return False
    hold[victim, rank] = 0
    hold[e, rank] = 1
    return True
