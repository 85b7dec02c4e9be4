"""Settings of the planner."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from moesaic.shared import config


class PlannerConfig(config.Common, frozen=True, kw_only=True):
    """Decides which rank holds which expert, from what the monitor measures."""

    policy: Annotated[
        str,
        Meta(
            description="who plans: omni (ours), eplb (DeepSeek's), static (never move), or an installed plugin's name"
        ),
    ] = "omni"
    cost: Annotated[
        Literal["tokens", "fitted"],
        Meta(description="what is balanced: tokens, or milliseconds by a model fitted to what the engines measure"),
    ] = "tokens"
    interval_ms: Annotated[int, Meta(description="shortest time between two proposals for a group", ge=0)] = 2000
    min_gain: Annotated[
        float, Meta(description="relative fall of the busiest ranks' load below which nothing moves", ge=0, le=1)
    ] = 0.02
    settle_s: Annotated[
        float, Meta(description="after a placement a further one needs up to thrice the gain, for so long", ge=0)
    ] = 20.0
    horizon_s: Annotated[float, Meta(description="how long a placement is expected to be of use", gt=0)] = 60.0
    inside_gb_per_s: Annotated[
        float, Meta(description="gigabytes per second at which a rank receives experts from its own node", gt=0)
    ] = 10.0
    across_gb_per_s: Annotated[
        float, Meta(description="gigabytes per second at which a rank receives experts from other nodes", gt=0)
    ] = 2.5
    drag: Annotated[
        float, Meta(description="part of the serving speed that is lost while experts are on their way", ge=0, le=1)
    ] = 0.1
    stall_ms: Annotated[float, Meta(description="pause that each instalment of a placement makes", ge=0)] = 1.0
    max_moves: Annotated[int, Meta(description="copies that one placement may move; 0: any number", ge=0)] = 0
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
    worse: Annotated[
        float,
        Meta(description="a placement whose steps take so much longer than before, relatively, is taken back", gt=0),
    ] = 0.15
    trial_windows: Annotated[
        int, Meta(description="load windows over which a new placement's steps are measured", ge=4)
    ] = 12
    hold_s: Annotated[float, Meta(description="after a roll back by hand nothing is proposed for so long", ge=0)] = 60.0
    save_s: Annotated[float, Meta(description="shortest time between two writes of what survives a restart", ge=0)] = (
        10.0
    )
