"""The choices of one request side by side, merged into one sequence of updates."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from moesaic.gateway.choice import Delta
from moesaic.gateway.errors import ApiError
from moesaic.gateway.plan import Plan
from moesaic.gateway.runner import Mesh, Runner
from moesaic.gateway.streams import Piece


@dataclass(frozen=True)
class Update:
    """News of a choice; `first` of its kind."""

    index: int
    delta: Delta
    first: bool


class InOrder:
    """Choice k begins only after choice k - 1 has begun: clients rely on it. Pure."""

    def __init__(self) -> None:
        self._begun = 0
        self._held: dict[int, list[Delta]] = {}

    def push(self, index: int, delta: Delta) -> list[Update]:
        """What can go out now."""
        if index < self._begun:
            return [Update(index, delta, first=False)]
        self._held.setdefault(index, []).append(delta)
        free: list[Update] = []
        while self._begun in self._held:
            deltas = self._held.pop(self._begun)
            free.extend(Update(self._begun, d, first=place == 0) for place, d in enumerate(deltas))
            self._begun += 1
        return free


class Generation:
    """A running request. `updates` ends after every choice has finished, or raises ApiError."""

    def __init__(self, mesh: Mesh, plan: Plan) -> None:
        self._mesh = mesh
        self._plan = plan
        self._queue: asyncio.Queue[tuple[int, Delta] | Exception] = asyncio.Queue()
        self._order = InOrder()
        self._ready: list[Update] = []
        self._unfinished = len(plan.jobs)
        self._begun = time.monotonic()
        self._last: dict[int, float] = {}
        self._finished: set[int] = set()
        self._output_tokens = 0
        self._cached_tokens = 0

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens, as the OpenAI API shapes them: those of the prompt once, however many choices."""
        return {
            "prompt_tokens": self._plan.prompt_tokens,
            "completion_tokens": self._output_tokens,
            "total_tokens": self._plan.prompt_tokens + self._output_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """While entered, engines work on it. Leaving early cancels what runs."""
        tasks = [asyncio.create_task(self._run(index)) for index in range(len(self._plan.jobs))]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._account()

    def abort(self, error: ApiError) -> None:
        """End it with an error."""
        self._queue.put_nowait(error)

    async def next(self) -> Update | None:
        """The next update, or None after the last. Raises ApiError. May be cancelled without losing anything."""
        while not self._ready:
            if not self._unfinished:
                return None
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            self._ready = self._order.push(*item)
            self._unfinished -= item[1].finish is not None
        return self._ready.pop(0)

    async def _run(self, index: int) -> None:
        choice = self._plan.choice(index)

        def take(piece: Piece) -> bool:
            delta = choice.push(piece)
            self._measure(index, delta)
            self._queue.put_nowait((index, delta))
            return delta.finish is not None

        await Runner(self._mesh, self._plan.jobs[index], take).run()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What went wrong is handed on: `next` raises it where the answer is made."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._queue.put_nowait(error)

    # --- figures --------------------------------------------------------------------------------------------------------

    def _measure(self, index: int, delta: Delta) -> None:
        metrics, model, now = self._mesh.metrics, self._plan.model.card.model, time.monotonic()
        if index in self._last and delta.tokens:
            metrics.itl.labels(model).observe((now - self._last[index]) / len(delta.tokens))
        elif not self._last:
            metrics.ttft.labels(model).observe(now - self._begun)
        self._last[index] = now
        self._output_tokens += len(delta.tokens)
        self._cached_tokens = max(self._cached_tokens, delta.cached_tokens)
        if delta.finish is not None:
            self._finished.add(index)
            metrics.success.labels(model, delta.finish).inc()

    def _account(self) -> None:
        metrics, model = self._mesh.metrics, self._plan.model.card.model
        metrics.success.labels(model, "abort").inc(len(self._plan.jobs) - len(self._finished))
        if not self._last:
            return  # it never began
        metrics.e2e.labels(model).observe(time.monotonic() - self._begun)
        metrics.prompt_tokens.labels(model).inc(self._plan.prompt_tokens)
        metrics.request_prompt.labels(model).observe(self._plan.prompt_tokens)
        metrics.generation_tokens.labels(model).inc(self._output_tokens)
        metrics.request_generation.labels(model).observe(self._output_tokens)
