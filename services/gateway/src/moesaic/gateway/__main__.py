"""`moesaic-gateway`, `python -m moesaic.gateway`."""

from __future__ import annotations

import sys

from moesaic.gateway.config import GatewayConfig
from moesaic.gateway.service import open_service
from moesaic.shared.nats_bus import connect
from moesaic.shared.service import run


def main() -> int:
    """Run the gateway until SIGTERM or SIGINT."""
    return run("gateway", GatewayConfig, open_service, connect)


if __name__ == "__main__":
    sys.exit(main())
