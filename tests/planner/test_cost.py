from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.cost import TICKS, Cost, Fit

PARTS = st.tuples(st.floats(0, 5), st.floats(0, 1), st.floats(0.001, 0.1))
"""Fixed, per active expert, per token."""


def measured(parts: tuple[float, float, float], seed: int, noise: float) -> Fit:
    """Three hundred steps whose experts and tokens vary independently."""
    draw = np.random.default_rng(seed)
    experts, tokens = draw.integers(1, 40, 300), draw.integers(1, 2000, 300)
    ms = parts[0] + parts[1] * experts + parts[2] * tokens
    fit = Fit()
    fit.add(experts, tokens, ms * np.exp(noise * draw.standard_normal(300)))
    return fit


@settings(max_examples=50, deadline=None, derandomize=True)
@given(PARTS, st.integers(0, 1000))
def test_known_parts_are_recovered(parts: tuple[float, float, float], seed: int) -> None:
    cost = measured(parts, seed, 0.0).solve(np.ones(2))
    assert cost is not None
    assert [cost.fixed, cost.expert, cost.token] == pytest.approx(list(parts), rel=1e-4, abs=1e-4)
    assert cost.unit == "ms"


def test_noisy_measurements_give_about_the_parts() -> None:
    cost = measured((2.0, 0.5, 0.02), 1, 0.02).solve(np.ones(2))
    assert cost is not None
    assert cost.token == pytest.approx(0.02, rel=0.05)
    assert cost.expert == pytest.approx(0.5, rel=0.1)
    assert cost.fixed == pytest.approx(2.0, rel=0.3)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(PARTS, st.integers(0, 1000), st.floats(0.1, 3))
def test_no_part_is_ever_negative(parts: tuple[float, float, float], seed: int, noise: float) -> None:
    cost = measured(parts, seed, noise).solve(np.ones(1))
    assert cost is None or (min(cost.fixed, cost.expert) >= 0 and cost.token > 0)


def test_a_part_that_would_be_negative_is_none_at_all() -> None:
    fit = Fit()
    experts, tokens = np.array([1, 2, 3, 4, 5, 6]), np.array([10, 60, 20, 50, 40, 30])
    fit.add(experts, tokens, 0.1 * tokens - 0.05 * experts)
    cost = fit.solve(np.ones(1))
    assert cost is not None
    assert cost.expert == 0


def test_measurements_that_cannot_tell_give_nothing() -> None:
    assert Fit().solve(np.ones(1)) is None
    level = Fit()
    level.add([1, 2, 3], [5, 9, 2], [0, 0, 0])
    assert level.solve(np.ones(1)) is None


def test_measurements_of_many_ranks_add_up() -> None:
    draw = np.random.default_rng(0)
    rows = draw.random((3, 40))
    one, many = Fit(), Fit()
    one.add(*rows)
    for row in rows.T:
        many.add(*row)
    assert many.sums == pytest.approx(one.sums)
    assert Fit.of(many.sums[np.triu_indices(4)].tolist()).sums == pytest.approx(one.sums)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_what_cannot_be_measured_is_refused(wrong: float) -> None:
    fit = Fit()
    with pytest.raises(ValueError, match="finite and not negative"):
        fit.add([1], [wrong], [1])
    assert not fit.sums.any()


@pytest.mark.parametrize("parts", [{"token": 0.0}, {"expert": -1.0}, {"fixed": math.nan}, {"token": math.inf}])
def test_a_cost_of_impossible_parts_is_refused(parts: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a cost's parts"):
        Cost(np.ones(2), **parts)  # type: ignore[arg-type] # the parts are numbers, `unit` is not among them


@pytest.mark.parametrize("speed", [[0.0, 1.0], [-1.0, 1.0]])
def test_a_speed_is_above_zero(speed: list[float]) -> None:
    with pytest.raises(ValueError, match="speed"):
        Cost(np.array(speed))


def test_tokens_alone_cost_one_tick_and_others_a_thousand() -> None:
    assert Cost.tokens(2).prices().token.tolist() == [1, 1]
    prices = Cost(np.array([1.0, 0.5]), token=0.1, expert=0.3).prices()
    assert prices.token.tolist() == [TICKS, 2 * TICKS]
    assert prices.expert.tolist() == [3 * TICKS, 6 * TICKS]
