"""SGLang's `.json` and `.pt` files: `logical_count` is recorded load, `physical_to_logical_map` a placement."""

from __future__ import annotations

from pathlib import Path

import orjson

from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.files import ZIP, json_of
from moesaic.planner.formats.recording import Recording
from moesaic.planner.formats.slots import Held, held_by, slots_of
from moesaic.planner.formats.torchfile import TorchFile
from moesaic.planner.formats.whole import Array, from_lists, whole
from moesaic.shared.placement import State

LOAD = "logical_count"
MAP = "physical_to_logical_map"


def read_load(data: bytes, path: Path) -> Recording:
    """`logical_count` `[steps, L, E]`, each step a window, or `[L, E]`. Raises FormatError."""
    return Recording.of(_field(data, path, LOAD), f"{path}: {LOAD}")


def read_map(data: bytes, path: Path, ranks: int | None) -> Held:
    """`physical_to_logical_map` `[L, P]`. Raises FormatError."""
    where = f"{path}: {MAP}"
    return held_by(whole(_field(data, path, MAP), where), where, ranks)


def write_map(state: State, path: Path, *, pad: bool) -> bytes:
    """JSON with nothing but the map: SGLang takes every key as an argument. Raises FormatError."""
    if path.suffix == ".pt":
        raise FormatError(f"{path}: .pt files are only read, expected a name that ends in .json")
    return orjson.dumps({MAP: slots_of(state, path, pad=pad).tolist()})


def _field(data: bytes, path: Path, key: str) -> Array:
    if data.startswith(ZIP) or path.suffix == ".pt":
        return TorchFile(data, path).tensor(key)
    content = json_of(data, path)
    if not isinstance(content, dict) or key not in content:
        raise FormatError(f"{path}: expected an object with {key!r}")
    return from_lists(content[key], f"{path}: {key}")
