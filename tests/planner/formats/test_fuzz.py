"""Whatever the bytes, a reader returns or raises FormatError."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.formats import (
    LOAD_FORMATS,
    PLACEMENT_FORMATS,
    FormatError,
    read_load,
    read_placement,
    write_placement,
)
from moesaic.planner.formats.npy import array_of
from moesaic.planner.formats.torchfile import TorchFile
from moesaic.planner.formats.unpickle import loads
from planner.formats.cases import EVEN, dump, line, lines, npy, npz, pt, put, rezipped

COUNTS = [[[1, 2, 3], [4, 5, 6]]]
TENSORS = pt({"rank": 0, "logical_count": torch.tensor(COUNTS), "physical_to_logical_map": torch.tensor([[0, 1]])})
LOADS = {
    "windows": lines(line(1), line(2)),
    "sglang": orjson.dumps({"logical_count": COUNTS}),
    "tensors": TENSORS,
    "npz": npz(load=COUNTS, steps=[1]),
    "npy": npy(COUNTS),
}
PICKLE = TENSORS[TENSORS.index(b"\x80\x02}") : TENSORS.index(b".PK", TENSORS.index(b"\x80\x02}")) + 1]


def damaged(data: bytes) -> Iterator[bytes]:
    """Cut off at many places, and with one to four bytes replaced."""
    rng = np.random.default_rng(len(data))
    for end in np.unique(np.linspace(0, len(data), 200, dtype=int)):
        yield data[:end]
    for _ in range(400):
        changed = np.frombuffer(data, dtype=np.uint8).copy()
        changed[rng.integers(0, len(data), rng.integers(1, 5))] = rng.integers(0, 256)
        yield changed.tobytes()


@pytest.mark.parametrize("name", LOADS)
def test_a_damaged_recording_is_read_or_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "l"
    for data in damaged(LOADS[name]):
        path.write_bytes(data)
        for named in (None, {"tensors": "sglang"}.get(name, name)):
            with contextlib.suppress(FormatError):
                assert read_load(path, format=named).load.min() >= 0


@pytest.mark.parametrize("name", PLACEMENT_FORMATS)
def test_a_damaged_placement_is_read_or_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "p"
    write_placement(path, EVEN, format=name)
    for data in damaged(path.read_bytes()):
        path.write_bytes(data)
        for named in (None, name):
            with contextlib.suppress(FormatError):
                assert read_placement(path, ranks=2, format=named)


def test_a_damaged_dump_is_read_or_refused(tmp_path: Path) -> None:
    for data in damaged(b"1\t2\t\n30\t40\t\n"):
        dump(tmp_path, 1, 0, "").write_bytes(data)
        with contextlib.suppress(FormatError):
            assert read_load(tmp_path).load.min() >= 0


def test_a_damaged_pickle_is_read_or_refused() -> None:
    for data in damaged(PICKLE):
        with contextlib.suppress(FormatError):
            loads(data, "w")


def test_a_damaged_pickle_in_a_whole_archive_is_read_or_refused() -> None:
    for data in damaged(PICKLE):
        with contextlib.suppress(FormatError):
            TorchFile(rezipped(TENSORS, data_pkl=data), Path("f.pt")).tensor("logical_count")


@settings(deadline=None, max_examples=400)
@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused_by_every_reader(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = put(tmp_path_factory.getbasetemp(), "random", data)
    for name in [None, *LOAD_FORMATS]:
        with pytest.raises(FormatError, match="random: "):
            read_load(path, format=name)
    for name in [None, *PLACEMENT_FORMATS]:
        with pytest.raises(FormatError, match="random: "):
            read_placement(path, ranks=1, format=name)


@settings(deadline=None, max_examples=400)
@given(st.text(alphabet="0123456789()[]{}'\",: <|if4b8OTrueFalsshapdecnt_L\\", max_size=80))
def test_random_headers_of_arrays_are_read_or_refused(text: str) -> None:
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {text}}}".encode()
    with contextlib.suppress(FormatError):
        array_of(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(16), "w")


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.sampled_from(
            [
                b"(",
                b"N",
                b"}",
                b"]",
                b")",
                b"t",
                b"s",
                b"u",
                b"a",
                b"e",
                b"q\x00",
                b"h\x00",
                b"K\x01",
                b"\x85",
                b"\x86",
                b"R",
                b"Q",
                b"\x94",
                b"ctorch._utils\n_rebuild_tensor_v2\n",
                b"ccollections\nOrderedDict\n",
                b"X\x01\x00\x00\x00a",
            ]
        ),
        max_size=60,
    )
)
def test_random_opcodes_are_read_or_refused(steps: list[bytes]) -> None:
    with contextlib.suppress(FormatError):
        loads(b"".join(steps) + b".", "w")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["layers", "experts", "shares", "type", "layer_list"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(["logical_count", "physical_to_logical_map", "layers", "layer_list", "moe_layer_count"]), JSON)
def test_random_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, key: str, value: object) -> None:
    path = put(tmp_path_factory.getbasetemp(), "json", orjson.dumps({key: value}))
    with contextlib.suppress(FormatError):
        read_load(path)
    for name in (None, "ascend", "moesaic", "sglang"):
        with contextlib.suppress(FormatError):
            read_placement(path, ranks=1, format=name)


@pytest.mark.parametrize("key", ["logical_count", "physical_to_logical_map", "layers", "type"])
def test_deeply_nested_json_is_refused(tmp_path: Path, key: str) -> None:
    path = put(tmp_path, "deep", b'{"layers":[],"%s":%s%s}' % (key.encode(), b"[" * 1000, b"]" * 1000))
    with pytest.raises(FormatError, match="deep: "):
        read_load(path)
    for name in (None, "moesaic", "sglang"):
        with pytest.raises(FormatError, match="deep: "):
            read_placement(path, ranks=1, format=name)
