"""What a step costs a rank: a fixed part, a part per active expert, a part per token.

Decode is bound by reading weights, so a rank's time follows the experts it activates more than its tokens (METRO, arXiv
2512.09277); prefill follows tokens. Plain token balance is the special case `Cost.tokens`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moesaic.shared.arrays import Floats
from moesaic.shared.dispatch import Prices

TICKS = 1000
"""Ticks of the integer prices that a token costs on a rank of speed 1, unless nothing but tokens costs."""


@dataclass(frozen=True)
class Cost:
    """Of one MoE layer in one step: `(fixed + expert * active experts + token * tokens) / speed [R]`, in ms or any one unit."""

    speed: Floats
    token: float = 1.0
    expert: float = 0.0
    fixed: float = 0.0
    unit: str = "tokens"

    @classmethod
    def tokens(cls, ranks: int) -> Cost:
        """Only tokens count, all ranks are alike."""
        return cls(np.ones(ranks))

    def __post_init__(self) -> None:
        parts = (self.token, self.expert, self.fixed)
        if not np.isfinite([*parts, *self.speed]).all() or min(parts) < 0 or self.token == 0:
            raise ValueError("a cost's parts are finite, not negative, and a token costs something")
        if self.speed.ndim != 1 or not (self.speed > 0).all():
            raise ValueError("every rank's speed is above zero")

    @property
    def pace(self) -> Floats:
        """By what a rank's cost is multiplied `[R]`."""
        return 1.0 / self.speed

    def prices(self) -> Prices:
        """For `shared.dispatch`, in ticks."""
        alike = bool((self.speed == self.speed[0]).all())
        if alike and self.expert == 0:
            return Prices.tokens(self.speed.size)
        token = np.maximum(1, np.rint(TICKS * self.pace)).astype(np.int64)
        expert = np.rint(TICKS * self.pace * self.expert / self.token).astype(np.int64)
        return Prices(token, expert)


@dataclass
class Fit:
    """Least squares over what was measured, kept as sums so that measurements of many ranks add up."""

    sums: Floats = field(default_factory=lambda: np.zeros((4, 4)))
    """Sums of the products of (1, active experts, tokens, ms)."""

    @classmethod
    def of(cls, triangle: Sequence[float]) -> Fit:
        """From the upper triangle of the sums, row by row, as engines send it."""
        sums = np.zeros((4, 4))
        sums[np.triu_indices(4)] = triangle
        return cls(sums + np.triu(sums, 1).T)

    def add(self, experts: npt.ArrayLike, tokens: npt.ArrayLike, ms: npt.ArrayLike) -> None:
        """One measurement, or arrays of them: a rank's share of one layer in one step."""
        e, t, y = (np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (experts, tokens, ms))
        rows = np.stack([np.ones_like(y), e, t, y])
        if not np.isfinite(rows).all() or (rows < 0).any():
            raise ValueError("measurements are finite and not negative")
        self.sums = self.sums + rows @ rows.T

    def solve(self, speed: Floats) -> Cost | None:
        """The best fit with no part below zero; None where the measurements cannot tell, or tokens seem to cost nothing.

        Of the eight sets of parts that may be positive the one with the least residual (three unknowns need no solver).
        """
        best: tuple[float, Floats] | None = None
        for parts in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (3, 2, 1)):
            chosen = list(parts)
            a, b = self.sums[np.ix_(chosen, chosen)], self.sums[chosen, 3]
            if np.linalg.matrix_rank(a) < len(chosen):
                continue
            x = np.linalg.solve(a, b)
            if (x < 0).any():
                continue
            residual = float(self.sums[3, 3] - 2 * x @ b + x @ a @ x)
            if best is None or residual < best[0] * (1 - 1e-9):
                full = np.zeros(3)
                full[chosen] = x
                best = residual, full
        if best is None or best[1][2] <= 0:
            return None
        return Cost(speed, token=float(best[1][2]), expert=float(best[1][1]), fixed=float(best[1][0]), unit="ms")
