"""Our own placement JSON: a `Placement` message, or an object or list with just its layers. The only one with shares."""

from __future__ import annotations

from pathlib import Path

import msgspec
import orjson

from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.files import json_of
from moesaic.shared.messages import LayerPlacement
from moesaic.shared.placement import State

KIND = "placement.v1"


class _Layers(msgspec.Struct, frozen=True):
    layers: tuple[LayerPlacement, ...]


def read(data: bytes, path: Path) -> State:
    """The layers as they are; experts of a rank must ascend. Raises FormatError."""
    content = json_of(data, path)
    if isinstance(content, dict) and content.get("type", KIND) != KIND:
        raise FormatError(f"{path}: type: expected {KIND!r}")
    try:
        layers = msgspec.convert({"layers": content} if isinstance(content, list) else content, _Layers).layers
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: expected a placement: {error}") from error
    for index, layer in enumerate(layers):
        for rank, held in enumerate(layer.experts):
            if list(held) != sorted(set(held)):
                raise FormatError(f"{path}: layer {index} rank {rank}: experts must ascend, each once")
    return layers


def write(state: State) -> bytes:
    """An object with the layers."""
    return orjson.dumps(msgspec.to_builtins(_Layers(state)))
