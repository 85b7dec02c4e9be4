"""Which tokens the next step computes. Pure: no torch, no clock of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from moesaic.engine.scheduling.blocks import Blocks
from moesaic.engine.scheduling.request import Chunk, Request


@dataclass(frozen=True)
class Limits:
    """Bounds of a step and of the queue."""

    step_tokens: int
    max_running: int
    max_waiting: int


class Scheduler:
    """Running requests first (decode, then unfinished prompts), then waiting ones, within the token budget.

    When KV blocks run out, the request that came last gives its blocks up and waits again: its tokens are kept, their KV
    is computed anew.
    """

    def __init__(self, limits: Limits, blocks: Blocks) -> None:
        self.limits = limits
        self.blocks = blocks
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def remove(self, request_id: str) -> Request | None:
        """Take a request out, wherever it is, and free its blocks."""
        for queue in (self.running, self.waiting):
            for request in queue:
                if request.id == request_id:
                    queue.remove(request)
                    self._release(request)
                    return request
        return None

    def expired(self, now: float) -> list[Request]:
        """Waiting requests whose deadline has passed."""
        return [r for r in self.waiting if r.deadline is not None and r.deadline < now]

    def next(self) -> list[Chunk]:
        """The next step's chunks; nothing changes for them until `advance`, so an unfinished step can be repeated."""
        budget = self.limits.step_tokens
        chunks: list[Chunk] = []
        for request in sorted(self.running, key=lambda r: not r.decoding):
            if budget == 0:
                break
            if request not in self.running:
                continue  # preempted for one before it
            budget -= self._plan(request, budget, chunks)
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_running:
            if not self._admit(self.waiting[0]):
                break
            request = self.waiting.popleft()
            self.running.append(request)
            planned = self._plan(request, budget, chunks, preempt=False)
            budget -= planned
            if not planned:
                self._preempt(request, count=False)
                break
        return chunks

    def advance(self, chunks: Sequence[Chunk], sampled: Sequence[Sequence[int]]) -> None:
        """A step is done: `sampled[i]` are the tokens that chunk i yielded (none where it does not sample)."""
        for chunk, tokens in zip(chunks, sampled, strict=True):
            request = chunk.request
            request.computed = chunk.first + chunk.count
            self._name(request)
            request.tokens.extend(tokens)

    def _name(self, request: Request) -> None:
        size = self.blocks.size
        while (request.named + 1) * size <= request.computed:
            full = request.tokens[request.named * size : (request.named + 1) * size]
            request.name = self.blocks.name(full, request.blocks[request.named], request.name)
            request.named += 1

    def _plan(self, request: Request, budget: int, chunks: list[Chunk], *, preempt: bool = True) -> int:
        count = min(budget, len(request.tokens) - request.computed)
        if not self._room(request, request.computed + count, chunks, preempt=preempt):
            return 0
        chunks.append(Chunk(request, request.computed, count, decode=request.decoding))
        return count

    def _room(self, request: Request, tokens: int, chunks: list[Chunk], *, preempt: bool) -> bool:
        while True:
            more = -(-tokens // self.blocks.size) - len(request.blocks)
            taken = self.blocks.take(max(0, more))
            if taken is not None:
                request.blocks.extend(taken)
                return True
            planned = {id(chunk.request) for chunk in chunks}
            victim = next((r for r in reversed(self.running) if id(r) not in planned and r is not request), None)
            if not preempt:
                return False
            if victim is None or self.running.index(victim) < self.running.index(request):
                self._preempt(request)
                return False
            self._preempt(victim)

    def _admit(self, request: Request) -> bool:
        """Look its prefix up, and see that at least one block more can be had."""
        request.blocks, request.name = self.blocks.find(request.tokens)
        request.named = len(request.blocks)
        request.computed = request.named * self.blocks.size
        if self.running and self.blocks.free < 1:
            self._release(request)
            return False
        if not request.admitted:
            request.admitted = True
            request.cached_tokens = min(request.computed, request.prompt_length)
            self.prefix_queries += len(request.tokens)
            self.prefix_hits += request.computed
        return True

    def _preempt(self, request: Request, *, count: bool = True) -> None:
        self.preemptions += count
        self.running.remove(request)
        self._release(request)
        self.waiting.appendleft(request)

    def _release(self, request: Request) -> None:
        self.blocks.give(request.blocks)
        request.blocks = []
        request.computed = request.named = request.name = 0
