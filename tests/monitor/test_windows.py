from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.monitor.counters import read
from moesaic.monitor.report import imbalance
from moesaic.monitor.windows import Window, Windows
from moesaic.shared.arrays import pack
from moesaic.shared.messages import BadMessage, IntArray, Load, PhaseLoad, PhaseWindow, Source
from monitor.samples import load, timed


def heard(*messages: Load) -> Windows:
    windows = Windows(0.0)
    for message in messages:
        windows.take(read(message))
    return windows


def closed(windows: Windows) -> Window:
    window = windows.close(1.0)
    assert window is not None
    return window


def phase_of(layers: int, experts: int) -> PhaseLoad:
    grid, row = pack(np.ones((layers, experts))), pack(np.ones(layers))
    names = ("executed_tokens", "executed_experts", "cost_total", "cost_max", "cost_best")
    rows: dict[str, Any] = dict.fromkeys(names, row)
    return PhaseLoad(steps=1, tokens=grid, active_steps=grid, executed_steps=1, **rows)


def tokens(windows: Windows) -> int:
    return int(closed(windows).routed["decode"].tokens[0, 0])


def test_a_window_is_what_came_since_the_last_one() -> None:
    windows = heard(load(1, 5))
    assert tokens(windows) == 5
    windows.take(read(load(2, 12)))
    assert tokens(windows) == 7


def test_a_window_without_tokens_is_none() -> None:
    windows = heard(load(1, 5))
    windows.close(1.0)
    windows.take(read(load(2, 5)))
    assert windows.close(2.0) is None


def test_lost_messages_lose_no_counts_but_are_counted() -> None:
    windows = heard(load(1, 1), load(4, 9))
    window = closed(windows)
    assert window.routed["decode"].tokens[0, 0] == 9
    assert window.lost == 2


def test_a_late_message_is_no_longer_lost_and_changes_nothing_else() -> None:
    windows = heard(load(1, 1), load(3, 9), load(2, 4))
    window = closed(windows)
    assert (window.routed["decode"].tokens[0, 0], window.lost) == (9, 0)


def test_a_repeated_message_counts_once() -> None:
    assert tokens(heard(load(1, 3), load(1, 3), load(2, 4), load(1, 3))) == 4


@given(st.permutations(range(1, 9)), st.integers(1, 7))
def test_any_order_gives_the_same_counts_over_two_windows(order: list[int], cut: int) -> None:
    windows = heard(load(1, 1))
    total = 0
    for part in (order[:cut], order[cut:]):
        for seq in part:
            windows.take(read(load(seq, seq * 10)))
        window = windows.close(1.0)
        total += int(window.routed["decode"].tokens[0, 0]) if window else 0
    assert (total, windows.lost) == (80, 0)


def test_a_new_boot_counts_from_zero() -> None:
    windows = heard(load(7, 100))
    windows.close(1.0)
    windows.take(read(load(2, 6, boot="b2")))
    assert tokens(windows) == 6


def test_the_last_words_of_the_old_boot_count_beside_the_new_one() -> None:
    windows = heard(load(7, 100))
    windows.close(1.0)
    for message in (load(1, 6, boot="b2"), load(8, 103)):
        windows.take(read(message))
    assert tokens(windows) == 9


def test_a_monitor_that_starts_late_counts_from_the_first_message_it_hears() -> None:
    windows = heard(load(40, 1000))
    assert windows.close(1.0) is None
    windows.take(read(load(41, 1003)))
    assert tokens(windows) == 3


def test_what_was_executed_under_another_epoch_is_not_subtracted_nor_added() -> None:
    windows = heard(load(1, 1, most=50, total=60, steps=5))
    windows.close(1.0)
    windows.take(read(load(2, 2, epoch=3, instalment=1, most=8, total=12, steps=2)))
    window = closed(windows)
    assert window.key == (1, 3, 1)
    executed = window.executed["decode"]
    assert (int(executed.most[0]), int(executed.total[0]), executed.steps) == (8, 12, 2)


def test_a_placement_left_and_taken_up_again_within_a_window_counts_whole() -> None:
    windows = heard(load(1, 1, most=50, steps=5))
    windows.close(1.0)
    for message in (load(2, 2, epoch=3, most=1), load(3, 3, most=7, steps=6)):
        windows.take(read(message))
    assert int(closed(windows).executed["decode"].most[0]) == 7


def test_an_engine_still_on_the_old_epoch_adds_routes_but_no_costs() -> None:
    windows = heard(load(1, 3, rank=1, epoch=4, most=8), load(1, 2, engine="b", rank=0, most=99))
    window = closed(windows)
    assert window.routed["decode"].tokens[0, 0] == 5
    assert int(window.executed["decode"].most[0]) == 8


def test_costs_of_a_group_are_taken_from_one_engine() -> None:
    windows = heard(load(1, 3, most=8), load(1, 2, engine="b", rank=1, most=8))
    assert int(closed(windows).executed["decode"].most[0]) == 8


def test_costs_come_from_another_rank_where_the_lowest_has_none() -> None:
    windows = heard(load(1, 3, most=0, steps=0), load(1, 2, engine="b", rank=1, most=8))
    assert int(closed(windows).executed["decode"].most[0]) == 8


def test_another_model_starts_anew() -> None:
    windows = heard(load(5, 100))
    windows.take(read(load(1, 4, engine="c", digest="other")))
    window = closed(windows)
    assert (window.model_digest, window.engines) == ("other", ("c",))
    assert window.routed["decode"].tokens[0, 0] == 4


def test_counters_that_go_down_are_refused_and_the_count_goes_on_from_there() -> None:
    windows = heard(load(1, 100))
    windows.close(1.0)
    with pytest.raises(BadMessage, match="went down"):
        windows.take(read(load(2, 5)))
    windows.take(read(load(3, 8)))
    assert tokens(windows) == 3


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("tokens", pack(np.full((2, 4), -1)), "negative"),
        ("cost_max", pack(np.zeros(3)), "shape"),
        ("active_steps", IntArray(shape=(2, 4), width=4, data=b"short"), "does not fit"),
        ("tokens", pack(np.zeros(8)), "layers, experts"),
    ],
)
def test_counters_that_make_no_sense_are_refused(field: str, value: IntArray, reason: str) -> None:
    bad = msgspec.structs.replace(load(1, 1).phases["decode"], **{field: value})
    with pytest.raises(BadMessage, match=reason):
        read(msgspec.structs.replace(load(1, 1), phases={"decode": bad}))


def test_another_shape_of_the_same_model_is_refused() -> None:
    windows = heard(load(1, 1))
    larger = msgspec.structs.replace(load(2, 1), phases={"decode": phase_of(3, 4)})
    with pytest.raises(BadMessage, match="same model"):
        windows.take(read(larger))


def reported(windows: Windows) -> PhaseWindow:
    return imbalance(closed(windows), "g", Source(producer="monitor", boot="m", seq=1), None).phases["decode"]


def test_the_time_of_a_step_is_that_of_the_window_and_of_the_placement() -> None:
    windows = heard(timed(load(1, 5, steps=2), us=10_000))
    assert reported(windows).step_ms == 5.0
    windows.take(read(timed(load(2, 9, steps=4), us=16_000)))
    assert reported(windows).step_ms == 3.0
    windows.take(read(timed(load(3, 12, steps=1, epoch=7), us=9_000)))
    assert reported(windows).step_ms == 9.0


def test_what_experts_took_is_added_over_engines_and_counts_since_the_last_window() -> None:
    one, two = [1.0] * 10, [2.0] * 10
    windows = heard(timed(load(1, 5), timing=one), timed(load(1, 5, engine="b", rank=1), timing=two))
    assert reported(windows).timing == (3.0,) * 10
    windows.take(read(timed(load(2, 9), timing=two)))
    assert reported(windows).timing == (1.0,) * 10


@pytest.mark.parametrize("timing", [[1.0] * 9, [float("nan")] * 10])
def test_a_timing_that_is_none_is_refused(timing: list[float]) -> None:
    with pytest.raises(BadMessage, match="timing"):
        read(timed(load(1, 5), timing=timing))
