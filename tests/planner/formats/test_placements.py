from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.formats import PLACEMENT_FORMATS, FormatError, read_placement, write_placement
from moesaic.shared.messages import LayerPlacement, Placement, encode
from moesaic.shared.placement import State, layer_of
from planner.formats.cases import EVEN, SHARED, UNEVEN, npy, npz, placed, pt, put, states

ENDINGS = {"moesaic": ".json", "omni": ".npy", "ascend": ".json", "sglang": ".json", "phy2log": ".npz"}


def sglang(slots: object) -> bytes:
    return orjson.dumps({"physical_to_logical_map": slots})


def expert_map(**changes: object) -> bytes:
    devices = [{"device_id": 0, "device_expert": [2, 0]}, {"device_id": 1, "device_expert": [1, 1]}]
    layer = {"layer_id": 3, "device_count": 2, "device_list": devices}
    return orjson.dumps({"moe_layer_count": 1, "layer_list": [layer | changes]})


@pytest.mark.parametrize("name", PLACEMENT_FORMATS)
@settings(deadline=None, max_examples=60)
@given(state=states(even=True))
def test_what_is_written_reads_back_the_same(tmp_path_factory: pytest.TempPathFactory, name: str, state: State) -> None:
    path = tmp_path_factory.getbasetemp() / f"same-{name}{ENDINGS[name]}"
    write_placement(path, state, format=name)
    ranks = len(state[0].experts)
    assert read_placement(path, ranks=ranks) == state
    assert read_placement(path, ranks=ranks, format=name) == state


@pytest.mark.parametrize("name", PLACEMENT_FORMATS)
@settings(deadline=None, max_examples=60)
@given(state=states())
def test_uneven_placements_survive_padding(tmp_path_factory: pytest.TempPathFactory, name: str, state: State) -> None:
    path = tmp_path_factory.getbasetemp() / f"padded-{name}{ENDINGS[name]}"
    write_placement(path, state, format=name, pad=True)
    assert read_placement(path, ranks=len(state[0].experts)) == state


@settings(deadline=None, max_examples=60)
@given(state=states(), shares=st.lists(st.integers(1, 2**31 - 1), min_size=100, max_size=100))
def test_our_own_format_keeps_shares(tmp_path_factory: pytest.TempPathFactory, state: State, shares: list[int]) -> None:
    left = iter(shares * 10)
    state = tuple(
        LayerPlacement(experts=layer.experts, shares=tuple(tuple(next(left) for _ in rank) for rank in layer.experts))
        for layer in state
    )
    path = tmp_path_factory.getbasetemp() / "shares.json"
    write_placement(path, state)
    assert read_placement(path) == state


@pytest.mark.parametrize("name", ["omni", "ascend", "sglang", "phy2log"])
def test_other_formats_lose_shares(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"x{ENDINGS[name]}"
    write_placement(path, SHARED, format=name)
    assert read_placement(path, ranks=2) == (layer_of([[0, 1], [0, 2]]),)


@pytest.mark.parametrize("name", ["ascend", "sglang", "phy2log"])
def test_uneven_slots_are_refused_with_the_formats_that_hold_them(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        FormatError, match=r"x\.\w+: layer 0 rank 0: 2 experts where others have 4, .* moesaic and omni"
    ):
        write_placement(tmp_path / f"x{ENDINGS[name]}", UNEVEN, format=name)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_without_experts_cannot_be_padded(tmp_path: Path) -> None:
    state = (layer_of([[0, 1], []]),)
    with pytest.raises(FormatError, match="layer 0 rank 1: no expert to pad its 2 slots with"):
        write_placement(tmp_path / "x.json", state, format="sglang", pad=True)
    write_placement(tmp_path / "x.npy", state)
    assert read_placement(tmp_path / "x.npy") == state


def test_an_ending_chooses_the_format_that_is_written(tmp_path: Path) -> None:
    for name in ("x.npy", "x.npz", "x.json", "x"):
        write_placement(tmp_path / name, EVEN)
        assert read_placement(tmp_path / name, ranks=2) == EVEN
    assert np.load(tmp_path / "x.npy").shape == (2, 2, 5)
    assert np.load(tmp_path / "x.npy").dtype == np.int32
    assert (tmp_path / "x").read_bytes() == (tmp_path / "x.json").read_bytes()


def test_eplb_arrays_say_the_same_three_times(tmp_path: Path) -> None:
    write_placement(tmp_path / "x.npz", EVEN)
    arrays = np.load(tmp_path / "x.npz")
    assert arrays["phy2log"].tolist() == [[0, 1, 2, 0, 3, 4], [0, 2, 4, 1, 2, 3]]
    assert arrays["logcnt"].tolist() == [[2, 1, 1, 1, 1], [1, 1, 2, 1, 1]]
    assert arrays["log2phy"][0].tolist() == [[0, 3], [1, -1], [2, -1], [4, -1], [5, -1]]


def test_sglang_gets_nothing_but_its_map(tmp_path: Path) -> None:
    write_placement(tmp_path / "x.json", EVEN, format="sglang")
    content = orjson.loads((tmp_path / "x.json").read_bytes())
    assert content == {"physical_to_logical_map": [[0, 1, 2, 0, 3, 4], [0, 2, 4, 1, 2, 3]]}


def test_a_tensor_file_is_only_read(tmp_path: Path) -> None:
    slots = torch.tensor([[0, 1, 2, 0, 3, 4], [0, 2, 4, 1, 2, 3]])
    assert placed(tmp_path, "x.pt", pt({"physical_to_logical_map": slots}), ranks=2) == EVEN
    with pytest.raises(FormatError, match=r"y\.pt: \.pt files are only read"):
        write_placement(tmp_path / "y.pt", EVEN, format="sglang")


def test_an_expert_in_two_slots_of_a_rank_counts_once(tmp_path: Path) -> None:
    once = (layer_of([[0, 2], [1]]),)
    assert placed(tmp_path, "x.json", sglang([[2, 0, 1, 1]]), ranks=2) == once
    assert placed(tmp_path, "x.json", expert_map()) == once
    assert placed(tmp_path, "x.npz", npz(phy2log=[[2, 0, 1, 1]]), ranks=2) == once


def test_a_placement_message_is_read_and_so_are_bare_layers(tmp_path: Path) -> None:
    message = encode(Placement(group="g", generation=1, model_digest="m", layers=SHARED))
    assert placed(tmp_path, "x.json", message) == SHARED
    layers = orjson.dumps(orjson.loads(message)["layers"])
    assert placed(tmp_path, "x.json", layers) == SHARED


def test_a_pattern_of_booleans_or_floats_is_one_too(tmp_path: Path) -> None:
    pattern = np.array([[[1, 0, 1]], [[0, 1, 0]]])
    for kind in (np.bool_, np.float32, np.uint8):
        assert placed(tmp_path, "x.npy", npy(pattern.astype(kind))) == (layer_of([[0, 2], [1]]),)


def test_copies_of_log2phy_may_stand_in_any_order(tmp_path: Path) -> None:
    arrays = {"phy2log": [[0, 1, 1, 0]], "log2phy": [[[3, 0, -1], [1, 2, -1]]], "logcnt": [[2, 2]]}
    assert placed(tmp_path, "x.npz", npz(**arrays), ranks=2) == (layer_of([[0, 1], [0, 1]]),)


BROKEN: dict[str, tuple[str, bytes, str]] = {
    "pattern of two axes": ("x.npy", npy([[0, 1]]), r"expected \[ranks, layers, experts\], found shape \(1, 2\)"),
    "pattern with a two": ("x.npy", npy([[[1, 2]]]), r"\[0, 0, 1\]: expected 0 or 1, found 2"),
    "pattern with a minus": ("x.npy", npy([[[1, -1]]]), r"\[0, 0, 1\]: expected a whole number .*, found -1"),
    "pattern with a NaN": ("x.npy", npy([[[1, np.nan]]]), r"\[0, 0, 1\]: .* found nan"),
    "pattern without a home": ("x.npy", npy([[[1, 0, 1]]]), "layer 0: expert 1 of 3 is on no rank"),
    "pattern of nothing": ("x.npy", npy([[[0, 0]]]), "without any expert"),
    "empty pattern": ("x.npy", npy(np.zeros((1, 0, 3))), r"found shape \(1, 0, 3\)"),
    "map of text": ("x.json", sglang([["a"]]), r"map\[0, 0\]: expected a whole number .* found a string"),
    "ragged map": ("x.json", sglang([[0, 1], [0]]), r"map\[1\]: expected a list of 2, found 1"),
    "map with a minus": ("x.json", sglang([[0, -1]]), r"map\[0, 1\]: expected a whole number .* found -1"),
    "map with a half": ("x.json", sglang([[0, 0.5]]), r"map\[0, 1\]: .* found 0.5"),
    "map with a truth": ("x.json", sglang([[True, False]]), r"map\[0, 0\]: .* found true or false"),
    "map that is none": ("x.json", sglang(3), "map: expected a list, found int"),
    "map with one axis": ("x.json", sglang([0, 1]), r"expected \[layers, slots\], found shape \(2,\)"),
    "map with three axes": ("x.json", sglang([[[0, 1]]]), r"expected \[layers, slots\]"),
    "empty map": ("x.json", sglang([]), "empty"),
    "map for other ranks": ("x.json", sglang([[0, 1, 2]]), "3 slots cannot be shared evenly by 2 ranks"),
    "map with a gap": ("x.json", sglang([[0, 2]]), "layer 0: expert 1 of 3 is on no rank"),
    "map with a far id": ("x.json", sglang([[0, 2**50]]), "layer 0: expert 1 of 1125899906842625 is on no rank"),
    "cut JSON": ("x.json", sglang([[0, 1]])[:-1], r"expected JSON, .*line 1 column"),
    "layer id": ("x.json", expert_map(layer_id="a"), r"got `str` - at `\$.layer_list\[0\].layer_id`"),
    "device count": ("x.json", expert_map(device_count=3), r"layer_list\[0\].device_count: expected 2, found 3"),
    "no devices": ("x.json", expert_map(device_list=[], device_count=0), "without any expert"),
    "layer count": ("x.json", b'{"moe_layer_count":2,"layer_list":[]}', "moe_layer_count: expected 0, found 2"),
    "device without experts": (
        "x.json",
        expert_map(device_list=[{"device_id": 0}]),
        r"missing required field `device_expert` - at `\$.layer_list\[0\].device_list\[0\]`",
    ),
    "device id": (
        "x.json",
        expert_map(device_list=[{"device_id": 1, "device_expert": [0]}], device_count=1),
        r"device_list\[0\].device_id: expected 0, found 1",
    ),
    "negative expert": (
        "x.json",
        expert_map(device_list=[{"device_id": 0, "device_expert": [0, -2]}], device_count=1),
        r"at `\$.layer_list\[0\].device_list\[0\].device_expert\[1\]`",
    ),
    "no phy2log": ("x.npz", npz(other=[1]), "expected a member 'phy2log.npy', found other.npy"),
    "phy2log of one axis": ("x.npz", npz(phy2log=[0, 1]), r"phy2log: expected \[layers, slots\]"),
    "far phy2log": ("x.npz", npz(phy2log=[[0, 9]]), "phy2log: expert 9 among 2 slots"),
    "other logcnt": (
        "x.npz",
        npz(phy2log=[[0, 1]], logcnt=[[1, 2]]),
        "logcnt: layer 0 expert 1: expected 1 as phy2log has it, found 2",
    ),
    "other log2phy": (
        "x.npz",
        npz(phy2log=[[0, 1]], log2phy=[[[1], [-1]]]),
        "log2phy: layer 0 expert 0: expected 0 as phy2log has it, found 1",
    ),
    "flat log2phy": ("x.npz", npz(phy2log=[[0, 1]], log2phy=[[0, 1]]), r"log2phy: expected shape \(1, 2, 1\)"),
    "other message": ("x.json", b'{"type":"load.v1","layers":[]}', "type: expected 'placement.v1'"),
    "no layers": ("x.json", b'{"layers":[]}', "a placement of 0 layers without any expert"),
    "layer without shares": (
        "x.json",
        b'{"layers":[{"experts":[[0]]}]}',
        r"missing required field `shares` - at `\$.layers\[0\]`",
    ),
    "share too few": ("x.json", b'{"layers":[{"experts":[[0,1]],"shares":[[1]]}]}', "rank 0: 2 experts but 1 shares"),
    "share of nothing": ("x.json", b'{"layers":[{"experts":[[0]],"shares":[[0]]}]}', "rank 0: every share must be"),
    "expert twice": (
        "x.json",
        b'{"layers":[{"experts":[[0,0]],"shares":[[1,1]]}]}',
        "layer 0 rank 0: experts must ascend, each once",
    ),
    "expert below zero": (
        "x.json",
        b'{"layers":[{"experts":[[-1,0,1]],"shares":[[1,1,1]]}]}',
        "layer 0 rank 0: experts are 0 to 1",
    ),
    "ranks that differ": (
        "x.json",
        b'[{"experts":[[0],[0]],"shares":[[1],[1]]},{"experts":[[0]],"shares":[[1]]}]',
        "layer 1: expected 2 ranks, found 1",
    ),
    "unknown JSON": ("x.json", b"{}", "not recognised as a placement, expected one of moesaic, omni, ascend"),
    "text": ("x.txt", b"hello", "not recognised as a placement"),
    "nothing": ("x.npy", b"", "expected an .npy file"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_placement_is_named_with_its_file_and_place(tmp_path: Path, case: str) -> None:
    name, data, reason = BROKEN[case]
    ranks = 2 if b"physical_to_logical_map" in data or name == "x.npz" else None
    with pytest.raises(FormatError, match=rf"/{name}: .*{reason}"):
        placed(tmp_path, name, data, ranks=ranks)


def test_ranks_must_be_passed_where_the_file_does_not_say(tmp_path: Path) -> None:
    for name, data in (("x.json", sglang([[0, 1]])), ("x.npz", npz(phy2log=[[0, 1]]))):
        with pytest.raises(FormatError, match="how many ranks share its 2 slots: pass ranks"):
            placed(tmp_path, name, data)
        with pytest.raises(FormatError, match="cannot be shared evenly by 0 ranks"):
            placed(tmp_path, name, data, ranks=0)


@pytest.mark.parametrize("name", PLACEMENT_FORMATS)
def test_other_ranks_or_experts_than_expected_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"x{ENDINGS[name]}"
    write_placement(path, EVEN, format=name)
    for experts in (4, 6):
        with pytest.raises(FormatError, match=rf"x\.\w+: .*({experts}|experts are 0 to 3)"):
            read_placement(path, experts=experts, ranks=2)
    with pytest.raises(FormatError, match=r"expected 4 ranks, found 2|evenly by 4 ranks"):
        read_placement(path, experts=5, ranks=4)


def test_formats_nobody_knows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"x: unknown placement format 'vllm', expected one of moesaic, omni"):
        read_placement(tmp_path / "x", format="vllm")
    with pytest.raises(FormatError, match=r"x: unknown placement format 'vllm'"):
        write_placement(tmp_path / "x", EVEN, format="vllm")


def test_a_file_that_is_not_there_is_a_format_error_too(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"x\.npy: cannot be read: No such file"):
        read_placement(tmp_path / "x.npy")
    with pytest.raises(FormatError, match=r"cannot be read: Is a directory"):
        read_placement(tmp_path)


@pytest.mark.parametrize("name", PLACEMENT_FORMATS)
def test_an_invalid_state_leaves_the_file_as_it_was(tmp_path: Path, name: str) -> None:
    path = put(tmp_path, f"x{ENDINGS[name]}", b"before")
    for state in ((), (layer_of([[0, 2]]),), (layer_of([[], []]),), (EVEN[0], layer_of([[0, 1, 2, 3, 4]]))):
        with pytest.raises(FormatError, match=r"x\.\w+: (layer|a placement)"):
            write_placement(path, state, format=name)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"before"


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(FormatError, match=r"x\.json: cannot be written: "):
        write_placement(tmp_path / "x.json", EVEN)
    with pytest.raises(FormatError, match=r"gone/x\.json: cannot be written: No such file"):
        write_placement(tmp_path / "gone" / "x.json", EVEN)
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
