"""The life of a service process: settings, logging, the bus, signals, an orderly end.

A service is one async context manager, given its settings and a bus: entering starts it, leaving stops it in named phases.
`run` is the whole `__main__` of a service; tests enter the context manager themselves with a bus of their own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol, TypeVar

from moesaic.shared import config, log
from moesaic.shared.bus import Bus

C = TypeVar("C", bound=config.Common)
T = TypeVar("T")


BAD_SETTINGS = 2
CANNOT_GO_ON = 3
"""Exit statuses after which starting the same again will not help; a crash has 1."""


class Running(Protocol):
    """A started service."""

    async def wait(self) -> None:
        """Return never; raise if the service cannot go on."""


Open = Callable[[C, Bus], AbstractAsyncContextManager[Running]]
Connect = Callable[[str, str, str], AbstractAsyncContextManager[Bus]]
"""(name, NATS URL, credentials file) to a bus."""


class Fatal(Exception):
    """The service cannot start or go on; the text is one line for the operator. Not to be raised inside a TaskGroup."""


def run(name: str, kind: type[C], open_service: Open[C], connect: Connect, argv: Sequence[str] | None = None) -> int:
    """Run a service until SIGTERM or SIGINT. The exit status: 0 stopped, BAD_SETTINGS, or CANNOT_GO_ON."""
    prefix = f"MOESAIC_{name.upper()}"
    try:
        settings = config.load(kind, prefix, f"moesaic-{name}", sys.argv[1:] if argv is None else argv, os.environ)
    except config.ConfigError as error:
        sys.stderr.write(f"moesaic-{name}: {error}\n")
        return BAD_SETTINGS
    logger = log.configure(name, settings.log_level)
    try:
        asyncio.run(_live(name, settings, open_service, connect))
    except Fatal as error:
        logger.error("cannot go on", reason=str(error))
        return CANNOT_GO_ON
    return 0


async def _live(name: str, settings: C, open_service: Open[C], connect: Connect) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        bus = await _unless(stop, stack.enter_async_context(connect(name, settings.nats, settings.nats_creds)))
        if bus is not None:
            async with open_service(settings, bus) as service:
                await _unless(stop, service.wait())


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` gives; None, and the work cancelled, if `stop` comes first: a bus may be waited for without end."""
    working = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if working.done():
        return working.result()
    working.cancel()
    await asyncio.wait([working])
    return None
