"""`moesaic-planner`, `python -m moesaic.planner`."""

from __future__ import annotations

import sys

from moesaic.planner.config import PlannerConfig
from moesaic.planner.service import open_service
from moesaic.shared.nats_bus import connect
from moesaic.shared.service import run


def main() -> None:
    """Run the planner until told to stop."""
    sys.exit(run("planner", PlannerConfig, open_service, connect))


if __name__ == "__main__":
    main()
