"""What a step's work costs on each rank, in integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.shared.arrays import Ints

SWEEPS = 8
"""How often the replicated experts are levelled again at most. Part of the algorithm: all ranks must use the same."""


@dataclass(frozen=True)
class Prices:
    """Ticks per token and per active expert, one pair for each rank `[R]`; a tick is any unit of time, the same on all.

    A rank's cost in a step is `tokens * token + active experts * expert`. Prices of tokens are at least 1.
    """

    token: Ints
    expert: Ints

    @classmethod
    def tokens(cls, ranks: int) -> Prices:
        """Only tokens cost, the same on every rank."""
        return cls(np.ones(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64))

    def __post_init__(self) -> None:
        if self.token.shape != self.expert.shape or self.token.ndim != 1:
            raise ValueError("prices are two arrays of one number for each rank")
        if (self.token < 1).any() or (self.expert < 0).any():
            raise ValueError("a token costs at least 1 tick, an active expert at least 0")

    @property
    def ranks(self) -> int:
        """How many."""
        return int(self.token.size)
