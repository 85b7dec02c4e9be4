"""Our own policy: step balance from replicas that link the ranks, few moves, one pool of slots for all layers.

(1) `allot` deals the slots to layers by need and makes each layer's copies fit. (2) `layer.changed` changes what is
there: replicas follow the heat (`relink`), then single changes until no rank is above the ideal level (`improve`). The layers
that this leaves furthest away are planned `afresh` (`build`), their ranks renamed to keep what they can (`match`). (3) Where more
would move than may, the layers that gain most per copy go first.

What makes steps level: dispatch fills each step's tokens like water over the replicas (`shared.dispatch`), so what counts is
not how evenly the average is split but whether load can flow from any rank to any other. Hence copies are given by capacity,
replicas lie so that hosts of hot experts overlap, and nothing moves as long as the flow suffices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from moesaic.planner.policy.omni.allot import allot, house, needs, rooms
from moesaic.planner.policy.omni.cells import tied
from moesaic.planner.policy.omni.homes import homes
from moesaic.planner.policy.omni.layer import afresh, changed, strain
from moesaic.planner.policy.problem import Hold, Problem, ProblemError, check
from moesaic.planner.predict import MUCH, outlook
from moesaic.planner.topology import remote
from moesaic.shared.arrays import Bools, Floats, Ints

NO_LIMIT = 1 << 40
SMALL = 1 << 13
"""Problems of so many layers x experts x ranks are also planned with fewer slots."""
ALIKE = 1.005
"""A plan that keeps groups on their nodes may cost so many times what a free one costs, and any what the live one costs."""


@dataclass(frozen=True)
class Knobs:
    """What the policy can be tuned by; parts of the layer's ideal level where a unit is missing."""

    softness: float = 0.75
    """Replicas are given in proportion to work to this power; below 1 they also cover experts that may become hot."""
    slack: float = 0.003
    """A rank so far above the ideal level is left alone."""
    least: float = 0.01
    """Work above the target that a moved copy must remove."""
    ratio: float = 1.05
    """Factor by which handing a slot from expert to expert must lower the higher work per capacity of the two."""
    rebuild: float = 0.01
    """A layer whose busiest rank stays so far above the ideal level is planned afresh."""
    afresh: int = 8
    """Only one in so many layers, those with the highest strain, unless much of a layer is new anyway, or it is `bad`."""
    bad: float = 0.05
    """A layer whose busiest rank stays so far above the ideal level is planned afresh in any case."""
    price: float = 0.00004
    """By so much per copy moved planning a layer afresh must lower its busiest rank."""
    link: float = 0.25
    """What a replica that only links ranks is worth when slots are dealt to layers."""
    transfer: float = 1.5
    """Ratio of needs between two layers from which a slot changes hands."""


def omni(problem: Problem, knobs: Knobs | None = None) -> Hold:
    """See the module. Raises ProblemError where the copies cannot be housed."""
    together = tied(problem)
    if together is None:
        return _planned(problem, knobs or Knobs())
    mask = together if problem.may is None else together & problem.may
    grouped = _try(replace(problem, may=mask), knobs or Knobs()) if mask.any(axis=2).all() else None
    assert problem.groups is not None
    if grouped is not None and problem.groups.kind == "each":
        return grouped
    free = _planned(problem, knobs or Knobs())
    if grouped is None or _cost(problem, grouped, tied=True) > ALIKE * _cost(problem, free, tied=False):
        return free
    return grouped


def _planned(problem: Problem, knobs: Knobs) -> Hold:
    if not problem.load.any():
        return _housed(problem, knobs).hold.astype(np.bool_)
    hold = _Plan(problem, knobs).hold
    if problem.live.size > SMALL or (hold == problem.live).all():
        return hold
    return _with_less(problem, knobs, hold)


def _with_less(problem: Problem, knobs: Knobs, hold: Hold) -> Hold:
    """The best of this plan and those that use fewer slots: more room must not make a plan worse, and climbing hills may.

    For the same reason the live placement, where it is valid, stays unless the best is about as good, and better where it has
    no more copies.
    """
    layers, experts, ranks = problem.shape
    best, cost = hold, _cost(problem, hold, tied=False)
    limit = NO_LIMIT if problem.max_moves is None else max(problem.max_moves, _new(problem.live, hold))
    for slots in range(min(int(problem.slots.max()), layers * experts) - 1, layers * experts // ranks - 1, -1):
        less = np.minimum(problem.slots, slots)
        if less.sum() < layers * experts or (problem.pinned is not None and (problem.pinned.sum((0, 1)) > less).any()):
            break
        try:
            other = _Plan(replace(problem, slots=less), knobs).hold
        except ProblemError:
            break
        then = _cost(problem, other, tied=False)
        if then < cost * (1 - 1e-9) and _new(problem.live, other) <= limit:
            best, cost = other, then
    if best is not hold:  # what is free again may still serve
        full = _Plan(problem.of(best), knobs).hold
        if _cost(problem, full, tied=False) <= cost and _new(problem.live, full) <= limit:
            best = full
    lateral = problem.cost.expert == 0 and best.sum() <= problem.live.sum()
    worth = 1 / ALIKE if lateral else ALIKE
    stays = cost > worth * _cost(problem, problem.live, tied=False) and _valid(problem, problem.live)
    return problem.live if stays else best


def _valid(problem: Problem, hold: Hold) -> bool:
    try:
        check(problem, hold)
    except ProblemError:
        return False
    return True


def _try(problem: Problem, knobs: Knobs) -> Hold | None:
    try:
        return _planned(problem, knobs)
    except ProblemError:
        return None


def _cost(problem: Problem, hold: Hold, *, tied: bool) -> float:
    """The layers' busiest ranks, and what tokens cost that are sent to other nodes, in the cost's unit."""
    top = float(problem.load.max())
    scale = MUCH / top if top > 0 else 1.0
    counts = np.rint(problem.load * scale).astype(np.int64)
    cost = outlook(counts[None], hold, replace(problem.cost, expert=0.0, fixed=0.0)).cost / scale
    topology, groups = problem.topology, problem.groups
    if topology is None or groups is None or topology.hop == 0:
        return cost
    top_k = groups.top_k
    for layer, load in enumerate(problem.load):
        routes = load[:, None] * hold[layer] / hold[layer].sum(axis=1, keepdims=True)
        tokens = float(load.sum()) / top_k / topology.ranks
        cost += topology.hop * tokens * remote(routes, topology, groups, tied=tied)
    return cost


@dataclass(frozen=True)
class _Housed:
    """Every layer within its room, and what it was made with; masks are bytes for the compiled parts."""

    work: Floats
    fixed: Floats
    pace: Floats
    live: np.ndarray
    hold: np.ndarray
    room: Ints
    may: np.ndarray
    pin: np.ndarray


def _housed(problem: Problem, knobs: Knobs) -> _Housed:
    housed = _around(problem, knobs, _mask(problem.pinned, problem.live, 0))
    if housed is None:
        housed = _around(problem, knobs, homes(problem).view(np.uint8))
    if housed is None:
        raise ProblemError("the copies cannot be housed on the ranks where they may be")
    return housed


def _around(problem: Problem, knobs: Knobs, musts: np.ndarray) -> _Housed | None:
    """Housed around copies `[L, E, R]` that must be there; None where that leaves others without a home."""
    layers, experts, ranks = problem.shape
    work = problem.load * problem.cost.token
    active = np.ones_like(work) if problem.active is None else problem.active
    fixed = active * problem.cost.expert
    may = _mask(problem.may, problem.live, 1)
    pin = _mask(problem.pinned, problem.live, 0)
    live = problem.live.view(np.uint8)
    due, least = np.zeros((layers, ranks), dtype=np.int64), np.zeros(layers, dtype=np.int64)
    if musts.any():
        due = musts.sum(axis=1, dtype=np.int64)
        least = np.maximum(musts.sum(axis=2, dtype=np.int64) - 1, 0).sum(axis=1)
    used = (live & may | musts).sum(axis=1, dtype=np.int64)
    capacity = may.sum(axis=1, dtype=np.int64)
    extra = np.maximum(used.sum(axis=1) - experts, least)
    total = int(np.minimum(problem.slots, capacity.sum(axis=0)).sum()) - layers * experts
    if least.sum() > total:
        return None
    while extra.sum() > total:
        extra[int(np.argmax(extra - least))] -= 1
    middle = np.maximum(work.sum(axis=1, keepdims=True) / ranks, 1e-300)
    length = int(min(experts * (ranks - 1), 4 * max(1, -(-total // layers)) + ranks))
    linked = np.where(work.any(axis=1), knobs.link * middle[:, 0], 0.0)
    trace = needs(middle * (work / middle) ** knobs.softness, length, ranks, linked)
    allot(trace, extra, least, total - int(extra.sum()), knobs.transfer)
    room = rooms(used, due, experts + extra, problem.slots, capacity)
    hold = live.copy()
    for layer in range(layers):
        if not house(work[layer], hold[layer], room[layer], may[layer], musts[layer]):
            return None
    return _Housed(work, fixed, problem.cost.pace, live, hold, room, may, pin)


def _mask(mask: Hold | None, like: Hold, default: int) -> np.ndarray:
    if mask is not None:
        return np.ascontiguousarray(mask).view(np.uint8)
    return np.full(like.shape, default, dtype=np.uint8)


class _Plan:
    """All layers, each as good as its moves allow."""

    def __init__(self, problem: Problem, knobs: Knobs) -> None:
        limit = NO_LIMIT if problem.max_moves is None else problem.max_moves
        self._housed = _housed(problem, knobs)
        if _new(self._housed.live, self._housed.hold) > limit and _valid(problem, problem.live):
            self._housed = _housed(problem, replace(knobs, transfer=0.0))  # who gives slots away may have to move
        self._knobs = knobs
        self._kinds = _kinds(problem, self._housed)
        base = self._housed.hold
        planned = base.copy()
        found = [self._changed(planned[layer], layer, limit) for layer in range(base.shape[0])]
        strains = np.array([strained for strained, _ in found])
        worst = np.argsort(-strains, kind="stable")[: max(1, len(found) // knobs.afresh)].tolist()
        for layer, (strained, new) in enumerate(found):
            if new or strained > 1 + knobs.bad or (layer in worst and strained > 1 + knobs.rebuild):
                self._afresh(planned[layer], layer, limit, strained, new)
        moved = [_new(was, now) for was, now in zip(self._housed.live, planned, strict=True)]
        self.hold = (planned if sum(moved) <= limit else self._within(limit, base, planned, moved)).astype(np.bool_)

    def _changed(self, hold: np.ndarray, layer: int, moves: int) -> tuple[float, bool]:
        h, k = self._housed, self._knobs
        return changed(
            h.work[layer], h.fixed[layer], h.pace, h.live[layer], hold, h.room[layer], h.may[layer], h.pin[layer],
            k.slack, k.least, k.ratio, moves,
        )  # fmt: skip

    def _afresh(self, hold: np.ndarray, layer: int, moves: int, strained: float, new: bool) -> None:
        h, k = self._housed, self._knobs
        afresh(
            h.work[layer], h.fixed[layer], h.pace, h.live[layer], hold, h.room[layer], h.may[layer], h.pin[layer],
            self._kinds[layer], k.softness, k.slack, k.least, k.ratio, 1 + k.rebuild, k.price, moves, strained, new,
        )  # fmt: skip

    def _strain(self, layer: int, hold: np.ndarray) -> float:
        """What the layer's busiest rank costs."""
        h = self._housed
        level = strain(h.work[layer], h.fixed[layer], h.pace, hold, h.room[layer]) - 1.0
        return level * float(h.work[layer].sum())

    def _within(self, limit: int, base: np.ndarray, planned: np.ndarray, moved: list[int]) -> np.ndarray:
        """The layers that gain most per copy, as far as the moves go; the next one in part."""
        gains = [self._strain(layer, base[layer]) - self._strain(layer, planned[layer]) for layer in range(len(moved))]
        left = limit - sum(_new(was, now) for was, now in zip(self._housed.live, base, strict=True))
        hold = base.copy()
        for layer in sorted(range(len(moved)), key=lambda i: (-gains[i] / max(1, moved[i]), i)):
            due = _new(self._housed.live[layer], base[layer])
            if moved[layer] - due <= left:
                hold[layer] = planned[layer]
            elif left > 0:
                self._changed(hold[layer], layer, left + due)
            left -= _new(self._housed.live[layer], hold[layer]) - due
        return hold


def _new(live: np.ndarray, hold: np.ndarray) -> int:
    return int(np.count_nonzero(hold > live))


def _kinds(problem: Problem, housed: _Housed) -> Ints:
    """Ranks that may take each other's part in a layer carry the same number `[L, R]`."""
    ranks = problem.shape[2]
    paces = np.unique(housed.pace, return_inverse=True)[1]
    kinds: Ints = np.asarray(housed.room * ranks + paces)
    if problem.may is None and problem.pinned is None:
        return kinds
    special: Bools = np.asarray(housed.pin.any(axis=1) | ~housed.may.all(axis=1))
    for layer in np.flatnonzero(special.any(axis=1)).tolist():
        known: dict[tuple[int, bytes], int] = {}
        for rank in range(ranks):
            where = housed.may[layer, :, rank].tobytes() + housed.pin[layer, :, rank].tobytes()
            kinds[layer, rank] = known.setdefault((int(kinds[layer, rank]), where), len(known))
    return kinds
