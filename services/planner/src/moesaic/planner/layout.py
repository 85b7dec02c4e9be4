"""Placements as arrays: who holds what `[L, E, R]`, and back to the wire's states."""

from __future__ import annotations

import numpy as np

from moesaic.planner.policy.problem import Hold
from moesaic.shared.arrays import Ints
from moesaic.shared.messages import LayerPlacement
from moesaic.shared.placement import SHARE, State


def hold_of(state: State, experts: int) -> Hold:
    """Who holds what: `[L, E, R]`."""
    hold = np.zeros((len(state), experts, len(state[0].experts)), dtype=np.bool_)
    for layer, placed in enumerate(state):
        for rank, held in enumerate(placed.experts):
            hold[layer, list(held), rank] = True
    return hold


def state_of(hold: Hold, shares: Ints | None = None) -> State:
    """The state with these copies; `shares [L, E, R]` (None: even) count where there is a copy, and are at least 1."""
    copies = hold.sum(axis=2, dtype=np.int64)
    dealt = SHARE // np.maximum(1, copies)[:, :, None] * hold if shares is None else np.maximum(1, shares) * hold
    state = []
    for layer in range(hold.shape[0]):
        held = [np.flatnonzero(hold[layer, :, rank]) for rank in range(hold.shape[2])]
        state.append(
            LayerPlacement(
                experts=tuple(tuple(experts.tolist()) for experts in held),
                shares=tuple(
                    tuple(np.maximum(1, dealt[layer, experts, rank]).tolist()) for rank, experts in enumerate(held)
                ),
            )
        )
    return tuple(state)


def shares_of(state: State, experts: int) -> Ints:
    """Shares `[L, E, R]` of a state, 0 where there is no copy."""
    shares = np.zeros((len(state), experts, len(state[0].experts)), dtype=np.int64)
    for layer, placed in enumerate(state):
        for rank, (held, parts) in enumerate(zip(placed.experts, placed.shares, strict=True)):
            shares[layer, list(held), rank] = parts
    return shares
