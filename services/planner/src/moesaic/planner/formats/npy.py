"""Arrays in `.npy` and `.npz` files. Only plain numbers: nothing in a file is ever evaluated or unpickled."""

from __future__ import annotations

import io
import math
import re

import numpy as np

from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.files import Archive
from moesaic.planner.formats.whole import Array

MAGIC = b"\x93NUMPY"

_TYPE = re.compile(r"[<>|=](b1|[iu][1248]|f[248])")
_FIELDS = {
    "descr": re.compile(r"'descr': *'([^']*)'"),
    "fortran_order": re.compile(r"'fortran_order': *(True|False)"),
    "shape": re.compile(r"'shape': *\(([\d, L]*)\)"),
}


def array_of(data: bytes, where: str) -> Array:
    """The array in the bytes of an `.npy` file. Raises FormatError."""
    header, values = _split(data, where)
    descr, order, shape_text = (_field(header, name, where) for name in _FIELDS)
    if not _TYPE.fullmatch(descr):
        raise FormatError(f"{where}: expected an array of numbers, found type {descr!r}")
    dtype = np.dtype(descr)
    shape = tuple(int(n) for n in re.findall(r"\d{1,18}", shape_text))
    if len(shape) > 8 or 0 in shape:
        raise FormatError(f"{where}: expected an array with values, found shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(values):
        raise FormatError(f"{where}: shape {shape} of {descr} does not fit {len(values)} bytes")
    array = np.frombuffer(values, dtype=dtype).reshape(shape, order="F" if order == "True" else "C")
    return array.astype(dtype.newbyteorder("="))


def bytes_of(array: Array) -> bytes:
    """An `.npy` file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def member(archive: Archive, name: str) -> Array:
    """An array of an `.npz` file by name. Raises FormatError."""
    return array_of(archive.read(f"{name}.npy"), f"{archive.path}: {name}")


def has(archive: Archive, name: str) -> bool:
    """Whether an `.npz` file has this array."""
    return f"{name}.npy" in archive.names


def _split(data: bytes, where: str) -> tuple[str, bytes]:
    """Header and values."""
    if not data.startswith(MAGIC):
        raise FormatError(f"{where}: expected an .npy file, its first bytes are {data[:6]!r}")
    width = 2 if data[6:7] == b"\x01" else 4
    begin = 8 + width
    end = begin + int.from_bytes(data[8:begin], "little")
    if len(data) < end or data[6:7] not in {b"\x01", b"\x02", b"\x03"}:
        raise FormatError(f"{where}: the .npy header is broken or cut off")
    return data[begin:end].decode("latin-1"), data[end:]


def _field(header: str, name: str, where: str) -> str:
    found = _FIELDS[name].search(header)
    if found is None:
        raise FormatError(f"{where}: the .npy header has no plain {name!r}")
    return found[1]
