"""The micro service's endpoints: what people may ask and order, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import orjson

from moesaic.planner import decide
from moesaic.planner.decide import No
from moesaic.planner.group import GroupPlanner
from moesaic.planner.policy import Problem
from moesaic.planner.proposal import Proposal
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


class Acting(Protocol):
    """What the service does for the desk."""

    @property
    def groups(self) -> Mapping[str, GroupPlanner]:
        """By name."""

    async def plan(self, group: GroupPlanner) -> tuple[Proposal, int] | No:
        """Plan now and store; the placement and its epoch."""

    async def dry_run(self, group: GroupPlanner) -> tuple[decide.Draft, Problem] | No:
        """Plan now and store nothing."""

    async def pause(self, group: GroupPlanner, *, paused: bool) -> None:
        """Stop or go on planning by itself."""

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
        draft, problem = made
        target = draft.proposal.placement.layers
        answer = {
            "group": group.name,
            "would_move": draft.verdict.go,
            "reason": draft.verdict.reason,
            "forecast": msgspec.to_builtins(draft.expected.forecast),
            "moves": _copies(problem.live, target),
            "removes": _copies(target, problem.live),
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
        "invalid": group.invalid,
        "decisions": group.journal.shown(),
    }
