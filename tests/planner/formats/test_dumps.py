from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.formats import FormatError, read_load
from moesaic.shared.placement import State, layer_of
from planner.formats.cases import dump, put, states

PLACED: State = (layer_of([[0, 2], [1, 2]]), layer_of([[1], [0, 2]]))


def test_slots_are_the_experts_of_a_rank_in_ascending_order(tmp_path: Path) -> None:
    dump(tmp_path, 7, 0, "1\t2\t\n3\t0\t\n")
    dump(tmp_path, 7, 1, "10\t20\t\n30\t40\t\n")
    recording = read_load(tmp_path, placement=PLACED)
    assert recording.load.tolist() == [[[1, 10, 22], [30, 3, 40]]]
    assert recording.steps.tolist() == [1]


def test_recordsteps_are_windows_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for step in (10, 9, 100):
        dump(tmp_path, step, 0, f"{step}\t1\n")
    put(tmp_path, "notes.txt", b"not a dump")
    assert read_load(tmp_path).load.tolist() == [[[9, 1]], [[10, 1]], [[100, 1]]]


def test_without_a_placement_experts_are_in_order(tmp_path: Path) -> None:
    dump(tmp_path, 1, 0, "1\t2\n3\t4\n")
    dump(tmp_path, 1, 1, "5\t6\n7\t8\n")
    assert read_load(tmp_path, format="omni").load.tolist() == [[[1, 2, 5, 6], [3, 4, 7, 8]]]


@settings(deadline=None, max_examples=40)
@given(state=states(), seed=st.integers(0, 999))
def test_counts_of_all_copies_come_together(tmp_path_factory: pytest.TempPathFactory, state: State, seed: int) -> None:
    folder = tmp_path_factory.mktemp("dumps")
    rng = np.random.default_rng(seed)
    experts = 1 + max(e for layer in state for rank in layer.experts for e in rank)
    expected = np.zeros((1, len(state), experts), dtype=np.int64)
    for rank in range(len(state[0].experts)):
        text = ""
        for index, layer in enumerate(state):
            counts = rng.integers(0, 100, len(layer.experts[rank]))
            expected[0, index, list(layer.experts[rank])] += counts
            text += "\t".join(map(str, [*counts, 0])) + "\n"
        dump(folder, 1, rank, text)
    assert np.array_equal(read_load(folder, placement=state).load, expected)


def broken(folder: Path, reason: str, placement: State | None = None) -> None:
    with pytest.raises(FormatError, match=reason):
        read_load(folder, placement=placement)


@pytest.mark.parametrize("found", ["-4", "x", "1.5", "9007199254740993", "1" * 5000, "NaN", "\x00"])
def test_what_is_no_count_is_named_with_line_and_field(tmp_path: Path, found: str) -> None:
    dump(tmp_path, 1, 0, f"1\t2\n3\t{found}\n")
    broken(tmp_path, r"step_1_rank_0\.txt: line 2, field 2: expected a whole number from 0 to \d+, found '")


def test_empty_files_and_lines_are_refused(tmp_path: Path) -> None:
    dump(tmp_path, 1, 0, "")
    broken(tmp_path, r"rank_0\.txt: line 1: expected tab-separated counts, found none")
    dump(tmp_path, 1, 0, "1\n\n2\n")
    broken(tmp_path, r"rank_0\.txt: line 2: expected tab-separated counts, found none")


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    dump(tmp_path, 1, 0, "1\n")
    dump(tmp_path, 1, 1, "1\n")
    dump(tmp_path, 2, 1, "1\n")
    broken(tmp_path, r": expected a file of rank 0 for recordstep 2 of 2 ranks")


def test_the_same_dump_under_two_names_is_refused(tmp_path: Path) -> None:
    dump(tmp_path, 1, 0, "1\n")
    put(tmp_path, "activation_counts_recordstep_01_rank_0.txt", b"1\n")
    broken(tmp_path, r"step_1_rank_0\.txt: the same recordstep and rank as activation_counts_recordstep_01_rank_0\.txt")


def test_slots_that_differ_need_the_placement(tmp_path: Path) -> None:
    dump(tmp_path, 1, 0, "1\t2\n1\n")
    broken(tmp_path, r"rank_0\.txt: line 2: 1 slots where others have 2: pass the placement")


def test_dumps_must_fit_the_placement(tmp_path: Path) -> None:
    dump(tmp_path, 1, 0, "1\t2\n3\n")
    broken(tmp_path, "dumps of 1 ranks, the placement has 2", PLACED)
    dump(tmp_path, 1, 1, "1\t2\n3\n")
    broken(tmp_path, r"rank_1\.txt: line 2: expected counts of 2 slots, found 1", PLACED)
    dump(tmp_path, 1, 1, "1\t2\n3\t4\t5\n")
    broken(tmp_path, r"rank_1\.txt: line 2: expected counts of 2 slots, found 3 \(further ones must be 0\)", PLACED)
    dump(tmp_path, 1, 1, "1\t2\n")
    broken(tmp_path, r"rank_1\.txt: expected 2 lines, one per layer, found 1", PLACED)


def test_a_folder_without_dumps_is_refused(tmp_path: Path) -> None:
    broken(tmp_path, r"expected files like activation_counts_recordstep_1_rank_0\.txt, found none")
    path = put(tmp_path, "x", b"")
    with pytest.raises(FormatError, match=r"x: expected a folder of dumps: Not a directory"):
        read_load(path, format="omni")
