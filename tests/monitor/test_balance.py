from __future__ import annotations

import numpy as np
import pytest

from moesaic.monitor.balance import balance, drift, extremes


def test_balance_is_mean_over_max_and_names_the_worst_layer() -> None:
    result = balance(np.array([20, 20]), np.array([10, 20]), ranks=2)
    assert (result.mean, result.worst, result.worst_layer) == (0.75, 0.5, 1)


def test_layers_without_work_do_not_count() -> None:
    result = balance(np.array([20, 0]), np.array([20, 0]), ranks=2)
    assert (result.mean, result.layers) == (0.5, (0.5, None))


def test_nothing_executed_has_no_balance() -> None:
    assert balance(np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64), ranks=2).mean is None


def test_hot_experts_come_hottest_first_and_cold_ones_coldest_first() -> None:
    tokens = np.array([[90, 60, 0, 1, 40, 40, 40, 9]])
    hot, cold = extremes(tokens)
    assert [(h.expert, h.tokens, h.ratio) for h in hot] == [(0, 90, 2.5714)]
    assert [c.expert for c in cold] == [2, 3]


def test_at_most_eight_are_named() -> None:
    hot, cold = extremes(np.array([[100] * 20 + [0] * 80]))
    assert (len(hot), len(cold)) == (8, 8)


def test_a_layer_with_too_few_tokens_names_nobody() -> None:
    assert extremes(np.array([[1, 0, 0, 0]])) == ((), ())


def test_drift_is_one_for_the_same_shape_of_load_and_low_for_another() -> None:
    load = np.array([[1, 2, 3, 4]])
    assert drift(load, load * 3) == pytest.approx(1.0)
    assert drift(load, load[:, ::-1]) == pytest.approx(-1.0)
    assert drift(load, np.array([[5, 5, 5, 5]])) is None
