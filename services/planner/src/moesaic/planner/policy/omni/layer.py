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
SHORT = 0.9
"""A layer whose lowest reachable level is so much of the ideal one is short of memory: there only the plain plan is made."""
HOPE = 0.05
"""A fresh plan whose strain is higher by that is not worked on."""
GROWN = 0.25
MUCH = 0.2
"""Parts of the layer's replicas that are added, and of its experts that move, in a plan that may as well be made afresh."""


@kernel
def changed(
    work: Floats, fixed: Floats, pace: Floats, live: Bytes, hold: Bytes, room: Ints, may: Bytes, pin: Bytes,
    slack: float, least: float, ratio: float, max_moves: int,
) -> tuple[float, bool]:  # fmt: skip
    """Change what is there, `hold [E, R]` in place, with at most `max_moves` copies that `live` has not.

    Returned are the strain afterwards, and whether so much is new that the layer may as well be planned afresh. A layer
    without load stays as it is.
    """
    if work.max() <= 0.0:
        return 1.0, False
    experts = hold.shape[0]
    n = np.zeros(experts, dtype=np.int64)
    at = np.zeros((experts, most_copies(hold, room)), dtype=np.int64)
    read(hold, n, at)
    lowest = reachable(work, pace, room.sum())
    grown = grow(work, pace, live, hold, n, at, room, may, max_moves - received(live, n, at))
    now = settled(work, fixed, pace, live, hold, n, at, room, may, pin, lowest, slack, least, ratio, max_moves)
    return now, grown > GROWN * max(1, room.sum() - experts) or received(live, n, at) > MUCH * experts


@kernel
def afresh(
    work: Floats, fixed: Floats, pace: Floats, live: Bytes, hold: Bytes, room: Ints, may: Bytes, pin: Bytes, kind: Ints,
    softness: float, slack: float, least: float, ratio: float, enough: float, price: float, max_moves: int,
    now: float, new: bool,
) -> float:  # fmt: skip
    """Plan the layer anew, ranks renamed to keep what they can, and take that into `hold` if it is better; the strain.

    `now` is the strain of `hold`. Unless much is `new` anyway, every copy that moves must lower it by `price`. A plan with a
    strain of `enough` is not improved further.
    """
    experts = hold.shape[0]
    n = np.zeros(experts, dtype=np.int64)
    at = np.zeros((experts, most_copies(hold, room)), dtype=np.int64)
    lowest = reachable(work, pace, room.sum())
    short = lowest > SHORT * (work.sum() / (1.0 / pace).sum())
    for plain in (False, True):
        if short and not plain:
            continue
        fresh = build(work, fixed, pace, room, may, pin, 1.0 if plain else softness, plain)
        read(fresh, n, at)
        if n.min() == 0 or _strain(work, fixed, pace, fresh, n, at, room, lowest) > now + HOPE:
            continue
        then = settled(
            work, fixed, pace, fresh.copy(), fresh, n, at, room, may, pin, lowest, slack, least / 8.0, ratio, NO_LIMIT
        )  # fmt: skip
        match(live, fresh, kind)
        read(fresh, n, at)
        moves = received(live, n, at)
        due = -slack if new else price * moves
        if moves <= max_moves and then + due <= now:
            hold[:] = fresh
            now = then
            new = True
            if then <= enough:
                break
    return now


@kernel
def settled(
    work: Floats, fixed: Floats, pace: Floats, live: Bytes, hold: Bytes, n: Ints, at: Ints, room: Ints, may: Bytes,
    pin: Bytes, lowest: float, slack: float, least: float, ratio: float, max_moves: int,
) -> float:  # fmt: skip
    """Relink and improve again and again, until a plan from the outcome would change nothing; the strain."""
    before = -1.0
    for _ in range(REPEATS):
        was = hold.copy()
        left = max_moves - received(live, n, at)
        linked = relink(work, pace, was, hold, n, at, may, pin, ratio, left)
        now = improve(
            work, fixed, pace, was, hold, n, at, room, may, pin, lowest, slack, least, left - linked, ROUNDS, False
        )  # fmt: skip
        if now > 1.0 + slack:
            if before < 0.0:
                before = _strain(work, fixed, pace, was, n, at, room, lowest)
            # short of memory, copies by capacity do harm, and less excess may be a busier rank
            if now > before + slack:
                hold[:] = was
                read(hold, n, at)
                now = improve(
                    work, fixed, pace, was, hold, n, at, room, may, pin, lowest, slack, least, left, ROUNDS, True
                )  # fmt: skip
            else:
                read(hold, n, at)
        if received(live, n, at) > max_moves:
            hold[:] = was
            return _strain(work, fixed, pace, hold, n, at, room, lowest)
        before = now
        if (hold == was).all():
            break
    return before


@kernel
def _strain(
    work: Floats, fixed: Floats, pace: Floats, hold: Bytes, n: Ints, at: Ints, room: Ints, lowest: float
) -> float:
    """As `strain`; fills `n` and `at`."""
    read(hold, n, at)
    return improve(work, fixed, pace, hold, hold, n, at, room, hold, hold, lowest, 0.0, 0.0, 0, 0, False)


@kernel
def strain(work: Floats, fixed: Floats, pace: Floats, hold: Bytes, room: Ints) -> float:
    """The busiest rank's level over the ideal one, for expected work that flows freely: 1 where nothing can be better."""
    experts = hold.shape[0]
    n = np.zeros(experts, dtype=np.int64)
    at = np.zeros((experts, most_copies(hold, room)), dtype=np.int64)
    return _strain(work, fixed, pace, hold, n, at, room, reachable(work, pace, room.sum()))
