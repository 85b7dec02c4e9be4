"""One layer while a policy works on it: who holds what, and how the tokens would level."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moesaic.shared.arrays import Ints
from moesaic.shared.dispatch import quotas
from moesaic.shared.messages import LayerPlacement

Bools = npt.NDArray[np.bool_]

POWER = 8.0
"""Of the norm that tells ranks near the busiest apart from idle ones."""


def spread(counts: Ints, hold: Bools) -> Ints:
    """Tokens per expert and rank `[E, R]` when each is levelled over its copies `hold [E, R]`."""
    experts, ranks = np.nonzero(hold)
    copies = hold.sum(axis=1)
    nth = np.arange(experts.size) - (np.cumsum(copies) - copies)[experts]
    ranks_of = np.full((hold.shape[0], int(copies.max())), -1, dtype=np.int64)
    ranks_of[experts, nth] = ranks
    quota = quotas(counts, ranks_of, (ranks_of >= 0).astype(np.int64), hold.shape[1])
    tokens = np.zeros(hold.shape, dtype=np.int64)
    tokens[experts, ranks] = quota[experts, nth]
    return tokens


def strain(levels: Ints) -> float:
    """How badly rank loads `[R]` stand, in tokens: the busiest rank, plus a norm in which all near it count."""
    mean = float(levels.mean())
    if mean <= 0:
        return 0.0
    relative = levels / mean
    return mean * (float(relative.max()) + float(np.mean(relative**POWER) ** (1.0 / POWER)))


class Table:
    """A layer's copies `hold [E, R]` under counts `[E]`, and what follows from them."""

    def __init__(self, layer: LayerPlacement, counts: Ints) -> None:
        self.counts = counts
        self.live = np.zeros((counts.size, len(layer.experts)), dtype=np.bool_)
        for rank, experts in enumerate(layer.experts):
            self.live[list(experts), rank] = True
        self.mean = float(counts.sum()) / len(layer.experts)
        self.put(self.live.copy())

    def put(self, hold: Bools) -> None:
        """Take these copies."""
        self.hold = hold
        self.tokens = spread(self.counts, hold)
        self.levels: Ints = self.tokens.sum(axis=0)
        self.strain = strain(self.levels)
        self._pays: npt.NDArray[np.float64] | None = None

    def strain_with(self, hold: Bools) -> float:
        """What `strain` would be with these copies."""
        return strain(spread(self.counts, hold).sum(axis=0))

    @property
    def changed(self) -> bool:
        """Whether anything differs from the live copies."""
        return bool((self.hold != self.live).any())

    @property
    def pays(self) -> npt.NDArray[np.float64]:
        """Tokens by which the busiest rank would rise without this copy, at most `[E, R]`; infinite if it is the only one."""
        if self._pays is None:
            self._pays = self._worth()
        return self._pays

    @property
    def cheapest(self) -> npt.NDArray[np.float64]:
        """The least of `pays` on each rank `[R]`."""
        return np.asarray(self.pays.min(axis=0))

    def _worth(self) -> npt.NDArray[np.float64]:
        pays = np.full(self.hold.shape, np.inf)
        for expert in np.flatnonzero(self.hold.sum(axis=1) > 1):
            ranks = np.flatnonzero(self.hold[expert])
            for rank in ranks:
                other = int(self.levels[ranks[ranks != rank]].min())
                pays[expert, rank] = max(0.0, other + int(self.tokens[expert, rank]) - int(self.levels.max()))
        return pays
