"""Outages of a real server: restarts, cut lines, lost state, a frozen process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from buses import SECONDS, Collector, NatsMesh, eventually, reconnection, soon, until
from line import line_to
from moesaic.shared.bus import Delivery, Entry
from moesaic.shared.nats_bus import connect
from moesaic.shared.nats_bus.bus import NatsBus
from moesaic.shared.nats_bus.connection import options
from moesaic.shared.nats_bus.link import Link
from natsd import NatsServer


@asynccontextmanager
async def direct(server: NatsServer) -> AsyncIterator[NatsBus]:
    """A bus whose link is at hand, with a short patience."""
    bus = NatsBus(Link("test", options("test", [server.url], ""), ping=0.2))
    await bus.start()
    yield bus
    await bus.close()


async def test_messages_received_before_the_connection_was_lost_are_handled(real: NatsMesh) -> None:
    bus = await real.bus()
    got, gate = Collector(), asyncio.Event()

    async def slow(delivery: Delivery) -> None:
        await gate.wait()
        await got(delivery)

    await bus.subscribe("a", slow)
    await bus.subscribe("b", got)
    for subject in ("a", "a", "b"):
        await bus.publish(subject, subject.encode())
    assert await got.next() == b"b"
    await real.down()
    gate.set()
    assert [await got.next(), await got.next()] == [b"a", b"a"]


async def test_a_watch_hears_what_others_changed_while_it_was_cut_off(server: NatsServer) -> None:
    async with line_to(server.port) as line, connect("cut", line.url) as cut, connect("whole", server.url) as whole:
        theirs = await whole.bucket("b")
        for key in ("a", "b", "c"):
            await theirs.put(key, b"old")
        entries = (await cut.bucket("b")).watch()
        assert [(await soon(anext(entries))).key for _ in range(3)] == ["a", "b", "c"]
        await line.cut()
        await until(lambda: not cut.connected)
        await theirs.put("a", b"newer")
        await theirs.put("a", b"newest")
        await theirs.delete("b")
        await line.mend()
        assert [await soon(anext(entries)) for _ in range(2)] == [Entry("a", b"newest", 5), Entry("b", None, 6)]


async def test_a_watch_goes_on_when_the_server_has_lost_its_state(real: NatsMesh) -> None:
    bucket = await (await real.bus()).bucket("b")
    await bucket.put("a", b"1")
    revision = await bucket.put("b", b"2")
    entries = bucket.watch()
    await soon(anext(entries))
    await soon(anext(entries))
    await real.down()
    real.server.lose_state()
    await real.up()
    await bucket.put("a", b"3")
    assert await soon(anext(entries)) == Entry("a", b"3", revision + 1)


async def test_a_bucket_made_again_by_somebody_who_knew_less_is_watched_from_its_start(server: NatsServer) -> None:
    async with line_to(server.port) as line, connect("test", line.url) as bus:
        bucket = await bus.bucket("b")
        for _ in range(5):
            await bucket.put("a", b"old")
        entries = bucket.watch()
        await soon(anext(entries))
        await line.cut()
        await asyncio.to_thread(server.stop)
        server.lose_state()
        await asyncio.to_thread(server.start)
        async with connect("other", server.url) as other:
            await (await other.bucket("b")).put("a", b"new")
        await line.mend()
        assert await soon(anext(entries)) == Entry("a", b"new", 1)


async def test_a_stream_is_made_again_when_the_server_has_lost_its_state(real: NatsMesh) -> None:
    bus = await real.bus()
    await bus.stream("events", ["event.>"], 1 << 20)
    await real.down()
    real.server.lose_state()
    await real.up()

    async def publish_and_look() -> list[bytes]:
        await bus.publish("event.a", b"1")
        return await bus.last("events", "event.a", 1)

    assert await eventually(publish_and_look, bool) == [b"1"]


async def test_a_frozen_server_counts_as_lost_and_comes_back(server: NatsServer) -> None:
    async with direct(server) as bus:
        got, back = Collector(), reconnection(bus)
        await bus.subscribe("a", got)
        server.freeze()
        await until(lambda: not bus.connected)
        server.thaw()
        await soon(back.wait())
        await bus.publish("a", b"1")
        assert await got.next() == b"1"


@pytest.mark.parametrize("fate", ["stop", "freeze"])
async def test_closing_does_not_hang_when_the_server_is_gone(server: NatsServer, fate: str) -> None:
    async with asyncio.timeout(SECONDS):
        async with connect("test", server.url) as bus:
            await bus.subscribe("a", Collector())
            await asyncio.to_thread(getattr(server, fate))
            for _ in range(6):
                await bus.publish("a", bytes(1 << 20))
    assert not bus.connected


async def test_a_connection_that_the_server_ended_with_an_error_is_made_anew(server: NatsServer) -> None:
    async with direct(server) as bus:
        got, back = Collector(), reconnection(bus)
        await bus.subscribe("a", got)
        await bus.link.client.publish("a", bytes(1 << 20), headers={"over": "the limit"})
        await soon(back.wait())
        await bus.publish("a", b"1")
        assert await got.next() == b"1"


async def test_a_failed_reconnect_callback_does_not_stop_the_others(real: NatsMesh) -> None:
    bus = await real.bus()

    def fail() -> None:
        raise ValueError("a callback")

    bus.on_reconnect(fail)
    await real.down()
    await real.up()
    assert bus.connected
