from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.shared import dispatch, placement
from moesaic.shared.arrays import Ints
from moesaic.shared.dispatch import Prices, compiled, reference
from moesaic.shared.placement import SHARE, State
from shared.states import routed

Case = tuple[State, Ints, int, int]


@dataclass(frozen=True)
class Step:
    """Tokens per expert `[E]`, the ranks that hold each and their shares `[E, X]`, prices."""

    counts: Ints
    ranks_of: Ints
    shares: Ints
    prices: Prices

    @property
    def levels(self) -> Ints:
        """Cost of each rank `[R]` as dispatched."""
        return reference.levels(reference.quotas(*self.arguments), self.ranks_of, self.prices)

    @property
    def arguments(self) -> tuple[Ints, Ints, Ints, Prices]:
        return self.counts, self.ranks_of, self.shares, self.prices


@st.composite
def steps(draw: st.DrawFn, *, plain: bool = False, most_ranks: int = 6) -> Step:
    """Any hold; counts from none to many, often skewed; ranks and experts that cost alike or not."""
    experts, ranks = draw(st.integers(1, 12)), draw(st.integers(1, most_ranks))
    seed = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    hold = seed.random((experts, ranks)) < draw(st.sampled_from([0.0, 0.2, 0.5, 1.0]))
    hold[np.arange(experts), seed.integers(0, ranks, experts)] = True
    shares = seed.integers(1, draw(st.sampled_from([2, 10, 2 * SHARE])), hold.shape)
    chosen = [np.flatnonzero(row) for row in hold]
    most = max(row.size for row in chosen)
    at, parts = np.full((experts, most), -1), np.zeros((experts, most), dtype=np.int64)
    for expert, row in enumerate(chosen):
        at[expert, : row.size], parts[expert, : row.size] = row, shares[expert, row]
    top = draw(st.sampled_from([1, 3, 50, 5000, 10**6]))
    counts = (top * seed.random(experts) ** draw(st.sampled_from([0.5, 1, 6]))).round().astype(np.int64)
    counts[seed.random(experts) < draw(st.sampled_from([0.0, 0.3]))] = 0
    if plain or draw(st.booleans()):
        return Step(counts, at, parts, Prices.tokens(ranks))
    token = seed.integers(1, draw(st.sampled_from([2, 4, 3000])), ranks)
    return Step(counts, at, parts, Prices(token, seed.integers(0, draw(st.sampled_from([1, 5, 10**5])), ranks)))


def least(step: Step) -> float:
    """What the busiest rank has at least if tokens could be divided: some ranks' own experts fill these at the best.

    By duality of flows the greatest such bound over all sets of ranks is the optimum.
    """
    ranks = range(step.prices.ranks)
    homes = [{rank for rank in row if rank >= 0} for row in step.ranks_of.tolist()]
    sets = itertools.chain.from_iterable(itertools.combinations(ranks, n) for n in range(1, len(ranks) + 1))
    return max(
        sum(int(step.counts[e]) for e, home in enumerate(homes) if home <= set(some))
        / sum(1 / int(step.prices.token[r]) for r in some)
        for some in sets
    )


@settings(deadline=None, derandomize=True)
@given(routed())
def test_every_route_goes_to_a_rank_that_holds_its_expert(case: Case) -> None:
    state, routes, experts, ranks = case
    to = dispatch.assign(routes, *placement.hosts(state[0], experts), ranks)
    assert to.shape == routes.shape
    for expert, rank in zip(routes.ravel().tolist(), to.ravel().tolist(), strict=True):
        assert expert in state[0].experts[rank]


@settings(deadline=None, derandomize=True)
@given(routed())
def test_replicas_get_exactly_their_quotas(case: Case) -> None:
    state, routes, experts, ranks = case
    at, shares = placement.hosts(state[0], experts)
    counts = np.bincount(routes.ravel(), minlength=experts)
    quotas = dispatch.quotas(counts, at, shares, ranks)
    assert (quotas >= 0).all()
    assert (quotas.sum(axis=1) == counts).all()
    to = dispatch.assign(routes, at, shares, ranks)
    for expert in range(experts):
        got = np.bincount(to[routes == expert], minlength=ranks)
        for rank, quota in zip(at[expert].tolist(), quotas[expert].tolist(), strict=True):
            assert rank < 0 or got[rank] == quota


@settings(deadline=None, derandomize=True)
@given(routed())
def test_with_every_expert_everywhere_no_rank_has_more_than_its_part_rounded_up(case: Case) -> None:
    _, routes, experts, ranks = case
    everywhere = placement.layer_of([range(experts)] * ranks)
    to = dispatch.assign(routes, *placement.hosts(everywhere, experts), ranks)
    loads = np.bincount(to.ravel(), minlength=ranks)
    assert loads.max() == -(-routes.size // ranks)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.integers(0, 200), st.data())
def test_water_fills_the_lowest_first(levels: list[int], amount: int, data: st.DataObject) -> None:
    shares = data.draw(st.lists(st.integers(1, 9), min_size=len(levels), max_size=len(levels)))
    at = np.array(
        [[*range(len(levels)), -1][: len(levels)]] + [[r] + [-1] * (len(levels) - 1) for r in range(len(levels))]
    )
    counts = np.array([amount, *levels])
    weights = np.where(at >= 0, 1, 0)
    weights[0] = shares
    quotas = dispatch.quotas(counts, at, weights, len(levels))
    after = np.array(levels) + quotas[0] if len(levels) > 1 else np.array(levels) + amount
    wet = [rank for rank in range(len(levels)) if after[rank] > levels[rank]]
    assert all(after[rank] <= after.min() + 1 for rank in wet)


def poured(bases: Ints, paces: Ints, amount: int, shares: Ints) -> Ints:
    """As `reference.water`, compiled."""
    fill, index = np.empty_like(bases), np.empty_like(bases)
    compiled.water(bases, paces, amount, shares, fill, index)
    return fill


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_compiled_water_fills_as_the_reference_and_nobody_could_finish_earlier(data: st.DataObject) -> None:
    size, amount = data.draw(st.integers(1, 6)), data.draw(st.one_of(st.integers(1, 30), st.integers(1, 10**7)))
    numbers = [st.integers(0, 10**6), st.integers(1, 5000), st.integers(1, 2048)]
    drawn = [data.draw(st.lists(number, min_size=size, max_size=size)) for number in numbers]
    bases, paces, shares = (np.array(values) for values in drawn)
    fill = reference.water(bases, paces, amount, shares)
    assert (poured(bases, paces, amount, shares) == fill).all()
    assert fill.sum() == amount
    ends = (bases + fill * paces)[fill > 0]
    assert ends.max() <= (bases + (fill + 1) * paces).min()


def test_a_token_left_over_goes_to_the_larger_share() -> None:
    at, shares = np.array([[0, 1]]), np.array([[1, 2]])
    assert dispatch.quotas(np.array([3]), at, shares, 2).tolist() == [[1, 2]]
    for water in (reference.water, poured):
        assert water(np.array([0, 0]), np.array([1, 1]), 3, np.array([1, 2])).tolist() == [1, 2]
        assert water(np.array([0, 0]), np.array([1, 1]), 3, np.array([2, 2])).tolist() == [2, 1]


def test_tokens_stay_in_order_so_that_most_stay_near_home() -> None:
    everywhere = placement.layer_of([[0], [0]])
    routes = np.zeros((6, 1), dtype=np.int64)
    assert dispatch.assign(routes, *placement.hosts(everywhere, 1), 2).ravel().tolist() == [0, 0, 0, 1, 1, 1]


@settings(deadline=None, derandomize=True)
@given(routed())
def test_the_assignment_is_the_same_wherever_it_is_computed(case: Case) -> None:
    state, routes, experts, ranks = case
    hosts = placement.hosts(state[0], experts)
    again = placement.hosts(state[0], experts)
    assert (dispatch.assign(routes, *hosts, ranks) == dispatch.assign(routes.copy(), *again, ranks)).all()


@settings(max_examples=400, deadline=None, derandomize=True)
@given(steps())
def test_the_compiled_assignment_is_the_reference_number_for_number(step: Step) -> None:
    expected = reference.quotas(*step.arguments)
    assert (compiled.quotas(*step.arguments) == expected).all()
    assert (dispatch.quotas(*step.arguments) == expected).all()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(steps())
def test_quotas_are_whole_none_lost_and_only_where_there_is_a_copy(step: Step) -> None:
    given_arrays = [array.copy() for array in step.arguments[:3]]
    for quotas in (compiled.quotas(*step.arguments), reference.quotas(*step.arguments)):
        assert quotas.dtype == np.int64
        assert (quotas >= 0).all()
        assert (quotas.sum(axis=1) == step.counts).all()
        assert not quotas[step.ranks_of < 0].any()
    assert all((now == was).all() for now, was in zip(step.arguments[:3], given_arrays, strict=True))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(steps())
def test_what_was_dispatched_before_changes_nothing(step: Step) -> None:
    first = compiled.quotas(*step.arguments)
    compiled.quotas(step.counts[::-1].copy(), step.ranks_of[::-1].copy(), step.shares[::-1].copy(), step.prices)
    assert (compiled.quotas(*step.arguments) == first).all()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(steps())
def test_the_compiled_levels_are_those_of_its_quotas(step: Step) -> None:
    quota, level = np.empty_like(step.ranks_of), np.full(step.prices.ranks, 7)
    compiled.relax(*step.arguments[:3], step.prices.token, step.prices.expert, dispatch.SWEEPS, quota, level)
    assert (level == reference.levels(quota, step.ranks_of, step.prices)).all()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(steps())
def test_more_sweeps_never_make_the_busiest_rank_busier(step: Step) -> None:
    tops = []
    for sweeps in range(dispatch.SWEEPS + 1):
        quota = compiled.split(*step.arguments[:3], step.prices.token, step.prices.expert, sweeps)
        tops.append(int(reference.levels(quota, step.ranks_of, step.prices).max()))
    assert tops == sorted(tops, reverse=True)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(steps(plain=True))
def test_the_busiest_rank_is_about_as_busy_as_it_has_to_be(step: Step) -> None:
    """Within one token and .5 % of the optimum of tokens that can be divided; of 3000 drawn steps the worst was at .2 %."""
    bound = least(step)
    assert bound - 1e-9 <= step.levels.max() <= bound * 1.005 + 1


@settings(max_examples=200, deadline=None, derandomize=True)
@given(steps())
def test_ranks_of_any_speed_are_level_within_a_token(step: Step) -> None:
    free = replace(step, prices=Prices(step.prices.token, np.zeros_like(step.prices.expert)))
    assert free.levels.max() <= least(free) * 1.01 + free.prices.token.max()


def test_the_bound_of_the_tests_is_right_in_a_small_case() -> None:
    at = np.array([[0, 1], [0, -1], [2, -1]])
    step = Step(np.array([4, 6, 1]), at, np.ones_like(at), Prices.tokens(3))
    assert least(step) == 6
    assert step.levels.tolist() == [6, 4, 1]
