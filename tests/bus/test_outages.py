from __future__ import annotations

import pytest

from buses import Collector, Mesh, reconnection, soon
from moesaic.shared.bus import BusDown, Delivery


async def test_what_is_published_during_an_outage_is_dropped_and_counted(mesh: Mesh) -> None:
    bus = await mesh.bus()
    got = Collector()
    await bus.subscribe("a", got)
    await mesh.down()
    assert not bus.connected
    await bus.publish("a", b"lost")
    await bus.publish("a", b"lost too")
    with pytest.raises(BusDown):
        await bus.request("a", b"")
    await mesh.up()
    await bus.publish("a", b"after")
    assert await got.next() == b"after"
    assert bus.unsent == 2


async def test_subscriptions_go_on_after_an_outage(mesh: Mesh) -> None:
    one, two = await mesh.bus(), await mesh.bus()

    async def echo(delivery: Delivery) -> None:
        await delivery.respond(delivery.data)

    await one.subscribe("echo", echo)
    back = reconnection(one)
    await mesh.down()
    await mesh.up()
    await soon(back.wait())
    assert one.connected
    assert await two.request("echo", b"again") == b"again"


async def test_a_subscription_made_during_an_outage_holds_after_it(mesh: Mesh) -> None:
    bus = await mesh.bus()
    got = Collector()
    await mesh.down()
    await bus.subscribe("a", got)
    await mesh.up()
    await bus.publish("a", b"1")
    assert await got.next() == b"1"


async def test_a_closed_bus_is_not_connected_and_drops_what_is_published(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.close()
    await bus.close()
    await bus.publish("a", b"")
    assert (bus.connected, bus.unsent) == (False, 1)


async def test_what_was_published_before_closing_arrives(mesh: Mesh) -> None:
    one, two = await mesh.bus(), await mesh.bus()
    got = Collector()
    await one.subscribe("a", got)
    for n in range(100):
        await two.publish("a", bytes([n]) * 1000)
    await two.close()
    assert [(await got.next())[0] for _ in range(100)] == list(range(100))
