"""Recorded expert load from a path, whatever its format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from moesaic.planner.formats import arrays, npy, omni, sglang, windows
from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.files import ZIP, Archive, read
from moesaic.planner.formats.recording import Recording
from moesaic.planner.formats.torchfile import PICKLE
from moesaic.planner.formats.valid import checked, experts_of
from moesaic.shared.placement import State

LOAD_FORMATS: dict[str, str] = {
    "windows": "the monitor's imbalance.v1 messages, one JSON object per line",
    "omni": "a folder of OmniPlacement's activation_counts_recordstep_*_rank_*.txt",
    "sglang": "SGLang's .json or .pt with logical_count [steps, layers, experts]",
    "npz": "numpy .npz with load [windows, layers, experts] and perhaps steps [windows]",
    "npy": "numpy .npy [windows, layers, experts] or [layers, experts]",
}

_READERS: dict[str, Callable[[bytes, Path], Recording]] = {
    "windows": windows.read,
    "sglang": sglang.read_load,
    "npz": arrays.read_npz,
    "npy": arrays.read_npy,
}
_ENDINGS = {".npy": "npy", ".npz": "npz", ".pt": "sglang", ".ndjson": "windows", ".jsonl": "windows"}


def read_load(
    path: Path,
    *,
    placement: State | None = None,
    format: str | None = None,  # noqa: A002 - what a user calls it
) -> Recording:
    """A recording. Its format is told by content, then by ending, unless named (LOAD_FORMATS). Raises FormatError.

    `placement` says where the experts of `omni` dumps are; any other recording must only be of its layers and experts.
    """
    if format is not None and format not in LOAD_FORMATS:
        raise FormatError(f"{path}: unknown load format {format!r}, expected one of {', '.join(LOAD_FORMATS)}")
    if placement is not None:
        checked(placement, f"{path}: the placement")
    if format == "omni" or (format is None and path.is_dir()):
        recording = omni.read_dumps(path, placement)
    else:
        data = read(path)
        recording = _READERS[format or _recognised(data, path)](data, path)
    if placement is not None:
        _check_fits(recording, placement, path)
    return recording


def _recognised(data: bytes, path: Path) -> str:
    if data.startswith(npy.MAGIC):
        return "npy"
    if data.startswith(ZIP):
        return "sglang" if any(name.endswith(PICKLE) for name in Archive(data, path).names) else "npz"
    if b'"imbalance.' in data:
        return "windows"
    if f'"{sglang.LOAD}"'.encode() in data:
        return "sglang"
    if path.suffix not in _ENDINGS:
        raise FormatError(f"{path}: not recognised as recorded load, expected one of {', '.join(LOAD_FORMATS)}")
    return _ENDINGS[path.suffix]


def _check_fits(recording: Recording, placement: State, path: Path) -> None:
    experts = experts_of(placement)
    if recording.shape != (len(placement), experts):
        raise FormatError(
            f"{path}: load of {recording.shape[0]} layers and {recording.shape[1]} experts, "
            f"the placement is of {len(placement)} and {experts}"
        )
