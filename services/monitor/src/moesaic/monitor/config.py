"""Settings of the monitor."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from moesaic.shared import config


class MonitorConfig(config.Common, frozen=True, kw_only=True):
    """Turns the engines' load counters into load windows, and shows them."""

    interval_ms: Annotated[int, Meta(description="length of a load window", ge=20, le=600_000)] = 1000
    host: Annotated[str, Meta(description="address of /metrics, /health and /state")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port of /metrics, /health and /state; 0: a free one", ge=0, le=65535)] = 0
    port_file: Annotated[str, Meta(description="file that the port in use is written to (empty: none)")] = ""
