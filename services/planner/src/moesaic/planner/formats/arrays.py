"""Load as plain numpy arrays: `.npy`, or `.npz` with `load` and perhaps `steps`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moesaic.planner.formats import npy
from moesaic.planner.formats.files import Archive
from moesaic.planner.formats.recording import Recording, steps_of


def read_npy(data: bytes, path: Path) -> Recording:
    """Counts `[W, L, E]` or `[L, E]`. Raises FormatError."""
    return Recording.of(npy.array_of(data, str(path)), f"{path}: load")


def read_npz(data: bytes, path: Path) -> Recording:
    """`load` `[W, L, E]` or `[L, E]` and, where there, `steps` `[W]`. Raises FormatError."""
    archive = Archive(data, path)
    recording = Recording.of(npy.member(archive, "load"), f"{path}: load")
    if not npy.has(archive, "steps"):
        return recording
    steps = steps_of(npy.member(archive, "steps"), f"{path}: steps", len(recording.load))
    return replace(recording, steps=steps)
