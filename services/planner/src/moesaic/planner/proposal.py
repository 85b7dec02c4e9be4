"""A placement to be stored, and how it is made from what a policy answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.planner.policy import Hold, Problem
from moesaic.planner.predict import Outlook, outlook, shared_out
from moesaic.planner.topology import Topology, moving_s
from moesaic.shared.arrays import Ints
from moesaic.shared.dispatch import Prices
from moesaic.shared.messages import Forecast, Group, Placement
from moesaic.shared.placement import State, check, path

ROLL_BACK = "roll back"
"""Policy that is named in a placement which goes back to an earlier one."""


@dataclass(frozen=True)
class Question:
    """A policy's problem, and the circumstances under which its answer still holds.

    `steps [S, L, E]`: drawn steps on which live placement and answer are compared.
    """

    problem: Problem
    live: State
    steps: Ints
    record: Group
    epoch: int
    latest: int
    domain: int


@dataclass(frozen=True)
class Proposal:
    """A checked placement. It may be stored only over revision `over`; `before` is the epoch to go back to."""

    placement: Placement
    over: int
    before: int
    instalments: int
    domain: int
    going_back: bool = False


@dataclass(frozen=True)
class Expected:
    """What a target would do. `moving_s`: how long the busiest rank receives."""

    now: Outlook
    then: Outlook
    moves: int
    bytes: int
    moving_s: float

    @property
    def forecast(self) -> Forecast:
        """For the wire."""
        return Forecast(
            balance_now=round(self.now.balance, 6),
            balance_next=round(self.then.balance, 6),
            moves=self.moves,
            bytes=self.bytes,
        )

    @property
    def order(self) -> tuple[int, ...]:
        """Layers that gain, most first."""
        gain = self.now.most - self.then.most
        return tuple(int(layer) for layer in np.argsort(-gain, kind="stable") if gain[layer] > 0)


def expected(question: Question, hold: Hold, shares: Ints, topology: Topology) -> Expected:
    """What an answer with these shares would do to the question's steps, dispatched by tokens as engines do."""
    problem = question.problem
    prices = Prices.tokens(problem.slots.size)
    live = shared_out(problem.load, problem.live, problem.cost)
    outlooks = [
        outlook(question.steps, held, problem.cost, parts, prices)
        for held, parts in ((problem.live, live), (hold, shares))
    ]
    moves = int(np.count_nonzero(hold & ~problem.live))
    size = question.record.slot_bytes
    return Expected(outlooks[0], outlooks[1], moves, moves * size, moving_s(problem.live, hold, size, topology))


def instalments(live: State, placement: Placement, record: Group) -> int:
    """In how many steps the engines will go from live to this placement. Raises PlacementError where it cannot be used."""
    check(placement, record)
    slots = [member.slots for member in record.members]
    return max(1, len(path(live, placement.layers, placement.order, slots)))
