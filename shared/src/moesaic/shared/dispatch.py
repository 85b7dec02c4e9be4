"""Which replica computes which token: the assignment of one step's routes to ranks, in integer arithmetic.

Every rank of a group holds the same gathered routes and computes the same assignment, so no communication decides it.
"""

from __future__ import annotations

import numpy as np

from moesaic.shared.arrays import Ints


def quotas(counts: Ints, ranks_of: Ints, shares: Ints, ranks: int) -> Ints:
    """Tokens per replica `[E, X]` that level the ranks' token counts in this step.

    counts `[E]` tokens per expert, `ranks_of` and `shares` `[E, X]` as `placement.hosts` gives them. Steps: (1) experts with
    one copy load their rank; (2) the others, most tokens first, are filled like water over their ranks; what the water
    level leaves undecided (whole tokens) goes to the larger share, then the lower rank.
    """
    quota = np.zeros_like(ranks_of)
    copies = (ranks_of >= 0).sum(axis=1)
    single = copies == 1
    quota[single, 0] = counts[single]
    load = np.bincount(ranks_of[single, 0], weights=counts[single], minlength=ranks).astype(np.int64)
    several = np.flatnonzero(~single & (counts > 0))
    for expert in several[np.argsort(-counts[several], kind="stable")]:
        n = int(copies[expert])
        at = ranks_of[expert, :n]
        fill = _water(load[at], int(counts[expert]), shares[expert, :n])
        quota[expert, :n] = fill
        load[at] += fill
    return quota


def _water(levels: Ints, amount: int, shares: Ints) -> Ints:
    order = np.argsort(levels, kind="stable")
    rising = levels[order]
    below = np.arange(1, rising.size + 1) * rising - np.cumsum(rising)  # water needed to reach each level
    wet = int(np.searchsorted(below, amount, side="right"))
    surface, rest = divmod(amount + int(rising[:wet].sum()), wet)
    fill = np.zeros_like(levels)
    fill[order[:wet]] = surface - rising[:wet]
    first = sorted(order[:wet].tolist(), key=lambda x: (-int(shares[x]), x))[:rest]
    fill[first] += 1
    return fill


def assign(routes: Ints, ranks_of: Ints, shares: Ints, ranks: int) -> Ints:
    """The rank that computes each route: `[T, K]` for routes `[T, K]` of logical experts (all ranks' tokens, rank-major).

    An expert's tokens are dealt to its replicas in order, so with rank-major tokens and ascending hosts most stay near home.
    """
    flat = routes.reshape(-1)
    counts = np.bincount(flat, minlength=ranks_of.shape[0])
    if ranks_of.shape[1] == 1:
        return np.asarray(ranks_of[flat, 0].reshape(routes.shape))
    ends = np.cumsum(quotas(counts, ranks_of, shares, ranks), axis=1)
    order = np.argsort(flat, kind="stable")
    starts = np.cumsum(counts) - counts
    nth = np.empty_like(flat)
    nth[order] = np.arange(flat.size) - starts[flat[order]]
    replica = (nth[:, None] >= ends[flat]).sum(axis=1)
    return np.asarray(ranks_of[flat, replica].reshape(routes.shape))
