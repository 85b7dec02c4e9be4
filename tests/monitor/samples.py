"""Counter messages of made-up engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from moesaic.shared.arrays import pack
from moesaic.shared.messages import Load, Phase, PhaseLoad, Source

LAYERS, EXPERTS = 2, 4


def phase(seq: int, tokens: npt.ArrayLike, *, most: int = 10, total: int = 10, steps: int = 1) -> PhaseLoad:
    """Routed `tokens [L, E]` in `seq` steps; the costs of `steps` executed ones are the same in each layer."""
    routed = np.broadcast_to(np.asarray(tokens), (LAYERS, EXPERTS))
    costs = {"cost_total": total, "cost_max": most, "cost_best": 5 * steps, "executed_tokens": 0, "executed_experts": 0}
    packed: dict[str, Any] = {name: pack(np.full(LAYERS, value)) for name, value in costs.items()}
    return PhaseLoad(
        steps=seq,
        tokens=pack(routed),
        active_steps=pack(np.minimum(routed, seq)),
        executed_steps=steps,
        **packed,
    )


def load(
    seq: int,
    tokens: npt.ArrayLike,
    *,
    engine: str = "a",
    boot: str = "b1",
    rank: int = 0,
    ranks: int = 2,
    epoch: int = 0,
    instalment: int = 0,
    digest: str = "m",
    name: Phase = "decode",
    most: int = 10,
    total: int = 10,
    steps: int = 1,
) -> Load:
    """One message of one phase."""
    return Load(
        source=Source(producer=engine, boot=boot, seq=seq),
        at=0.0,
        group="g",
        model_digest=digest,
        rank=rank,
        ranks=ranks,
        generation=1,
        epoch=epoch,
        instalment=instalment,
        phases={name: phase(seq, tokens, most=most, total=total, steps=steps)},
    )


def timed(said: Load, *, us: int = 0, timing: Sequence[float] = ()) -> Load:
    """The same message with what its steps and experts took."""
    phases = {
        name: msgspec.structs.replace(phase, executed_us=us, timing=tuple(timing))
        for name, phase in said.phases.items()
    }
    return msgspec.structs.replace(said, phases=phases)
