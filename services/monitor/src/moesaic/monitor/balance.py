"""Balancedness, hot and cold experts, and drift, from a window's arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.monitor.counters import Executed
from moesaic.shared.arrays import Ints
from moesaic.shared.messages import HotExpert

HOT_RATIO = 2.0
COLD_RATIO = 0.1
LISTED = 8
"""Hot and cold experts named in a window, each."""


@dataclass(frozen=True)
class Balance:
    """Sum over steps of mean rank cost / sum of max rank cost. None where nothing was executed."""

    mean: float | None
    worst: float | None
    worst_layer: int | None
    layers: tuple[float | None, ...]


def balance(total: Ints, most: Ints, ranks: int) -> Balance:
    """From `total`, `most` `[L]`: per layer, their mean over the layers with work, and the worst."""
    layers = tuple(float(t) / ranks / float(m) if m > 0 else None for t, m in zip(total, most, strict=True))
    worked = [(value, layer) for layer, value in enumerate(layers) if value is not None]
    if not worked:
        return Balance(None, None, None, layers)
    worst, layer = min(worked)
    return Balance(sum(value for value, _ in worked) / len(worked), worst, layer, layers)


def now_and_best(executed: Executed, ranks: int) -> tuple[Balance, Balance]:
    """The balance that was, and that of each step's tokens spread evenly."""
    return balance(executed.total, executed.most, ranks), balance(executed.total, executed.best, ranks)


def extremes(tokens: Ints) -> tuple[tuple[HotExpert, ...], tuple[HotExpert, ...]]:
    """(hot, cold) experts of `tokens [L, E]`, the most extreme first. Layers with less than a token per expert have none."""
    means = tokens.mean(axis=1, keepdims=True)
    ratios = np.divide(tokens, means, out=np.ones(tokens.shape), where=means >= 1.0)
    order = np.argsort(ratios, axis=None, kind="stable")
    cold = [_expert(tokens, ratios, int(i)) for i in order[:LISTED] if ratios.flat[i] < COLD_RATIO]
    hottest = np.argsort(-ratios, axis=None, kind="stable")[:LISTED]
    hot = [_expert(tokens, ratios, int(i)) for i in hottest if ratios.flat[i] >= HOT_RATIO]
    return tuple(hot), tuple(cold)


def _expert(tokens: Ints, ratios: np.ndarray, index: int) -> HotExpert:
    layer, expert = divmod(index, tokens.shape[1])
    ratio = round(float(ratios[layer, expert]), 4)
    return HotExpert(layer=layer, expert=expert, tokens=int(tokens[layer, expert]), ratio=ratio)


def drift(before: Ints, after: Ints) -> float | None:
    """Correlation of two loads `[L, E]`, mean over the layers where both vary; None if there is none."""
    if before.shape != after.shape:
        return None
    a = before - before.mean(axis=1, keepdims=True)
    b = after - after.mean(axis=1, keepdims=True)
    scale = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    told = scale > 0
    if not told.any():
        return None
    return float(((a * b).sum(axis=1)[told] / scale[told]).mean())
