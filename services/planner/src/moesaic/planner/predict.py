"""What a placement would do to a load: the same replica choice as the engines', on whole windows instead of steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.shared.arrays import Ints
from moesaic.shared.dispatch import quotas
from moesaic.shared.messages import LayerPlacement
from moesaic.shared.placement import SHARE, State, hosts, layer_of


@dataclass(frozen=True)
class Outlook:
    """Predicted load, in tokens: `total [L]`, `most [L]` that of the busiest rank."""

    total: Ints
    most: Ints
    ranks: int

    @property
    def cost(self) -> int:
        """Sum over layers of the busiest rank's load: what a step waits for."""
        return int(self.most.sum())

    @property
    def balance(self) -> float:
        """Mean over the layers with load of mean / max rank load; 1 without load."""
        worked = self.most > 0
        if not worked.any():
            return 1.0
        return float((self.total[worked] / self.ranks / self.most[worked]).mean())


def outlook(load: Ints, state: State) -> Outlook:
    """Of a load `[L, E]` on a state."""
    ranks = len(state[0].experts)
    most = [int(levels(counts, layer).max()) for counts, layer in zip(load, state, strict=True)]
    return Outlook(load.sum(axis=1), np.array(most, dtype=np.int64), ranks)


def levels(counts: Ints, layer: LayerPlacement) -> Ints:
    """Tokens per rank `[R]` of one layer with counts `[E]`."""
    ranks = len(layer.experts)
    ranks_of, shares = hosts(layer, counts.size)
    quota = quotas(counts, ranks_of, shares, ranks)
    placed = ranks_of >= 0
    return np.bincount(ranks_of[placed], weights=quota[placed], minlength=ranks).astype(np.int64)


def levelled(counts: Ints, layer: LayerPlacement) -> LayerPlacement:
    """The layer with the shares that level these counts `[E]`."""
    ranks = len(layer.experts)
    ranks_of, shares = hosts(layer, counts.size)
    quota = quotas(counts, ranks_of, np.ones_like(shares), ranks)
    parts = {
        (int(rank), expert): round(SHARE * int(quota[expert, x]) / int(counts[expert]))
        for expert in np.flatnonzero(counts).tolist()
        for x, rank in enumerate(ranks_of[expert])
        if rank >= 0
    }
    return layer_of(layer.experts, parts)
