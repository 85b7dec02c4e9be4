"""Placements as slots `[L, P]`: the same number on every rank and in every layer, rank 0's first."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.whole import shaped
from moesaic.shared.arrays import Ints
from moesaic.shared.placement import State

Held = list[list[set[int]]]
"""Experts by layer and rank. A set: a rank that holds an expert in two slots holds it once."""


def held_by(slots: Ints, where: str, ranks: int | None) -> Held:
    """Experts by rank from slots `[L, P]`. Raises FormatError where `ranks` is missing or does not divide P."""
    shaped(slots, where, "layers", "slots")
    if ranks is None:
        raise FormatError(f"{where}: the file does not say how many ranks share its {slots.shape[1]} slots: pass ranks")
    if ranks < 1 or slots.shape[1] % ranks:
        raise FormatError(f"{where}: {slots.shape[1]} slots cannot be shared evenly by {ranks} ranks")
    by_rank = slots.reshape(slots.shape[0], ranks, -1)
    return [[set(rank) for rank in layer] for layer in by_rank.tolist()]


def slots_of(state: State, path: Path, *, pad: bool) -> Ints:
    """Slots `[L, P]`. Ranks with fewer than the most are filled with their own first expert if `pad`, else refused."""
    most = max(len(rank) for layer in state for rank in layer.experts)
    rows = []
    for index, layer in enumerate(state):
        row: list[int] = []
        for rank, experts in enumerate(layer.experts):
            if len(experts) < most and not (pad and experts):
                raise FormatError(f"{path}: layer {index} rank {rank}: {_uneven(len(experts), most, pad=pad)}")
            row += [*experts, *experts[:1] * (most - len(experts))]
        rows.append(row)
    return np.array(rows, dtype=np.int64)


def _uneven(count: int, most: int, *, pad: bool) -> str:
    if pad:
        return f"no expert to pad its {most} slots with; the formats moesaic and omni can hold this"
    return (
        f"{count} experts where others have {most}, this format has as many slots everywhere; "
        "moesaic and omni can hold it, or pass pad"
    )
