"""Placement policies by name. Others come from any installed package through the entry point group `moesaic.policies`."""

from __future__ import annotations

from importlib.metadata import entry_points

from moesaic.planner.policy.problem import Hold, Policy, Problem, ProblemError, check

__all__ = ["GROUP", "Hold", "Policy", "Problem", "ProblemError", "check", "named", "names"]

GROUP = "moesaic.policies"


def names() -> list[str]:
    """Of the policies that are installed."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def named(name: str) -> Policy:
    """A policy. Raises LookupError where there is none, or it cannot be loaded."""
    found = [point for point in entry_points(group=GROUP) if point.name == name]
    if not found:
        raise LookupError(f"no policy {name!r}, there are {', '.join(names())}")
    try:
        policy = found[0].load()
    except Exception as error:
        raise LookupError(f"policy {name!r} of {found[0].value} cannot be loaded: {error}") from error
    if not callable(policy):
        raise LookupError(  # noqa: TRY004 # to the caller a plugin that is none is like one that is missing
            f"policy {name!r}: {found[0].value} cannot be called"
        )
    return policy  # type: ignore[no-any-return] # what a plugin is shows when it is asked
