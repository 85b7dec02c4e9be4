"""Problems for property tests of the policies, and what is known of their answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from moesaic.planner.cost import Cost
from moesaic.planner.layout import hold_of, state_of
from moesaic.planner.policy import Hold, Problem
from moesaic.planner.policy.problem import ProblemError, check
from moesaic.planner.predict import Outlook, outlook, shared_out
from moesaic.shared.arrays import Floats, Ints
from moesaic.shared.placement import State, in_order


def even_problem(load: Floats | Ints, ranks: int, slots: int, max_moves: int | None = None) -> Problem:
    """From the default placement, `slots` for each layer on each rank, alike ranks."""
    layers, experts = load.shape
    live = hold_of(in_order(layers, experts, ranks), experts)
    return Problem(
        load.astype(np.float64), live, np.full(ranks, slots * layers), Cost.tokens(ranks), max_moves=max_moves
    )


@st.composite
def loads(draw: st.DrawFn, layers: int, experts: int) -> Floats:
    """Some layers without load, some experts without, one that is hot; small and large numbers."""
    rows = []
    for _ in range(layers):
        kind = draw(st.sampled_from(["any", "any", "none", "hot", "tiny", "even"]))
        row = np.array(draw(st.lists(st.integers(0, 500), min_size=experts, max_size=experts)), dtype=np.float64)
        if kind == "none":
            row[:] = 0.0
        elif kind == "hot":
            row[draw(st.integers(0, experts - 1))] = 1e5
        elif kind == "tiny":
            row *= 1e-6
        elif kind == "even":
            row[:] = 8.0
        rows.append(row)
    return np.array(rows)


@st.composite
def holds(draw: st.DrawFn, layers: int, experts: int, ranks: int) -> Hold:
    """Every expert on one rank at least, anywhere."""
    seed = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    hold = seed.random((layers, experts, ranks)) < draw(st.sampled_from([0.0, 0.0, 0.2, 0.6]))
    home = seed.integers(0, ranks, (layers, experts))
    hold[np.arange(layers)[:, None], np.arange(experts)[None, :], home] = True
    return hold


@st.composite
def costs(draw: st.DrawFn, ranks: int) -> Cost:
    """Alike ranks or not, tokens alone or not."""
    if draw(st.booleans()):
        return Cost.tokens(ranks)
    speed = np.array(draw(st.lists(st.sampled_from([0.5, 0.9, 1.0, 1.0, 2.0]), min_size=ranks, max_size=ranks)))
    expert, fixed = draw(st.sampled_from([0.0, 0.0, 0.3, 20.0])), draw(st.sampled_from([0.0, 5.0]))
    return Cost(speed, token=draw(st.sampled_from([1.0, 0.01])), expert=expert, fixed=fixed)


@st.composite
def free_problems(draw: st.DrawFn, *, least_ranks: int = 1, limits: bool = True) -> Problem:
    """Any small one that has an answer: nothing pinned or forbidden, the live placement within its slots."""
    layers, experts = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    ranks = draw(st.integers(least_ranks, 5))
    live = draw(holds(layers, experts, ranks))
    more = draw(st.one_of(st.just(0), st.integers(0, 5), st.just(layers * experts + 3)))
    slots = live.sum(axis=(0, 1)) + more
    if draw(st.booleans()):
        slots += np.array(draw(st.lists(st.integers(0, 4), min_size=ranks, max_size=ranks)))
    active = None
    if draw(st.booleans()):
        seed = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        active = seed.random((layers, experts))
    moves = draw(st.sampled_from([None, None, 0, 1, 3])) if limits else None
    load = draw(loads(layers, experts))
    return Problem(load, live, slots, draw(costs(ranks)), active=active, max_moves=moves)


@st.composite
def bound_problems(draw: st.DrawFn) -> Problem:
    """The same with forbidden places, pinned copies, and live copies that break them or the slots. Some have no answer."""
    free = draw(free_problems())
    layers, experts, ranks = free.shape
    seed = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    may = pinned = None
    if draw(st.booleans()):
        may = seed.random(free.shape) < draw(st.sampled_from([0.3, 0.6, 0.9]))
        at = seed.integers(0, ranks, (layers, experts))
        may[np.arange(layers)[:, None], np.arange(experts)[None, :], at] = True
    slots = free.slots
    if draw(st.booleans()):
        slots = seed.integers(0, layers * experts + 1, ranks)
    if np.minimum(slots, may.sum(axis=(0, 1)) if may is not None else layers * experts).sum() < layers * experts:
        slots, may = free.slots, None
    if draw(st.booleans()):
        pinned = seed.random(free.shape) < draw(st.sampled_from([0.05, 0.3]))
        if may is not None:
            pinned &= may
        for rank in range(ranks):
            over = np.argwhere(pinned[:, :, rank])[int(slots[rank]) :]
            pinned[over[:, 0], over[:, 1], rank] = False
    return replace(free, slots=slots, may=may, pinned=pinned)


def possible(problem: Problem) -> bool:
    """Whether every expert finds a slot, by augmenting paths: homes given up and taken until all have one."""
    layers, experts, ranks = problem.shape
    may = np.ones(problem.shape, dtype=np.bool_) if problem.may is None else problem.may
    pinned = np.zeros(problem.shape, dtype=np.bool_) if problem.pinned is None else problem.pinned
    left = (problem.slots - pinned.sum(axis=(0, 1))).tolist()
    homeless = [(layer, e) for layer in range(layers) for e in range(experts) if not pinned[layer, e].any()]
    guests: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]

    def seat(who: tuple[int, int], seen: set[int]) -> bool:
        for rank in range(ranks):
            if rank in seen or not may[who][rank]:
                continue
            seen.add(rank)
            if len(guests[rank]) < left[rank]:
                guests[rank].append(who)
                return True
            for other in list(guests[rank]):
                if seat(other, seen):
                    guests[rank].remove(other)
                    guests[rank].append(who)
                    return True
        return False

    return all(seat(who, set()) for who in homeless)


def new(problem: Problem, hold: Hold) -> int:
    """Copies that the answer brings to a rank."""
    return int((hold & ~problem.live).sum())


def due(problem: Problem) -> bool:
    """Whether the live placement has to change: over the slots, where it may not be, or without a pinned copy."""
    try:
        check(problem, problem.live)
    except ProblemError:
        return True
    return False


def state(problem: Problem, hold: Hold) -> State:
    """As it goes over the wire, with shares that level the load."""
    return state_of(hold, shared_out(problem.load, hold, problem.cost))


def window(problem: Problem, hold: Hold) -> Outlook:
    """What the load itself would do, as one step of many tokens that are levelled by cost."""
    top = float(problem.load.max(initial=0.0))
    counts = np.rint(problem.load * (1e6 / top if top > 0 else 1.0)).astype(np.int64)
    return outlook(counts[None], hold, replace(problem.cost, expert=0.0, fixed=0.0))


def zipf(*, layers: int, experts: int = 256) -> Floats:
    """Shares of routes `[L, E]`, Zipf 1.0, no expert above 1 / 8 of its layer's, in any order."""
    draw = np.random.default_rng(0)
    weight = 1 / np.arange(1, experts + 1)
    share = np.minimum(weight, weight.sum() / 8)
    return np.array([draw.permutation(share / share.sum()) for _ in range(layers)])
