"""The placement of one rank: what is live, what is on its way, and the switch.

The step loop's thread owns the live tables and commits; the background thread prepares the target's instalments. Between
them stands `Target`: the background fills it and then sets `ready` or `refused`, the loop only reads those.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from moesaic.engine.backend import PlacementReport
from moesaic.engine.native.slots import Expert, LayerTable, SlotPool
from moesaic.engine.native.staging import Allowance, Background, Cancelled
from moesaic.engine.native.weights import Allow, DigestMismatch, ExpertSource
from moesaic.shared import placement
from moesaic.shared.messages import Group, Placement, PlacementEventName
from moesaic.shared.placement import PlacementError, State


@dataclass
class Target:
    """A placement on its way. `index`: the next instalment to commit."""

    epoch: int
    placement: Placement
    states: list[State] = field(default_factory=list)
    index: int = 0
    digest: int = 0
    slots: dict[Expert, int] = field(default_factory=dict)
    """Taken for the next instalment."""
    tables: dict[int, LayerTable] = field(default_factory=dict)
    """The layers that the next instalment changes."""
    started: float = 0.0
    bytes: int = 0
    moves: int = 0
    """Copies that all ranks together receive with the next instalment."""
    ready: bool = False
    refused: str = ""
    cancelled: bool = False


@dataclass(frozen=True)
class Live:
    """What the steps use now."""

    epoch: int
    instalment: int
    state: State


class Rollout:
    """Live tables of every layer, and at most one target."""

    def __init__(
        self,
        pool: SlotPool,
        source: ExpertSource,
        allowance: Allowance,
        wake: Callable[[], None],
        report: Callable[[PlacementReport], None],
        failed: Callable[[str], None],
    ) -> None:
        self.live = Live(0, 0, ())
        self.tables: list[LayerTable] = []
        self.target: Target | None = None
        self.staged_bytes = 0
        self.switches = 0
        self.stall_ms = 0.0
        self.stall_ms_max = 0.0
        self._pool = pool
        self._source = source
        self._allowance = allowance
        self._background = Background("staging", failed)
        self._wake = wake
        self._report = report
        self._slots: dict[Expert, int] = {}
        self._group: Group | None = None
        self._rank = 0

    # --- the loop's side ---------------------------------------------------------------------------------------------

    def enter(self, group: Group, rank: int, epoch: int, state: State) -> None:
        """Begin a generation with this state; loads what the slots lack, now. Raises PlacementError, DigestMismatch."""
        self._drop_target()
        self._allowance.idle()
        self._background.finish()
        self._group, self._rank = group, rank
        wanted = {(layer, e) for layer, held in enumerate(state) for e in held.experts[rank]}
        self._pool.give(self._slots.pop(expert) for expert in set(self._slots) - wanted)
        missing = sorted(wanted - set(self._slots))
        for expert, slot in zip(missing, self._pool.take(len(missing)), strict=True):
            self._source.load(expert, self._pool, slot, lambda _: None)
            self._slots[expert] = slot
        self.live = Live(epoch, 0, state)
        self.tables = [self._table(layer, state, self._slots) for layer in range(len(state))]

    def leave(self) -> None:
        """The generation is over: what is on its way is given up, what is live stays."""
        self._drop_target()
        self._group = None

    def offer(self, epoch: int, offered: Placement) -> None:
        """A new target, unless it is what is here already. Old news and what belongs elsewhere is refused."""
        newest = max(self.live.epoch, self.target.epoch if self.target else 0)
        if self._group is None or epoch == newest:
            return
        if epoch < newest:
            self._say("refused", epoch, reason=f"epoch {epoch} is older than {newest}")
            return
        try:
            _check_address(offered, self._group)
        except PlacementError as error:
            self._say("refused", epoch, reason=str(error))
            return
        self._drop_target()
        target = self.target = Target(epoch, offered, started=time.monotonic())
        group, rank, live = self._group, self._rank, self.live.state
        self._background.submit(lambda: self._prepare(target, group, rank, live))

    def standing(self) -> tuple[int, int, int, int]:
        """(epoch, instalment, digest, staged) of the target for this rank's record."""
        target = self.target
        if target is None:
            return 0, 0, 0, 0
        staged = -1 if target.refused else int(target.ready)
        return target.epoch, target.index + 1, target.digest, staged

    def commit(self, step: int) -> None:
        """Switch to the instalment that lies ready. Called between two steps, on every rank in the same one."""
        target, group = self.target, self._group
        assert target is not None
        assert group is not None
        began = time.perf_counter()
        state = target.states[target.index]
        for layer, table in target.tables.items():
            self.tables[layer] = table
        self._slots.update(target.slots)
        gone = [e for e in self._slots if e[1] not in state[e[0]].experts[self._rank]]
        self._pool.give(self._slots.pop(expert) for expert in gone)
        self.live = Live(target.epoch, target.index + 1, state)
        target.slots, target.tables, target.ready = {}, {}, False
        target.index += 1
        self._measured((time.perf_counter() - began) * 1e3)
        self._say("committed", target.epoch, step=step, moves=target.moves, stall_ms=self.stall_ms)
        if target.index == len(target.states):
            self.target = None
        else:
            slots = dict(self._slots)
            self._background.submit(lambda: self._stage(target, self._rank, state, slots))

    def close(self) -> None:
        """Stop the background."""
        self._drop_target()
        self._allowance.close()
        self._background.close()

    def _measured(self, stall_ms: float) -> None:
        self.switches += 1
        self.stall_ms = stall_ms
        self.stall_ms_max = max(self.stall_ms_max, stall_ms)

    def _drop_target(self) -> None:
        target, self.target = self.target, None
        if target is None:
            return
        target.cancelled = True
        self._allowance.wake()
        self._background.submit(lambda: self._give_up(target))  # after the job that may still write into them

    def _give_up(self, target: Target) -> None:
        self._pool.give(target.slots.values())
        target.slots = {}

    # --- the background's side -----------------------------------------------------------------------------------------

    def _prepare(self, target: Target, group: Group, rank: int, live: State) -> None:
        try:
            placement.check(target.placement, group)
            slots = [member.slots for member in group.members]
            states = placement.path(live, target.placement.layers, target.placement.order, slots)
            target.states = states or [target.placement.layers]
        except PlacementError as error:
            self._refuse(target, str(error), local=False)
            return
        self._stage(target, rank, live, dict(self._slots))

    def _stage(self, target: Target, rank: int, before: State, held: dict[Expert, int]) -> None:
        try:
            self._fill(target, rank, before, held)
        except Cancelled:
            return
        except (PlacementError, DigestMismatch, OSError, RuntimeError) as error:
            self._give_up(target)
            self._refuse(target, f"rank {rank} cannot stage: {error}", local=True)
            return
        target.digest = int(placement.digest(target.states[target.index]), 16) >> 1
        target.ready = True
        if not target.cancelled:
            self._say("staged", target.epoch)
            self._wake()

    def _fill(self, target: Target, rank: int, before: State, held: dict[Expert, int]) -> None:
        state = target.states[target.index]
        changed = [layer for layer in range(len(state)) if state[layer] != before[layer]]
        wanted = {(layer, expert) for layer in changed for expert in state[layer].experts[rank]}
        missing = sorted(wanted - set(held))
        if target.cancelled:
            raise Cancelled
        target.slots = dict(zip(missing, self._pool.take(len(missing)), strict=True))
        for expert, slot in target.slots.items():
            count = self._source.load(expert, self._pool, slot, self._allow(target))
            target.bytes += count
            self.staged_bytes += count
        target.moves = placement.moves(before, state)
        target.tables = {layer: self._table(layer, state, held | target.slots) for layer in changed}

    def _allow(self, target: Target) -> Allow:
        return lambda count: self._allowance.spend(count, lambda: target.cancelled)

    def _refuse(self, target: Target, reason: str, *, local: bool) -> None:
        target.refused = reason
        if not target.cancelled:
            self._say("refused", target.epoch, reason=reason, local=local)
            self._wake()

    def _table(self, layer: int, state: State, slots: dict[Expert, int]) -> LayerTable:
        here = {e: slots[layer, e] for e in state[layer].experts[self._rank]}
        return LayerTable.of(state[layer], self._source.experts, here)

    def _say(
        self,
        event: PlacementEventName,
        epoch: int,
        *,
        step: int = 0,
        moves: int = 0,
        stall_ms: float = 0.0,
        reason: str = "",
        local: bool = False,
    ) -> None:
        target = self.target
        self._report(
            PlacementReport(
                event=event,
                epoch=epoch,
                instalment=self.live.instalment if event == "committed" else (target.index + 1 if target else 0),
                instalments=len(target.states) if target else 0,
                step=step,
                moves=moves,
                bytes=moves * self._pool.slot_bytes,
                stall_ms=stall_ms,
                reason=reason,
                local=local,
            )
        )


def _check_address(offered: Placement, group: Group) -> None:
    """The cheap part of the check, so that what is meant for others never displaces a target."""
    if offered.model_digest != group.model_digest:
        raise PlacementError(f"placement is for model {offered.model_digest}, this group serves {group.model_digest}")
    if (offered.group, offered.generation) != (group.group, group.generation):
        there = f"group {offered.group!r} generation {offered.generation}"
        raise PlacementError(f"placement is for {there}, this is {group.group!r} in generation {group.generation}")
