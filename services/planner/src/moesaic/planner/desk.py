"""The micro service's endpoints: what people may ask and order, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import orjson

from moesaic.planner import decide
from moesaic.planner.decide import No
from moesaic.planner.group import GroupPlanner
from moesaic.planner.proposal import Proposal, Question
from moesaic.planner.wishes import Wishes
from moesaic.shared.bus import Endpoint, ServiceError
from moesaic.shared.placement import State, holds, used

LISTED = 256
"""Copies that a dry run names at most."""
HARMLESS = {"best_already"}
"""Reasons not to move that are an answer, not an error."""


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request's body; empty for the only group."""

    group: str = ""
    epoch: int | None = None
    layer: int | None = None
    expert: int | None = None
    rank: int | None = None


class Acting(Protocol):
    """What the service does for the desk."""

    @property
    def groups(self) -> Mapping[str, GroupPlanner]:
        """By name."""

    async def plan(self, group: GroupPlanner) -> tuple[Proposal, int] | No:
        """Plan now and store; the placement and its epoch."""

    async def dry_run(self, group: GroupPlanner) -> tuple[decide.Draft, Question] | No:
        """Plan now and store nothing."""

    async def pause(self, group: GroupPlanner, *, paused: bool) -> None:
        """Stop or go on planning by itself."""

    async def order(self, group: GroupPlanner, wishes: Wishes, what: str) -> None:
        """Keep to these wishes from now on."""

    async def roll_back(self, group: GroupPlanner, epoch: int) -> int | No:
        """Store an epoch's content again; the new epoch."""

    def shown(self) -> dict[str, Any]:
        """What concerns no group."""

    def now(self) -> float:
        """Seconds of the service's steady clock."""


class Desk:
    """Reads orders, checks them, answers."""

    def __init__(self, acting: Acting) -> None:
        self._acting = acting

    def endpoints(self) -> dict[str, Endpoint]:
        """By name."""
        return {
            "status": self.status,
            "plan": self.plan,
            "dry_run": self.dry_run,
            "pause": self.pause,
            "resume": self.resume,
            "roll_back": self.roll_back,
            "pin": self.pin,
            "unpin": self.unpin,
            "forbid": self.forbid,
            "allow": self.allow,
        }

    async def status(self, data: bytes) -> bytes:
        """Of the group named, or of all."""
        name = _order(data).group
        groups = [self._group(name)] if name else self._acting.groups.values()
        shown = {group.name: _shown(group, self._acting.now()) for group in groups}
        return orjson.dumps(self._acting.shown() | {"groups": shown})

    async def plan(self, data: bytes) -> bytes:
        """Plan now, whatever the interval."""
        group = self._group(_order(data).group)
        done = await self._acting.plan(group)
        if isinstance(done, No):
            return orjson.dumps({"group": group.name, "proposed": False, "reason": _harmless(done)})
        proposal, epoch = done
        forecast = msgspec.to_builtins(proposal.placement.forecast)
        answer = {"group": group.name, "proposed": True, "epoch": epoch, "reason": proposal.placement.reason}
        return orjson.dumps(answer | {"forecast": forecast})

    async def dry_run(self, data: bytes) -> bytes:
        """What would be planned now."""
        group = self._group(_order(data).group)
        made = await self._acting.dry_run(group)
        if isinstance(made, No):
            return orjson.dumps({"group": group.name, "moves": [], "reason": _harmless(made), "forecast": None})
        draft, asked = made
        target = draft.proposal.placement.layers
        answer = {
            "group": group.name,
            "would_move": draft.verdict.go,
            "reason": draft.verdict.reason,
            "forecast": msgspec.to_builtins(draft.expected.forecast),
            "moves": _copies(asked.live, target),
            "removes": _copies(target, asked.live),
        }
        return orjson.dumps(answer)

    async def pause(self, data: bytes) -> bytes:
        """Plan no more by itself."""
        return await self._pause(data, paused=True)

    async def resume(self, data: bytes) -> bytes:
        """Plan by itself again."""
        return await self._pause(data, paused=False)

    async def _pause(self, data: bytes, *, paused: bool) -> bytes:
        group = self._group(_order(data).group)
        await self._acting.pause(group, paused=paused)
        return orjson.dumps({"group": group.name, "paused": paused})

    async def roll_back(self, data: bytes) -> bytes:
        """To the epoch named, to what is live while something is on its way, else to what was live before."""
        order = _order(data)
        group = self._group(order.group)
        epoch = order.epoch
        if epoch is None:
            epoch = group.live.epoch if group.rollout.on_the_way else group.live.before(group.live.epoch)
        if epoch is None:
            raise ServiceError(409, "there is no earlier placement to go back to")
        if group.live.state(epoch) is None:
            raise ServiceError(404, f"epoch {epoch} is not known or does not fit this group")
        done = await self._acting.roll_back(group, epoch)
        if isinstance(done, No):
            raise ServiceError(409, done.reason)
        return orjson.dumps({"group": group.name, "epoch": done, "content_of": epoch})

    async def pin(self, data: bytes) -> bytes:
        """An expert of a layer must have a copy on a rank."""
        group, where = self._copy(data)
        wishes = Wishes(group.wishes.pinned | {where}, group.wishes.forbidden)
        if where[2] in wishes.forbidden:
            raise ServiceError(409, f"rank {where[2]} must be empty")
        return await self._ordered(group, wishes, "pin layer {} expert {} to rank {}".format(*where))

    async def unpin(self, data: bytes) -> bytes:
        """That is no order any more."""
        group, where = self._copy(data)
        if where not in group.wishes.pinned:
            raise ServiceError(404, "layer {} expert {} is not pinned to rank {}".format(*where))
        wishes = Wishes(group.wishes.pinned - {where}, group.wishes.forbidden)
        return await self._ordered(group, wishes, "unpin layer {} expert {} from rank {}".format(*where))

    async def forbid(self, data: bytes) -> bytes:
        """A rank must give up all its experts."""
        group, rank = self._rank(data)
        wishes = Wishes(group.wishes.pinned, group.wishes.forbidden | {rank})
        if any(pinned == rank for _, _, pinned in wishes.pinned):
            raise ServiceError(409, f"experts are pinned to rank {rank}")
        record = group.live.record
        assert record is not None
        left = sum(slots for r, slots in enumerate(record.budget) if r not in wishes.forbidden)
        if left < record.layers * record.experts:
            raise ServiceError(
                409, f"{record.layers * record.experts} experts do not fit in the {left} slots that are left"
            )
        return await self._ordered(group, wishes, f"keep rank {rank} empty")

    async def allow(self, data: bytes) -> bytes:
        """A rank may hold experts again."""
        group, rank = self._rank(data)
        if rank not in group.wishes.forbidden:
            raise ServiceError(404, f"rank {rank} is not forbidden")
        wishes = Wishes(group.wishes.pinned, group.wishes.forbidden - {rank})
        return await self._ordered(group, wishes, f"use rank {rank} again")

    async def _ordered(self, group: GroupPlanner, wishes: Wishes, what: str) -> bytes:
        await self._acting.order(group, wishes, what)
        return orjson.dumps({"group": group.name} | _wishes(group))

    def _copy(self, data: bytes) -> tuple[GroupPlanner, tuple[int, int, int]]:
        order = _order(data)
        group = self._group(order.group)
        record = group.live.record
        if order.layer is None or order.expert is None or order.rank is None:
            raise ServiceError(400, "name layer, expert and rank")
        where = (order.layer, order.expert, order.rank)
        shape = (record.layers, record.experts, record.size) if record else (0, 0, 0)
        for name, value, end in zip(("layer", "expert", "rank"), where, shape, strict=True):
            if not 0 <= value < end:
                raise ServiceError(400, f"{name} is from 0 to {end - 1}, not {value}")
        return group, where

    def _rank(self, data: bytes) -> tuple[GroupPlanner, int]:
        order = _order(data)
        group = self._group(order.group)
        size = group.live.record.size if group.live.record else 0
        if order.rank is None or not 0 <= order.rank < size:
            raise ServiceError(400, f"name a rank from 0 to {size - 1}")
        return group, order.rank

    def _group(self, name: str) -> GroupPlanner:
        groups = self._acting.groups
        if name:
            if name not in groups:
                raise ServiceError(404, f"no group {name[:64]!r}")
            return groups[name]
        if len(groups) != 1:
            raise ServiceError(404 if not groups else 400, f"there are {len(groups)} groups: name one")
        return next(iter(groups.values()))


def _order(data: bytes) -> Order:
    try:
        return msgspec.convert(orjson.loads(data), Order) if data.strip() else Order()
    except (orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise ServiceError(400, f"not an order: {error}") from error


def _harmless(no: No) -> str:
    if no.kind not in HARMLESS:
        raise ServiceError(409, no.reason)
    return no.reason


def _copies(live: State, target: State) -> list[dict[str, int]]:
    new = sorted(holds(target) - holds(live))[:LISTED]
    return [{"layer": layer, "rank": rank, "expert": expert} for layer, rank, expert in new]


def _cost(group: GroupPlanner) -> dict[str, Any] | None:
    if group.live.record is None or not group.live.record.formed:
        return None
    cost = group.cost()
    return {"unit": cost.unit, "fixed": cost.fixed, "expert": cost.expert, "token": cost.token}


def _wishes(group: GroupPlanner) -> dict[str, Any]:
    pinned = [{"layer": i, "expert": e, "rank": r} for i, e, r in sorted(group.wishes.pinned)]
    return {"pinned": pinned, "forbidden": sorted(group.wishes.forbidden)}


def _shown(group: GroupPlanner, now: float) -> dict[str, Any]:
    record, live, load = group.live.record, group.live, group.load
    state = live.state(live.epoch)
    mine = group.rollout.on_the_way
    return {
        "generation": record.generation if record else 0,
        "formed": bool(record and record.formed),
        "ranks": record.size if record else 0,
        "epoch": live.epoch,
        "confirmed": live.confirmed,
        "latest": live.latest,
        "settled": live.settled,
        "on_the_way": None if mine is None else {"epoch": mine.epoch, "going_back": mine.going_back},
        "paused": group.paused,
        "waits_s": round(max(0.0, group.rollout.not_before - now), 3),
        "budget": list(record.budget) if record else [],
        "used": [used(state, rank) for rank in range(len(state[0].experts))] if state else [],
        "tokens_per_expert": round(load.seen, 3) if load else 0.0,
        "similarity": load.similarity() if load else None,
        "domain": load.domain if load else 0,
        "forecast": {"best": load.best, "errors": {k: round(v, 4) for k, v in load.scores.items()}} if load else None,
        "cost": _cost(group),
        "trial": group.trial.epoch,
        "invalid": group.invalid,
        "decisions": group.journal.shown(),
    } | _wishes(group)
