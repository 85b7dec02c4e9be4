"""`IntArray` of the wire to numpy and back."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from moesaic.shared.messages import BadMessage, IntArray

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]


def pack(array: npt.ArrayLike) -> IntArray:
    """An integer array of any shape; four bytes each where they suffice."""
    wide = np.asarray(array, dtype=np.int64)
    small = wide.size == 0 or (int(wide.min()) >= -(2**31) and int(wide.max()) < 2**31)
    data = wide.astype("<i4" if small else "<i8")
    return IntArray(shape=tuple(wide.shape), width=4 if small else 8, data=data.tobytes())


def unpack(packed: IntArray) -> Ints:
    """The array as int64. Raises BadMessage where shape and bytes disagree."""
    values = np.frombuffer(packed.data, dtype=f"<i{packed.width}") if len(packed.data) % packed.width == 0 else None
    if values is None or any(n < 0 for n in packed.shape) or values.size != math.prod(packed.shape):
        raise BadMessage(
            f"array of shape {packed.shape} and width {packed.width} does not fit {len(packed.data)} bytes"
        )
    return values.astype(np.int64).reshape(packed.shape)
