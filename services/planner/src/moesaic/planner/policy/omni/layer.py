"""One layer from what is there to what it should be. Compiled; names as in `levels`, `build`."""

from __future__ import annotations

import numpy as np

from moesaic.planner.policy.omni.build import build
from moesaic.planner.policy.omni.copies import most_copies, read, received
from moesaic.planner.policy.omni.improve import grow, improve, relink
from moesaic.planner.policy.omni.levels import reachable
from moesaic.planner.policy.omni.match import match
from moesaic.shared.arrays import Bytes, Floats, Ints
from moesaic.shared.kernel import kernel

ROUNDS = 64
"""Changes that a layer gets at most."""
REPEATS = 2
NO_LIMIT = 1 << 40
HOPE = 0.05
"""A fresh plan whose strain is higher by that is not worked on."""
GROWN = 0.25
MUCH = 0.2
"""Parts of the layer's replicas that are added, and of its experts that move, in a plan that may as well be made afresh."""


@kernel
def better(
    work: Floats, fixed: Floats, pace: Floats, live: Bytes, hold: Bytes, room: Ints, may: Bytes, pin: Bytes, kind: Ints,
    softness: float, slack: float, least: float, ratio: float, rebuild: float, price: float, max_moves: int,
) -> float:  # fmt: skip
    """Change `hold [E, R]` in place with at most `max_moves` copies that `live` has not; the strain afterwards.

    First by changes of what is there. Where that leaves the busiest rank more than `rebuild` above the ideal level, or much
    was new anyway, the layer is planned afresh, its ranks renamed to keep what they can, and that is taken if it is better.
    A layer without load stays as it is.
    """
    if work.max() <= 0.0:
        return 1.0
    experts = hold.shape[0]
    n = np.zeros(experts, dtype=np.int64)
    at = np.zeros((experts, most_copies(hold, room)), dtype=np.int64)
    read(hold, n, at)
    lowest = reachable(work, pace, room.sum())
    left = max_moves - received(live, n, at)
    grown = grow(work, pace, live, hold, n, at, room, may, left)
    now = improve(work, fixed, pace, live, hold, n, at, room, may, pin, lowest, slack, least, 0, 0)
    now = settled(
        work, fixed, pace, live, hold, n, at, room, may, pin, lowest, slack, least, ratio, max_moves, now
    )  # fmt: skip
    new = grown > GROWN * max(1, room.sum() - experts) or received(live, n, at) > MUCH * experts
    if now <= 1.0 + rebuild and not new:
        return now
    for plain in (False, True):
        fresh = build(work, fixed, pace, room, may, pin, 1.0 if plain else softness, plain)
        read(fresh, n, at)
        if n.min() == 0:
            continue
        built = improve(work, fixed, pace, fresh, fresh, n, at, room, may, pin, lowest, slack, least, 0, 0)
        if built > now + HOPE:
            continue
        then = settled(
            work, fixed, pace, fresh.copy(), fresh, n, at, room, may, pin, lowest, slack, least / 8.0, ratio, NO_LIMIT, built
        )  # fmt: skip
        match(live, fresh, kind)
        read(fresh, n, at)
        moves = received(live, n, at)
        due = -slack if new else price * moves
        if moves <= max_moves and then + due <= now:
            hold[:] = fresh
            now = then
            new = True
            if then <= 1.0 + rebuild:
                break
    return now


@kernel
def settled(
    work: Floats, fixed: Floats, pace: Floats, live: Bytes, hold: Bytes, n: Ints, at: Ints, room: Ints, may: Bytes,
    pin: Bytes, lowest: float, slack: float, least: float, ratio: float, max_moves: int, before: float,
) -> float:  # fmt: skip
    """Relink and improve again and again, until a plan from the outcome would change nothing; the strain, `before` at first."""
    for _ in range(REPEATS):
        was = hold.copy()
        left = max_moves - received(live, n, at)
        linked = relink(work, pace, was, hold, n, at, may, pin, ratio, left)
        now = improve(work, fixed, pace, was, hold, n, at, room, may, pin, lowest, slack, least, left - linked, ROUNDS)
        if linked > 0 and now > before + slack:  # short of memory, copies by capacity do harm
            hold[:] = was
            read(hold, n, at)
            now = improve(work, fixed, pace, was, hold, n, at, room, may, pin, lowest, slack, least, left, ROUNDS)
        if received(live, n, at) > max_moves:
            hold[:] = was
            read(hold, n, at)
            return before
        before = now
        if (hold == was).all():
            break
    return before


@kernel
def strain(work: Floats, fixed: Floats, pace: Floats, hold: Bytes, room: Ints) -> float:
    """The busiest rank's level over the ideal one, for expected work that flows freely: 1 where nothing can be better."""
    experts = hold.shape[0]
    n = np.zeros(experts, dtype=np.int64)
    at = np.zeros((experts, most_copies(hold, room)), dtype=np.int64)
    read(hold, n, at)
    return improve(
        work, fixed, pace, hold, hold.copy(), n, at, room, hold, hold, reachable(work, pace, room.sum()), 0.0, 0.0, 0, 0
    )
