from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.planner.forecast import Forecast, Memory
from moesaic.shared.arrays import Floats, Ints
from planner.samples import EXPERTS, LAYERS, skewed

MEMORY = Memory(fast_s=2.0, slow_s=50.0, same_domain=0.8, min_tokens=16.0)
PATIENT = Memory(fast_s=5.0, slow_s=60.0, same_domain=-1.0, min_tokens=16.0)
WIDE = (4, 64)


def told(windows: Iterable[Ints], memory: Memory = MEMORY, seconds: float = 1.0) -> Forecast:
    forecast: Forecast | None = None
    for tokens in windows:
        forecast = forecast or Forecast(memory, *tokens.shape)
        forecast.add(tokens, seconds)
    assert forecast is not None
    return forecast


def noisy(shares: Callable[[int], Floats], windows: int = 120, tokens: float = 200.0, seed: int = 0) -> list[Ints]:
    """Poisson counts of the load at each window."""
    draw = np.random.default_rng(seed)
    loads = [shares(t) for t in range(windows)]
    return [draw.poisson(tokens * load / load.mean(axis=1, keepdims=True)).astype(np.int64) for load in loads]


def uneven(seed: int) -> Floats:
    return np.random.default_rng(seed).lognormal(0.0, 1.0, WIDE)


def shifting(t: int) -> Floats:
    """In a straight line from one load to another."""
    one, other = (load / load.sum(axis=1, keepdims=True) for load in (uneven(1), uneven(2)))
    between: Floats = one * (1 - t / 200) + other * (t / 200)
    return between


def wandering(rho: float, sigma: float) -> Callable[[int], Floats]:
    """Logarithms follow an AR(1) process."""
    draw, state = np.random.default_rng(3), np.zeros(WIDE)

    def shares(_: int) -> Floats:
        state[:] = rho * state + sigma * draw.standard_normal(WIDE)
        wandered: Floats = uneven(1) * np.exp(state)
        return wandered

    return shares


def fluctuating(sigma: float) -> Callable[[int], Floats]:
    """Log-normal noise around the same load."""
    return wandering(0.0, sigma)


def steady(_: int) -> Floats:
    return uneven(1)


# --- counts ------------------------------------------------------------------------------------------------------------------


def test_counts_fade_with_their_half_life() -> None:
    forecast = told([skewed()])
    forecast.add(skewed() * 0, 2.0)
    assert np.allclose(forecast.fast, skewed() / 2)
    assert (forecast.slow > 0.9 * skewed()).all()


def test_few_tokens_are_not_enough() -> None:
    assert not told([skewed(scale=1)]).enough
    assert told([skewed(scale=50)]).enough
    assert not Forecast(Memory(2.0, 50.0, 0.8, 0.0), LAYERS, EXPERTS).enough


def test_the_first_window_is_the_forecast() -> None:
    assert np.allclose(told([skewed()]).expected(), skewed())


def test_few_tokens_are_a_forecast_as_long_as_there_is_no_better_one() -> None:
    forecast = told([skewed(scale=1)])
    assert np.allclose(forecast.expected(), skewed(scale=1))
    assert forecast.seen == skewed(scale=1).mean()


def test_nothing_seen_is_nothing_expected() -> None:
    forecast = Forecast(MEMORY, LAYERS, EXPERTS)
    assert not forecast.expected().any()
    assert not forecast.per_step().any()
    assert not forecast.spread().any()
    assert (forecast.active(), forecast.similarity(), forecast.scores, forecast.seen) == (None, None, {}, 0.0)


def test_what_is_remembered_is_the_forecast_after_a_restart() -> None:
    before = told(noisy(steady, 30))
    after = Forecast.remembered(MEMORY, before.slow)
    assert np.allclose(after.expected(), before.slow)
    assert (after.enough, after.best, after.domain) == (True, "fast", 0)
    for tokens in noisy(steady, 30, seed=4):
        after.add(tokens, 1.0)
    assert after.domain == 0


def test_another_load_than_remembered_is_another_domain() -> None:
    forecast = Forecast.remembered(MEMORY, told([skewed(0)] * 30).slow)
    forecast.add(skewed(4), 1.0)
    forecast.add(skewed(4), 1.0)
    assert (forecast.domain, int(forecast.expected()[0].argmax())) == (1, 4)


@pytest.mark.parametrize(
    ("tokens", "steps", "active"),
    [
        (-skewed(), 0, None),
        (skewed(experts=4), 0, None),
        (skewed()[0], 0, None),
        (skewed(), -1, None),
        (skewed(), 1, -skewed()),
        (skewed(), 1, skewed(layers=1)),
    ],
)
def test_impossible_counts_are_refused_and_change_nothing(tokens: Ints, steps: int, active: Ints | None) -> None:
    forecast = told([skewed()])
    with pytest.raises(ValueError, match=r"counts|steps"):
        forecast.add(tokens, 1.0, steps, active)
    assert (forecast.slow == skewed()).all()


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e300])
def test_a_window_of_impossible_length_still_counts(seconds: float) -> None:
    forecast = told([skewed(), skewed()], seconds=seconds)
    assert np.isfinite(forecast.per_step()).all()
    assert (forecast.slow >= skewed()).all()


# --- steps -------------------------------------------------------------------------------------------------------------------


def test_what_a_step_is_expected_to_bring_is_what_steps_brought() -> None:
    forecast = Forecast(MEMORY, LAYERS, EXPERTS)
    for _ in range(20):
        forecast.add(skewed(), 1.0, 10, np.full((LAYERS, EXPERTS), 4))
    active = forecast.active()
    assert active is not None
    assert np.allclose(forecast.per_step(), skewed() / 10)
    assert np.allclose(active, 0.4)


def test_where_steps_are_unknown_the_counts_themselves_are_expected() -> None:
    forecast = told([skewed()] * 3)
    assert (forecast.per_step() == forecast.expected()).all()
    assert forecast.active() is None


def test_tokens_without_steps_do_not_make_a_step_larger() -> None:
    forecast = Forecast(MEMORY, LAYERS, EXPERTS)
    forecast.add(skewed(), 1.0, 10)
    forecast.add(skewed(), 1.0)
    assert np.allclose(forecast.per_step(), skewed() / 10)


def test_the_share_of_active_steps_fades_like_the_fast_counts() -> None:
    forecast = Forecast(MEMORY, LAYERS, EXPERTS)
    forecast.add(skewed(), 1.0, 10, np.full((LAYERS, EXPERTS), 0))
    forecast.add(skewed(), MEMORY.fast_s, 10, np.full((LAYERS, EXPERTS), 10))
    active = forecast.active()
    assert active is not None
    assert np.allclose(active, 10 / 15)


def test_no_expert_is_active_in_more_than_all_steps() -> None:
    forecast = Forecast(MEMORY, LAYERS, EXPERTS)
    forecast.add(skewed(), 1.0, 10, np.full((LAYERS, EXPERTS), 50))
    active = forecast.active()
    assert active is not None
    assert (active == 1.0).all()


# --- small windows -----------------------------------------------------------------------------------------------------------


def test_small_windows_are_judged_together() -> None:
    forecast = told([skewed()])
    for _ in range(100):
        forecast.add(skewed(4, scale=1), 0.01)
    assert forecast.domain == 1
    assert told([skewed(), skewed(4, scale=1)]).domain == 0


def test_a_few_stray_tokens_do_not_replace_a_good_forecast() -> None:
    forecast = told([skewed()] * 3)
    before = forecast.expected() / forecast.expected().sum()
    forecast.add(skewed(4, scale=1), 100.0)
    assert np.allclose(forecast.expected() / forecast.expected().sum(), before)


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=6).flatmap(
        lambda a: st.tuples(st.just(a), st.permutations(a))
    )
)
def test_small_windows_in_any_order_are_one_big_window(seeds: tuple[list[int], list[int]]) -> None:
    memory, no = Memory(2.0, 50.0, 0.8, 1e9), np.zeros((LAYERS, EXPERTS), dtype=np.int64)
    parts, shuffled = ([np.random.default_rng(seed).integers(0, 9, no.shape) for seed in order] for order in seeds)
    big, small = Forecast(memory, LAYERS, EXPERTS), Forecast(memory, LAYERS, EXPERTS)
    big.add(np.sum(parts, axis=0), float(len(parts)), 2 * len(parts), no)
    for part in shuffled:
        small.add(part, 1.0, 2, no)
    assert np.array_equal(small.slow, big.slow)
    assert np.array_equal(small.fast, big.fast)
    assert np.allclose(small.per_step(), big.per_step())


@given(st.permutations(range(6)))
def test_the_order_of_windows_matters_only_by_fading(order: list[int]) -> None:
    parts = [skewed(scale=20 + i) for i in range(6)]
    forecast = told([parts[i] for i in order], PATIENT, seconds=0.0)
    assert np.array_equal(forecast.slow, np.sum(parts, axis=0))


# --- forecasters -------------------------------------------------------------------------------------------------------------


def test_until_there_is_a_score_the_fast_average_is_used() -> None:
    assert (told([skewed()]).best, told([skewed()]).scores) == ("fast", {})


def test_a_steady_noisy_load_is_best_forecast_by_the_slow_average() -> None:
    forecast = told(noisy(steady))
    assert (forecast.best, forecast.domain) == ("slow", 0)
    assert forecast.scores["slow"] < forecast.scores["fast"] < forecast.scores["last"]


def test_a_load_with_a_trend_is_best_forecast_by_the_trend() -> None:
    assert told(noisy(shifting), PATIENT).best == "trend"


def test_the_trend_is_a_straight_line() -> None:
    windows = [np.array([[9000 - 50 * t, 1000 + 50 * t]]) for t in range(60)]
    forecast = told(windows, PATIENT)
    assert forecast.best == "trend"
    expected = forecast.expected()
    assert np.allclose(expected / expected.sum(), [[0.6, 0.4]], atol=1e-3)


@pytest.mark.parametrize(("rho", "sigma"), [(0.98, 0.1), (0.9, 0.3), (0.5, 0.3)])
def test_a_wandering_load_is_best_forecast_by_what_came_of_late(rho: float, sigma: float) -> None:
    assert told(noisy(wandering(rho, sigma)), PATIENT).best in {"last", "fast"}


def test_the_best_does_not_change_for_a_gain_too_small_to_matter() -> None:
    windows = noisy(steady, 200, tokens=20.0)
    forecast = Forecast(PATIENT, *WIDE)
    used = []
    for tokens in windows:
        forecast.add(tokens, 1.0)
        used.append(forecast.best)
    assert sum(a != b for a, b in itertools.pairwise(used)) <= 3


def test_scores_are_parts_of_the_tokens() -> None:
    forecast = told([np.array([[100, 0]]), np.array([[0, 100]])], PATIENT)
    assert forecast.scores == dict.fromkeys(("last", "fast", "slow", "trend"), 1.0)


# --- spread ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.2, 0.4])
def test_the_spread_of_log_normal_noise_is_its_sigma(sigma: float) -> None:
    spread = told(noisy(fluctuating(sigma), 200), PATIENT).spread()
    assert np.isclose(spread.mean(), sigma, rtol=0.15)
    assert spread.std() < 0.2 * sigma


def test_counting_noise_is_no_spread() -> None:
    assert told(noisy(steady, 200), PATIENT).spread().mean() < 0.03
    assert told(noisy(steady, 200, tokens=20.0), PATIENT).spread().mean() < 0.08


def test_a_load_that_jumps_about_has_a_spread_of_at_most_one() -> None:
    forecast = told(noisy(lambda t: uneven(t) ** 3, 50), PATIENT)
    assert forecast.spread().max() == 1.0


# --- domains -----------------------------------------------------------------------------------------------------------------


def test_another_domain_is_noticed_with_its_second_window_and_replaces_the_old_counts() -> None:
    forecast = told([skewed(0)] * 20)
    forecast.add(skewed(4), 1.0)
    assert (forecast.domain, int(forecast.expected()[0].argmax())) == (0, 0)
    forecast.add(skewed(4), 1.0)
    assert (forecast.domain, forecast.best, forecast.scores) == (1, "fast", {})
    assert np.array_equal(forecast.slow, 2 * skewed(4))
    assert np.array_equal(forecast.fast, forecast.slow)


def test_a_single_outlier_is_set_aside_and_forgotten() -> None:
    usual = told([skewed(0)] * 21)
    forecast = told([*[skewed(0)] * 20, skewed(4), skewed(0)])
    assert forecast.domain == 0
    assert np.array_equal(forecast.slow, usual.slow)
    assert forecast.scores == usual.scores


def test_two_windows_unlike_anything_are_no_domain_but_count() -> None:
    memory = Memory(50.0, 50.0, 0.8, 16.0)
    forecast = told([*[skewed(0)] * 20, skewed(3), skewed(5)], memory)
    assert forecast.domain == 0
    assert np.allclose(forecast.slow.sum(), told([skewed(0)] * 22, memory).slow.sum())


def test_a_change_to_an_even_load_is_a_change_of_domain() -> None:
    draw = np.random.default_rng(1)
    even = [draw.poisson(np.full((LAYERS, EXPERTS), 300)) for _ in range(2)]
    assert told([*[skewed(0)] * 20, *even]).domain == 1


def test_a_load_that_drifts_away_is_another_domain() -> None:
    steps = np.linspace(0.0, 1.0, 60)
    drift = [np.rint((1 - x) * skewed(0) + x * skewed(4)).astype(np.int64) for x in steps]
    forecast = told(drift)
    assert forecast.domain >= 1
    assert int(forecast.slow[0].argmax()) == 4


def test_the_same_domain_with_counting_noise_stays_the_same() -> None:
    noise = np.random.default_rng(1)
    forecast = told([noise.poisson(skewed(scale=4)) for _ in range(200)])
    assert forecast.domain == 0
    assert told(noisy(steady, 200, tokens=16.5)).domain == 0


def test_an_even_load_says_nothing_of_domains() -> None:
    noise = np.random.default_rng(2)
    forecast = told([noise.poisson(np.full((LAYERS, EXPERTS), 20)) for _ in range(30)])
    assert (forecast.similarity(), forecast.domain) == (None, 0)


def test_a_layer_without_tokens_does_no_harm() -> None:
    tokens = skewed()
    tokens[1] = 0
    forecast = told([tokens, tokens])
    assert forecast.similarity() == 1.0
    assert not forecast.expected()[1].any()
    forecast.add(skewed(), 1.0)
    assert forecast.expected()[1].argmax() == 0


# --- whatever comes ----------------------------------------------------------------------------------------------------------

WINDOWS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([0, 0, 1, 7, 100, 5000, 2**62]), min_size=12, max_size=12),
        st.sampled_from([0.0, 1e-9, 0.1, 1.0, 60.0, 1e4, 1e9]),
        st.integers(0, 3),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(WINDOWS, st.sampled_from([0.0, 16.0]), st.sampled_from([-1.0, 0.8]))
def test_forecasts_are_numbers_whatever_comes(
    windows: list[tuple[list[int], float, int]], least: float, same: float
) -> None:
    forecast = Forecast(Memory(2.0, 50.0, same, least), 3, 4)
    for tokens, seconds, steps in windows:
        counts = np.array(tokens).reshape(3, 4)
        forecast.add(counts, seconds, steps, np.minimum(counts, steps))
        active = forecast.active()
        for found in (forecast.expected(), forecast.per_step(), forecast.spread(), active):
            assert found is None or (np.isfinite(found).all() and (found >= 0).all())
        assert forecast.spread().max() <= 1.0
        assert active is None or active.max() <= 1.0
        for shares in forecast._shares().values():
            assert np.allclose(shares.sum(axis=1), 1.0)
        assert all(0.0 <= error <= 1.0 + 1e-9 for error in forecast.scores.values())


@given(WINDOWS)
def test_what_is_expected_of_a_layer_is_what_still_counts(windows: list[tuple[list[int], float, int]]) -> None:
    forecast = Forecast(MEMORY, 3, 4)
    for tokens, seconds, steps in windows:
        forecast.add(np.array(tokens).reshape(3, 4), seconds, steps)
    assert np.allclose(forecast.expected().sum(axis=1), forecast.slow.sum(axis=1))
