"""Expert load over time, as it was recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.whole import Array, shaped, whole
from moesaic.shared.arrays import Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Recording:
    """Tokens per window, layer and expert, and what the windows are."""

    load: Ints
    """Tokens `[W, L, E]`."""
    steps: Ints
    """Engine steps in each window `[W]`; ones where the format does not say."""
    seconds: Floats | None = None
    """Length of each window `[W]`; None where the format does not say."""

    @classmethod
    def of(cls, values: Array, where: str) -> Recording:
        """From counts `[W, L, E]`, or `[L, E]` for a single window. Raises FormatError."""
        counts = whole(values, where)
        load = shaped(counts[None] if counts.ndim == 2 else counts, where, "windows", "layers", "experts")
        return cls(load, np.ones(len(load), dtype=np.int64))

    @property
    def shape(self) -> tuple[int, int]:
        """Layers and experts."""
        return self.load.shape[1], self.load.shape[2]


def steps_of(values: Array, where: str, windows: int) -> Ints:
    """Engine steps `[W]`. Raises FormatError."""
    steps = shaped(whole(values, where), where, "windows")
    if len(steps) != windows:
        raise FormatError(f"{where}: expected {windows} windows as in the load, found {len(steps)}")
    return steps
