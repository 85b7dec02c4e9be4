"""`moesaic-engine`, `python -m moesaic.engine`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moesaic.engine.backend import Backend
from moesaic.engine.config import EngineConfig
from moesaic.engine.service import EngineService, open_service
from moesaic.shared.bus import Bus
from moesaic.shared.nats_bus import connect
from moesaic.shared.service import Fatal, run


def make_backend(config: EngineConfig) -> Backend:
    """The backend of a `--backend` setting; heavy imports happen only for the chosen one. Raises Fatal."""
    if config.backend == "fake":
        from moesaic.engine.fake import FakeBackend  # noqa: PLC0415

        return FakeBackend(config)
    from moesaic.engine.devices import DeviceError  # noqa: PLC0415
    from moesaic.engine.model.config import ModelError  # noqa: PLC0415
    from moesaic.engine.native.backend import NativeBackend  # noqa: PLC0415

    try:
        return NativeBackend(config)
    except (ModelError, DeviceError) as error:
        raise Fatal(str(error)) from error


@asynccontextmanager
async def _open(config: EngineConfig, bus: Bus) -> AsyncIterator[EngineService]:
    async with open_service(config, bus, make_backend) as service:
        yield service


def main() -> None:
    """Run an engine until told to stop."""
    sys.exit(run("engine", EngineConfig, _open, connect))


if __name__ == "__main__":
    main()
