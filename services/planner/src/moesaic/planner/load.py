"""What the experts are asked for: a fast and a slow moving count, and when the domain has changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moesaic.shared.arrays import Ints

Floats = npt.NDArray[np.float64]

NOISE = 4.0
"""Loads tell domains apart only where they vary over experts by more than this many times their counting noise."""


@dataclass(frozen=True)
class Memory:
    """How fast counts fade, in seconds under load, and what still is the same domain (a correlation)."""

    fast_s: float
    slow_s: float
    same_domain: float
    min_tokens: float
    """Tokens per expert and layer, on average, before the load says anything."""


class Load:
    """Exponentially weighted token counts `[L, E]` of one model."""

    def __init__(self, memory: Memory, layers: int, experts: int) -> None:
        self._memory = memory
        self.fast: Floats = np.zeros((layers, experts))
        self.slow: Floats = np.zeros((layers, experts))
        self.domain = 0
        """Counts changes of domain."""

    @classmethod
    def remembered(cls, memory: Memory, slow: Floats) -> Load:
        """After a restart: as if the slow counts were all there is."""
        load = cls(memory, *slow.shape)
        load.fast, load.slow = slow.copy(), slow.copy()
        return load

    def add(self, tokens: Ints, seconds: float) -> None:
        """A window's tokens `[L, E]`. Where they no longer correlate with the slow counts these begin anew."""
        for name, half_life in (("fast", self._memory.fast_s), ("slow", self._memory.slow_s)):
            setattr(self, name, getattr(self, name) * 0.5 ** (max(0.0, seconds) / half_life) + tokens)
        similar = self.similarity()
        if similar is not None and similar < self._memory.same_domain:
            self.slow = self.fast.copy()
            self.domain += 1

    @property
    def seen(self) -> float:
        """Tokens per expert and layer, on average, that still count."""
        return float(self.slow.mean())

    @property
    def enough(self) -> bool:
        """Whether the counts say anything."""
        return self.seen >= self._memory.min_tokens and self.seen > 0

    def counts(self) -> Ints:
        """What to plan on: whole tokens `[L, E]`."""
        return np.rint(self.slow).astype(np.int64)

    def similarity(self) -> float | None:
        """Correlation of the fast with the slow counts, mean over layers; None where the fast ones are too few to tell."""
        told = [r for r in (_correlation(f, s) for f, s in zip(self.fast, self.slow, strict=True)) if r is not None]
        if not told or float(self.fast.mean()) < self._memory.min_tokens:
            return None
        return sum(told) / len(told)


def _correlation(fast: Floats, slow: Floats) -> float | None:
    """None where counting noise alone would explain how the counts vary."""
    means = float(fast.mean()), float(slow.mean())
    if min(means) <= 0:
        return None
    variation = max(float(fast.var()) / means[0] ** 2, float(slow.var()) / means[1] ** 2)
    if variation < NOISE / means[0]:
        return None
    scale = float(np.sqrt(fast.var() * slow.var()))
    return float(((fast - means[0]) * (slow - means[1])).mean()) / scale if scale > 0 else 0.0
