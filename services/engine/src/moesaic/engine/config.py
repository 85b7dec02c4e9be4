"""Settings of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from moesaic.shared import config


class EngineConfig(config.Common, frozen=True, kw_only=True):
    """One rank of a group: serves a Mixture-of-Experts checkpoint together with the other engines of its group."""

    model: Annotated[str, Meta(description="checkpoint folder in Hugging Face layout", min_length=1)]
    model_name: Annotated[str, Meta(description="name under which it is served; empty: the folder's name")] = ""
    engine: Annotated[str, Meta(description="this engine's lasting name: a restart under it takes its old rank")] = (
        "engine-0"
    )
    group: Annotated[str, Meta(description="expert-parallel group; empty: the model's name")] = ""
    ranks: Annotated[int, Meta(description="engines in the group", ge=1, le=1024)] = 1
    role: Annotated[Literal["both"], Meta(description="both: prefill and decode")] = "both"
    backend: Annotated[
        Literal["native", "fake"], Meta(description="native, or fake: made-up tokens for tests of other services")
    ] = "native"
    mode: Annotated[
        Literal["exact", "fast"],
        Meta(description="exact: bitwise the same whatever is computed beside it (slow, for tests); fast: for serving"),
    ] = "fast"
    device: Annotated[
        Literal["auto", "cpu", "cuda", "npu"], Meta(description="auto: cuda if there is one, else cpu")
    ] = "auto"
    threads: Annotated[int, Meta(description="torch threads; 0: torch's own choice", ge=0, le=512)] = 0
    host: Annotated[str, Meta(description="address at which the other ranks reach this engine")] = "127.0.0.1"
    node: Annotated[str, Meta(description="machine this engine runs on; empty: the host name")] = ""
    max_running: Annotated[int, Meta(description="requests in a step", ge=1, le=4096)] = 64
    max_waiting: Annotated[int, Meta(description="requests that may wait; more are refused as full", ge=1)] = 1024
    step_tokens: Annotated[int, Meta(description="tokens per step; longer prompts are computed in chunks", ge=8)] = 512
    block_size: Annotated[int, Meta(description="tokens in a KV block", ge=1, le=256)] = 16
    kv_tokens: Annotated[int, Meta(description="KV room in tokens; 0: 8 contexts, at most 2 GiB", ge=0)] = 0
    extra_slots: Annotated[
        int,
        Meta(
            description="expert slots per rank for replicas; -1: an eighth of the experts of all layers over the ranks",
            ge=-1,
        ),
    ] = -1
    spare_slots: Annotated[int, Meta(description="expert slots per rank kept free to stage moves", ge=1)] = 8
    stage_kb_per_step: Annotated[
        int, Meta(description="weights staged during one step, KiB; without work, as fast as it goes", ge=64)
    ] = 2048
    peer_timeout_s: Annotated[
        float, Meta(description="a rank silent for longer in a step ends the generation", ge=1)
    ] = 30.0
    rejoin_timeout_s: Annotated[float, Meta(description="a group broken for longer fails its requests", ge=1)] = 60.0
    status_interval_ms: Annotated[int, Meta(description="between heartbeats", ge=50, le=10_000)] = 500
    load_interval_ms: Annotated[int, Meta(description="between load counters", ge=50, le=60_000)] = 500
    drain_s: Annotated[float, Meta(description="on SIGTERM running requests have this long to finish", ge=0)] = 2.0

    @property
    def served_as(self) -> str:
        """The model's name on the bus and in the API."""
        return self.model_name or Path(self.model).absolute().name

    @property
    def group_name(self) -> str:
        """The group's name."""
        return self.group or self.served_as
