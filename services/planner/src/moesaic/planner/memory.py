"""What the planner remembers of a group over a restart."""

from __future__ import annotations

import numpy as np

from moesaic.shared.arrays import Floats, pack, unpack
from moesaic.shared.messages import BadMessage, Group, IntArray, Part

SCALE = 16
"""Counts are kept in sixteenths of a token."""


class Remembered(Part, frozen=True, kw_only=True, tag="planner_state.v1", tag_field="type"):
    """Value of the planner's bucket, key = group. `slow`: slow token counts `[L, E]`, in sixteenths."""

    group: str
    model_digest: str
    slow: IntArray
    settled: tuple[int, ...] = ()
    """Epochs that were live, oldest first; their content is in the placements' bucket."""
    paused: bool = False
    pinned: tuple[tuple[int, int, int], ...] = ()
    """Copies (layer, expert, rank) that must stay."""
    forbidden: tuple[int, ...] = ()
    """Ranks that must be empty."""
    at: float = 0.0


def keep(slow: Floats) -> IntArray:
    """Counts for the wire."""
    return pack(np.rint(slow * SCALE).astype(np.int64))


def recall(remembered: Remembered, record: Group) -> Floats:
    """The slow counts. Raises BadMessage where they are of another model."""
    counts = unpack(remembered.slow)
    shape = (record.layers, record.experts)
    if remembered.group != record.group or remembered.model_digest != record.model_digest or counts.shape != shape:
        raise BadMessage(f"what is remembered of {remembered.group!r} is of another model")
    if (counts < 0).any():
        raise BadMessage("a remembered count is negative")
    return counts / SCALE
