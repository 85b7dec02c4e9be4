from __future__ import annotations

import asyncio

import pytest

from buses import Collector, Mesh, soon
from moesaic.shared.bus import Delivery, NoResponders, RequestTimeout, TooLarge


async def test_a_message_reaches_every_subscriber_in_order(mesh: Mesh) -> None:
    one, two = await mesh.bus(), await mesh.bus()
    first, second = Collector(), Collector()
    await one.subscribe("load.*.a", first)
    await two.subscribe("load.>", second)
    for n in range(50):
        await two.publish("load.g.a", str(n).encode())
    assert [await first.next() for _ in range(50)] == [str(n).encode() for n in range(50)]
    assert [await second.next() for _ in range(50)] == [str(n).encode() for n in range(50)]


async def test_a_wildcard_stands_for_one_token_and_a_tail_for_at_least_one(mesh: Mesh) -> None:
    bus = await mesh.bus()
    one, tail = Collector(), Collector()
    await bus.subscribe("a.*", one)
    await bus.subscribe("a.>", tail)
    for subject in ("a", "a.b.c", "b.a", "a.b"):
        await bus.publish(subject, subject.encode())
    assert await one.next() == b"a.b"
    assert [await tail.next(), await tail.next()] == [b"a.b.c", b"a.b"]


async def test_one_of_a_queue_group_gets_each_message(mesh: Mesh) -> None:
    bus = await mesh.bus()
    got = Collector()
    for _ in range(3):
        await bus.subscribe("work", got, queue="workers")
    for n in range(20):
        await bus.publish("work", bytes([n]))
    assert sorted([await got.next() for _ in range(20)]) == [bytes([n]) for n in range(20)]
    await bus.publish("work", b"end")
    assert await got.next() == b"end"


async def test_a_closed_subscription_receives_no_more(mesh: Mesh) -> None:
    bus = await mesh.bus()
    closed, open_one = Collector(), Collector()
    subscription = await bus.subscribe("a", closed)
    await bus.subscribe("a", open_one)
    await subscription.close()
    await subscription.close()
    await bus.publish("a", b"1")
    await open_one.next()
    assert closed.received.empty()


async def test_a_handler_may_close_its_own_subscription(mesh: Mesh) -> None:
    bus = await mesh.bus()
    done = asyncio.Event()

    async def once(_: Delivery) -> None:
        await subscription.close()
        done.set()

    subscription = await bus.subscribe("a", once)
    await bus.publish("a", b"")
    await soon(done.wait())


async def test_a_failing_handler_does_not_end_its_subscription(mesh: Mesh) -> None:
    bus = await mesh.bus()
    got = Collector()

    async def picky(delivery: Delivery) -> None:
        if delivery.data == b"bad":
            raise ValueError("bad")
        await got(delivery)

    await bus.subscribe("a", picky)
    await bus.publish("a", b"bad")
    await bus.publish("a", b"good")
    assert await got.next() == b"good"


async def test_handlers_run_one_at_a_time(mesh: Mesh) -> None:
    bus = await mesh.bus()
    at_work, most, left = 0, 0, asyncio.Semaphore(0)

    async def slow(_: Delivery) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.001)
        at_work -= 1
        left.release()

    await bus.subscribe("a", slow)
    for _ in range(10):
        await bus.publish("a", b"")
    for _ in range(10):
        await soon(left.acquire())
    assert most == 1


async def test_a_request_is_answered(mesh: Mesh) -> None:
    one, two = await mesh.bus(), await mesh.bus()

    async def double(delivery: Delivery) -> None:
        await delivery.respond(delivery.data * 2)

    await one.subscribe("double", double)
    assert await two.request("double", b"ab") == b"abab"


async def test_a_request_that_nobody_hears_fails_at_once(mesh: Mesh) -> None:
    bus = await mesh.bus()
    with pytest.raises(NoResponders):
        await bus.request("nobody", b"", timeout=60)


async def test_a_request_that_nobody_answers_times_out(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.subscribe("mute", Collector())
    with pytest.raises(RequestTimeout):
        await bus.request("mute", b"", timeout=0.05)


async def test_responding_to_what_was_no_request_does_nothing(mesh: Mesh) -> None:
    bus = await mesh.bus()
    done = asyncio.Event()

    async def answer(delivery: Delivery) -> None:
        await delivery.respond(b"for nobody")
        done.set()

    await bus.subscribe("a", answer)
    await bus.publish("a", b"")
    await soon(done.wait())


async def test_an_oversized_message_is_refused_and_the_bus_lives_on(mesh: Mesh) -> None:
    bus = await mesh.bus()
    got = Collector()
    await bus.subscribe("a", got)
    big = bytes((1 << 20) + 1)
    with pytest.raises(TooLarge) as refusal:
        await bus.publish("a", big)
    assert (refusal.value.size, refusal.value.limit) == ((1 << 20) + 1, 1 << 20)
    with pytest.raises(TooLarge):
        await bus.request("a", big)
    await bus.publish("a", bytes(1 << 20))
    assert len(await got.next()) == 1 << 20


@pytest.mark.parametrize("subject", ["", "a b", "a..b", "a.", "a.*", "a.>", "a\r\nPUB x 0"])
async def test_a_subject_that_would_do_something_else_is_refused(mesh: Mesh, subject: str) -> None:
    bus = await mesh.bus()
    with pytest.raises(ValueError, match=r"subject|wildcard"):
        await bus.publish(subject, b"")


async def test_messages_for_a_stuck_handler_are_dropped_and_counted(mesh: Mesh) -> None:
    bus = await mesh.bus()
    stuck, pace = asyncio.Event(), Collector()

    async def wait(_: Delivery) -> None:
        await stuck.wait()

    await bus.subscribe("a", wait)
    await bus.subscribe("a", pace)
    for _ in range(70):
        await bus.publish("a", bytes(1 << 20))  # an inbox holds 64 MiB
        await pace.next()
    assert bus.dropped > 0
    stuck.set()
