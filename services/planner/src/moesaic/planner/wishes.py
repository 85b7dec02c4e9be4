"""What people have ordered for a group: copies that must stay, ranks that must be empty. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moesaic.planner.policy import Hold


@dataclass(frozen=True)
class Wishes:
    """`pinned`: (layer, expert, rank); `forbidden`: ranks."""

    pinned: frozenset[tuple[int, int, int]] = frozenset()
    forbidden: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.pinned or self.forbidden)

    def within(self, layers: int, experts: int, ranks: int) -> Wishes:
        """Those that concern a group of this shape; others wait until it has it again."""
        pinned = {(i, e, r) for i, e, r in self.pinned if i < layers and e < experts and r < ranks}
        return Wishes(frozenset(pinned), frozenset(r for r in self.forbidden if r < ranks))

    def may(self, shape: tuple[int, int, int]) -> Hold | None:
        """Where copies may be `[L, E, R]`; None: anywhere."""
        if not self.forbidden:
            return None
        mask = np.ones(shape, dtype=np.bool_)
        mask[:, :, sorted(self.forbidden)] = False
        return mask

    def must(self, shape: tuple[int, int, int]) -> Hold | None:
        """Copies that must be there `[L, E, R]`; None: no one."""
        if not self.pinned:
            return None
        mask = np.zeros(shape, dtype=np.bool_)
        for where in self.pinned:
            mask[where] = True
        return mask
