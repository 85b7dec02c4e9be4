"""Plans, stores and takes back: the decisions of `decide` carried out, one at a time for each group."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

from moesaic.planner import decide
from moesaic.planner.config import PlannerConfig
from moesaic.planner.decide import No
from moesaic.planner.group import Failed, GroupPlanner
from moesaic.planner.policy import Hold, Policy, ProblemError
from moesaic.planner.proposal import Proposal, Question
from moesaic.planner.store import Store
from moesaic.planner.wishes import Wishes
from moesaic.shared import log
from moesaic.shared.bus import BusError
from moesaic.shared.complaints import Complaints
from moesaic.shared.messages import now


class Work:
    """Holds the groups. `changed` is called whenever a deadline may have moved."""

    def __init__(self, config: PlannerConfig, policy: Policy, store: Store, changed: Callable[[], None]) -> None:
        self.groups: dict[str, GroupPlanner] = {}
        self._config = config
        self._policy = policy
        self._store = store
        self._changed = changed
        self._log = log.get("planner")
        self._locks: dict[str, asyncio.Lock] = {}
        self.complaints = Complaints(self._log)

    def now(self) -> float:
        """See Acting."""
        return time.monotonic()

    def shown(self) -> dict[str, Any]:
        """See Acting."""
        return {"policy": self._config.policy, "bad": self.complaints.count}

    def _lock(self, group: GroupPlanner) -> asyncio.Lock:
        return self._locks.setdefault(group.name, asyncio.Lock())

    async def consider(self, group: GroupPlanner, *, forced: bool) -> tuple[Proposal, int] | No:
        """Plan, and store what is worth it."""
        async with self._lock(group):
            asked = decide.question(group, self.now(), now(), forced=forced)
            if isinstance(asked, No):
                return asked
            target = await self._ask(group, asked)
            if isinstance(target, No):
                return target
            proposal = decide.answer(group, asked, target, self.now(), now(), forced=forced)
            return proposal if isinstance(proposal, No) else await self._put(group, proposal)

    async def _ask(self, group: GroupPlanner, asked: Question) -> Hold | No:
        try:
            return await asyncio.to_thread(self._policy, asked.problem)
        except ProblemError as error:
            no = No("impossible", str(error))
            group.note(no.kind, no.reason, now())
            return no
        except Exception as error:  # noqa: BLE001 - a policy is exchangeable code: its bugs end a plan, not the planner
            self._log.error("policy failed", policy=self._config.policy, exc_info=error)
            group.invalid += 1
            no = No("invalid", f"policy {self._config.policy!r} failed: {type(error).__name__}")
            group.note(no.kind, no.reason, now())
            return no

    async def _put(self, group: GroupPlanner, proposal: Proposal) -> tuple[Proposal, int] | No:
        try:
            epoch = await self._store.put(group, proposal)
        except BusError as error:
            no = No("not_stored", f"{type(error).__name__}: {error}")
            group.note(no.kind, no.reason, now())
            return no
        group.on_own(proposal, epoch, self.now(), now())
        await self._store.tell(group, proposal, epoch)
        self._changed()
        return proposal, epoch

    async def go_back(self, group: GroupPlanner, failed: Failed) -> None:
        """Store what was live before, after a placement has failed."""
        async with self._lock(group):
            proposal = decide.way_back(group, failed, now())
            if proposal is not None:
                await self._put(group, proposal)

    async def plan(self, group: GroupPlanner) -> tuple[Proposal, int] | No:
        """See Acting."""
        return await self.consider(group, forced=True)

    async def dry_run(self, group: GroupPlanner) -> tuple[decide.Draft, Question] | No:
        """See Acting."""
        async with self._lock(group):
            asked = decide.question(group, self.now(), now(), forced=True)
            if isinstance(asked, No):
                return asked
            target = await self._ask(group, asked)
            if isinstance(target, No):
                return target
            made = decide.draft(group, asked, target, self.now(), now())
            return made if isinstance(made, No) else (made, asked)

    async def pause(self, group: GroupPlanner, *, paused: bool) -> None:
        """See Acting."""
        group.paused = paused
        group.note("paused" if paused else "resumed", "by hand", now())
        await self._store.save(group, self.now(), at_once=True)

    async def order(self, group: GroupPlanner, wishes: Wishes, what: str) -> None:
        """See Acting."""
        group.wishes = wishes
        group.note("ordered", what, now())
        await self._store.save(group, self.now(), at_once=True)
        group.asked_at = -math.inf
        await self.consider(group, forced=False)

    async def roll_back(self, group: GroupPlanner, epoch: int) -> int | No:
        """See Acting."""
        async with self._lock(group):
            proposal = decide.back_to(group, epoch, f"by hand, to epoch {epoch}", now())
            done = proposal if isinstance(proposal, No) else await self._put(group, proposal)
            if isinstance(done, No):
                return done
            group.rollout.hold(self.now() + self._config.hold_s)
            return done[1]
