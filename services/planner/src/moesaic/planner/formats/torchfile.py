"""Tensors in `.pt` files, without torch: a zip of a pickle and raw little-endian storages."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from moesaic.planner.formats.errors import FormatError
from moesaic.planner.formats.files import ZIP, Archive
from moesaic.planner.formats.unpickle import Tensor, loads
from moesaic.planner.formats.whole import Array

PICKLE = "/data.pkl"

_TYPES = {
    "torch.LongStorage": "<i8",
    "torch.IntStorage": "<i4",
    "torch.DoubleStorage": "<f8",
    "torch.FloatStorage": "<f4",
}


class TorchFile:
    """What `torch.save` wrote of a dict. Raises FormatError."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._path = path
        if not data.startswith(ZIP):
            raise FormatError(f"{path}: expected a .pt file of torch 1.6 or later (a zip archive)")
        self._archive = Archive(data, path)
        self._root = next((n.removesuffix(PICKLE) for n in self._archive.names if n.endswith(PICKLE)), "archive")
        self._check_order()
        content = loads(self._archive.read(self._root + PICKLE), f"{path}: data.pkl")
        if not isinstance(content, dict):
            raise FormatError(f"{path}: expected a dict, found {type(content).__name__}")
        self._content = content

    def tensor(self, key: str) -> Array:
        """The values of one entry."""
        where = f"{self._path}: {key}"
        if key not in self._content:
            raise FormatError(f"{where}: missing, found {', '.join(map(str, self._content)) or 'nothing'}")
        tensor = self._content[key]
        if not isinstance(tensor, Tensor):
            raise FormatError(f"{where}: expected a tensor, found {type(tensor).__name__}")
        return _view(self._storage(tensor, where), tensor, where)

    def _check_order(self) -> None:
        name = f"{self._root}/byteorder"
        if name in self._archive.names and (order := self._archive.read(name)) != b"little":
            raise FormatError(f"{self._path}: byteorder: expected 'little', found {order[:16]!r}")

    def _storage(self, tensor: Tensor, where: str) -> Array:
        storage = tensor.storage
        if storage.kind not in _TYPES:
            raise FormatError(f"{where}: expected int64, int32, float64 or float32, found {storage.kind}")
        dtype = np.dtype(_TYPES[storage.kind])
        data = self._archive.read(f"{self._root}/data/{storage.key}")
        if len(data) != storage.numel * dtype.itemsize:
            raise FormatError(f"{where}: expected a storage of {storage.numel} values, found {len(data)} bytes")
        return np.frombuffer(data, dtype=dtype)


def _view(storage: Array, tensor: Tensor, where: str) -> Array:
    """The strided view, copied. Tensors that repeat values of their storage are refused: they could be of any size."""
    if 0 in tensor.size or len(tensor.size) > 8:
        raise FormatError(f"{where}: expected a tensor with values, found size {tensor.size}")
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.size, tensor.stride, strict=True))
    if last >= storage.size or math.prod(tensor.size) > storage.size:
        raise FormatError(
            f"{where}: size {tensor.size}, stride {tensor.stride}, offset {tensor.offset} "
            f"do not fit a storage of {storage.size} values"
        )
    strides = tuple(s * storage.itemsize if n > 1 else 0 for n, s in zip(tensor.size, tensor.stride, strict=True))
    view = np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.size, strides, writeable=False)
    return view.copy()
