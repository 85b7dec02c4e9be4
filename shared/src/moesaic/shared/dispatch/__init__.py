"""Which replica computes which token: the assignment of one step's routes to ranks, in integer arithmetic.

Every rank of a group holds the same gathered routes and computes the same assignment, so no communication decides it.
`reference` says in numpy what is computed; `compiled`, used where numba is installed, computes the same faster.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moesaic.shared.arrays import Ints
from moesaic.shared.dispatch import reference
from moesaic.shared.dispatch.prices import SWEEPS, Prices

__all__ = ["SWEEPS", "Prices", "assign", "quotas"]

Quotas = Callable[[Ints, Ints, Ints, Prices], Ints]


def _fastest() -> Quotas:
    try:
        from moesaic.shared.dispatch import compiled  # noqa: PLC0415 # an extra
    except ImportError:
        return reference.quotas
    return compiled.quotas


_quotas = _fastest()


def quotas(counts: Ints, ranks_of: Ints, shares: Ints, ranks: int | Prices) -> Ints:
    """Tokens per replica `[E, X]` that level the ranks' cost in this step.

    counts `[E]` tokens per expert; `ranks_of` and `shares` `[E, X]` as `placement.hosts` gives them; what a token and an
    active expert cost on each rank (a number of ranks: one per token on each). Algorithm: `reference.quotas`.
    """
    return _quotas(counts, ranks_of, shares, Prices.tokens(ranks) if isinstance(ranks, int) else ranks)


def assign(routes: Ints, ranks_of: Ints, shares: Ints, ranks: int | Prices) -> Ints:
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
