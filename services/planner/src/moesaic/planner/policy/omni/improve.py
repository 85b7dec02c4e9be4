"""A few changes of a layer's copies, each the one that brings most per copy moved. Compiled; names as in `levels`, `build`.

`live [E, R]` says who held what before: a copy that is there already costs no move.
"""

from __future__ import annotations

import numpy as np

from moesaic.planner.policy.omni.copies import add, remove
from moesaic.planner.policy.omni.levels import ideal, settle, survey
from moesaic.shared.arrays import Bytes, Floats, Ints
from moesaic.shared.kernel import kernel

SWEEPS = 16
"""Fillings at first; `AGAIN` after a change, `TRIAL` while one is tried."""
AGAIN = 8
TRIAL = 4
TRIED = 3
"""Changes tried exactly in a round, of those that by estimate promise most; `AT_WORST` where none of them is worth it."""
AT_WORST = 6
SOURCES = 3
"""Ranks above the target that are relieved in a round, and ranks that may take something."""
PARTNERS = 6
COPY, SWAP = 1, 2
LEAST_CAPACITY = 0.05
"""Of the mean rank load: what even a rank full of experts with one copy is taken to have left."""
FREE = 0.5
"""What a change that moves nothing counts, in moves: it still has to be worth something."""


@kernel
def grow(
    work: Floats, pace: Floats, live: Bytes, hold: Bytes, n: Ints, at: Ints, room: Ints, may: Bytes, max_moves: int
) -> int:
    """Fill free slots, in place: each with the expert that has most work per copy, where load is least; copies moved."""
    free = room.copy()
    load = np.zeros(pace.size)
    for e in range(n.size):
        for x in range(n[e]):
            free[at[e, x]] -= 1
            load[at[e, x]] += work[e] / n[e] * pace[at[e, x]]
    left = free.sum()
    per = work / n
    moved = 0
    while left > 0:
        e = int(np.argmax(per))
        if per[e] <= 0.0:
            break
        best = -1
        for r in range(free.size):
            if free[r] < 1 or hold[e, r] or not may[e, r] or (not live[e, r] and moved >= max_moves):
                continue
            if best < 0 or live[e, r] > live[e, best] or (live[e, r] == live[e, best] and load[r] < load[best]):
                best = r
        if best < 0 or n[e] >= at.shape[1]:
            per[e] = 0.0
            continue
        for x in range(n[e]):
            load[at[e, x]] -= (work[e] / n[e] - work[e] / (n[e] + 1)) * pace[at[e, x]]
        add(e, best, hold, n, at)
        load[best] += work[e] / n[e] * pace[best]
        free[best] -= 1
        per[e] = work[e] / n[e]
        left -= 1
        moved += 0 if live[e, best] else 1
    return moved


@kernel
def relink(
    work: Floats, pace: Floats, live: Bytes, hold: Bytes, n: Ints, at: Ints, may: Bytes, pin: Bytes,
    ratio: float, max_moves: int,
) -> int:  # fmt: skip
    """Give slots of replicas that are not needed any more to experts that have become hot, in place; copies moved.

    An expert's *capacity* is what its hosts have left beside experts with one copy: that is how far it may rise. A slot goes
    from one expert to another where that lowers the higher work per capacity of the two by the factor `ratio` at least. A
    copy that has gone does not come back: what one expert gets can make those needy that share its hosts, round and round.
    """
    experts, ranks = hold.shape
    mean = work.sum() / (1.0 / pace).sum()
    floor = LEAST_CAPACITY * mean
    forced = np.zeros(ranks)
    left = np.zeros(ranks)
    capacity = np.zeros(experts)
    gone = np.zeros(hold.shape, dtype=np.uint8)
    for e in range(experts):
        if n[e] == 1:
            forced[at[e, 0]] += work[e] * pace[at[e, 0]]
    moved = 0
    while moved < max_moves:
        for r in range(ranks):
            left[r] = max(floor, mean - forced[r]) / pace[r]
        needy = -1
        for e in range(experts):
            if n[e] == 1:
                r = at[e, 0]
                capacity[e] = max(floor, mean - forced[r] + work[e] * pace[r]) / pace[r]
            else:
                capacity[e] = 0.0
                for x in range(n[e]):
                    capacity[e] += left[at[e, x]]
            if n[e] < at.shape[1] and (needy < 0 or work[e] / capacity[e] > work[needy] / capacity[needy]):
                needy = e
        if needy < 0:
            break
        best = work[needy] / capacity[needy] / ratio
        victim = -1
        rank = -1
        for v in range(experts):
            if n[v] < 2 or v == needy:
                continue
            for x in range(n[v]):
                r = at[v, x]
                if hold[needy, r] or gone[needy, r] or pin[v, r] or not may[needy, r]:
                    continue
                then = max(work[v] / max(capacity[v] - left[r], floor), work[needy] / (capacity[needy] + left[r]))
                if then < best:
                    best = then
                    victim = v
                    rank = r
        if victim < 0:
            break
        if n[needy] == 1:
            forced[at[needy, 0]] -= work[needy] * pace[at[needy, 0]]
        remove(victim, rank, hold, n, at)
        gone[victim, rank] = 1
        add(needy, rank, hold, n, at)
        if n[victim] == 1:
            forced[at[victim, 0]] += work[victim] * pace[at[victim, 0]]
        moved += 0 if live[needy, rank] else 1
    return moved


@kernel
def improve(
    work: Floats, fixed: Floats, pace: Floats, live: Bytes, hold: Bytes, n: Ints, at: Ints,
    room: Ints, may: Bytes, pin: Bytes, lowest: float, slack: float, least: float, max_moves: int, rounds: int, strict: bool,
) -> float:  # fmt: skip
    """Change the copies in place until no rank is above (1 + slack) times the ideal level, or nothing is worth it.

    The ideal is what ranks that shared everything evenly would have, or `lowest`, below which memory allows no plan. A change
    is worth it if it takes `least` of it off what is above the target, per copy moved. It is a further copy of an expert of a
    rank above the target, in a free slot or in a replica's, or a swap of two experts. Returned is the strain: the busiest
    rank's level over the ideal one, 1 where nothing can be better. `strict`: no change makes a rank busier than the busiest.
    """
    experts, ranks = hold.shape
    by_work = np.argsort(-work, kind="mergesort")
    rows = rounds + 2
    for e in range(experts):
        rows += 1 if n[e] > 1 else 0
    multis = np.zeros(rows, dtype=np.int64)
    split = np.zeros((rows, at.shape[1]))
    tried = np.zeros((rows, at.shape[1]))
    base = np.zeros(ranks)
    level = np.zeros(ranks)
    scratch = np.zeros(ranks)
    index = np.zeros(at.shape[1], dtype=np.int64)
    scores = np.zeros(AT_WORST)
    options = np.zeros((AT_WORST, 4), dtype=np.int64)
    strain = 1.0
    m = survey(work, fixed, pace, by_work, n, at, multis, split, base)
    sweeps = SWEEPS
    for turn in range(rounds + 1):
        middle = max(lowest, ideal(work, fixed, pace, n))
        target = middle * (1.0 + slack)
        above = settle(work, fixed, pace, n, at, multis[:m], base, target, sweeps, split, level, index)
        sweeps = AGAIN
        highest = level.max()
        strain = highest / middle if middle > 0.0 else 1.0
        if above <= 1e-9 * middle or max_moves <= 0 or turn == rounds:
            break
        _propose(
            work, pace, live, hold, room, may, pin, n, at, multis[:m], split, level, target, above, scores, options
        )
        best = -1
        best_score = 0.0
        best_cost = 0
        for o in range(AT_WORST):
            kind, a, b, q = options[o]
            if scores[o] <= 0.0 or (o >= TRIED and (best >= 0 or strain < 1.0 + 2.0 * slack)):
                break
            cost = 0 if live[a, q] else 1
            r = at[a, 0]
            if kind == SWAP and not live[b, r]:
                cost += 1
            if cost > max_moves:
                continue
            tried[:m] = split[:m]
            if kind == COPY:
                grown = _copy(a, b, q, work, fixed, pace, n, at, multis, m, base, tried)
                then = settle(work, fixed, pace, n, at, multis[:grown], base, target, TRIAL, tried, scratch, index)
                _uncopy(a, b, q, work, fixed, pace, n, at, grown > m, base)
            else:
                _swap(a, b, r, q, work, fixed, pace, at, base)
                then = settle(work, fixed, pace, n, at, multis[:m], base, target, TRIAL, tried, scratch, index)
                _swap(a, b, q, r, work, fixed, pace, at, base)
            gain = above - then if not strict or scratch.max() <= highest else 0.0
            if gain >= least * middle * max(FREE, cost) and gain / max(FREE, cost) > best_score:
                best, best_score, best_cost = o, gain / max(FREE, cost), cost
        if best < 0:
            break
        kind, a, b, q = options[best]
        if kind == COPY:
            m = _copy(a, b, q, work, fixed, pace, n, at, multis, m, base, split)
            if b >= 0 and n[b] == 1:
                m = _to_base(b, work, fixed, pace, at, multis, m, base, split)
        else:
            r = at[a, 0]
            _swap(a, b, r, q, work, fixed, pace, at, base)
            hold[a, r] = 0
            hold[b, r] = 1
        if b >= 0:
            hold[b, q] = 0
        hold[a, q] = 1
        max_moves -= best_cost
    return strain


@kernel
def _copy(
    a: int, b: int, q: int, work: Floats, fixed: Floats, pace: Floats, n: Ints, at: Ints, multis: Ints, m: int,
    base: Floats, split: Floats,
) -> int:  # fmt: skip
    """A further copy of `a` on rank `q`, there instead of `b` unless that is -1, in all but `hold`; the new M.

    What `b` carried there goes to the first of its others. An expert that has one copy left stays in its row.
    """
    if b >= 0:
        gone = 0
        while at[b, gone] != q:
            gone += 1
        n[b] -= 1
        at[b, gone] = at[b, n[b]]
        at[b, n[b]] = gone  # for `_uncopy`
        for i in range(m):
            if multis[i] == b:
                lost = split[i, gone]
                split[i, gone] = split[i, n[b]]
                split[i, 0] += lost
    at[a, n[a]] = q
    n[a] += 1
    for i in range(m):
        if multis[i] == a:
            if n[a] == 2:
                split[i, 0] = work[a]
            split[i, n[a] - 1] = 0.0
            return m
    multis[m] = a
    split[m, 0] = work[a]
    split[m, 1] = 0.0
    base[at[a, 0]] -= (work[a] + fixed[a]) * pace[at[a, 0]]
    return m + 1


@kernel
def _to_base(
    e: int, work: Floats, fixed: Floats, pace: Floats, at: Ints, multis: Ints, m: int, base: Floats, split: Floats
) -> int:
    """An expert with one copy left leaves its row; the new M."""
    for i in range(m):
        if multis[i] == e:
            multis[i] = multis[m - 1]
            split[i] = split[m - 1]
            break
    base[at[e, 0]] += (work[e] + fixed[e]) * pace[at[e, 0]]
    return m - 1


@kernel
def _uncopy(
    a: int, b: int, q: int, work: Floats, fixed: Floats, pace: Floats, n: Ints, at: Ints, fresh: bool, base: Floats
) -> None:
    """As it was before `_copy`; the splits of a trial are thrown away."""
    n[a] -= 1
    if fresh:
        base[at[a, 0]] += (work[a] + fixed[a]) * pace[at[a, 0]]
    if b >= 0:
        gone = at[b, n[b]]
        at[b, n[b]] = at[b, gone]
        at[b, gone] = q
        n[b] += 1


@kernel
def _swap(a: int, b: int, r: int, q: int, work: Floats, fixed: Floats, pace: Floats, at: Ints, base: Floats) -> None:
    """`a` from rank `r` to `q`, `b` from there to `r`; both have one copy. In all but `hold`."""
    shift = work[a] + fixed[a] - work[b] - fixed[b]
    base[r] -= shift * pace[r]
    base[q] += shift * pace[q]
    at[a, 0] = q
    at[b, 0] = r


@kernel
def _propose(
    work: Floats, pace: Floats, live: Bytes, hold: Bytes, room: Ints, may: Bytes, pin: Bytes,
    n: Ints, at: Ints, multis: Ints, split: Floats, level: Floats, target: float, above: float,
    scores: Floats, options: Ints,
) -> None:  # fmt: skip
    """The changes that by estimate bring most per move: `options` (kind, expert, other expert or -1, rank), best first."""
    experts, ranks = hold.shape
    scores[:] = 0.0
    fluid = np.zeros(ranks)
    cheapest = np.full(ranks, -1)
    carries = np.zeros(ranks)
    for i in range(multis.size):
        e = multis[i]
        for x in range(n[e]):
            r = at[e, x]
            fluid[r] += split[i, x]
            if not pin[e, r] and (cheapest[r] < 0 or split[i, x] < carries[r]):
                cheapest[r] = e
                carries[r] = split[i, x]
    over = np.zeros(ranks)
    for r in range(ranks):
        over[r] = (level[r] - target) / pace[r]
    slack = _takes(over, fluid, n, at, multis)
    sources = _highest(over, SOURCES)
    partners = _highest(slack, PARTNERS)
    used = np.zeros(ranks, dtype=np.int64)
    for e in range(experts):
        for x in range(n[e]):
            used[at[e, x]] += 1
    mine = np.zeros(experts, dtype=np.int64)
    theirs = np.zeros(experts, dtype=np.int64)
    for q in partners:
        if q < 0:
            break
        others = _on(q, hold, theirs)
        for r in sources:
            if r < 0:
                break
            for i in range(_on(r, hold, mine)):
                a = mine[i]
                if hold[a, q] or not may[a, q]:
                    continue
                gain = min(work[a], above, slack[q])
                free = used[q] < room[q]
                if n[a] < at.shape[1] and cheapest[q] != a and (free or cheapest[q] >= 0):
                    loss = 0.0 if free else 0.25 * carries[q]
                    cost = FREE if live[a, q] else 1.0
                    _offer((gain - loss) / cost, COPY, a, -1 if free else cheapest[q], q, scores, options)
                if n[a] > 1 or pin[a, r]:
                    continue
                for j in range(others):
                    b = theirs[j]
                    if n[b] > 1 or work[b] >= work[a] or hold[b, r] or not may[b, r] or pin[b, q]:
                        continue
                    cost = max(FREE, (0.0 if live[a, q] else 1.0) + (0.0 if live[b, r] else 1.0))
                    gain = min(work[a] - work[b], over[r], slack[q])
                    gain -= 0.5 * max(0.0, work[a] - work[b] - slack[q])
                    _offer(gain / cost, SWAP, a, b, q, scores, options)


@kernel
def _takes(over: Floats, fluid: Floats, n: Ints, at: Ints, multis: Ints) -> Floats:
    """What each rank below the target can take `[R]`: its own room, and what it can pass on to ranks it is linked with."""
    ranks = over.size
    link = np.arange(ranks)
    for e in multis:
        if n[e] < 2:
            continue
        one = link[at[e, 0]]
        for x in range(1, n[e]):
            other = link[at[e, x]]
            if other != one:
                for r in range(ranks):
                    if link[r] == other:
                        link[r] = one
    together = np.zeros(ranks)
    for r in range(ranks):
        together[link[r]] += max(0.0, -over[r])
    takes = np.zeros(ranks)
    for r in range(ranks):
        if over[r] <= 0.0:
            takes[r] = min(together[link[r]], fluid[r] - over[r])
    return takes


@kernel
def _on(rank: int, hold: Bytes, found: Ints) -> int:
    """Write the experts of a rank into `found`; how many."""
    count = 0
    for e in range(hold.shape[0]):
        if hold[e, rank]:
            found[count] = e
            count += 1
    return count


@kernel
def _highest(values: Floats, count: int) -> Ints:
    """Indices of the highest positive values, highest first, padded with -1."""
    found = np.full(count, -1)
    for r in range(values.size):
        if values[r] <= 0.0:
            continue
        for p in range(count):
            if found[p] < 0 or values[r] > values[found[p]]:
                for j in range(count - 1, p, -1):
                    found[j] = found[j - 1]
                found[p] = r
                break
    return found


@kernel
def _offer(score: float, kind: int, a: int, b: int, q: int, scores: Floats, options: Ints) -> None:
    if score <= scores[-1]:
        return
    o = scores.size - 1
    while o > 0 and scores[o - 1] < score:
        scores[o] = scores[o - 1]
        options[o] = options[o - 1]
        o -= 1
    scores[o] = score
    options[o, 0] = kind
    options[o, 1] = a
    options[o, 2] = b
    options[o, 3] = q
