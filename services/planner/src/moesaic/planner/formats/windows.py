"""The monitor's load windows, one `Imbalance` message per line, as written to a file or printed by `nats sub`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.recording import Recording
from moesaic.planner.formats.whole import shaped, whole
from moesaic.shared.arrays import Ints, unpack
from moesaic.shared.messages import BadMessage, Imbalance, PhaseWindow, decode


def read(data: bytes, path: Path) -> Recording:
    """All windows of one group, prefill and decode added. Lines that are no JSON object are skipped. Raises FormatError."""
    lines = [
        (f"{path}: line {number}", line)
        for number, line in enumerate(data.split(b"\n"), 1)
        if line.lstrip()[:1] == b"{"
    ]
    windows = [(where, _message(line, where)) for where, line in lines]
    if not windows:
        raise FormatError(f"{path}: expected at least one line with an imbalance.v1 message, found none")
    _check_same(windows)
    counts = [_counts(window, where) for where, window in windows]
    for (where, _), (tokens, _) in zip(windows, counts, strict=True):
        if tokens.shape != counts[0][0].shape:
            raise FormatError(f"{where}: shape {tokens.shape}, the lines before have {counts[0][0].shape}")
    return Recording(
        load=np.stack([tokens for tokens, _ in counts]),
        steps=np.array([steps for _, steps in counts], dtype=np.int64),
        seconds=np.array([window.end - window.begin for _, window in windows], dtype=np.float64),
    )


def _message(line: bytes, where: str) -> Imbalance:
    try:
        return decode(line, Imbalance)
    except BadMessage as error:
        raise FormatError(f"{where}: expected an imbalance.v1 message: {error}") from error


def _check_same(windows: list[tuple[str, Imbalance]]) -> None:
    """Raise FormatError unless all are of one group and model, and no window ends before it begins."""
    first = windows[0][1]
    for where, window in windows:
        for field in ("group", "model_digest"):
            one, other = getattr(first, field), getattr(window, field)
            if one != other:
                raise FormatError(f"{where}: {field} is {other!r}, in the lines before {one!r}")
        if not 0 <= window.end - window.begin < math.inf:
            raise FormatError(f"{where}: end: expected a time after begin {window.begin}, found {window.end}")


def _counts(window: Imbalance, where: str) -> tuple[Ints, int]:
    """Tokens `[L, E]` and steps of all phases."""
    if not window.phases:
        raise FormatError(f"{where}: phases: expected prefill or decode, found none")
    phases = [_phase(phase, f"{where}, phases.{name}") for name, phase in window.phases.items()]
    if len({tokens.shape for tokens, _ in phases}) > 1:
        raise FormatError(f"{where}, phases: shapes differ: {' and '.join(str(t.shape) for t, _ in phases)}")
    total = np.sum([tokens for tokens, _ in phases], axis=0)
    return whole(total, f"{where}, all phases"), sum(steps for _, steps in phases)


def _phase(phase: PhaseWindow, where: str) -> tuple[Ints, int]:
    if any(n > len(phase.tokens.data) for n in phase.tokens.shape):
        raise FormatError(f"{where}.tokens: shape {phase.tokens.shape} does not fit {len(phase.tokens.data)} bytes")
    try:
        tokens = unpack(phase.tokens)
    except ValueError as error:
        raise FormatError(f"{where}.tokens: {error}") from error
    steps = whole(np.array([phase.steps]), f"{where}.steps")
    return shaped(whole(tokens, f"{where}.tokens"), f"{where}.tokens", "layers", "experts"), int(steps[0])
