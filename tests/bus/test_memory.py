"""What only the in-memory bus does: losing on demand."""

from __future__ import annotations

import pytest

from buses import Collector
from moesaic.shared.bus import RequestTimeout, TooLarge
from moesaic.shared.memory_bus import MemoryBroker, MemoryBus


async def test_every_nth_message_of_a_pattern_is_lost() -> None:
    broker = MemoryBroker()
    bus, got = MemoryBus(broker), Collector()
    await bus.subscribe(">", got)
    broker.lose("load.>", every=3)
    for n in range(6):
        await bus.publish("load.a", bytes([n]))
        await bus.publish("other", bytes([n]))
    heard = [await got.next() for _ in range(10)]
    assert [heard.count(bytes([n])) for n in range(6)] == [2, 2, 1, 2, 2, 1]


async def test_a_lost_request_times_out() -> None:
    bus = MemoryBus()
    bus.broker.lose("a", every=1)
    with pytest.raises(RequestTimeout):
        await bus.request("a", b"", timeout=0.01)


async def test_buses_with_brokers_of_their_own_do_not_meet() -> None:
    one, two = MemoryBus(), MemoryBus()
    got = Collector()
    await one.subscribe("a", got)
    await two.publish("a", b"theirs")
    await one.publish("a", b"ours")
    assert await got.next() == b"ours"


async def test_the_broker_sets_the_limit() -> None:
    bus = MemoryBus(MemoryBroker(max_payload=10))
    with pytest.raises(TooLarge):
        await bus.publish("a", bytes(11))
    await bus.publish("a", bytes(10))
