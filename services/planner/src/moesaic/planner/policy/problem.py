"""What a policy is asked, and what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moesaic.shared.arrays import Ints
from moesaic.shared.placement import State


@dataclass(frozen=True)
class Problem:
    """Tokens `load [L, E]` to be expected, the live state to start from, slots per rank, copies that may move."""

    load: Ints
    live: State
    budget: tuple[int, ...]
    max_moves: int


Policy = Callable[[Problem], State]
"""Pure and deterministic. Returns a valid state within the budget; the live one itself where nothing should move."""
