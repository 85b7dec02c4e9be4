"""Whether a placement that went live made steps faster or slower, judged by their measured time. Pure.

Steps with more tokens take longer, whatever the placement, so the time of a step is compared with what a step with as many
tokens took before: a straight line through the windows before the switch, where their tokens differ enough to tell one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

import numpy as np

KEPT = 24
"""Windows remembered of a placement."""
PATIENCE = 4
"""A trial ends without a finding after so many times the windows that it needs."""
FEW = 4
"""Windows that are needed on each side."""
REACH = 1.3
"""Windows with so many times more or fewer tokens per step than any before are not compared."""


@dataclass(frozen=True)
class Window:
    """Means over a window's steps."""

    tokens: float
    ms: float


@dataclass(frozen=True)
class Finding:
    """`ratio`: measured over expected step time. `slower`: too much so to keep the placement."""

    epoch: int
    ratio: float
    windows: int
    slower: bool

    def __str__(self) -> str:
        """For the journal."""
        return f"steps take {self.ratio:.2f} times what they took before, over {self.windows} windows"


class Trial:
    """Of one group. A trial begins when a placement is live in all instalments and ends with a finding, or without one."""

    def __init__(self, worse: float, windows: int) -> None:
        self._worse = worse
        self._windows = max(FEW, windows)
        self._before: list[Window] = []
        self._now: deque[Window] = deque(maxlen=KEPT)
        """Under the live placement."""
        self._comparable: list[Window] = []
        self._left = 0
        self._epoch: int | None = None

    @property
    def epoch(self) -> int | None:
        """The placement on trial."""
        return self._epoch

    def begin(self, epoch: int, *, judged: bool = True) -> None:
        """This placement is live from now on; it is tried if it is to be judged, and enough is known of the one before."""
        self._before = list(self._now)
        self._now.clear()
        self._comparable, self._left = [], PATIENCE * self._windows
        self._epoch = epoch if judged and len(self._before) >= FEW else None

    def stop(self) -> None:
        """The generation has ended: nothing measured so far says anything."""
        self._now.clear()
        self._epoch = None

    def add(self, window: Window) -> Finding | None:
        """A window that ran under the live placement only; the finding, when there is one."""
        if not (window.tokens > 0 and window.ms > 0):
            return None
        self._now.append(window)
        if self._epoch is None:
            return None
        self._left -= 1
        known = [w.tokens for w in self._before]
        if min(known) / REACH <= window.tokens <= max(known) * REACH:
            self._comparable.append(window)
        if len(self._comparable) < self._windows and self._left > 0:
            return None
        epoch, self._epoch = self._epoch, None
        return self._find(epoch) if len(self._comparable) >= FEW else None

    def _find(self, epoch: int) -> Finding:
        ratios = sorted(w.ms / self._expected(w.tokens) for w in self._comparable)
        middle = median(ratios)
        clear = ratios[len(ratios) // 4] > 1 + self._worse / 2
        return Finding(epoch, middle, len(ratios), slower=middle > 1 + self._worse and clear)

    def _expected(self, tokens: float) -> float:
        x = np.array([w.tokens for w in self._before])
        y = np.array([w.ms for w in self._before])
        flat = float(np.median(y))
        if x.max() < 1.2 * x.min():
            return flat
        slope, foot = np.polyfit(x, y, 1)
        line = float(foot + slope * tokens)
        return line if slope > 0 and line > 0 else flat
