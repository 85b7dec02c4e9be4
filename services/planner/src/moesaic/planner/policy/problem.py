"""What a policy is asked, and what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from moesaic.planner.cost import Cost
from moesaic.planner.topology import Groups, Topology
from moesaic.shared.arrays import Floats, Ints

Hold = npt.NDArray[np.bool_]
"""Who holds what: `[L, E, R]`."""

ABSURD = 1e15
"""Loads above that are taken for nonsense."""


class ProblemError(ValueError):
    """A problem without an answer; the text says why."""


@dataclass(frozen=True)
class Problem:
    """Where to put the copies. L layers, E experts, R ranks.

    load `[L, E]` expected tokens per step (any scale will do where only balance counts); live `[L, E, R]` who holds what now;
    slots `[R]`, all layers together; active `[L, E]` share of steps in which an expert has tokens (None: all); may `[L, E, R]`
    where copies may be (None: anywhere), pinned `[L, E, R]` copies that must be there. Raises ProblemError.
    """

    load: Floats
    live: Hold
    slots: Ints
    cost: Cost
    active: Floats | None = None
    max_moves: int | None = None
    may: Hold | None = None
    pinned: Hold | None = None
    topology: Topology | None = None
    groups: Groups | None = None

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_masks()
        if not np.isfinite(self.load).all():
            raise ProblemError("a load is not a number, or infinite")
        if (self.load < 0).any() or (self.load > ABSURD).any():
            layer, expert = np.argwhere((self.load < 0) | (self.load > ABSURD))[0]
            raise ProblemError(f"layer {layer} expert {expert} has a load of {self.load[layer, expert]:g}")
        if (self.slots < 0).any():
            raise ProblemError("a rank has less than no slots")
        homeless = np.argwhere(~self.live.any(axis=2))
        if homeless.size:
            raise ProblemError(f"layer {homeless[0][0]} expert {homeless[0][1]} is nowhere in the live placement")
        self._check_room()

    def _check_shapes(self) -> None:
        if self.live.ndim != 3 or not self.live.size or self.live.dtype != np.bool_:
            raise ProblemError(f"the live placement is {self.live.dtype} {self.live.shape}, not bool [L, E, R]")
        layers, experts, ranks = self.live.shape
        if self.load.shape != (layers, experts):
            raise ProblemError(f"the load is {self.load.shape}, the live placement {self.live.shape}")
        if self.slots.shape != (ranks,) or self.cost.speed.shape != (ranks,):
            raise ProblemError(f"slots and speeds are needed for {ranks} ranks")
        if not np.issubdtype(self.slots.dtype, np.integer):
            raise ProblemError("slots are whole numbers")
        if self.max_moves is not None and self.max_moves < 0:
            raise ProblemError(f"{self.max_moves} moves are less than none")
        if self.topology is not None and self.topology.ranks != ranks:
            raise ProblemError(f"the topology has {self.topology.ranks} ranks, the live placement {ranks}")
        if self.groups is not None and experts % self.groups.count:
            raise ProblemError(f"{experts} experts do not make {self.groups.count} groups")

    def _check_masks(self) -> None:
        for name in ("may", "pinned"):
            mask = getattr(self, name)
            if mask is not None and mask.shape != self.live.shape:
                raise ProblemError(f"{name} is {mask.shape}, the live placement {self.live.shape}")
            if mask is not None and mask.dtype != np.bool_:
                raise ProblemError(f"{name} is {mask.dtype}, not bool")
        if self.active is not None and self.active.shape != self.load.shape:
            raise ProblemError(f"active is {self.active.shape}, the load {self.load.shape}")
        if self.active is not None and not ((self.active >= 0) & (self.active <= 1 + 1e-9)).all():
            raise ProblemError("active is a share of steps, from 0 to 1")

    def _check_room(self) -> None:
        layers, experts, _ = self.live.shape
        places = layers * experts if self.may is None else self.may.sum(axis=(0, 1))
        room = int(np.minimum(self.slots, places).sum())
        if room < layers * experts:
            raise ProblemError(f"{layers * experts} experts of {layers} layers do not fit in {room} slots")
        if self.may is not None and not self.may.any(axis=2).all():
            layer, expert = np.argwhere(~self.may.any(axis=2))[0]
            raise ProblemError(f"layer {layer} expert {expert} may be nowhere")
        if self.pinned is not None:
            wrong = self.pinned & ~self.may if self.may is not None else np.zeros_like(self.pinned)
            if wrong.any():
                layer, expert, rank = np.argwhere(wrong)[0]
                raise ProblemError(f"layer {layer} expert {expert} is pinned to rank {rank}, where it may not be")
            if (self.pinned.sum(axis=(0, 1)) > self.slots).any():
                raise ProblemError("more experts are pinned to a rank than it has slots")

    @property
    def shape(self) -> tuple[int, int, int]:
        """L, E, R."""
        layers, experts, ranks = self.live.shape
        return layers, experts, ranks

    def of(self, hold: Hold) -> Problem:
        """The same with another live placement."""
        return replace(self, live=hold)


Policy = Callable[[Problem], Hold]
"""Pure and deterministic: a placement within the slots in which every expert has a copy; `live` itself to move nothing."""


def check(problem: Problem, hold: Hold) -> None:
    """Raise ProblemError where an answer breaks the rules: an expert without a copy, a rank over its slots, a pin, a `may`."""
    if hold.shape != problem.live.shape or hold.dtype != np.bool_:
        raise ProblemError(f"the answer is {hold.dtype} {hold.shape}, not bool {problem.live.shape}")
    if not hold.any(axis=2).all():
        layer, expert = np.argwhere(~hold.any(axis=2))[0]
        raise ProblemError(f"layer {layer} expert {expert} is homeless")
    used = hold.sum(axis=(0, 1))
    if (used > problem.slots).any():
        rank = int(np.argmax(used - problem.slots))
        raise ProblemError(f"rank {rank} would need {used[rank]} slots, it has {problem.slots[rank]}")
    if problem.may is not None and (hold & ~problem.may).any():
        layer, expert, rank = np.argwhere(hold & ~problem.may)[0]
        raise ProblemError(f"layer {layer} expert {expert} may not be on rank {rank}")
    if problem.pinned is not None and (problem.pinned & ~hold).any():
        layer, expert, rank = np.argwhere(problem.pinned & ~hold)[0]
        raise ProblemError(f"layer {layer} expert {expert} is pinned to rank {rank}")
