"""Whether a placement that went live made steps faster or slower, judged by their measured time. Pure.

Steps with more tokens take longer, whatever the placement, so the time of a step is compared with what a step with as many
tokens took before: a straight line through the windows before the switch, where their tokens differ enough to tell one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

import numpy as np

BEFORE = 24
"""Windows remembered of the placement before."""
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
        self._before: deque[Window] = deque(maxlen=BEFORE)
        self._after: list[Window] = []
        self._left = 0
        self._epoch: int | None = None

    @property
    def epoch(self) -> int | None:
        """The placement on trial."""
        return self._epoch

    def begin(self, epoch: int) -> None:
        """This placement is live from now on."""
        self._before.extend(self._after)  # an earlier trial that was cut short
        self._epoch, self._after, self._left = epoch, [], 4 * self._windows

    def stop(self) -> None:
        """The generation has ended: nothing measured so far says anything."""
        self._before.clear()
        self._after, self._epoch = [], None

    def add(self, epoch: int, window: Window) -> Finding | None:
        """A window that ran under this placement only; the finding, when there is one."""
        if not (window.tokens > 0 and window.ms > 0):
            return None
        if self._epoch is None:
            self._before.append(window)
            return None
        if epoch != self._epoch:
            return None
        self._left -= 1
        if self._comparable(window):
            self._after.append(window)
        if len(self._after) < self._windows and self._left > 0:
            return None
        return self._find()

    def _comparable(self, window: Window) -> bool:
        if len(self._before) < FEW:
            return False
        known = [w.tokens for w in self._before]
        return min(known) / REACH <= window.tokens <= max(known) * REACH

    def _find(self) -> Finding | None:
        epoch, after = self._epoch, self._after
        assert epoch is not None
        self._epoch = None
        finding = None
        if len(after) >= FEW:
            ratios = sorted(w.ms / self._expected(w.tokens) for w in after)
            middle = median(ratios)
            clear = ratios[len(ratios) // 4] > 1 + self._worse / 2
            finding = Finding(epoch, middle, len(ratios), slower=middle > 1 + self._worse and clear)
        self._before.clear()
        self._before.extend(after)
        self._after = []
        return finding

    def _expected(self, tokens: float) -> float:
        x = np.array([w.tokens for w in self._before])
        y = np.array([w.ms for w in self._before])
        flat = float(np.median(y))
        if x.max() < 1.2 * x.min():
            return flat
        slope, foot = np.polyfit(x, y, 1)
        line = float(foot + slope * tokens)
        return line if slope > 0 and line > 0 else flat
