"""The assignment compiled with numba: `reference.quotas`, number for number. Planners call the kernels directly."""

from __future__ import annotations

import numpy as np

from moesaic.shared.arrays import Ints
from moesaic.shared.dispatch.prices import SWEEPS, Prices
from moesaic.shared.kernel import kernel


def quotas(counts: Ints, ranks_of: Ints, shares: Ints, prices: Prices) -> Ints:
    """See `reference.quotas`."""
    return split(counts, ranks_of, shares, prices.token, prices.expert, SWEEPS)


@kernel
def split(counts: Ints, ranks_of: Ints, shares: Ints, token: Ints, expert: Ints, sweeps: int) -> Ints:
    """See `reference.quotas`."""
    quota = np.zeros_like(ranks_of)
    level = np.zeros(token.size, dtype=np.int64)
    relax(counts, ranks_of, shares, token, expert, sweeps, quota, level)
    return quota


@kernel
def relax(
    counts: Ints, ranks_of: Ints, shares: Ints, token: Ints, expert: Ints, sweeps: int, quota: Ints, level: Ints
) -> None:
    """The split into `quota [E, X]` and the ranks' cost into `level [R]`; both are overwritten."""
    experts, most = ranks_of.shape
    level[:] = 0
    quota[:] = 0
    total = 0
    several = np.empty(experts, dtype=np.int64)
    found = 0
    for e in range(experts):
        count = counts[e]
        total += count
        if count == 0:
            continue
        if most == 1 or ranks_of[e, 1] < 0:
            r = ranks_of[e, 0]
            quota[e, 0] = count
            level[r] += count * token[r] + expert[r]
            continue
        several[found] = e
        found += 1
        whole = 0
        for x in range(most):
            if ranks_of[e, x] < 0:
                break
            whole += shares[e, x]
        begin = 0
        reach = 0
        for x in range(most):
            r = ranks_of[e, x]
            if r < 0:
                break
            reach += shares[e, x]
            end = count * reach // whole
            quota[e, x] = end - begin
            if end > begin:
                level[r] += (end - begin) * token[r] + expert[r]
            begin = end
    several = several[:found]
    order = several[np.argsort(-counts[several], kind="mergesort")]
    least = -(-total // token.size) * token.min()
    bases = np.empty(most, dtype=np.int64)
    paces = np.empty(most, dtype=np.int64)
    fill = np.empty(most, dtype=np.int64)
    index = np.empty(most, dtype=np.int64)
    for _ in range(sweeps):
        if level.max() <= least:
            break
        changed = False
        for e in order:
            n = 0
            while n < most and ranks_of[e, n] >= 0:
                r = ranks_of[e, n]
                if quota[e, n] > 0:
                    level[r] -= quota[e, n] * token[r] + expert[r]
                bases[n] = level[r] + expert[r]
                paces[n] = token[r]
                n += 1
            water(bases[:n], paces[:n], counts[e], shares[e], fill[:n], index[:n])
            for x in range(n):
                r = ranks_of[e, x]
                if fill[x] > 0:
                    level[r] += fill[x] * token[r] + expert[r]
                if fill[x] != quota[e, x]:
                    changed = True
                    quota[e, x] = fill[x]
        if not changed:
            break


@kernel
def water(bases: Ints, paces: Ints, amount: int, shares: Ints, fill: Ints, index: Ints) -> None:
    """See `reference.water`; the result goes into `fill`, `index` is scratch of the same size."""
    n = bases.size
    for x in range(n):  # sorted by base, insertion keeps equals in order
        j = x
        while j > 0 and bases[index[j - 1]] > bases[x]:
            index[j] = index[j - 1]
            j -= 1
        index[j] = x
    rates = 0.0
    weighted = 0.0
    widest = paces[0]
    line = 0.0
    for i in range(n):
        x = index[i]
        if i > 0 and rates * bases[x] - weighted > amount:
            break
        rates += 1.0 / paces[x]
        weighted += bases[x] / paces[x]
        line = (amount + weighted) / rates
    for x in range(n):
        widest = max(widest, paces[x])
    low = max(bases[index[0]], np.int64(line) - 1)
    high = np.int64(line) + widest + 2
    while high - low > 1:
        middle = (low + high) // 2
        if _reaching(bases, paces, middle, fill) <= amount:
            low = middle
        else:
            high = middle
    left = amount - _reaching(bases, paces, low, fill)
    while left > 0:
        best = -1
        for x in range(n):
            if index[x] < 0:  # has its token already
                continue
            end = bases[x] + (fill[x] + 1) * paces[x]
            if best < 0:
                best = x
                continue
            other = bases[best] + (fill[best] + 1) * paces[best]
            if end < other or (end == other and shares[x] > shares[best]):
                best = x
        index[best] = -1
        fill[best] += 1
        left -= 1


@kernel
def _reaching(bases: Ints, paces: Ints, surface: int, fill: Ints) -> int:
    total = 0
    for x in range(bases.size):
        fill[x] = max(0, (surface - bases[x]) // paces[x])
        total += fill[x]
    return total
