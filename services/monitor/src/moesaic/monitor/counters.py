"""One engine's counters as numpy arrays, checked, and the difference of two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from moesaic.shared.arrays import Floats, Ints, unpack
from moesaic.shared.messages import PHASES, BadMessage, IntArray, Load, Phase, PhaseLoad

TIMING = 10
"""Numbers of `PhaseLoad.timing`."""
Shape = tuple[int, int]
"""(MoE layers, experts)."""
Key = tuple[int, int, int]
"""(generation, epoch, instalment): the placement under which something was executed."""


@dataclass(frozen=True)
class Routed:
    """Which experts this engine's own tokens took: `tokens`, `active_steps` `[L, E]`; `timing [10]` as in `PhaseLoad`."""

    steps: int
    tokens: Ints
    active_steps: Ints
    timing: Floats = field(default_factory=lambda: np.zeros(TIMING))

    def minus(self, other: Routed) -> Routed:
        """What came since."""
        return Routed(
            self.steps - other.steps,
            self.tokens - other.tokens,
            self.active_steps - other.active_steps,
            self.timing - other.timing,
        )

    @property
    def sound(self) -> bool:
        """No count is negative."""
        return self.steps >= 0 and bool((self.tokens >= 0).all() and (self.active_steps >= 0).all())


@dataclass(frozen=True)
class Executed:
    """What the whole group computed, in tokens: `total`, `most`, `best` `[L]`, sums over steps; `us` they took."""

    steps: int
    us: int
    total: Ints
    most: Ints
    best: Ints

    def minus(self, other: Executed) -> Executed:
        """What came since, under the same placement."""
        return Executed(
            self.steps - other.steps,
            self.us - other.us,
            self.total - other.total,
            self.most - other.most,
            self.best - other.best,
        )

    @property
    def sound(self) -> bool:
        """No count is negative."""
        return min(self.steps, self.us) >= 0 and all(bool((a >= 0).all()) for a in (self.total, self.most, self.best))


@dataclass(frozen=True)
class PhaseCounts:
    """Both kinds of counters of one phase."""

    routed: Routed
    executed: Executed


@dataclass(frozen=True)
class Counters:
    """A `Load` message, unpacked."""

    engine: str
    boot: str
    seq: int
    model_digest: str
    shape: Shape
    rank: int
    ranks: int
    key: Key
    phases: Mapping[Phase, PhaseCounts]

    def since(self, base: Counters | None, *, replaced: bool) -> Counters:
        """The counts that came after `base` (None: after the boot). Raises BadMessage where a count went down.

        With `replaced`, another placement was committed since, and what was executed counts whole: it began at zero then.
        """
        if base is None:
            return self
        phases: dict[Phase, PhaseCounts] = {}
        for phase, counts in self.phases.items():
            before = base.phases[phase]
            executed = counts.executed if replaced else counts.executed.minus(before.executed)
            phases[phase] = PhaseCounts(counts.routed.minus(before.routed), executed)
            if not (phases[phase].routed.sound and executed.sound):
                raise BadMessage(f"{phase} counters of {self.engine} went down within one boot")
        return replace(self, phases=phases)


def read(load: Load) -> Counters:
    """The message's counters, every phase present. Raises BadMessage where shapes disagree or a count is negative."""
    shape = _shape(load)
    zero = PhaseCounts(_no_routes(shape), _nothing_executed(shape))
    phases = {phase: _phase(load.phases[phase], shape) if phase in load.phases else zero for phase in PHASES}
    if not all(counts.routed.sound and counts.executed.sound for counts in phases.values()):
        raise BadMessage("a counter is negative")
    if load.ranks < 1 or not 0 <= load.rank < load.ranks or load.source.seq < 1:
        raise BadMessage(f"rank {load.rank} of {load.ranks}, sequence {load.source.seq}")
    return Counters(
        engine=load.source.producer,
        boot=load.source.boot,
        seq=load.source.seq,
        model_digest=load.model_digest,
        shape=shape,
        rank=load.rank,
        ranks=load.ranks,
        key=(load.generation, load.epoch, load.instalment),
        phases=phases,
    )


def _shape(load: Load) -> Shape:
    shapes = {phase.tokens.shape for phase in load.phases.values()}
    if len(shapes) != 1:
        raise BadMessage(f"phases of {len(shapes)} shapes")
    shape = shapes.pop()
    if len(shape) != 2 or min(shape) < 1:
        raise BadMessage(f"tokens have shape {shape}, not [layers, experts]")
    return shape[0], shape[1]


def _phase(load: PhaseLoad, shape: Shape) -> PhaseCounts:
    layers = shape[:1]
    return PhaseCounts(
        Routed(load.steps, _array(load.tokens, shape), _array(load.active_steps, shape), _timing(load)),
        Executed(
            load.executed_steps,
            load.executed_us,
            _array(load.cost_total, layers),
            _array(load.cost_max, layers),
            _array(load.cost_best, layers),
        ),
    )


def _timing(load: PhaseLoad) -> Floats:
    if not load.timing:
        return np.zeros(TIMING)
    timing = np.array(load.timing, dtype=np.float64)
    if timing.shape != (TIMING,) or not np.isfinite(timing).all():
        raise BadMessage(f"timing has {timing.size} numbers instead of {TIMING}, or some that are none")
    return timing


def _array(packed: IntArray, shape: tuple[int, ...]) -> Ints:
    if packed.shape != shape:
        raise BadMessage(f"an array has shape {packed.shape} instead of {shape}")
    return unpack(packed)


def _no_routes(shape: Shape) -> Routed:
    return Routed(0, np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64))


def _nothing_executed(shape: Shape) -> Executed:
    none = np.zeros(shape[0], dtype=np.int64)
    return Executed(0, 0, none, none, none)
