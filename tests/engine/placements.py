"""Placements to try."""

from __future__ import annotations

import random

from moesaic.shared.messages import Group, Placement
from moesaic.shared.placement import State, layer_of


def shuffled(group: Group, seed: int, extra: int = 2) -> State:
    """Experts dealt anew, and up to `extra` replicas per layer and rank, within the budget."""
    draw = random.Random(seed)
    ranks = len(group.members)
    state = []
    left = [b - group.layers * -(-group.experts // ranks) for b in group.budget]
    for layer in range(group.layers):
        experts = list(range(group.experts))
        draw.shuffle(experts)
        turn = layer % ranks
        held = [set(experts[(r + turn) % ranks :: ranks]) for r in range(ranks)]
        for r in range(ranks):
            for _ in range(min(extra, left[r] // group.layers)):
                held[r].add(draw.randrange(group.experts))
        state.append(layer_of(held))
    return tuple(state)


def placement(group: Group, state: State) -> Placement:
    return Placement(group=group.group, generation=group.generation, model_digest=group.model_digest, layers=state)
