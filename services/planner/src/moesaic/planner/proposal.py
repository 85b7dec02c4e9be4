"""A placement to be stored, and how it is made from what a policy answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.planner.policy import Problem
from moesaic.planner.predict import Outlook, outlook
from moesaic.shared.messages import Forecast, Group, Placement
from moesaic.shared.placement import State, check, moves, path


@dataclass(frozen=True)
class Question:
    """A policy's problem, and the circumstances under which its answer still holds."""

    problem: Problem
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
    """What a target would do."""

    now: Outlook
    then: Outlook
    moves: int
    bytes: int

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


def expected(question: Question, target: State) -> Expected:
    """What the target would do to the question's load."""
    problem = question.problem
    moved = moves(problem.live, target)
    return Expected(
        outlook(problem.load, problem.live),
        outlook(problem.load, target),
        moved,
        moved * question.record.slot_bytes,
    )


def instalments(live: State, placement: Placement, record: Group) -> int:
    """In how many steps the engines will go from live to this placement. Raises PlacementError where it cannot be used."""
    check(placement, record)
    slots = [member.slots for member in record.members]
    return max(1, len(path(live, placement.layers, placement.order, slots)))
