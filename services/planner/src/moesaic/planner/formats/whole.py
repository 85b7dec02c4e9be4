"""Whole numbers from foreign arrays and nested lists: what is none is named with its index."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moesaic.planner.formats.errors import FormatError
from moesaic.shared.arrays import Ints

Array = npt.NDArray[Any]

LARGEST = 2**53
"""Greater counts are not exact in the floats that some formats keep."""


def whole(values: Array, where: str, *, least: int = 0) -> Ints:
    """`values` as int64. Raises FormatError unless all are whole numbers from `least` to LARGEST, and there is one."""
    if values.dtype.kind not in "iuf":
        raise FormatError(f"{where}: expected numbers, found an array of type {values.dtype}")
    if values.size == 0:
        raise FormatError(f"{where}: empty, its shape is {values.shape}")
    exact = values.astype(np.float64) if values.dtype.kind == "f" else values
    good = (exact >= least) & (exact <= LARGEST)
    if exact.dtype.kind == "f":
        good &= exact == np.floor(exact)
    if not good.all():
        index = tuple(int(i) for i in np.argwhere(~good)[0])
        raise _no_number(where, index, values[index].item(), least)
    return exact.astype(np.int64)


def shaped(values: Ints, where: str, *names: str) -> Ints:
    """`values` with as many axes as `names`. Raises FormatError."""
    if values.ndim != len(names):
        raise FormatError(f"{where}: expected [{', '.join(names)}], found shape {values.shape}")
    return values


def from_lists(values: object, where: str) -> Array:
    """Nested lists of JSON as an array. Raises FormatError naming what is ragged or no number."""
    if not isinstance(values, list):
        raise FormatError(f"{where}: expected a list, found {_kind(values)}")
    try:
        array = np.array(values)
    except (ValueError, OverflowError):
        array = None
    if array is None or array.dtype.kind not in "iuf":
        _find(values, where, (), _shape(values))
        raise FormatError(f"{where}: expected nested lists of whole numbers")
    return array


def _shape(values: object) -> tuple[int, ...]:
    """The shape that the first elements promise, of at most four axes."""
    shape: list[int] = []
    while isinstance(values, list) and len(shape) < 4:
        shape.append(len(values))
        values = values[0] if values else None
    return tuple(shape)


def _find(values: Any, where: str, index: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raise FormatError for the first element that breaks the shape or is no number."""
    if len(index) == len(shape):
        if isinstance(values, bool) or not isinstance(values, int | float) or not 0 <= values <= LARGEST:
            raise _no_number(where, index, values, 0)
        return
    if not isinstance(values, list) or len(values) != shape[len(index)]:
        found = f"{len(values)}" if isinstance(values, list) else _kind(values)
        raise FormatError(f"{where}{list(index)}: expected a list of {shape[len(index)]}, found {found}")
    for i, value in enumerate(values):
        _find(value, where, (*index, i), shape)


def _no_number(where: str, index: tuple[int, ...], found: object, least: int) -> FormatError:
    shown = _kind(found) if isinstance(found, bool) or not isinstance(found, int | float) else repr(found)
    return FormatError(f"{where}{list(index)}: expected a whole number from {least} to {LARGEST}, found {shown}")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", type(None): "null", bool: "true or false"}
    return names.get(type(value), type(value).__name__)
