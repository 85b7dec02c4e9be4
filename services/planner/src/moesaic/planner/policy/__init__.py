"""Placement policies by name."""

from __future__ import annotations

from moesaic.planner.policy.eplb import eplb
from moesaic.planner.policy.greedy import greedy
from moesaic.planner.policy.problem import Policy, Problem
from moesaic.shared.placement import State

__all__ = ["POLICIES", "Policy", "Problem"]


def static(problem: Problem) -> State:
    """Everything stays where it is."""
    return problem.live


POLICIES: dict[str, Policy] = {"static": static, "eplb": eplb, "greedy": greedy}
