from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from buses import Mesh, soon
from moesaic.shared.bus import BusDown, Conflict, Entry, TooLarge


async def take(entries: AsyncIterator[Entry], count: int) -> list[tuple[str, bytes | None]]:
    got = [await soon(anext(entries)) for _ in range(count)]
    return [(entry.key, entry.value) for entry in got]


async def test_what_is_put_is_got_with_its_revision(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b")
    revision = await bucket.put("key", b"value")
    assert await bucket.get("key") == Entry("key", b"value", revision)
    assert await bucket.get("other") is None


async def test_an_empty_value_is_a_value(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b")
    revision = await bucket.put("key", b"")
    assert await bucket.get("key") == Entry("key", b"", revision)
    assert await anext(bucket.watch()) == Entry("key", b"", revision)


async def test_revisions_grow_over_all_keys_of_a_bucket(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b")
    first = await bucket.put("a", b"1")
    assert [await bucket.put("b", b"2"), await bucket.put("a", b"3")] == [first + 1, first + 2]


async def test_create_refuses_a_key_that_is_there(mesh: Mesh) -> None:
    one, two = await (await mesh.bus()).bucket("b"), await (await mesh.bus()).bucket("b")
    await one.create("key", b"1")
    with pytest.raises(Conflict):
        await two.create("key", b"2")
    await one.delete("key")
    revision = await two.create("key", b"3")
    assert await one.get("key") == Entry("key", b"3", revision)


async def test_of_two_updates_from_one_revision_one_conflicts(mesh: Mesh) -> None:
    one, two = await (await mesh.bus()).bucket("b"), await (await mesh.bus()).bucket("b")
    revision = await one.put("key", b"0")
    outcomes = await asyncio.gather(
        one.update("key", b"1", revision), two.update("key", b"2", revision), return_exceptions=True
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Conflict", "int"]


async def test_of_many_who_create_a_key_one_wins(mesh: Mesh) -> None:
    buckets = [await (await mesh.bus()).bucket("b") for _ in range(4)]
    outcomes = await asyncio.gather(*(b.create("key", b"") for b in buckets), return_exceptions=True)
    assert [isinstance(outcome, int) for outcome in outcomes].count(True) == 1


async def test_an_update_of_a_deleted_key_conflicts(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b")
    revision = await bucket.put("key", b"1")
    await bucket.delete("key")
    with pytest.raises(Conflict):
        await bucket.update("key", b"2", revision)
    assert await bucket.get("key") is None


async def test_keys_are_those_that_are_not_deleted(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b")
    assert await bucket.keys() == []
    for key in ("a", "b", "c"):
        await bucket.put(key, b"")
    await bucket.delete("b")
    assert sorted(await bucket.keys()) == ["a", "c"]


async def test_history_keeps_the_newest_revisions_oldest_first(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b", history=3)
    for n in range(4):
        await bucket.put("key", bytes([n]))
    await bucket.put("other", b"")
    await bucket.delete("key")
    assert [entry.value for entry in await bucket.history("key")] == [b"\2", b"\3", None]
    assert await bucket.history("never") == []


async def test_the_longest_history_that_anybody_asked_for_counts(mesh: Mesh) -> None:
    one, two = await mesh.bus(), await mesh.bus()
    await one.bucket("b")
    bucket = await two.bucket("b", history=5)
    await one.bucket("b", history=2)
    for n in range(6):
        await bucket.put("key", bytes([n]))
    assert len(await bucket.history("key")) == 5


async def test_many_may_open_one_bucket_at_once(mesh: Mesh) -> None:
    buses = [await mesh.bus() for _ in range(4)]
    buckets = await asyncio.gather(*(bus.bucket("b", history=n + 1) for n, bus in enumerate(buses)))
    await asyncio.gather(*(bucket.put(f"key-{n}", b"") for n, bucket in enumerate(buckets)))
    assert sorted(await buckets[0].keys()) == [f"key-{n}" for n in range(4)]


async def test_a_watch_gives_what_is_there_then_every_change(mesh: Mesh) -> None:
    one, two = await (await mesh.bus()).bucket("b"), await (await mesh.bus()).bucket("b")
    await one.put("a", b"1")
    await one.put("b", b"2")
    entries = two.watch()
    assert await take(entries, 2) == [("a", b"1"), ("b", b"2")]
    await one.put("a", b"3")
    await one.delete("b")
    assert await take(entries, 2) == [("a", b"3"), ("b", None)]


async def test_a_watch_begins_without_keys_that_were_deleted_before(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b")
    await bucket.put("gone", b"")
    await bucket.delete("gone")
    await bucket.put("here", b"1")
    assert await take(bucket.watch(), 1) == [("here", b"1")]


async def test_a_watch_of_one_key_hears_only_of_it(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b")
    entries = bucket.watch("a")
    await bucket.put("b", b"1")
    await bucket.put("a", b"2")
    assert await take(entries, 1) == [("a", b"2")]


async def test_a_watch_survives_an_outage_and_gives_nothing_older(mesh: Mesh) -> None:
    one, two = await (await mesh.bus()).bucket("b"), await (await mesh.bus()).bucket("b")
    await one.put("a", b"1")
    await one.put("b", b"2")
    entries = two.watch()
    await take(entries, 2)
    await mesh.down()
    await mesh.up()
    await one.put("b", b"3")
    assert await take(entries, 1) == [("b", b"3")]


async def test_a_watch_begun_during_an_outage_gives_what_is_there_after_it(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b")
    await bucket.put("a", b"1")
    await mesh.down()
    waiting = asyncio.create_task(take(bucket.watch(), 1))
    await asyncio.sleep(0)
    await mesh.up()
    assert await soon(waiting) == [("a", b"1")]


async def test_a_bucket_is_down_during_an_outage_and_whole_after_it(mesh: Mesh) -> None:
    bus = await mesh.bus()
    bucket = await bus.bucket("b")
    revision = await bucket.put("key", b"1")
    await mesh.down()
    for call in (bucket.get("key"), bucket.put("key", b"2"), bucket.keys(), bucket.history("key"), bus.bucket("c")):
        with pytest.raises(BusDown):
            await call
    await mesh.up()
    assert await bucket.get("key") == Entry("key", b"1", revision)


async def test_values_of_hundreds_of_kilobytes_are_kept_and_watched(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b", history=4)
    values = [bytes([n]) * 900_000 for n in range(3)]
    for value in values:
        await bucket.put("key", value)
    assert await bucket.get("key") == Entry("key", values[-1], 3)
    assert [entry.value for entry in await bucket.history("key")] == values
    assert await take(bucket.watch(), 1) == [("key", values[-1])]


async def test_a_value_beyond_the_limit_is_refused(mesh: Mesh) -> None:
    bucket = await (await mesh.bus()).bucket("b")
    with pytest.raises(TooLarge):
        await bucket.put("key", bytes((1 << 20) + 1))
    assert await bucket.get("key") is None


@pytest.mark.parametrize("key", ["", ".a", "a.", "a b", "a*", "ä", "a\n"])
async def test_a_key_that_is_none_is_refused(mesh: Mesh, key: str) -> None:
    bucket = await (await mesh.bus()).bucket("b")
    with pytest.raises(ValueError, match="key"):
        await bucket.put(key, b"")
