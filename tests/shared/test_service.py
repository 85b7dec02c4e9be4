from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from moesaic.shared.bus import Bus
from moesaic.shared.config import Common
from moesaic.shared.memory_bus import MemoryBus
from moesaic.shared.service import CANNOT_GO_ON, Fatal, run


class Nothing:
    """A service that does nothing for ever, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.stopped = False

    async def wait(self) -> None:
        if self.error:
            raise self.error
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    @asynccontextmanager
    async def opened(self, _: Common, bus: Bus) -> AsyncIterator[Nothing]:
        assert bus.connected
        yield self
        self.stopped = True


@asynccontextmanager
async def memory(_name: str, _url: str, _creds: str) -> AsyncIterator[Bus]:
    bus = MemoryBus()
    yield bus
    await bus.close()


@asynccontextmanager
async def unreachable(_name: str, _url: str, _creds: str) -> AsyncIterator[Bus]:
    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()
    yield MemoryBus()


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOESAIC_NATS", "MOESAIC_NATS_CREDS", "MOESAIC_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)


def test_a_signal_stops_a_service_in_order() -> None:
    service = Nothing()
    assert run("example", Common, service.opened, memory, []) == 0
    assert service.stopped


def test_a_signal_stops_a_service_that_still_waits_for_the_bus() -> None:
    assert run("example", Common, Nothing().opened, unreachable, []) == 0


def test_a_service_that_cannot_go_on_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    service = Nothing(Fatal("no disk left"))
    assert run("example", Common, service.opened, memory, []) == CANNOT_GO_ON
    assert "no disk left" in capsys.readouterr().err


def test_bad_settings_end_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("example", Common, Nothing().opened, memory, ["--log-level", "loud"]) == 2
    assert capsys.readouterr().err.startswith("moesaic-example: log_level='loud'")
