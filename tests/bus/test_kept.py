from __future__ import annotations

import asyncio

import pytest

from buses import Mesh, eventually
from moesaic.shared.bus import Bus, BusDown


async def last_when(bus: Bus, subject: str, count: int, newest: bytes) -> list[bytes]:
    """The newest messages, once `newest` is kept: a stream keeps what is published without being asked to wait for."""
    return await eventually(lambda: bus.last("events", subject, count), lambda kept: kept[-1:] == [newest])


async def test_the_newest_messages_of_a_subject_are_read_oldest_first(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.stream("events", ["event.>"], 1 << 20)
    for n in range(10):
        await bus.publish(f"event.{'odd' if n % 2 else 'even'}", bytes([n]))
    assert await last_when(bus, "event.>", 3, b"\x09") == [b"\7", b"\x08", b"\x09"]
    assert await bus.last("events", "event.even", 2) == [b"\6", b"\x08"]
    assert await bus.last("events", "event.*", 100) == [bytes([n]) for n in range(10)]


async def test_rare_messages_are_found_far_behind_the_newest(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.stream("events", ["event.>"], 8 << 20)
    await bus.publish("event.rare", b"1")
    for _ in range(2000):
        await bus.publish("event.often", b"")
    await bus.publish("event.rare", b"2")
    assert await last_when(bus, "event.rare", 5, b"2") == [b"1", b"2"]
    assert await bus.last("events", "event.rare", 1) == [b"2"]


async def test_nothing_is_read_of_what_is_not_kept(mesh: Mesh) -> None:
    bus = await mesh.bus()
    assert await bus.last("events", "event.a", 5) == []
    await bus.stream("events", ["event.>"], 1 << 20)
    assert await bus.last("events", "event.a", 5) == []
    await bus.publish("event.a", b"1")
    await last_when(bus, "event.a", 1, b"1")
    assert await bus.last("events", "event.a", 0) == []
    assert await bus.last("events", "event.b", 5) == []


async def test_a_stream_keeps_the_newest_bytes(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.stream("events", ["event.>"], 50_000)
    for n in range(20):
        await bus.publish("event.a", bytes([n]) * 10_000)
    kept = await last_when(bus, "event.a", 20, b"\x13" * 10_000)
    assert 2 <= len(kept) <= 5


async def test_several_may_ask_for_one_stream_at_once(mesh: Mesh) -> None:
    buses = [await mesh.bus() for _ in range(3)]
    await asyncio.gather(*(bus.stream("events", ["event.>"], 1 << 20) for bus in buses))
    await buses[0].publish("event.a", b"1")
    assert await last_when(buses[1], "event.a", 1, b"1") == [b"1"]


async def test_what_was_kept_is_there_after_an_outage(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.stream("events", ["event.>"], 1 << 20)
    await bus.publish("event.a", b"1")
    await last_when(bus, "event.a", 1, b"1")
    await mesh.down()
    with pytest.raises(BusDown):
        await bus.last("events", "event.a", 1)
    await mesh.up()
    assert await bus.last("events", "event.a", 1) == [b"1"]


async def test_a_file_of_several_megabytes_is_stored_and_fetched_elsewhere(mesh: Mesh) -> None:
    one, two = await mesh.bus(), await mesh.bus()
    data = bytes(range(256)) * 12_000
    await one.put_file("files", "sha256:abc/tokenizer.json", data)
    assert await two.get_file("files", "sha256:abc/tokenizer.json") == data
    assert await two.get_file("files", "other") is None
    assert await two.get_file("nowhere", "other") is None


async def test_the_same_file_may_be_stored_again_and_by_several_at_once(mesh: Mesh) -> None:
    buses = [await mesh.bus() for _ in range(3)]
    data = bytes(500_000)
    await asyncio.gather(*(bus.put_file("files", "name", data) for bus in buses))
    await buses[0].put_file("files", "name", data)
    assert await buses[1].get_file("files", "name") == data


async def test_a_file_may_be_empty_or_replaced(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.put_file("files", "name", b"")
    assert await bus.get_file("files", "name") == b""
    await bus.put_file("files", "name", b"new")
    assert await bus.get_file("files", "name") == b"new"
