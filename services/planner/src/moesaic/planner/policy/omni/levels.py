"""How the ranks of one layer level when the work of experts with several copies flows between them. Compiled.

The same filling as `shared.dispatch`, in floating point and on expected work instead of a step's tokens. Of a layer:
`work [E]` cost of an expert's tokens in a step, `fixed [E]` cost of its being active, once on each host; `pace [R]` by which a
rank multiplies costs (1 / speed); `n [E]` copies, `at [E, X]` their ranks; `multis [M]` the experts with several copies, most
work first, `split [M, X]` work per copy of theirs; `base [R]` what the experts with one copy cost; `level [R]` all together.
"""

from __future__ import annotations

import numpy as np

from moesaic.shared.arrays import Floats, Ints
from moesaic.shared.kernel import kernel

STALLED = 0.97
"""A sweep that leaves more than this part of what was above the target is the last one."""


@kernel
def survey(
    work: Floats, fixed: Floats, pace: Floats, by_work: Ints, n: Ints, at: Ints,
    multis: Ints, split: Floats, base: Floats,
) -> int:  # fmt: skip
    """Fill the last three arguments, work split evenly; M."""
    m = 0
    base[:] = 0.0
    for e in by_work:
        if n[e] > 1:
            multis[m] = e
            for x in range(n[e]):
                split[m, x] = work[e] / n[e]
            m += 1
        elif n[e] == 1:
            base[at[e, 0]] += (work[e] + fixed[e]) * pace[at[e, 0]]
    return m


@kernel
def settle(
    work: Floats, fixed: Floats, pace: Floats, n: Ints, at: Ints, multis: Ints, base: Floats,
    target: float, sweeps: int, split: Floats, level: Floats, index: Ints,
) -> float:  # fmt: skip
    """Let the work flow from where `split` has it until no rank is above the target, or so many sweeps; what stays above."""
    level[:] = base
    for i in range(multis.size):
        e = multis[i]
        if n[e] == 1:
            level[at[e, 0]] += (work[e] + fixed[e]) * pace[at[e, 0]]
            continue
        for x in range(n[e]):
            level[at[e, x]] += (fixed[e] + split[i, x]) * pace[at[e, x]]
    above = excess(level, pace, target)
    for _ in range(sweeps):
        if above <= 0.0:
            break
        for i in range(multis.size):
            e = multis[i]
            if n[e] > 1:
                _fill(work[e], pace, at[e, : n[e]], split[i], level, index)
        before = above
        above = excess(level, pace, target)
        if above > STALLED * before:
            break
    return above


@kernel
def excess(level: Floats, pace: Floats, target: float) -> float:
    """Work above the target, all ranks together."""
    total = 0.0
    for r in range(level.size):
        if level[r] > target:
            total += (level[r] - target) / pace[r]
    return total


@kernel
def ideal(work: Floats, fixed: Floats, pace: Floats, n: Ints) -> float:
    """The level of all ranks if everything could be divided."""
    total = 0.0
    speed = 0.0
    for e in range(work.size):
        total += work[e] + fixed[e] * n[e]
    for r in range(pace.size):
        speed += 1.0 / pace[r]
    return total / speed


@kernel
def reachable(work: Floats, pace: Floats, slots: int) -> float:
    """A level that no placement in so many slots gets below: an expert needs a copy for each such level of work it has."""
    fastest = pace.min()
    low = 0.0
    high = work.max() * fastest
    if high <= 0.0:
        return 0.0
    for _ in range(40):
        level = (low + high) / 2.0
        copies = 0.0
        for e in range(work.size):
            copies += max(1.0, np.ceil(work[e] * fastest / level - 1e-9))
        if copies <= slots:
            high = level
        else:
            low = level
    return low


@kernel
def _fill(amount: float, pace: Floats, at: Ints, split: Floats, level: Floats, index: Ints) -> None:
    """Take one expert's work off its ranks and fill it in again like water."""
    copies = at.size
    for x in range(copies):
        level[at[x]] -= split[x] * pace[at[x]]
        j = x
        while j > 0 and level[at[index[j - 1]]] > level[at[x]]:
            index[j] = index[j - 1]
            j -= 1
        index[j] = x
    rates = 0.0
    weighted = 0.0
    surface = 0.0
    for i in range(copies):
        r = at[index[i]]
        if i > 0 and level[r] >= surface:
            break
        rates += 1.0 / pace[r]
        weighted += level[r] / pace[r]
        surface = (amount + weighted) / rates
    for x in range(copies):
        r = at[x]
        split[x] = max(0.0, surface - level[r]) / pace[r]
        level[r] += split[x] * pace[r]
