"""A recorded load with everything that plans for it depend on, and policies' answers to it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from moesaic.planner.cost import Cost
from moesaic.planner.layout import state_of
from moesaic.planner.policy import Hold, Policy, Problem, ProblemError, check
from moesaic.planner.predict import Outlook, drawn, even, outlook, shared_out
from moesaic.planner.topology import Groups, Topology, sources
from moesaic.shared.arrays import Floats, Ints
from moesaic.shared.dispatch import Prices
from moesaic.shared.placement import State

STEPS = 8
"""Steps drawn to score a placement on."""
EVENLY = {"eplb"}
"""Policies made for engines that split an expert's tokens evenly over its copies; others are scored as dispatched by step."""

Row = dict[str, Any]
"""A policy's figures, as in the JSON output."""


@dataclass(frozen=True)
class Case:
    """A recorded load, the ranks it is to run on, and who plans. W windows, L layers, E experts, R ranks."""

    source: str
    load: Ints
    """Tokens of the selected windows `[W, L, E]`."""
    steps: Ints
    """Engine steps in each `[W]`, at least 1."""
    numbers: list[int]
    """Of these windows in the recording; those without a token are left out."""
    live: Hold
    slots: Ints
    """Per rank, all layers together `[R]`."""
    cost: Cost
    policies: dict[str, Policy]
    max_moves: int | None
    topology: Topology | None
    groups: Groups | None
    slot_bytes: int | None

    @property
    def tokens(self) -> Cost:
        """By which a whole window is judged: tokens over speed."""
        return replace(self.cost, token=1.0, expert=0.0, fixed=0.0)

    @property
    def expected(self) -> Floats:
        """Tokens per step `[L, E]`, over all windows."""
        return np.asarray(self.load.sum(axis=0) / self.steps.sum())

    def per_step(self, window: int) -> Floats:
        """Expected tokens per step `[L, E]` in one of the windows."""
        return np.asarray(self.load[window] / self.steps[window])

    def drawn(self, load: Floats, seed: int) -> Ints:
        """Steps `[S, L, E]` with these expected tokens, the same for every policy."""
        return drawn(load, STEPS, seed=seed)

    def problem(self, load: Floats, live: Hold) -> Problem:
        """To plan for expected tokens per step `[L, E]`. Raises ProblemError."""
        active = 1.0 - np.exp(-load) if self.cost.expert else None
        return Problem(
            load,
            live,
            self.slots,
            self.cost,
            active=active,
            max_moves=self.max_moves,
            topology=self.topology,
            groups=self.groups,
        )

    def ask(self, name: str, load: Floats, live: Hold, *, runs: int = 1) -> Answer | str:
        """A policy's valid answer, of which the last of `runs` is timed, or why there is none."""
        try:
            problem = self.problem(load, live)
            for _ in range(runs):
                begin = time.perf_counter()
                hold = self.policies[name](problem)
                ms = (time.perf_counter() - begin) * 1e3
            check(problem, hold)
        except ProblemError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - a policy is exchangeable code: its bugs end its row, not the table
            return f"{type(error).__name__}: {error}"
        return Answer(name, problem, hold, ms)

    def stay(self) -> Answer:
        """Nothing planned: the placement to start from, for the load of all windows."""
        return Answer("live", self.problem(self.expected, self.live), self.live)

    def moved(self, answer: Answer) -> dict[str, Any]:
        """What an answer moves."""
        live, hold = answer.problem.live, answer.hold
        moves = int(np.count_nonzero(hold & ~live))
        return {
            "moves": moves,
            "moves_per_layer": moves / len(hold),
            "moves_across_nodes": int(sources(live, hold, self.topology)[1].sum()) if self.topology else None,
            "bytes": moves * self.slot_bytes if self.slot_bytes else None,
        }

    def shown(self) -> dict[str, Any]:
        """As in the JSON output."""
        layers, experts, ranks = self.live.shape
        return {
            "load": self.source,
            "windows": [self.numbers[0], self.numbers[-1] + 1],
            "windows_with_tokens": len(self.numbers),
            "steps": int(self.steps.sum()),
            "layers": layers,
            "experts": experts,
            "ranks": ranks,
            "slots": self.slots.tolist(),
            "cost_unit": self.cost.unit,
            "scored_steps": STEPS,
        }


@dataclass(frozen=True)
class Answer:
    """A placement that a policy wants."""

    name: str
    problem: Problem
    hold: Hold
    ms: float | None = None
    """What planning took; None: nothing was planned."""

    @property
    def split(self) -> Literal["even", "dispatch"]:
        """How the engines that the policy is for spread an expert's tokens over its copies."""
        return "even" if self.name in EVENLY else "dispatch"

    @cached_property
    def shares(self) -> Ints:
        """That level the load which was planned for `[L, E, R]`."""
        return shared_out(self.problem.load, self.hold, self.problem.cost)

    @property
    def state(self) -> State:
        """To be written."""
        return state_of(self.hold, self.shares)

    @property
    def replicas(self) -> Ints:
        """Copies beyond the first of each expert, by layer `[L]`."""
        return np.asarray(self.hold.sum(axis=(1, 2)) - self.hold.shape[1])

    @property
    def rank_load(self) -> Floats:
        """Part of each layer's load on each rank, 1 where it is even `[L, R]`."""
        parts = (self.hold if self.split == "even" else self.shares).astype(np.float64)
        parts /= parts.sum(axis=2, keepdims=True)
        by_rank = np.einsum("le,ler->lr", self.problem.load, parts)
        mean = by_rank.mean(axis=1, keepdims=True)
        return np.asarray(np.divide(by_rank, mean, out=np.ones_like(by_rank), where=mean > 0))

    def under(self, counts: Ints, cost: Cost) -> dict[str, dict[str, float]]:
        """What steps' tokens `[S, L, E]` do to it, by how they are split over copies. Dispatch levels tokens, as engines do."""
        by_step = outlook(counts, self.hold, cost, self.shares, Prices.tokens(cost.speed.size))
        return {"even": _figures(even(counts, self.hold, cost)), "dispatch": _figures(by_step)}


def _figures(seen: Outlook) -> dict[str, float]:
    return {
        "balance": seen.balance,
        "worst": seen.worst,
        "worst_layer": int(np.argmin(seen.layers)),
        "cost": seen.cost,
    }
