"""Settings of the gateway."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from moesaic.shared import config


class GatewayConfig(config.Common, frozen=True, kw_only=True):
    """The OpenAI-compatible HTTP API of a mesh."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="TCP port; 0: any free one", ge=0, le=65535)] = 8000
    port_file: Annotated[str, Meta(description="file in which the bound port is written (empty: none)")] = ""
    gateway: Annotated[str, Meta(description="this gateway's name on the bus (empty: a new one at each start)")] = ""
    body_limit_kb: Annotated[int, Meta(description="largest request body, KiB", ge=1)] = 16_384
    max_open: Annotated[int, Meta(description="requests in flight; more are answered 429", ge=1)] = 1024
    accept_timeout_s: Annotated[float, Meta(description="an engine answers an offer within this time", gt=0)] = 2.0
    route_timeout_s: Annotated[float, Meta(description="a request waits this long for an engine", gt=0)] = 30.0
    resume_timeout_s: Annotated[float, Meta(description="a broken stream waits this long to go on", gt=0)] = 60.0
    request_timeout_s: Annotated[float, Meta(description="an engine drops a request that waits longer", gt=0)] = 600.0
    stale_s: Annotated[float, Meta(description="an engine not heard for this long gets no requests", gt=0)] = 3.0
    silent_s: Annotated[float, Meta(description="an engine not heard for this long may be dead", gt=0)] = 5.0
    check_s: Annotated[float, Meta(description="between looks at streams in trouble", gt=0)] = 1.0
    keepalive_s: Annotated[float, Meta(description="an idle stream gets an SSE comment this often", gt=0)] = 15.0
    drain_s: Annotated[float, Meta(description="on SIGTERM running requests have this long to finish", ge=0)] = 3.0
