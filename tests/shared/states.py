"""Placements and routes for property tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from moesaic.shared.arrays import Ints
from moesaic.shared.placement import State, layer_of, used


@dataclass(frozen=True)
class Journey:
    """From one placement to another: each fits the budget, the pool has `spare` slots more on each rank."""

    live: State
    target: State
    experts: int
    budget: tuple[int, ...]
    slots: tuple[int, ...]
    order: tuple[int, ...]


@st.composite
def states(draw: st.DrawFn, layers: int, experts: int, ranks: int) -> State:
    """Each expert at home on one rank at least, on all at most."""
    homes = st.sets(st.integers(0, ranks - 1), min_size=1, max_size=ranks)
    made = []
    for _ in range(layers):
        at = [draw(homes) for _ in range(experts)]
        held = [[e for e in range(experts) if r in at[e]] for r in range(ranks)]
        shares = {(r, e): draw(st.integers(1, 2048)) for e in range(experts) for r in at[e]}
        made.append(layer_of(held, shares))
    return tuple(made)


@st.composite
def journeys(draw: st.DrawFn) -> Journey:
    layers, experts, ranks = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 4))
    live, target = draw(states(layers, experts, ranks)), draw(states(layers, experts, ranks))
    budget = tuple(max(used(live, rank), used(target, rank)) for rank in range(ranks))
    slots = tuple(slot + draw(st.integers(1, 3)) for slot in budget)
    order = tuple(draw(st.lists(st.integers(0, layers - 1), unique=True)))
    return Journey(live, target, experts, budget, slots, order)


@st.composite
def routed(draw: st.DrawFn) -> tuple[State, Ints, int, int]:
    """A state of one layer, routes `[T, K]` (distinct experts in a row), experts, ranks."""
    experts, ranks = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    tokens, top_k = draw(st.integers(0, 40)), draw(st.integers(1, min(3, experts)))
    skew = draw(st.floats(0.2, 3.0))
    weights = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = weights.random((tokens, experts)) * np.arange(1, experts + 1) ** skew
    routes = np.argsort(-scores, axis=1)[:, :top_k].astype(np.int64)
    return draw(states(1, experts, ranks)), routes, experts, ranks
