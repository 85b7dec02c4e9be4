from __future__ import annotations

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.shared.arrays import pack, unpack
from moesaic.shared.messages import BadMessage, IntArray, decode, encode

SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=3).map(tuple)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    shape, bits = draw(SHAPES), draw(st.sampled_from([8, 31, 32, 63]))
    size = int(np.prod(shape, dtype=int))
    values = draw(st.lists(st.integers(-(2**bits), 2**bits - 1), min_size=size, max_size=size))
    return np.array(values, dtype=np.int64).reshape(shape)


@given(arrays())
def test_an_array_survives_the_wire(array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
    packed: IntArray = decode(encode(pack(array)), IntArray)
    back = unpack(packed)
    assert (back.shape, back.tolist()) == (array.shape, array.tolist())


@pytest.mark.parametrize(("value", "width"), [(2**31 - 1, 4), (-(2**31), 4), (2**31, 8), (-(2**31) - 1, 8)])
def test_four_bytes_are_used_where_they_suffice(value: int, width: int) -> None:
    assert pack([value]).width == width


def test_the_bytes_are_little_endian_in_base64() -> None:
    wire = encode(pack([[1, 258]]))
    assert base64.b64decode(wire.split(b'"data":"')[1].split(b'"')[0]) == b"\1\0\0\0\2\1\0\0"


@pytest.mark.parametrize(
    "bad",
    [
        IntArray(shape=(2,), width=4, data=b"\0" * 4),
        IntArray(shape=(1,), width=8, data=b"\0" * 7),
        IntArray(shape=(-1, -1), width=4, data=b"\0" * 4),
        IntArray(shape=(), width=4, data=b""),
    ],
)
def test_a_shape_that_does_not_fit_its_bytes_is_refused(bad: IntArray) -> None:
    with pytest.raises(BadMessage, match="does not fit"):
        unpack(bad)
