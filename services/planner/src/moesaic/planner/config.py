"""Settings of the planner."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from moesaic.shared import config


class PlannerConfig(config.Common, frozen=True, kw_only=True):
    """Decides which rank holds which expert, from what the monitor measures."""

    policy: Annotated[
        str,
        Meta(
            description="static: never move; greedy: from the live placement, best relief first; eplb: DeepSeek's, all anew each time"
        ),
    ] = "greedy"
    interval_ms: Annotated[int, Meta(description="shortest time between two proposals for a group", ge=0)] = 2000
    min_gain: Annotated[
        float, Meta(description="relative fall of the busiest ranks' load below which nothing moves", ge=0, le=1)
    ] = 0.03
    settle_s: Annotated[
        float, Meta(description="after a placement a further one needs up to thrice the gain, for so long", ge=0)
    ] = 20.0
    horizon_s: Annotated[float, Meta(description="how long a placement is expected to be of use", gt=0)] = 60.0
    move_mb_per_s: Annotated[
        float, Meta(description="cost of moving: so many megabytes are worth one second of serving", gt=0)
    ] = 1000.0
    max_moves: Annotated[int, Meta(description="copies that one placement may move", ge=1)] = 64
    min_tokens: Annotated[
        float, Meta(description="tokens per expert and layer, on average, before anything is decided", ge=0)
    ] = 16.0
    fast_s: Annotated[float, Meta(description="half-life of the fast load average, seconds under load", gt=0)] = 5.0
    slow_s: Annotated[float, Meta(description="half-life of the slow load average, seconds under load", gt=0)] = 60.0
    same_domain: Annotated[
        float, Meta(description="correlation of fast and slow load below which the domain has changed", ge=-1, le=1)
    ] = 0.8
    timeout_s: Annotated[
        float, Meta(description="a placement on its way that makes no progress for longer is taken back", gt=0)
    ] = 30.0
    hold_s: Annotated[float, Meta(description="after a roll back by hand nothing is proposed for so long", ge=0)] = 60.0
    save_s: Annotated[float, Meta(description="shortest time between two writes of what survives a restart", ge=0)] = (
        10.0
    )
