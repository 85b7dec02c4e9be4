"""Everything stays where it is."""

from __future__ import annotations

from moesaic.planner.policy.problem import Hold, Problem


def static(problem: Problem) -> Hold:
    """The live placement."""
    return problem.live
