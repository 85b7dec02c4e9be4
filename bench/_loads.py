"""Synthetic loads for the planner's benchmark.

Every expert of every layer has a latent normal value, which from window to window keeps the part `drift` of itself and gets
as much new noise as keeps its variance at 1. The experts' shares of a layer's routes follow from the order of these values:
for `zipf<s>` the highest gets weight 1, the next 1 / 2**s, and so on; for `lognormal<s>` a value z gets weight exp(s * z).
No expert gets more than 1 / top_k of the routes, as a token takes an expert at most once; what is above goes to the others in
proportion.

A planner does not see shares: it sees a window's counts, Poisson with the mean of 200 steps of 64 tokens x top-8 per rank.
A single step, for scoring, gives each expert Binomial(64 * ranks, 8 * share) tokens. Experts and tokens are independent, which
real routers are not; real loads also differ between layers, come in bursts, and repeat by the hour.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from moesaic.shared.arrays import Floats, Ints

TOP_K = 8
TOKENS = 64
"""Tokens per rank and step."""
STEPS = 200
"""Steps of a measured window."""


def windows(
    kind: str, shape: tuple[int, int], count: int, drift: float, seed: int, changes: Collection[int] = ()
) -> Floats:
    """Shares `[W, L, E]` of `count` windows; before each of the windows `changes` every layer's experts change places."""
    draw = np.random.default_rng(seed)
    z = draw.standard_normal(shape)
    shares = []
    for window in range(count):
        if window in changes:
            z = draw.permuted(z, axis=1)
        shares.append(capped(weights(kind, z)))
        z = drift * z + np.sqrt(1 - drift**2) * draw.standard_normal(shape)
    return np.array(shares)


def mixed(sigmas: Floats, experts: int, count: int, drift: float, seed: int) -> Floats:
    """Shares `[W, L, E]` where layer l is log-normal with `sigmas [L]`."""
    draw = np.random.default_rng(seed)
    shape = (sigmas.size, experts)
    z = draw.standard_normal(shape)
    shares = []
    for _ in range(count):
        shares.append(capped(np.exp(sigmas[:, None] * z)))
        z = drift * z + np.sqrt(1 - drift**2) * draw.standard_normal(shape)
    return np.array(shares)


def weights(kind: str, z: Floats) -> Floats:
    """Of latent values `[L, E]`."""
    if kind.startswith("lognormal"):
        return np.exp(float(kind.removeprefix("lognormal")) * z)
    place = np.argsort(np.argsort(-z, axis=-1), axis=-1)
    return (place + 1.0) ** -float(kind.removeprefix("zipf"))


def capped(weight: Floats) -> Floats:
    """Shares `[L, E]` in proportion to the weights, none above 1 / top_k."""
    full = np.zeros(weight.shape, dtype=np.bool_)
    while True:
        free = np.where(full, 0.0, weight)
        rest = 1.0 - full.sum(axis=-1, keepdims=True) / TOP_K
        share = np.where(full, 1.0 / TOP_K, free * rest / free.sum(axis=-1, keepdims=True))
        over = share > 1.0 / TOP_K + 1e-12
        if not over.any():
            return share
        full |= over


def measured(share: Floats, ranks: int, seed: tuple[int, ...]) -> Floats:
    """Tokens per step `[L, E]`, as counted over one window."""
    expected = share * (STEPS * TOKENS * TOP_K * ranks)
    return np.random.default_rng(seed).poisson(expected) / STEPS


def steps(share: Floats, ranks: int, count: int, seed: tuple[int, ...]) -> Ints:
    """Tokens `[S, L, E]` of so many steps."""
    chance = np.broadcast_to(np.minimum(1.0, TOP_K * share), (count, *share.shape))
    return np.random.default_rng(seed).binomial(TOKENS * ranks, chance).astype(np.int64)
