from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.formats import FormatError
from moesaic.planner.formats.torchfile import TorchFile
from moesaic.planner.formats.unpickle import loads
from planner.formats.cases import pt, rezipped

PATH = Path("f.pt")
BASE = torch.arange(60, dtype=torch.int64)


class Evil:
    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = call, arguments

    def __reduce__(self) -> Any:
        return self._reduced


def tensor(content: Any, key: str = "x") -> np.ndarray:
    return TorchFile(pt(content), PATH).tensor(key)


def broken(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        TorchFile(data, PATH).tensor("x")


VIEWS = {
    "plain": BASE.reshape(3, 4, 5),
    "transposed": BASE.reshape(3, 4, 5).transpose(0, 2),
    "offset": BASE[7:19].reshape(3, 4),
    "strided": BASE.reshape(6, 10)[1::2, ::3],
    "single": BASE[5],
    "one long": BASE.reshape(1, 60, 1),
    "shared": BASE.reshape(6, 10)[2],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float64])
def test_tensors_are_what_torch_wrote(name: str, dtype: torch.dtype) -> None:
    strided = VIEWS[name]
    source = BASE.to(dtype).as_strided(strided.shape, strided.stride(), strided.storage_offset())
    assert np.array_equal(tensor({"x": source}), source.numpy())
    assert tensor({"x": source}).dtype == source.numpy().dtype


@settings(deadline=None, max_examples=60)
@given(st.permutations([0, 1, 2]), st.lists(st.integers(1, 3), min_size=3, max_size=3), st.integers(0, 3))
def test_any_view_reads_back(order: list[int], steps: list[int], begin: int) -> None:
    view = torch.arange(4 * 5 * 6).reshape(4, 5, 6).permute(order)[:, :, begin :: steps[2]][:: steps[0], :: steps[1]]
    assert np.array_equal(tensor({"x": view}), view.numpy())


def test_other_values_beside_the_tensor_do_no_harm() -> None:
    beside = {
        "rank": 300000,
        "rate": 0.5,
        "none": None,
        "flags": (True, False),
        "deep": [[1, -1], OrderedDict(a=2**40), (1, 2, 3, 4), ()],
        "half": torch.ones(2, dtype=torch.bfloat16),
        "name": "ä" * 300,
    }
    assert tensor({**beside, "x": torch.tensor([1, 2])}).tolist() == [1, 2]


def test_every_protocol_of_pickle_reads_back() -> None:
    for protocol in (2, 3, 4, 5):
        file = io.BytesIO()
        torch.save({"x": torch.tensor([1, 2]), "y": torch.tensor([3])}, file, pickle_protocol=protocol)
        assert TorchFile(file.getvalue(), PATH).tensor("x").tolist() == [1, 2]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_file_that_calls_the_system_is_refused_by_name(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "called"
    payload = pickle.dumps({"x": Evil(os.system, f"touch {mark}")}, protocol=protocol)
    broken(
        rezipped(pt({"x": BASE}), data_pkl=payload), r"f\.pt: data\.pkl: byte \d+: (posix\.system is refused|opcode)"
    )
    assert not mark.exists()


@pytest.mark.parametrize(
    ("call", "arguments"),
    [(os.system, ("true",)), (eval, ("1",)), (getattr, (1, "real")), (torch.load, ("x",)), (bytearray, (b"1",))],
)
def test_no_function_is_ever_called(call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    with pytest.raises(FormatError, match=rf"w: byte \d+: [\w.]+\.{call.__name__} is refused, only tensors"):
        loads(pickle.dumps(Evil(call, *arguments), protocol=4), "w")


def test_a_state_dict_of_a_module_is_refused_by_name() -> None:
    broken(pt({"x": torch.nn.Parameter(torch.ones(1))}), r"torch\._utils\._rebuild_parameter is refused")


@pytest.mark.parametrize(
    ("pickled", "reason"),
    [
        (b"", "byte 0: cut off, expected 1 more bytes"),
        (b"\x80\x02}", "byte 3: cut off"),
        (b"X\xff\xff\xff\xffab.", "cut off, expected 4294967295 more bytes"),
        (b"r\xff\xff\xff\xff.", "expected a value on the stack"),
        (b"Nr\xff\xff\xff\xff0.", "opcode POP is none that plain tensors need"),
        (b"\xff.", "opcode ff is none"),
        (b"cos", "cut off in a name"),
        (b"cos\nsystem\n.", r"os\.system is refused"),
        (b"K\x01K\x02\x93.", r"\? is refused"),
        (b"h\x07.", "nothing is remembered as 7"),
        (b"u.", "expected a mark on the stack"),
        (b"}(K\x01u.", "expected keys"),
        (b"}]K\x01s.", "expected keys"),
        (b"NK\x01a.", "expected a list to append to"),
        (b"K\x01Q.", "expected the reference of a tensor storage"),
        (b"ccollections\nOrderedDict\nK\x01\x85R.", "expected the arguments of a tensor or of an empty OrderedDict"),
        (b"NNR.", "expected the arguments"),
        (b"(.", "expected a value on the stack"),
    ],
)
def test_a_broken_pickle_is_named_with_its_byte(pickled: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=rf"w: byte \d+: .*({reason})|w: ({reason})"):
        loads(pickled, "w")


def test_the_memory_of_a_pickle_takes_any_number_without_taking_memory() -> None:
    assert loads(b"K\x05r\xff\xff\xff\xff.", "w") == 5


def test_files_that_are_no_dict_of_tensors_are_refused() -> None:
    broken(pt([1]), r"f\.pt: expected a dict, found list")
    broken(pt({"y": BASE}), r"f\.pt: x: missing, found y")
    broken(pt({"x": 3}), r"f\.pt: x: expected a tensor, found int")
    broken(
        pt({"x": BASE.to(torch.bfloat16)}), r"x: expected int64, int32, float64 or float32, found torch.BFloat16Storage"
    )
    broken(pt({"x": BASE[:0]}), r"x: expected a tensor with values, found size \(0,\)")
    broken(pt({"x": torch.ones(1).expand(10**9, 10**9)}), r"x: size \(1000000000, 1000000000\), stride \(0, 0\)")


def test_broken_archives_are_refused() -> None:
    whole = pt({"x": BASE})
    broken(b"hello", r"f\.pt: expected a \.pt file of torch 1\.6 or later")
    broken(whole[:-10], r"f\.pt: expected a zip archive")
    broken(rezipped(whole, data_pkl=None), "expected a member 'archive/data.pkl', found")
    broken(rezipped(whole, data_0=None), "expected a member '[^']*/data/0'")
    broken(rezipped(whole, data_0=b"123"), "x: expected a storage of 60 values, found 3 bytes")
    broken(rezipped(whole, byteorder=b"big"), "byteorder: expected 'little', found b'big'")


def test_a_flipped_bit_is_noticed() -> None:
    whole = bytearray(pt({"x": BASE}))
    whole[whole.index(BASE.numpy().tobytes())] ^= 1
    broken(bytes(whole), r"f\.pt: [^:]+/data/0: broken: Bad CRC-32")


def test_an_archive_that_points_beyond_all_files_is_refused() -> None:
    whole = bytearray(pt({"x": BASE}))
    whole[-43] = 0x82  # the highest byte of where its directory begins
    broken(bytes(whole), r"f\.pt: [^:]+: broken: ")
