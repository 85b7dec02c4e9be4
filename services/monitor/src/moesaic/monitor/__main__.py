"""`moesaic-monitor`, `python -m moesaic.monitor`."""

from __future__ import annotations

import sys

from moesaic.monitor.config import MonitorConfig
from moesaic.monitor.service import open_service
from moesaic.shared.nats_bus import connect
from moesaic.shared.service import run


def main() -> None:
    """Run the monitor until told to stop."""
    sys.exit(run("monitor", MonitorConfig, open_service, connect))


if __name__ == "__main__":
    main()
