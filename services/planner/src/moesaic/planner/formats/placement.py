"""Placements from and to a path, whatever their format. Shares of copies survive in `moesaic` files only."""

from __future__ import annotations

from pathlib import Path

from moesaic.planner.formats import ascend, eplb, files, npy, omni, own, sglang
from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.slots import Held
from moesaic.planner.formats.torchfile import PICKLE
from moesaic.planner.formats.valid import checked, experts_of
from moesaic.shared.placement import State, layer_of

PLACEMENT_FORMATS: dict[str, str] = {
    "moesaic": "JSON of a placement.v1 message or just its layers, with shares",
    "omni": "OmniPlacement's .npy of 0 and 1 [ranks, layers, experts]",
    "ascend": "vllm-ascend's expert map, JSON",
    "sglang": "SGLang's .json (or .pt, to read) with physical_to_logical_map [layers, slots]",
    "phy2log": "EPLB's and vLLM's .npz with phy2log [layers, slots], log2phy and logcnt",
}

_ENDINGS = {".npy": "omni", ".npz": "phy2log", ".pt": "sglang"}
_KEYS = {b'"layer_list"': "ascend", b'"physical_to_logical_map"': "sglang", b'"layers"': "moesaic"}


def read_placement(
    path: Path,
    *,
    experts: int | None = None,
    ranks: int | None = None,
    format: str | None = None,  # noqa: A002 - what a user calls it
) -> State:
    """A valid state. The format is told by content, then by ending, unless named (PLACEMENT_FORMATS). Raises FormatError.

    `experts` and `ranks` are checked where given. `sglang` and `phy2log` files do not tell their ranks and need them. An
    expert in two slots of a rank and layer counts once. Copies get even shares, but in `moesaic` files they have their own.
    """
    _check_name(path, format)
    data = files.read(path)
    name = format or _recognised(data, path)
    if name == "omni":
        held, size = omni.read_pattern(data, path)
        if experts not in {None, size}:
            raise FormatError(f"{path}: a pattern of {size} experts, expected {experts}")
        return checked(_even(held), path, experts=size, ranks=ranks)
    state = own.read(data, path) if name == "moesaic" else _even(_held(name, data, path, ranks))
    return checked(state, path, experts=experts, ranks=ranks)


def write_placement(
    path: Path,
    state: State,
    *,
    format: str | None = None,  # noqa: A002 - what a user calls it
    pad: bool = False,
) -> None:
    """Write a valid state; without a name `.npy` is `omni`, `.npz` is `phy2log`, anything else `moesaic`.

    The file appears whole or not at all. `ascend`, `sglang` and `phy2log` need as many experts on every rank in every layer;
    `pad` fills the rest with duplicates of the rank's own first expert. Raises FormatError.
    """
    _check_name(path, format)
    checked(state, path)
    name = format or {".npy": "omni", ".npz": "phy2log"}.get(path.suffix, "moesaic")
    files.write(path, _bytes(name, state, path, pad=pad))


def _check_name(path: Path, name: str | None) -> None:
    if name is not None and name not in PLACEMENT_FORMATS:
        raise FormatError(f"{path}: unknown placement format {name!r}, expected one of {', '.join(PLACEMENT_FORMATS)}")


def _recognised(data: bytes, path: Path) -> str:
    if data.startswith(npy.MAGIC):
        return "omni"
    if data.startswith(files.ZIP):
        pickled = any(name.endswith(PICKLE) for name in files.Archive(data, path).names)
        return "sglang" if pickled else "phy2log"
    for key, name in _KEYS.items():
        if key in data:
            return name
    if data.lstrip()[:1] == b"[":
        return "moesaic"
    if path.suffix not in _ENDINGS:
        raise FormatError(f"{path}: not recognised as a placement, expected one of {', '.join(PLACEMENT_FORMATS)}")
    return _ENDINGS[path.suffix]


def _held(name: str, data: bytes, path: Path, ranks: int | None) -> Held:
    if name == "ascend":
        return ascend.read(data, path)
    if name == "sglang":
        return sglang.read_map(data, path, ranks)
    return eplb.read(data, path, ranks)


def _bytes(name: str, state: State, path: Path, *, pad: bool) -> bytes:
    if name == "omni":
        return omni.write_pattern(state, experts_of(state))
    if name == "ascend":
        return ascend.write(state, path, pad=pad)
    if name == "sglang":
        return sglang.write_map(state, path, pad=pad)
    return eplb.write(state, path, pad=pad) if name == "phy2log" else own.write(state)


def _even(held: Held) -> State:
    return tuple(layer_of(layer) for layer in held)
