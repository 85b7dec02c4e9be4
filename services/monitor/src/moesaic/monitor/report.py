"""A closed window as the `Imbalance` message."""

from __future__ import annotations

import numpy as np

from moesaic.monitor.balance import drift, extremes, now_and_best
from moesaic.monitor.windows import Window
from moesaic.shared.arrays import Ints, pack
from moesaic.shared.messages import Imbalance, Phase, PhaseWindow, Source


def tokens_of(window: Window) -> Ints:
    """Routed tokens of all phases `[L, E]`."""
    return np.asarray(np.sum([routed.tokens for routed in window.routed.values()], axis=0))


def imbalance(window: Window, group: str, source: Source, before: Ints | None) -> Imbalance:
    """`before`: routed tokens of the window with work before this one."""
    tokens = tokens_of(window)
    hot, cold = extremes(tokens)
    generation, epoch, instalment = window.key
    return Imbalance(
        source=source,
        group=group,
        model_digest=window.model_digest,
        generation=generation,
        epoch=epoch,
        instalment=instalment,
        ranks=window.ranks,
        begin=window.begin,
        end=window.end,
        engines=window.engines,
        phases={phase: _phase(window, phase) for phase in window.routed if _worked(window, phase)},
        hot=hot,
        cold=cold,
        drift=None if before is None else drift(before, tokens),
        lost=window.lost,
    )


def _worked(window: Window, phase: Phase) -> bool:
    return bool(window.routed[phase].tokens.any()) or window.executed[phase].steps > 0


def _phase(window: Window, phase: Phase) -> PhaseWindow:
    routed = window.routed[phase]
    was, best = now_and_best(window.executed[phase], window.ranks)
    executed = window.executed[phase]
    return PhaseWindow(
        steps=routed.steps,
        tokens=pack(routed.tokens),
        active_steps=pack(routed.active_steps),
        step_ms=executed.us / executed.steps / 1e3 if executed.steps else None,
        timing=tuple(routed.timing.tolist()) if routed.timing.any() else (),
        balance=was.mean,
        balance_best=best.mean,
        balance_worst=was.worst,
        worst_layer=was.worst_layer,
        layer_balance=was.layers,
    )
