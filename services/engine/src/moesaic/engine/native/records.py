"""What the ranks tell each other at the beginning of every step, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from moesaic.shared.messages import Phase


@dataclass(frozen=True)
class Record:
    """One rank's fixed record of whole numbers. `staged`: 1 the instalment lies ready, -1 refused, 0 neither."""

    generation: int
    prefill: int
    decode: int
    epoch: int = 0
    instalment: int = 0
    digest: int = 0
    staged: int = 0
    leaving: int = 0

    def pack(self) -> list[int]:
        """As numbers."""
        return list(astuple(self))


WIDTH = len(fields(Record))


@dataclass(frozen=True)
class Decision:
    """The same on every rank, since it follows from the same records alone."""

    sizes: tuple[int, ...]
    """Tokens of each rank in this step."""
    phase: Phase
    """prefill if any rank has prefill tokens."""
    commit: bool
    leaving: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all ranks."""
        return sum(self.sizes)


class GenerationMixed(RuntimeError):
    """Ranks of different generations met: the group must form anew."""


def decide(records: Sequence[Record]) -> Decision:
    """What the step does. A commit needs every rank to name the same instalment of the same target, and to have it."""
    first = records[0]
    if any(r.generation != first.generation for r in records):
        raise GenerationMixed(f"generations {sorted({r.generation for r in records})} in one step")
    target = (first.epoch, first.instalment, first.digest, 1)
    return Decision(
        sizes=tuple(r.prefill + r.decode for r in records),
        phase="prefill" if any(r.prefill for r in records) else "decode",
        commit=first.epoch > 0 and all((r.epoch, r.instalment, r.digest, r.staged) == target for r in records),
        leaving=tuple(rank for rank, r in enumerate(records) if r.leaving),
    )
