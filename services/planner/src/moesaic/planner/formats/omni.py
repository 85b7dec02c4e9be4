"""OmniPlacement's files: patterns `.npy` of 0 and 1 `[rank][layer][expert]`, and folders of activation dumps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moesaic.planner.formats import npy
from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.files import read
from moesaic.planner.formats.recording import Recording
from moesaic.planner.formats.slots import Held
from moesaic.planner.formats.whole import LARGEST, shaped, whole
from moesaic.shared.arrays import Ints
from moesaic.shared.placement import State

DUMP = re.compile(r"activation_counts_recordstep_(\d{1,18})_rank_(\d{1,6})\.txt")

Rows = list[list[int]]
"""A dump's counts by layer and slot."""


def read_pattern(data: bytes, path: Path) -> tuple[Held, int]:
    """Experts by layer and rank, and how many experts the pattern is for. Raises FormatError."""
    where = f"{path}: pattern"
    values = npy.array_of(data, str(path))
    numbers = values.astype(np.int8) if values.dtype.kind == "b" else values
    pattern = shaped(whole(numbers, where), where, "ranks", "layers", "experts")
    if (pattern > 1).any():
        index = np.argwhere(pattern > 1)[0].tolist()
        raise FormatError(f"{where}{index}: expected 0 or 1, found {pattern[tuple(index)]}")
    by_layer = pattern.transpose(1, 0, 2)
    return [[set(np.flatnonzero(rank).tolist()) for rank in layer] for layer in by_layer], pattern.shape[2]


def write_pattern(state: State, experts: int) -> bytes:
    """The pattern as int32."""
    pattern = np.zeros((len(state[0].experts), len(state), experts), dtype=np.int32)
    for index, layer in enumerate(state):
        for rank, held in enumerate(layer.experts):
            pattern[rank, index, list(held)] = 1
    return npy.bytes_of(pattern)


def read_dumps(folder: Path, placement: State | None) -> Recording:
    """Every recordstep is one window of its own counts (what the engine counted since the dump before).

    Slot k of a rank in a layer is its k-th expert of `placement`, ascending; further slots must be 0. Without a placement
    every rank must dump the same number S of slots, and holds the experts r*S to r*S + S-1. Raises FormatError.
    """
    files = _found(folder)
    steps = sorted({step for step, _ in files})
    ranks = max(rank for _, rank in files) + 1
    for step in steps:
        for rank in range(ranks):
            if (step, rank) not in files:
                raise FormatError(f"{folder}: expected a file of rank {rank} for recordstep {step} of {ranks} ranks")
    dumps = {key: _rows(path) for key, path in files.items()}
    held: list[Sequence[Sequence[int]]] = (
        [layer.experts for layer in placement] if placement is not None else _in_order(files, dumps, ranks)
    )
    if len(held[0]) != ranks:
        raise FormatError(f"{folder}: dumps of {ranks} ranks, the placement has {len(held[0])}")
    experts = 1 + max(expert for layer in held for rank in layer for expert in rank)
    load = np.zeros((len(steps), len(held), experts), dtype=np.int64)
    for window, step in enumerate(steps):
        for rank in range(ranks):
            mine = [layer[rank] for layer in held]
            _add(load[window], dumps[step, rank], mine, files[step, rank])
    return Recording.of(load, f"{folder}: load")


def _found(folder: Path) -> dict[tuple[int, int], Path]:
    """Dumps by recordstep and rank."""
    try:
        names = [(DUMP.fullmatch(path.name), path) for path in sorted(folder.iterdir())]
    except OSError as error:
        raise FormatError(f"{folder}: expected a folder of dumps: {error.strerror}") from error
    files: dict[tuple[int, int], Path] = {}
    for match, path in names:
        if match is not None:
            key = int(match[1]), int(match[2])
            if key in files:
                raise FormatError(f"{path}: the same recordstep and rank as {files[key].name}")
            files[key] = path
    if not files:
        raise FormatError(f"{folder}: expected files like activation_counts_recordstep_1_rank_0.txt, found none")
    return files


def _rows(path: Path) -> Rows:
    """One line per layer, tab-separated counts, perhaps a tab at the end."""
    lines = read(path).rstrip().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        rows.append([_count(text, path, number, field) for field, text in enumerate(line.split(), 1)])
        if not rows[-1]:
            raise FormatError(f"{path}: line {number}: expected tab-separated counts, found none")
    return rows


def _count(text: bytes, path: Path, line: int, field: int) -> int:
    if not re.fullmatch(rb"\d{1,16}", text) or int(text) > LARGEST:
        found = text[:40].decode("ascii", "backslashreplace")
        raise FormatError(
            f"{path}: line {line}, field {field}: expected a whole number from 0 to {LARGEST}, found {found!r}"
        )
    return int(text)


def _in_order(
    files: dict[tuple[int, int], Path], dumps: dict[tuple[int, int], Rows], ranks: int
) -> list[Sequence[Sequence[int]]]:
    """Experts by layer and rank where none are named."""
    first = next(iter(dumps.values()))
    slots = len(first[0])
    for key, rows in dumps.items():
        for line, row in enumerate(rows, 1):
            if len(row) != slots:
                raise FormatError(
                    f"{files[key]}: line {line}: {len(row)} slots where others have {slots}: pass the placement"
                )
    return [[range(rank * slots, (rank + 1) * slots) for rank in range(ranks)] for _ in first]


def _add(load: Ints, rows: Rows, held: list[Sequence[int]], path: Path) -> None:
    """A rank's counts onto `load` `[L, E]`."""
    if len(rows) != len(held):
        raise FormatError(f"{path}: expected {len(held)} lines, one per layer, found {len(rows)}")
    for layer, (row, experts) in enumerate(zip(rows, held, strict=True)):
        if len(row) < len(experts) or any(row[len(experts) :]):
            raise FormatError(
                f"{path}: line {layer + 1}: expected counts of {len(experts)} slots, found {len(row)} "
                "(further ones must be 0)"
            )
        load[layer, list(experts)] += row[: len(experts)]
