"""`mesh.json`: how the other commands find a mesh that `moesaic up` runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import orjson

NAME = "mesh.json"
DEFAULT_STATE = ".moesaic"


class MeshFile(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses and processes of a running mesh."""

    nats: str
    api: str
    monitor: str
    model: str
    pids: dict[str, int]


def write(state: Path, mesh: MeshFile) -> None:
    """Replace the file in one step."""
    partial = state / f"{NAME}.new"
    partial.write_bytes(orjson.dumps(msgspec.to_builtins(mesh), option=orjson.OPT_INDENT_2))
    partial.replace(state / NAME)


def remove(state: Path) -> None:
    """The mesh is down."""
    (state / NAME).unlink(missing_ok=True)


def find(start: Path) -> MeshFile | None:
    """The mesh of this folder or of the nearest one above it."""
    for folder in (start, *start.parents):
        file = folder / DEFAULT_STATE / NAME
        if file.is_file():
            try:
                return msgspec.json.decode(file.read_bytes(), type=MeshFile)
            except msgspec.DecodeError:
                return None
    return None


def nats_url(given: str | None, env: Mapping[str, str] = os.environ) -> str | None:
    """Where the bus is: --nats, else MOESAIC_NATS, else the mesh file."""
    mesh = find(Path.cwd())
    return given or env.get("MOESAIC_NATS") or (mesh.nats if mesh else None)
