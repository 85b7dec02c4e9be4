from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from moesaic.monitor.config import MonitorConfig
from moesaic.monitor.service import MonitorService, open_service
from moesaic.shared import subjects
from moesaic.shared.bus import Delivery
from moesaic.shared.memory_bus import MemoryBroker, MemoryBus
from moesaic.shared.messages import EngineStatus, Imbalance, PlacementEvent, Source, decode, encode
from moesaic.shared.service import Fatal
from monitor.samples import load

CONFIG = MonitorConfig(interval_ms=50)
LOAD = subjects.load("g", "a")


class Mesh:
    """A monitor on a memory bus, and somebody who speaks and listens."""

    def __init__(self, monitor: MonitorService, bus: MemoryBus) -> None:
        self.monitor = monitor
        self.bus = bus
        self.windows: asyncio.Queue[Imbalance] = asyncio.Queue()

    async def hear(self, delivery: Delivery) -> None:
        self.windows.put_nowait(decode(delivery.data, Imbalance))

    async def window(self) -> Imbalance:
        async with asyncio.timeout(10):
            return await self.windows.get()

    async def state(self) -> dict[str, Any]:
        answer: dict[str, Any] = orjson.loads(await self.bus.request(subjects.service("moesaic-monitor", "state"), b""))
        return answer

    async def page(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.monitor.port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            assert response.status == 200
            return await response.text()


@asynccontextmanager
async def running(broker: MemoryBroker, config: MonitorConfig = CONFIG) -> AsyncIterator[Mesh]:
    async with open_service(config, MemoryBus(broker)) as monitor:
        bus = MemoryBus(broker)
        mesh = Mesh(monitor, bus)
        await bus.subscribe(subjects.imbalance(), mesh.hear)
        yield mesh
        await bus.close()


STATUS = EngineStatus(
    source=Source(producer="a", boot="b1", seq=1),
    at=0.0,
    model="tiny",
    role="both",
    state="serving",
    group="g",
    generation=1,
    rank=0,
    epoch=7,
)

COMMITTED = PlacementEvent(
    event="committed",
    source=Source(producer="a", boot="b1", seq=1),
    at=1.0,
    group="g",
    generation=1,
    epoch=7,
    instalment=1,
    instalments=1,
    moves=4,
)


async def test_counters_come_in_and_a_window_goes_out() -> None:
    async with running(MemoryBroker()) as mesh:
        await mesh.bus.publish(LOAD, encode(load(1, [80, 0, 8, 8], total=96, most=64)))
        window = await mesh.window()
        assert (window.group, window.engines, window.phases["decode"].balance) == ("g", ("a",), 0.75)
        assert [h.expert for h in window.hot] == [0, 0]
        assert {c.expert for c in window.cold} == {1}


async def test_the_second_window_knows_its_drift() -> None:
    async with running(MemoryBroker()) as mesh:
        for seq, tokens in ((1, [9, 1, 1, 1]), (2, [18, 2, 2, 2])):
            await mesh.bus.publish(LOAD, encode(load(seq, tokens)))
            window = await mesh.window()
        assert window.drift == pytest.approx(1.0)


async def test_nonsense_on_the_bus_is_counted_and_survived() -> None:
    async with running(MemoryBroker()) as mesh:
        for data in (b"", b"{}", b"[" * 100, b'{"type":"load.v1"}', encode(load(1, -5)), "ä".encode("latin-1")):
            await mesh.bus.publish(LOAD, data)
        await mesh.bus.publish(subjects.status("a"), b"null")
        await mesh.bus.publish(subjects.placement("g", "committed"), b"[]")
        await mesh.bus.publish(LOAD, encode(load(1, 3)))
        assert (await mesh.window()).phases["decode"].steps == 1
        assert (await mesh.state())["bad"] == 8


async def test_a_restarted_monitor_counts_nothing_twice() -> None:
    broker = MemoryBroker()
    async with running(broker) as mesh:
        await mesh.bus.publish(LOAD, encode(load(1, 100)))
        await mesh.window()
    async with running(broker) as mesh:
        await mesh.bus.publish(LOAD, encode(load(2, 140)))
        await mesh.bus.publish(LOAD, encode(load(3, 141)))
        window = await mesh.window()
        assert window.phases["decode"].tokens.data == load(1, 1).phases["decode"].tokens.data


async def test_state_shows_engines_and_the_last_placement() -> None:
    async with running(MemoryBroker()) as mesh:
        await mesh.bus.publish(subjects.status("a"), encode(STATUS))
        await mesh.bus.publish(subjects.placement("g", "committed"), encode(COMMITTED))
        await mesh.bus.publish(LOAD, encode(load(1, 3, epoch=7, instalment=1)))
        await mesh.window()
        group = (await mesh.state())["groups"]["g"]
        assert (group["epoch"], group["model"], group["engines"][0]["silent"]) == (7, "tiny", False)
        assert (group["last_placement"]["moves"], group["balance_recent"]) == (4, 0.5)


async def test_metrics_and_health_are_served() -> None:
    async with running(MemoryBroker()) as mesh:
        await mesh.bus.publish(subjects.status("a"), encode(STATUS))
        await mesh.bus.publish(LOAD, encode(load(1, 3)))
        await mesh.window()
        text = await mesh.page("/metrics")
        assert 'moesaic_balance{group="g",phase="decode"} 0.5' in text
        assert 'moesaic_engines{group="g",state="serving"} 1.0' in text
        assert orjson.loads(await mesh.page("/health"))["ok"] is True
        assert "g" in orjson.loads(await mesh.page("/state"))["groups"]


async def test_the_port_in_use_is_told_in_a_file(tmp_path: Path) -> None:
    told = tmp_path / "port"
    async with running(MemoryBroker(), MonitorConfig(port_file=str(told))) as mesh:
        assert int(await asyncio.to_thread(told.read_text)) == mesh.monitor.port


async def test_a_taken_port_is_one_clear_error() -> None:
    broker = MemoryBroker()
    async with running(broker) as mesh:
        with pytest.raises(Fatal, match=f"cannot listen on 127.0.0.1:{mesh.monitor.port}"):
            async with running(broker, MonitorConfig(port=mesh.monitor.port)):
                pass


async def test_windows_go_on_after_the_bus_was_away() -> None:
    broker = MemoryBroker()
    async with running(broker) as mesh:
        await mesh.bus.publish(LOAD, encode(load(1, 3)))
        await mesh.window()
        broker.down()
        await mesh.bus.publish(LOAD, encode(load(2, 5)))
        broker.up()
        await mesh.bus.publish(LOAD, encode(load(3, 9)))
        window = await mesh.window()
        assert (window.lost, window.phases["decode"].steps) == (1, 2)
