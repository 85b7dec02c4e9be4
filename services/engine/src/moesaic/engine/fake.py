"""A backend without a model: made-up tokens at a steady pace, real counters and placements. For tests of other services."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from moesaic.engine.backend import BackendStatus, Events, LoadSnapshot, ModelSpec, Output, PlacementReport, Refusal
from moesaic.engine.config import EngineConfig
from moesaic.engine.counters import Counters
from moesaic.shared.dispatch import assign
from moesaic.shared.messages import Generate, Group, Placement, WireError
from moesaic.shared.placement import PlacementError, State, check, hosts, in_order, moves

STEP_S = 0.01
LAYERS, EXPERTS, TOP_K, VOCAB, CONTEXT = 4, 32, 4, 6144, 2048


def token_at(request: Generate, index: int) -> int:
    """Output `index` of a request: the same for the same prompt, wherever it is computed."""
    prompt = request.tokens[: len(request.tokens) - request.output_offset]
    return (sum(prompt) * 31 + index * 7919) % (VOCAB - 3) + 3


class FakeBackend:
    """See `Backend`. One step every 10 ms makes one token for every request; experts follow from the token."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._counters = Counters(LAYERS, EXPERTS)
        self._running: dict[str, tuple[Generate, int]] = {}
        self._group: Group | None = None
        self._rank = 0
        self._live: tuple[int, State] = (0, ())
        self._steps = 0
        self._generated = 0
        self._switches = 0
        self._task: asyncio.Task[None] | None = None
        self._events: Events | None = None
        names = ("tokenizer.json", "tokenizer_config.json")
        self._files = {n: (Path(config.model) / n).read_bytes() for n in names if (Path(config.model) / n).exists()}

    @property
    def spec(self) -> ModelSpec:
        """See Backend."""
        share = -(-LAYERS * EXPERTS // self._config.ranks)
        return ModelSpec(
            digest="fake",
            architecture="Fake",
            context=CONTEXT,
            vocab=VOCAB,
            layers=LAYERS,
            experts=EXPERTS,
            top_k=TOP_K,
            eos_token_ids=(0,),
            slot_bytes=1024,
            slots=share + 16 + self._config.spare_slots,
            spare=self._config.spare_slots,
            device="cpu",
            bell=0,
            files=self._files,
        )

    def start(self, events: Events) -> None:
        """See Backend. Must be called from the event loop."""
        self._events = events
        self._task = asyncio.get_running_loop().create_task(self._run())

    def rendezvous(self, group: Group) -> str:
        """See Backend."""
        return f"{group.members[0].host}:0"

    def join(self, group: Group, rank: int, epoch: int, placement: Placement | None) -> None:
        """See Backend."""
        self._group, self._rank = group, rank
        fits = placement is not None and placement.model_digest == group.model_digest
        state = placement.layers if placement is not None and fits else in_order(LAYERS, EXPERTS, group.size)
        self._live = (epoch if fits else 0, state)
        self._counters.placed(group.generation, self._live[0], 0)
        self._tell().joined(group.generation)

    def leave(self) -> None:
        """See Backend."""
        if self._group is not None:
            generation, self._group = self._group.generation, None
            self._tell().lost(generation, "left")

    def submit(self, request: Generate) -> Refusal | None:
        """See Backend."""
        if len(request.tokens) - request.output_offset + request.sampling.max_tokens > CONTEXT:
            return Refusal("too_long", f"more than {CONTEXT} tokens")
        self._running[request.request] = (request, request.output_offset)
        return None

    def cancel(self, request: str) -> None:
        """See Backend."""
        self._running.pop(request, None)

    def fail_all(self, error: WireError) -> None:
        """See Backend."""
        self._tell().outputs([Output(name, index, error=error) for name, (_, index) in self._running.items()])
        self._running.clear()

    def offer(self, epoch: int, placement: Placement) -> None:
        """See Backend. Staged and committed at once."""
        if self._group is None or epoch == self._live[0]:
            return
        try:
            check(placement, self._group)
        except PlacementError as error:
            self._refuse(epoch, str(error))
            return
        if epoch < self._live[0]:
            self._refuse(epoch, f"epoch {epoch} is older than {self._live[0]}")
            return
        moved = moves(self._live[1], placement.layers)
        self._live = (epoch, placement.layers)
        self._switches += 1
        self._counters.placed(self._group.generation, epoch, 1)
        self._tell().placement(PlacementReport("staged", epoch, 1, 1))
        self._tell().placement(PlacementReport("committed", epoch, 1, 1, self._steps, moved, moved * 1024))

    def _refuse(self, epoch: int, reason: str) -> None:
        self._tell().placement(PlacementReport("refused", epoch, 0, 0, reason=reason))

    def load(self) -> LoadSnapshot:
        """See Backend."""
        return self._counters.snapshot()

    def status(self) -> BackendStatus:
        """See Backend."""
        return BackendStatus(
            epoch=self._live[0],
            instalment=int(self._live[0] > 0),
            waiting=0,
            running=len(self._running),
            kv_blocks_used=len(self._running),
            kv_blocks_total=1024,
            kv_block_size=16,
            prefix_queries=0,
            prefix_hits=0,
            steps=self._steps,
            step_ms=STEP_S * 1e3,
            prompt_tokens=0,
            generated_tokens=self._generated,
            preemptions=0,
            switches=self._switches,
            switch_stall_ms=0.0,
            switch_stall_ms_max=0.0,
            staged_bytes=0,
        )

    def close(self) -> None:
        """See Backend."""
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def _tell(self) -> Events:
        if self._events is None:
            raise RuntimeError("start comes first")
        return self._events

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(STEP_S)
            if self._group is not None and self._running:
                self._step()

    def _step(self) -> None:
        self._steps += 1
        outputs = []
        for name, (request, index) in list(self._running.items()):
            last = index + 1 >= request.sampling.max_tokens
            token = token_at(request, index)
            outputs.append(Output(name, index, (token,), finish="length" if last else None))
            self._running[name] = (request, index + 1)
            if last:
                del self._running[name]
        self._count(np.array([output.tokens[0] for output in outputs]))
        self._generated += len(outputs)
        self._tell().outputs(outputs)

    def _count(self, tokens: np.ndarray) -> None:
        """Experts 0 to 7 get half of the tokens."""
        assert self._group is not None
        self._counters.begin("decode", np.ones(tokens.size, dtype=bool))
        for layer in range(LAYERS):
            spread = (tokens[:, None] + np.arange(TOP_K) * (1 + layer)) % EXPERTS
            routes = np.where(tokens[:, None] % 2 == 0, spread % 8, spread)
            self._counters.routed(layer, routes)
            at = assign(routes, *hosts(self._live[1][layer], EXPERTS), self._group.size)
            by_rank = np.bincount(at.reshape(-1), minlength=self._group.size)
            here = np.unique(routes.reshape(-1)[at.reshape(-1) == self._rank]).size
            self._counters.executed(layer, by_rank, self._rank, here)
        self._counters.end()
