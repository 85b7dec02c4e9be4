"""Whether a placement is worth its move. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.planner.predict import Outlook

SETTLING = 2.0
"""Right after a placement a further one must gain so many times `min_gain` more; that fades over `settle_s`."""


@dataclass(frozen=True)
class Terms:
    """When to move. `drag`: part of the serving speed that is lost while weights are on their way."""

    min_gain: float
    settle_s: float
    horizon_s: float
    drag: float
    stall_s: float


@dataclass(frozen=True)
class Verdict:
    """Go or not, and why. `gain`: relative fall of the summed cost of the layers' busiest ranks."""

    go: bool
    gain: float
    reason: str


def gain_of(now: Outlook, then: Outlook) -> float:
    """Relative fall of the cost; 0 without load."""
    return 1.0 - then.cost / now.cost if now.cost else 0.0


def judge(now: Outlook, then: Outlook, moving_s: float, instalments: int, terms: Terms, settled_for: float) -> Verdict:
    """`moving_s`: of the busiest rank; `settled_for`: seconds since the last placement, infinite if none or of another domain.

    The gain over the horizon must exceed what moving costs: serving slowed while weights move, and a stall per instalment.
    """
    gain = gain_of(now, then)
    fresh = max(0.0, 1.0 - settled_for / terms.settle_s) if terms.settle_s > 0 else 0.0
    least = terms.min_gain * (1.0 + SETTLING * fresh)
    if gain <= 0 or gain < least:
        return Verdict(go=False, gain=gain, reason=f"gain {gain:.3f} is below {least:.3f}")
    worth = gain * terms.horizon_s
    cost = terms.drag * moving_s + terms.stall_s * instalments
    if worth <= cost:
        return Verdict(go=False, gain=gain, reason=f"saves {worth:.2f} s, moving costs {cost:.2f} s")
    return Verdict(go=True, gain=gain, reason=f"gain {gain:.3f}, balance {now.balance:.3f} to {then.balance:.3f}")
