from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moesaic.planner.formats import LOAD_FORMATS, FormatError, read_load
from moesaic.shared.arrays import pack
from moesaic.shared.messages import IntArray, PhaseWindow, encode
from moesaic.shared.placement import in_order
from planner.formats.cases import line, lines, loaded, npy, npz, pt, put
from planner.samples import EXPERTS, LAYERS, skewed, window

LOADS = hnp.arrays(
    np.int64, st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)), elements=st.integers(0, 2**53)
)


def sglang(counts: object) -> bytes:
    return orjson.dumps({"rank": 0, "logical_count": counts})


def changed(**changes: object) -> bytes:
    return encode(msgspec.structs.replace(window(skewed(), 1), **changes))


def phase(tokens: IntArray, steps: int = 1) -> PhaseWindow:
    return msgspec.structs.replace(window(skewed(), 1).phases["decode"], tokens=tokens, steps=steps)


@settings(deadline=None, max_examples=60)
@given(load=LOADS)
def test_counts_read_back_the_same_from_every_array_format(
    tmp_path_factory: pytest.TempPathFactory, load: np.ndarray
) -> None:
    folder = tmp_path_factory.getbasetemp()
    files = {
        "l.npy": npy(load),
        "f.npy": npy(np.asfortranarray(load.astype(">f8"))),
        "l.npz": npz(load=load),
        "l.json": sglang(load.tolist()),
        "l.pt": pt({"rank": 0, "logical_count": torch.tensor(load), "average_utilization_rate_over_window": None}),
    }
    for name, data in files.items():
        recording = loaded(folder, name, data)
        assert recording.load.dtype == np.int64
        assert np.array_equal(recording.load, load), name
        assert recording.steps.tolist() == [1] * len(load)
        assert recording.seconds is None


def test_counts_of_two_axes_are_one_window(tmp_path: Path) -> None:
    counts = [[1, 2], [3, 4]]
    for name, data in {
        "l.npy": npy(counts),
        "l.npz": npz(load=counts),
        "l.json": sglang(counts),
        "l.pt": pt({"logical_count": torch.tensor(counts, dtype=torch.int32)}),
    }.items():
        assert loaded(tmp_path, name, data).load.tolist() == [counts]


def test_content_counts_more_than_the_ending(tmp_path: Path) -> None:
    assert loaded(tmp_path, "l.json", npy([[1]])).shape == (1, 1)
    assert loaded(tmp_path, "l.npy", lines(line(1))).shape == (LAYERS, EXPERTS)


def test_numpy_archives_may_tell_the_steps(tmp_path: Path) -> None:
    assert loaded(tmp_path, "l.npz", npz(load=np.ones((2, 1, 1)), steps=[3, 0])).steps.tolist() == [3, 0]


def test_windows_are_lines_and_what_nats_prints_between_them_is_skipped(tmp_path: Path) -> None:
    head = b'[#1] Received on "moesaic.monitor.g.imbalance"'
    recording = loaded(tmp_path, "w.log", lines(head, line(1), b"", b"Nats-Msg-Id: 4", line(2, hot=3)))
    assert np.array_equal(recording.load, [skewed(), skewed(3)])
    assert recording.steps.tolist() == [1, 1]
    assert recording.seconds is not None
    assert recording.seconds.tolist() == [1.0, 1.0]


def test_the_phases_of_a_window_are_added(tmp_path: Path) -> None:
    both = changed(phases={"prefill": phase(pack([[1, 2]]), 3), "decode": phase(pack([[10, 20]]), 4)})
    recording = loaded(tmp_path, "w.ndjson", both)
    assert (recording.load.tolist(), recording.steps.tolist()) == ([[[11, 22]]], [7])


def test_a_placement_of_another_model_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "l.npy", npy(np.ones((2, 4))))
    assert read_load(path, placement=in_order(2, 4, 2)).shape == (2, 4)
    with pytest.raises(FormatError, match=r"l\.npy: load of 2 layers and 4 experts, the placement is of 2 and 5"):
        read_load(path, placement=in_order(2, 5, 2))
    with pytest.raises(FormatError, match=r"l\.npy: the placement: a placement of 0 layers"):
        read_load(path, placement=())


TWO = r"line 2: "
BROKEN: dict[str, tuple[str, bytes, str]] = {
    "NaN": ("l.npy", npy([[1, np.nan]]), r"\[0, 1\]: expected a whole number from 0 to 9007199254740992, found nan"),
    "infinite": ("l.npy", npy([[np.inf]]), r"\[0, 0\]: .* found inf"),
    "half": ("l.npy", npy([[0.5]]), r"\[0, 0\]: .* found 0.5"),
    "negative": ("l.npy", npy([[[0, 1], [2, -3]]]), r"\[0, 1, 1\]: .* found -3"),
    "too large": ("l.npy", npy([[2**53 + 2]]), r"\[0, 0\]: .* found 9007199254740994"),
    "too large for a sign": ("l.npy", npy(np.array([[2**63]], dtype=np.uint64)), "found 9223372036854775808"),
    "text": ("l.npy", npy([["a"]]), "expected an array of numbers, found type '<U1'"),
    "truths": ("l.npy", npy([[True]]), "expected numbers, found an array of type bool"),
    "complex": ("l.npy", npy([[1j]]), "found type '<c16'"),
    "fields": ("l.npy", npy(np.zeros(1, dtype=[("a", "<i4")])), "the .npy header has no plain 'descr'"),
    "one axis": ("l.npy", npy([1, 2]), r"expected \[windows, layers, experts\], found shape \(2,\)"),
    "four axes": ("l.npy", npy(np.ones((1, 1, 1, 1))), r"found shape \(1, 1, 1, 1\)"),
    "empty": ("l.npy", npy(np.zeros((0, 1, 1))), r"found shape \(0, 1, 1\)"),
    "cut npy": ("l.npy", npy([[1, 2]])[:-4], r"shape \(1, 2\) of <i8 does not fit 12 bytes"),
    "cut header": ("l.npy", npy([[1, 2]])[:40], "the .npy header is broken or cut off"),
    "header of endless digits": (
        "l.npy",
        b"\x93NUMPY\x01\x00\x00\x50{'descr': '<i8', 'fortran_order': False, 'shape': (" + b"1" * 20000 + b"}" * 500,
        "the .npy header has no plain 'shape'",
    ),
    "no load": ("l.npz", npz(other=[[1]]), "expected a member 'load.npy', found other.npy"),
    "other steps": ("l.npz", npz(load=[[1]], steps=[1, 2]), "steps: expected 1 windows as in the load, found 2"),
    "negative steps": ("l.npz", npz(load=[[1]], steps=[-1]), r"steps\[0\]: .* found -1"),
    "steps of two axes": ("l.npz", npz(load=[[1]], steps=[[1]]), r"steps: expected \[windows\]"),
    "cut npz": ("l.npz", npz(load=[[1]])[:-30], "expected a zip archive"),
    "JSON with a half": ("l.json", sglang([[[1, 2], [3, 4.5]]]), r"logical_count\[0, 1, 1\]: .* found 4.5"),
    "ragged JSON": ("l.json", sglang([[[1, 2], [3]]]), r"logical_count\[0, 1\]: expected a list of 2, found 1"),
    "JSON with null": ("l.json", sglang([[1, None]]), r"logical_count\[0, 1\]: .* found null"),
    "JSON with a list in a row": ("l.json", sglang([[1, [2]]]), r"logical_count\[0, 1\]: .* found a list"),
    "empty JSON": ("l.json", sglang([[], []]), r"logical_count: empty, its shape is \(2, 0\)"),
    "JSON in JSON": ("l.json", b'{"a":{"logical_count":[]}}', "expected an object with 'logical_count'"),
    "cut JSON": ("l.json", sglang([[1]])[:-2], "expected JSON, .* line 1 column"),
    "unknown": ("l.json", b"{}", "not recognised as recorded load, expected one of windows, omni, sglang, npz, npy"),
    "no window": ("w.ndjson", b"\nhello\n", "expected at least one line with an imbalance.v1 message, found none"),
    "cut window": ("w.log", line(1) + b"\n" + line(2)[:-1], TWO + "expected an imbalance.v1 message: "),
    "other message": ("w.log", lines(line(1), b'{"type":"load.v1"}'), TWO + r".* at `\$.type`"),
    "other group": ("w.log", lines(line(1), changed(group="h")), TWO + "group is 'h', in the lines before 'g'"),
    "other model": ("w.log", lines(line(1), changed(model_digest="n")), TWO + "model_digest is 'n'"),
    "backwards": ("w.log", lines(line(1), changed(end=-1.0)), TWO + "end: expected a time after begin 1.0, found -1.0"),
    "for ever": ("w.log", changed(begin=-1.7e308, end=1.7e308), "line 1: end: expected a time"),
    "no phase": ("w.log", lines(line(1), changed(phases={})), TWO + "phases: expected prefill or decode, found none"),
    "other shape": (
        "w.log",
        lines(line(1), changed(phases={"decode": phase(pack([[1]]))})),
        TWO + r"shape \(1, 1\), the lines before have \(2, 8\)",
    ),
    "phases that differ": (
        "w.log",
        changed(phases={"prefill": phase(pack([[1]])), "decode": phase(pack([[1, 2]]))}),
        r"line 1, phases: shapes differ: \(1, 1\) and \(1, 2\)",
    ),
    "negative tokens": (
        "w.log",
        changed(phases={"decode": phase(pack([[1, -2]]))}),
        r"line 1, phases.decode.tokens\[0, 1\]: .* found -2",
    ),
    "flat tokens": ("w.log", changed(phases={"decode": phase(pack([1]))}), r"tokens: expected \[layers, experts\]"),
    "steps below zero": ("w.log", changed(phases={"decode": phase(pack([[1]]), -1)}), r"decode.steps\[0\]: .*-1"),
    "bytes that do not fit": (
        "w.log",
        changed(phases={"decode": phase(IntArray(shape=(2, 2), width=4, data=b"1234"))}),
        "line 1, phases.decode.tokens: array of shape",
    ),
    "an array of any size": (
        "w.log",
        changed(phases={"decode": phase(IntArray(shape=(2**63, 2), width=4, data=b""))}),
        "line 1, phases.decode.tokens: ",
    ),
    "too many together": (
        "w.log",
        changed(phases={"prefill": phase(pack([[2**53]])), "decode": phase(pack([[1]]))}),
        r"line 1, all phases\[0, 0\]: .* found 9007199254740993",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_recording_is_named_with_its_file_and_place(tmp_path: Path, case: str) -> None:
    name, data, reason = BROKEN[case]
    with pytest.raises(FormatError, match=rf"/{name}: .*{reason}"):
        loaded(tmp_path, name, data)


def test_formats_nobody_knows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"x: unknown load format 'csv', expected one of windows, omni"):
        read_load(tmp_path / "x", format="csv")


def test_a_missing_file_is_a_format_error_too(tmp_path: Path) -> None:
    for name in [None, *LOAD_FORMATS]:
        with pytest.raises(FormatError, match=r"gone: .*No such file"):
            read_load(tmp_path / "gone", format=name)


@pytest.mark.parametrize("name", LOAD_FORMATS)
def test_a_file_of_another_format_than_named_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match=r"hello\.txt: .*expected"):
        read_load(put(tmp_path, "hello.txt", b"hello"), format=name)
