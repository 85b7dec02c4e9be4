"""Load counters of one engine: who was routed where, and what was executed. numpy only."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import numpy as np

from moesaic.engine.backend import LoadSnapshot
from moesaic.shared.arrays import Ints, pack
from moesaic.shared.messages import PHASES, Phase, PhaseLoad


class _PhaseCounters:
    def __init__(self, layers: int, experts: int) -> None:
        self.steps = 0
        self.tokens = np.zeros((layers, experts), dtype=np.int64)
        self.active_steps = np.zeros((layers, experts), dtype=np.int64)
        self.executed_steps = 0
        self.executed_us = 0
        self.executed = np.zeros((5, layers), dtype=np.int64)  # tokens, experts, cost total, max, best
        self.timing = np.zeros((4, 4))

    def packed(self) -> PhaseLoad:
        tokens, experts, total, most, best = (pack(row) for row in self.executed)
        return PhaseLoad(
            steps=self.steps,
            tokens=pack(self.tokens),
            active_steps=pack(self.active_steps),
            executed_steps=self.executed_steps,
            executed_us=self.executed_us,
            executed_tokens=tokens,
            executed_experts=experts,
            cost_total=total,
            cost_max=most,
            cost_best=best,
            timing=tuple(self.timing[np.triu_indices(4)].tolist()) if self.timing[0, 0] else (),
        )


class Counters:
    """Counts one step at a time; a step that does not finish is not counted.

    Within a step: `begin`, then per MoE layer `routed` and `executed`, then `end`. Snapshots may be taken from another thread.
    """

    def __init__(self, layers: int, experts: int) -> None:
        self._layers = layers
        self._experts = experts
        self._phases: dict[Phase, _PhaseCounters] = {phase: _PhaseCounters(layers, experts) for phase in PHASES}
        self._key = (0, 0, 0)
        self._lock = threading.Lock()
        self._phase: Phase = "decode"
        self._decode = np.zeros(0, dtype=bool)
        self._step: dict[Phase, Ints] = {}
        self._done = np.zeros((5, layers), dtype=np.int64)
        self._began = 0.0
        self._timed: list[tuple[float, float, float, float]] = []

    def placed(self, generation: int, epoch: int, instalment: int) -> None:
        """From now on steps run under this placement: what was executed under another says nothing about it."""
        with self._lock:
            self._key = (generation, epoch, instalment)
            for counters in self._phases.values():
                counters.executed_steps = 0
                counters.executed_us = 0
                counters.executed = np.zeros_like(counters.executed)

    def begin(self, phase: Phase, decode: np.ndarray) -> None:
        """A step of this phase; `decode [T]` tells this rank's own decode tokens from its prefill tokens."""
        self._phase = phase
        self._decode = decode
        self._step = {p: np.zeros((self._layers, self._experts), dtype=np.int64) for p in PHASES}
        self._done = np.zeros((5, self._layers), dtype=np.int64)
        self._began = time.perf_counter()
        self._timed = []

    def routed(self, layer: int, routes: Ints) -> None:
        """This rank's own tokens' experts `[T, K]`."""
        for phase, rows in (("decode", self._decode), ("prefill", ~self._decode)):
            if rows.any():
                self._step[phase][layer] = np.bincount(routes[rows].reshape(-1), minlength=self._experts)  # type: ignore[index]

    def executed(self, layer: int, tokens_by_rank: Ints, rank: int, experts_here: int) -> None:
        """What all ranks compute for this layer, in tokens `[R]`, and the experts active on this one."""
        total = int(tokens_by_rank.sum())
        best = -(-total // tokens_by_rank.size)
        self._done[:, layer] = (tokens_by_rank[rank], experts_here, total, tokens_by_rank.max(), best)

    def timed(self, experts: int, tokens: int, seconds: float) -> None:
        """How long this rank's experts of one layer took."""
        self._timed.append((1.0, experts, tokens, seconds * 1e3))

    def end(self) -> None:
        """The step is done: add it."""
        took = round((time.perf_counter() - self._began) * 1e6)
        with self._lock:
            for phase, counts in self._step.items():
                if counts.any():
                    counters = self._phases[phase]
                    counters.steps += 1
                    counters.tokens += counts
                    counters.active_steps += counts > 0
            executed = self._phases[self._phase]
            executed.executed_steps += 1
            executed.executed += self._done
            executed.executed_us += took
            if self._timed:
                rows = np.array(self._timed)
                executed.timing += rows.T @ rows

    def snapshot(self) -> LoadSnapshot:
        """Everything up to the last finished step."""
        with self._lock:
            generation, epoch, instalment = self._key
            phases: Mapping[Phase, PhaseLoad] = {phase: c.packed() for phase, c in self._phases.items()}
        return LoadSnapshot(generation, epoch, instalment, phases)
