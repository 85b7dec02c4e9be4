"""Groups, loads and windows as a planner meets them."""

from __future__ import annotations

import numpy as np

from moesaic.shared.arrays import Ints, pack
from moesaic.shared.messages import Group, Imbalance, Member, PhaseWindow, Source
from moesaic.shared.placement import in_order, used

LAYERS, EXPERTS = 2, 8


def record(
    *, ranks: int = 2, extra: int = 4, generation: int = 1, layers: int = LAYERS, experts: int = EXPERTS
) -> Group:
    """A formed group with `extra` slots per rank beyond what the default placement needs, and two spare ones."""
    need = max(used(in_order(layers, experts, ranks), rank) for rank in range(ranks))
    members = tuple(
        Member(
            engine=f"e{rank}",
            boot="b",
            node="n",
            device="cpu",
            host="127.0.0.1",
            bell=0,
            slots=need + extra + 2,
            spare=2,
            ready=True,
        )
        for rank in range(ranks)
    )
    return Group(
        group="g",
        generation=generation,
        size=ranks,
        model="tiny",
        model_digest="m",
        layers=layers,
        experts=experts,
        top_k=2,
        slot_bytes=1000,
        members=members,
        store="127.0.0.1:1",
    )


def skewed(hot: int = 0, *, layers: int = LAYERS, experts: int = EXPERTS, scale: int = 100) -> Ints:
    """Tokens `[L, E]`: four experts from `hot` on, all on one rank by default, take most."""
    counts = np.full((layers, experts), scale, dtype=np.int64)
    counts[:, [(hot + i) % experts for i in range(4)]] *= np.array([16, 8, 4, 2])
    return counts


def window(
    tokens: Ints,
    seq: int,
    *,
    epoch: int = 0,
    instalment: int = 0,
    generation: int = 1,
    digest: str = "m",
    step_ms: float | None = None,
    timing: tuple[float, ...] = (),
) -> Imbalance:
    """One second of load."""
    decode = PhaseWindow(
        steps=1,
        tokens=pack(tokens),
        active_steps=pack(np.minimum(tokens, 1)),
        step_ms=step_ms,
        timing=timing,
        balance=None,
        balance_best=None,
        balance_worst=None,
        worst_layer=None,
    )
    return Imbalance(
        source=Source(producer="monitor", boot="m1", seq=seq),
        group="g",
        model_digest=digest,
        generation=generation,
        epoch=epoch,
        instalment=instalment,
        ranks=2,
        begin=float(seq),
        end=float(seq + 1),
        engines=("e0", "e1"),
        phases={"decode": decode},
    )
