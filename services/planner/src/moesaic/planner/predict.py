"""What a placement would do to a load, step by step: steps are drawn from the forecast and dispatched as the engines would."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.planner.cost import Cost
from moesaic.planner.policy.problem import Hold
from moesaic.shared.arrays import Floats, Ints
from moesaic.shared.dispatch import SWEEPS, Prices
from moesaic.shared.dispatch.compiled import relax
from moesaic.shared.kernel import kernel
from moesaic.shared.placement import SHARE

STEPS = 4
"""Steps drawn for a prediction."""
MUCH = 1 << 20
"""An expert's expected tokens are scaled to about that many where they are split as whole numbers."""


@dataclass(frozen=True)
class Outlook:
    """Predicted cost of a step per layer `[L]`, in the cost's unit, means over the steps: of the ranks' mean, of the busiest."""

    mean: Floats
    most: Floats

    @property
    def cost(self) -> float:
        """Sum over layers of the busiest rank's cost: what a step waits for."""
        return float(self.most.sum())

    @property
    def layers(self) -> Floats:
        """Balancedness per layer: mean / max, 1 where nothing is to be done."""
        return np.divide(self.mean, self.most, out=np.ones_like(self.mean), where=self.most > 0)

    @property
    def balance(self) -> float:
        """Mean over the layers with load; 1 without load."""
        worked = self.most > 0
        return float(self.layers[worked].mean()) if worked.any() else 1.0

    @property
    def worst(self) -> float:
        """The least balanced layer's."""
        return float(self.layers.min(initial=1.0))


def drawn(load: Floats, steps: int = STEPS, spread: Floats | None = None, seed: int = 0) -> Ints:
    """Tokens `[S, L, E]` of steps with expected tokens `load [L, E]`, Poisson; `spread`: relative error of the forecast."""
    draw = np.random.default_rng(seed)
    expected = np.broadcast_to(load, (steps, *load.shape))
    if spread is not None:
        z = draw.standard_normal(expected.shape)
        expected = expected * np.exp(spread * z - spread**2 / 2)
    return draw.poisson(expected).astype(np.int64)


def outlook(counts: Ints, hold: Hold, cost: Cost, shares: Ints | None = None, prices: Prices | None = None) -> Outlook:
    """Of steps' tokens `[S, L, E]` dispatched over `hold [L, E, R]`; shares `[L, E, R]`, even if None.

    prices: what dispatch levels, the same as `cost` if None. Engines level tokens.
    """
    by = cost.prices() if prices is None else prices
    parts = hold.astype(np.int64) if shares is None else np.where(hold, np.maximum(1, shares), 0)
    tokens, busy = dispatched(counts, parts, by.token, by.expert, SWEEPS)
    return _outlook(counts, tokens, busy, cost)


def even(counts: Ints, hold: Hold, cost: Cost) -> Outlook:
    """The same where every expert's tokens are split evenly over its copies, as engines without dispatch by step do."""
    copies = hold.sum(axis=2)
    part = hold / copies[:, :, None]
    tokens = np.einsum("sle,ler->slr", counts.astype(np.float64), part)
    busy = np.einsum("sle,ler->slr", (counts > 0).astype(np.float64), hold.astype(np.float64))
    return _outlook(counts, tokens, busy, cost)


def _outlook(counts: Ints, tokens: Floats | Ints, busy: Floats | Ints, cost: Cost) -> Outlook:
    """From tokens and active experts `[S, L, R]`; a layer without tokens in a step costs nothing."""
    levels = (cost.fixed + cost.expert * busy + cost.token * tokens) * cost.pace
    levels[~counts.any(axis=2)] = 0.0
    return Outlook(levels.mean(axis=(0, 2)), levels.max(axis=2).mean(axis=0))


def shared_out(load: Floats, hold: Hold, cost: Cost) -> Ints:
    """Shares `[L, E, R]` that level the expected load, 0 where there is no copy."""
    top = float(load.max(initial=0.0))
    whole = np.rint(load * (MUCH / top if top > 0 else 1.0)).astype(np.int64)
    prices = cost.prices()
    return _shares(whole, hold.view(np.uint8), prices.token, prices.expert, SWEEPS, SHARE)


@kernel
def _hosts(parts: Ints, at: Ints, shares: Ints) -> None:
    """Ranks and shares per copy `[E, X]` of one layer's parts `[E, R]`."""
    at[:] = -1
    shares[:] = 0
    for e in range(parts.shape[0]):
        x = 0
        for r in range(parts.shape[1]):
            if parts[e, r] > 0:
                at[e, x] = r
                shares[e, x] = parts[e, r]
                x += 1


@kernel
def _most_copies(parts: Ints) -> int:
    most = 1
    for e in range(parts.shape[0]):
        copies = 0
        for r in range(parts.shape[1]):
            if parts[e, r] > 0:
                copies += 1
        most = max(most, copies)
    return most


@kernel
def dispatched(counts: Ints, parts: Ints, token: Ints, expert: Ints, sweeps: int) -> tuple[Ints, Ints]:
    """Tokens and active experts per rank `[S, L, R]` of steps `[S, L, E]` on copies with shares `parts [L, E, R]`."""
    steps, layers, experts = counts.shape
    tokens = np.zeros((steps, layers, token.size), dtype=np.int64)
    busy = np.zeros((steps, layers, token.size), dtype=np.int64)
    level = np.zeros(token.size, dtype=np.int64)
    for layer in range(layers):
        most = _most_copies(parts[layer])
        at = np.empty((experts, most), dtype=np.int64)
        shares = np.empty((experts, most), dtype=np.int64)
        quota = np.empty((experts, most), dtype=np.int64)
        _hosts(parts[layer], at, shares)
        for step in range(steps):
            relax(counts[step, layer], at, shares, token, expert, sweeps, quota, level)
            for e in range(experts):
                for x in range(most):
                    if at[e, x] >= 0 and quota[e, x] > 0:
                        tokens[step, layer, at[e, x]] += quota[e, x]
                        busy[step, layer, at[e, x]] += 1
    return tokens, busy


@kernel
def _shares(load: Ints, hold: np.ndarray, token: Ints, expert: Ints, sweeps: int, whole: int) -> Ints:
    layers, experts, ranks = hold.shape
    out = np.zeros((layers, experts, ranks), dtype=np.int64)
    level = np.zeros(ranks, dtype=np.int64)
    parts = np.zeros((experts, ranks), dtype=np.int64)
    for layer in range(layers):
        parts[:] = hold[layer]
        most = _most_copies(parts)
        at = np.empty((experts, most), dtype=np.int64)
        even = np.empty((experts, most), dtype=np.int64)
        quota = np.empty((experts, most), dtype=np.int64)
        _hosts(parts, at, even)
        relax(load[layer], at, even, token, expert, sweeps, quota, level)
        for e in range(experts):
            copies = 0
            while copies < most and at[e, copies] >= 0:
                copies += 1
            for x in range(copies):
                if load[layer, e] > 0:
                    out[layer, e, at[e, x]] = max(1, round(whole * quota[e, x] / load[layer, e]))
                else:
                    out[layer, e, at[e, x]] = max(1, whole // copies)
    return out
