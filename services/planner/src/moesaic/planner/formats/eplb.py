"""What DeepSeek's EPLB returns and vLLM keeps, as `.npz`: `phy2log` `[L, P]`, `log2phy` `[L, E, X]`, `logcnt` `[L, E]`."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from moesaic.planner.formats import npy
from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.files import Archive
from moesaic.planner.formats.slots import Held, held_by, slots_of
from moesaic.planner.formats.whole import shaped, whole
from moesaic.shared.arrays import Ints
from moesaic.shared.placement import State


def read(data: bytes, path: Path, ranks: int | None) -> Held:
    """From `phy2log`; `log2phy` and `logcnt`, where there, must say the same. Raises FormatError."""
    archive = Archive(data, path)
    where = f"{path}: phy2log"
    slots = shaped(whole(npy.member(archive, "phy2log"), where), where, "layers", "slots")
    held = held_by(slots, where, ranks)
    if int(slots.max()) >= slots.shape[1]:
        raise FormatError(f"{where}: expert {slots.max()} among {slots.shape[1]} slots, so some expert is nowhere")
    if npy.has(archive, "logcnt"):
        _same(whole(npy.member(archive, "logcnt"), f"{path}: logcnt"), _counts(slots), f"{path}: logcnt")
    if npy.has(archive, "log2phy"):
        found = whole(npy.member(archive, "log2phy"), f"{path}: log2phy", least=-1)
        _same(*_alike(found, _inverse(slots)), f"{path}: log2phy")
    return held


def write(state: State, path: Path, *, pad: bool) -> bytes:
    """All three arrays, int64. Raises FormatError."""
    slots = slots_of(state, path, pad=pad)
    file = io.BytesIO()
    np.savez(file, phy2log=slots, log2phy=_inverse(slots), logcnt=_counts(slots))
    return file.getvalue()


def _counts(slots: Ints) -> Ints:
    """Copies of each expert `[L, E]`."""
    experts = int(slots.max()) + 1
    return np.stack([np.bincount(layer, minlength=experts) for layer in slots]).astype(np.int64)


def _inverse(slots: Ints) -> Ints:
    """Slots of each expert, ascending, `[L, E, X]` padded with -1; X = most copies."""
    counts = _counts(slots)
    inverse = np.full((*counts.shape, int(counts.max())), -1, dtype=np.int64)
    for layer, row in enumerate(slots):
        order = np.argsort(row, kind="stable")
        experts = row[order]
        begin = np.cumsum(counts[layer]) - counts[layer]
        inverse[layer, experts, np.arange(order.size) - begin[experts]] = order
    return inverse


def _alike(found: Ints, expected: Ints) -> tuple[Ints, Ints]:
    """Both sorted along their last axis and as wide as the wider: the order of copies and more padding say nothing."""
    if found.ndim != 3:
        return found, expected
    width = max(found.shape[2], expected.shape[2])
    wide = [np.pad(a, [(0, 0), (0, 0), (0, width - a.shape[2])], constant_values=-1) for a in (found, expected)]
    return np.sort(wide[0], axis=2), np.sort(wide[1], axis=2)


def _same(found: Ints, expected: Ints, where: str) -> None:
    if found.shape != expected.shape:
        raise FormatError(f"{where}: expected shape {expected.shape} as phy2log has it, found {found.shape}")
    if (found != expected).any():
        layer, expert = (int(i) for i in np.argwhere(found != expected)[0][:2])
        raise FormatError(
            f"{where}: layer {layer} expert {expert}: expected {_listed(expected[layer, expert])} "
            f"as phy2log has it, found {_listed(found[layer, expert])}"
        )


def _listed(values: Ints) -> str:
    return " ".join(str(v) for v in np.atleast_1d(values).tolist() if v >= 0) or "none"
