"""Every decision with its reason, also those not to move."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from moesaic.shared.log import Log
from moesaic.shared.messages import Forecast

KEPT = 50

Kind = Literal[
    "proposed",
    "rolled_back",
    "committed",
    "kept",
    "slower",
    "refused",
    "timed_out",
    "ordered",
    "paused",
    "resumed",
    "invalid",
    "overtaken",
    "not_stored",
    "not_formed",
    "one_rank",
    "live_unknown",
    "load_unknown",
    "impossible",
    "few_tokens",
    "too_soon",
    "on_the_way",
    "best_already",
    "not_worth",
]

QUIET: frozenset[Kind] = frozenset(
    {
        "paused",
        "not_formed",
        "one_rank",
        "live_unknown",
        "load_unknown",
        "impossible",
        "few_tokens",
        "too_soon",
        "on_the_way",
        "best_already",
        "not_worth",
        "overtaken",
    }
)
"""Decisions not to move: logged for debugging only."""

LOUD: frozenset[Kind] = frozenset({"slower", "refused", "timed_out", "invalid", "not_stored"})


@dataclass(frozen=True)
class Decision:
    """One decision, taken `times` times, last at `at` (unix seconds)."""

    kind: Kind
    reason: str
    at: float
    epoch: int = 0
    forecast: Forecast | None = None
    times: int = 1


class Journal:
    """The newest decisions of one group, oldest first."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._decisions: list[Decision] = []

    def add(self, decision: Decision) -> None:
        """Keep and log. Of decisions not to move, one of each kind stands between two that did something."""
        same = self._earlier(decision) if decision.kind in QUIET else None
        if same is not None:
            self._decisions.remove(same)
            decision = replace(decision, times=same.times + 1)
        self._decisions = [*self._decisions, decision][-KEPT:]
        say = self._log.debug if decision.kind in QUIET else self._log.info
        if decision.kind in LOUD:
            say = self._log.warning
        say(decision.kind.replace("_", " "), reason=decision.reason, epoch=decision.epoch)

    def _earlier(self, decision: Decision) -> Decision | None:
        quiet = itertools.takewhile(lambda d: d.kind in QUIET, reversed(self._decisions))
        return next((d for d in quiet if d.kind == decision.kind), None)

    def shown(self) -> list[dict[str, Any]]:
        """As JSON objects, newest first."""
        return [msgspec.to_builtins(decision) for decision in reversed(self._decisions)]
