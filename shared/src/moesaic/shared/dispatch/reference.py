"""The assignment as numpy says it: what every faster version must equal.

Levelling the ranks is a minimisation of a separable convex function over each replicated expert's split, so filling one
expert after the other like water, again and again, converges to the split whose busiest rank is least busy (block coordinate
descent; that the optimum also is the least unequal one follows from the splits being a polymatroid's bases, Federgruen and
Groenevelt 1986).
"""

from __future__ import annotations

import numpy as np

from moesaic.shared.arrays import Ints
from moesaic.shared.dispatch.prices import SWEEPS, Prices


def quotas(counts: Ints, ranks_of: Ints, shares: Ints, prices: Prices) -> Ints:
    """See `dispatch.quotas`. Steps.

    (1) Experts with one copy load their rank. (2) The others begin with the split that the shares name. (3) One after the
    other, most tokens first, is taken off its ranks and filled in again like water: its ranks' levels rise together. That is
    repeated until nothing changes, the busiest rank can be no less busy, or `SWEEPS` times.
    """
    copies = (ranks_of >= 0).sum(axis=1)
    quota = np.zeros_like(ranks_of)
    single = (copies == 1) & (counts > 0)
    quota[single, 0] = counts[single]
    several = np.flatnonzero((copies > 1) & (counts > 0))
    several = several[np.argsort(-counts[several], kind="stable")]
    for expert in several:
        n = int(copies[expert])
        quota[expert, :n] = by_shares(int(counts[expert]), shares[expert, :n])
    level = levels(quota, ranks_of, prices)
    least = -(-int(counts.sum()) // prices.ranks) * int(prices.token.min())
    for _ in range(SWEEPS):
        if level.max() <= least or not _sweep(several, counts, copies, ranks_of, shares, prices, quota, level):
            break
    return quota


def levels(quota: Ints, ranks_of: Ints, prices: Prices) -> Ints:
    """Cost of each rank `[R]`, in ticks, under a split `[E, X]`."""
    busy = quota > 0
    tokens = np.bincount(ranks_of[busy], weights=quota[busy], minlength=prices.ranks).astype(np.int64)
    experts = np.bincount(ranks_of[busy], minlength=prices.ranks)
    return np.asarray(tokens * prices.token + experts * prices.expert)


def by_shares(amount: int, shares: Ints) -> Ints:
    """Whole tokens in proportion to shares: the n-th replica takes up to where the first n shares reach, rounded down."""
    ends = amount * np.cumsum(shares) // int(shares.sum())
    return np.diff(ends, prepend=0)


def _sweep(
    several: Ints, counts: Ints, copies: Ints, ranks_of: Ints, shares: Ints, prices: Prices, quota: Ints, level: Ints
) -> bool:
    """Step (3) once, in place; whether anything changed."""
    changed = False
    for expert in several:
        n = int(copies[expert])
        at, old = ranks_of[expert, :n], quota[expert, :n].copy()
        token, opening = prices.token[at], prices.expert[at]
        level[at] -= old * token + (old > 0) * opening
        new = water(level[at] + opening, token, int(counts[expert]), shares[expert, :n])
        quota[expert, :n] = new
        level[at] += new * token + (new > 0) * opening
        changed = changed or bool((new != old).any())
    return changed


def water(bases: Ints, paces: Ints, amount: int, shares: Ints) -> Ints:
    """Tokens per replica: from its base each rises by its pace with every token, all to the same surface.

    The surface is the highest whole tick to which no more than `amount` tokens reach. Those left over go, one each, where the
    next token ends lowest; of equals to the larger share, then to the first.
    """
    order = np.argsort(bases, kind="stable")
    rising, rate = bases[order], 1.0 / paces[order]
    filled = np.cumsum(rate) * rising - np.cumsum(rate * rising)  # tokens needed to reach each base
    wet = max(1, int(np.searchsorted(filled, amount, side="right")))
    line = (amount + float((rate * rising)[:wet].sum())) / float(rate[:wet].sum())
    low, high = max(int(bases.min()), int(line) - 1), int(line) + int(paces.max()) + 2
    while high - low > 1:  # at `low` no more than `amount` reach, at `high` more
        middle = (low + high) // 2
        if _reaching(bases, paces, middle).sum() <= amount:
            low = middle
        else:
            high = middle
    fill = _reaching(bases, paces, low)
    left = amount - int(fill.sum())
    ends = bases + (fill + 1) * paces
    first = sorted(range(bases.size), key=lambda x: (int(ends[x]), -int(shares[x]), x))[:left]
    fill[first] += 1
    return fill


def _reaching(bases: Ints, paces: Ints, surface: int) -> Ints:
    return np.asarray(np.maximum(0, (surface - bases) // paces))
