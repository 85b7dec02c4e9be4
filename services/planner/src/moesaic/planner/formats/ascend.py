"""vllm-ascend's and MindIE's expert map: JSON lists of layers, devices and the experts in their slots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import orjson

from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.files import json_of
from moesaic.planner.formats.slots import Held, slots_of
from moesaic.shared.placement import State

Count = Annotated[int, msgspec.Meta(ge=0)]


class _Device(msgspec.Struct, frozen=True):
    device_id: Count
    device_expert: tuple[Count, ...]


class _Layer(msgspec.Struct, frozen=True):
    layer_id: Count
    device_count: Count
    device_list: tuple[_Device, ...]


class _Map(msgspec.Struct, frozen=True):
    moe_layer_count: Count
    layer_list: tuple[_Layer, ...]


def read(data: bytes, path: Path) -> Held:
    """Experts by layer and device. Layers may begin at any id, devices at 0; both ascend without gaps. Raises FormatError."""
    try:
        content = msgspec.convert(json_of(data, path), _Map)
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: expected an expert map: {error}") from error
    layers = content.layer_list
    _same(content.moe_layer_count, len(layers), f"{path}: moe_layer_count")
    for index, layer in enumerate(layers):
        where = f"{path}: layer_list[{index}]"
        _same(layer.layer_id, layers[0].layer_id + index, f"{where}.layer_id")
        _same(layer.device_count, len(layer.device_list), f"{where}.device_count")
        for rank, device in enumerate(layer.device_list):
            _same(device.device_id, rank, f"{where}.device_list[{rank}].device_id")
    return [[set(device.device_expert) for device in layer.device_list] for layer in layers]


def write(state: State, path: Path, *, pad: bool) -> bytes:
    """The map; its engines make one tensor of it, so all devices need as many slots. Raises FormatError."""
    slots = slots_of(state, path, pad=pad)
    ranks = len(state[0].experts)
    layers = tuple(
        _Layer(index, ranks, tuple(_Device(rank, tuple(experts)) for rank, experts in enumerate(layer)))
        for index, layer in enumerate(slots.reshape(len(state), ranks, -1).tolist())
    )
    return orjson.dumps(msgspec.to_builtins(_Map(len(layers), layers)), option=orjson.OPT_INDENT_2)


def _same(found: int, expected: int, where: str) -> None:
    if found != expected:
        raise FormatError(f"{where}: expected {expected}, found {found}")
