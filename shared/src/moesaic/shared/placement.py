"""Placements as pure functions: the default one, what makes one invalid, and the path from one to another.

A *state* is a tuple of `LayerPlacement`, one per MoE layer. Nothing here knows slots: which physical slot holds an expert
is each engine's own affair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from moesaic.shared.arrays import Ints
from moesaic.shared.messages import Group, LayerPlacement, Placement

State = tuple[LayerPlacement, ...]

SHARE = 1 << 10
"""Share of an expert with a single copy, and the scale in which planners give shares."""


class PlacementError(ValueError):
    """A placement that must not be used; the text is the reason."""


def layer_of(experts: Iterable[Iterable[int]], shares: dict[tuple[int, int], int] | None = None) -> LayerPlacement:
    """A LayerPlacement from expert ids per rank; `shares[(rank, expert)]` where known, else even."""
    held = tuple(tuple(sorted(rank)) for rank in experts)
    copies: dict[int, int] = {}
    for rank in held:
        for expert in rank:
            copies[expert] = copies.get(expert, 0) + 1
    known = shares or {}
    return LayerPlacement(
        experts=held,
        shares=tuple(tuple(max(1, known.get((r, e), SHARE // copies[e])) for e in rank) for r, rank in enumerate(held)),
    )


def in_order(layers: int, experts: int, ranks: int) -> State:
    """The default: each expert once, in order, as even as the numbers divide; odd remainders rotate over the ranks."""
    state = []
    for layer in range(layers):
        bounds = [experts * r // ranks for r in range(ranks + 1)]
        blocks = [range(bounds[r], bounds[r + 1]) for r in range(ranks)]
        turn = layer % ranks if experts % ranks else 0
        state.append(layer_of(blocks[(r - turn) % ranks] for r in range(ranks)))
    return tuple(state)


def used(state: State, rank: int) -> int:
    """Slots that a state takes on a rank."""
    return sum(len(layer.experts[rank]) for layer in state)


def holds(state: State) -> set[tuple[int, int, int]]:
    """All copies as (layer, rank, expert)."""
    return {
        (index, rank, expert)
        for index, layer in enumerate(state)
        for rank, experts in enumerate(layer.experts)
        for expert in experts
    }


def moves(live: State, target: State) -> int:
    """Copies newly received on the way from live to target, all ranks and layers."""
    return len(holds(target) - holds(live))


def digest(state: State) -> str:
    """A short name for a state's content, the same everywhere."""
    text = repr([(layer.experts, layer.shares) for layer in state])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def check_state(state: State, *, layers: int, experts: int, ranks: int, slots: Sequence[int]) -> None:
    """Raise PlacementError unless every expert of every layer is at home, nowhere twice, within `slots` per rank."""
    if len(state) != layers:
        raise PlacementError(f"placement has {len(state)} layers, the model has {layers}")
    for index, layer in enumerate(state):
        _check_layer(index, layer, experts, ranks)
    for rank in range(ranks):
        if used(state, rank) > slots[rank]:
            raise PlacementError(f"rank {rank} would need {used(state, rank)} slots, it has {slots[rank]}")


def _check_layer(index: int, layer: LayerPlacement, experts: int, ranks: int) -> None:
    if len(layer.experts) != ranks or len(layer.shares) != ranks:
        raise PlacementError(f"layer {index} is placed on {len(layer.experts)} ranks, the group has {ranks}")
    seen: set[int] = set()
    for rank, (held, shares) in enumerate(zip(layer.experts, layer.shares, strict=True)):
        if len(shares) != len(held):
            raise PlacementError(f"layer {index} rank {rank}: {len(held)} experts but {len(shares)} shares")
        if any(not 0 < share < 2**31 for share in shares):
            raise PlacementError(f"layer {index} rank {rank}: every share must be from 1 to 2147483647")
        if len(set(held)) != len(held):
            twice = sorted(e for e in set(held) if held.count(e) > 1)
            raise PlacementError(f"layer {index} rank {rank}: expert {twice[0]} is there twice")
        if any(not 0 <= expert < experts for expert in held):
            raise PlacementError(f"layer {index} rank {rank}: experts are 0 to {experts - 1}")
        seen.update(held)
    if len(seen) != experts:
        missing = sorted(set(range(experts)) - seen)
        raise PlacementError(f"layer {index}: expert {missing[0]} is homeless ({len(missing)} in all)")


def check(placement: Placement, group: Group) -> None:
    """Raise PlacementError unless this placement can be the target of this generation of this group."""
    if placement.group != group.group:
        raise PlacementError(f"placement is for group {placement.group!r}, this is {group.group!r}")
    if placement.model_digest != group.model_digest:
        raise PlacementError(f"placement is for model {placement.model_digest}, this group serves {group.model_digest}")
    if placement.generation != group.generation:
        raise PlacementError(f"placement is for generation {placement.generation}, the group is in {group.generation}")
    if any(not 0 <= layer < group.layers for layer in placement.order):
        raise PlacementError(f"order names a layer outside 0 to {group.layers - 1}")
    check_state(
        placement.layers, layers=group.layers, experts=group.experts, ranks=len(group.members), slots=group.budget
    )


def path(live: State, target: State, order: Sequence[int], slots: Sequence[int]) -> list[State]:
    """The instalments from `live` to `target`: each a valid state, the last equal to target; empty if they are equal.

    `slots` per rank are those of the whole pool, spare ones included. Deterministic in its arguments, so every engine
    derives the same path. Each instalment is one round: (1) walk the layers in `order`, adding missing copies while the
    rank has a free slot; (2) remove the surplus copies of every expert that now has a copy the target wants. A slot given
    up in a round is free from the next. With target within the budget and at least one spare slot on each rank a round
    always makes progress: were every rank with a missing copy full, each would have more copies to remove than to add, and
    one of these would have another home.
    """
    state = [[set(rank) for rank in layer.experts] for layer in live]
    goal = [[set(rank) for rank in layer.experts] for layer in target]
    walk = list(dict.fromkeys([*order, *range(len(target))]))
    states: list[State] = []
    while True:
        free = [slots[r] - sum(len(layer[r]) for layer in state) for r in range(len(slots))]
        added = _add(state, goal, walk, free)
        removed = _remove(state, goal)
        if not added and not removed:
            break
        states.append(_shared_out(state, target))
    if state != goal:
        raise PlacementError("no room to move: the spare slots are too few for this placement")
    if states or tuple(target) == tuple(live):
        return states
    return [tuple(target)]  # the same copies with other shares


def _add(state: list[list[set[int]]], goal: list[list[set[int]]], walk: list[int], free: list[int]) -> bool:
    added = False
    for layer in walk:
        for rank, wanted in enumerate(goal[layer]):
            missing = sorted(wanted - state[layer][rank])[: max(0, free[rank])]
            state[layer][rank].update(missing)
            free[rank] -= len(missing)
            added = added or bool(missing)
    return added


def _remove(state: list[list[set[int]]], goal: list[list[set[int]]]) -> bool:
    removed = False
    for held, wanted in zip(state, goal, strict=True):
        at_home = set().union(*(h & w for h, w in zip(held, wanted, strict=True)))
        for rank in range(len(held)):
            surplus = (held[rank] - wanted[rank]) & at_home
            held[rank] -= surplus
            removed = removed or bool(surplus)
    return removed


def _shared_out(state: list[list[set[int]]], target: State) -> State:
    layers = []
    for held, wanted in zip(state, target, strict=True):
        shares = {
            (rank, expert): share
            for rank in range(len(held))
            for expert, share in zip(wanted.experts[rank], wanted.shares[rank], strict=True)
        }
        layers.append(layer_of(held, shares))
    return tuple(layers)


def hosts(layer: LayerPlacement, experts: int) -> tuple[Ints, Ints]:
    """Ranks that hold each expert, ascending, and their shares: two `[E, X]`, padded with -1 and 0; X = most copies."""
    at: list[list[tuple[int, int]]] = [[] for _ in range(experts)]
    for rank, (held, shares) in enumerate(zip(layer.experts, layer.shares, strict=True)):
        for expert, share in zip(held, shares, strict=True):
            at[expert].append((rank, share))
    most = max(len(copies) for copies in at)
    ranks = np.full((experts, most), -1, dtype=np.int64)
    parts = np.zeros((experts, most), dtype=np.int64)
    for expert, copies in enumerate(at):
        for x, (rank, share) in enumerate(copies):
            ranks[expert, x], parts[expert, x] = rank, share
    return ranks, parts
