"""Fixtures of the whole suite: real nats-servers, and an event loop that nothing of ours may block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from moesaic.shared import log
from natsd import NatsServer

OURS = ["moesaic.shared", "moesaic.gateway", "moesaic.engine", "moesaic.monitor", "moesaic.planner"]


@pytest.fixture(scope="session", autouse=True)
def unblocked() -> Iterator[None]:
    """A blocking call that our code makes on the event loop is an error, but for the exceptions named here."""
    with blockbuster_ctx(OURS) as guard:
        for function in guard.functions.values():
            # A traceback in a log reads its sources.
            function.can_block_in("linecache.py", {"updatecache", "checkcache"})
        yield


@pytest.fixture(autouse=True)
def logged() -> None:
    """Each test logs to the stderr of its own time, whatever the one before has set up."""
    log.configure("test", "warning", json=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server with JetStream of the test's own: it may stop, start, freeze and lose its state."""
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()
