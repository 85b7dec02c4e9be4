"""Settings, limits and abilities of a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from buses import NatsMesh, soon
from moesaic.shared.bus import ServiceError, TooLarge
from moesaic.shared.nats_bus import connect
from moesaic.shared.nats_bus.headers import check_size, error_of, of_error
from moesaic.shared.service import Fatal
from natsd import NatsServer


async def test_a_bus_waits_for_a_server_that_comes_later(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)

    async def first_revision() -> int:
        async with connect("test", server.url) as bus:
            return await (await bus.bucket("b")).put("key", b"")

    waiting = asyncio.create_task(first_revision())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await asyncio.to_thread(server.start)
    assert await soon(waiting) == 1
    await asyncio.to_thread(server.stop)


async def test_waiting_for_a_server_can_be_cancelled(tmp_path: Path) -> None:
    async def forever() -> None:
        async with connect("test", NatsServer(tmp_path).url):
            pytest.fail("there is no server")

    waiting = asyncio.create_task(forever())
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(waiting)


@pytest.mark.parametrize("url", ["127.0.0.1:4222", "http://127.0.0.1", "nats://", ""])
async def test_a_url_that_is_none_is_refused_by_name(url: str) -> None:
    with pytest.raises(Fatal, match="not the URL of a NATS server"):
        async with connect("test", url):
            pytest.fail("connected")


async def test_missing_credentials_are_named(server: NatsServer) -> None:
    with pytest.raises(Fatal, match="no such NATS credentials file: nowhere"):
        async with connect("test", server.url, "nowhere.creds"):
            pytest.fail("connected")


async def test_a_server_without_jetstream_is_named_as_such(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, jetstream=False)
    server.start()
    async with connect("test", server.url) as bus:
        await bus.publish("a", b"")
        for call in (bus.bucket("b"), bus.stream("s", ["s.>"], 1000), bus.put_file("f", "name", b"")):
            with pytest.raises(Fatal, match=f"127.0.0.1:{server.port} has no JetStream"):
                await call
    server.stop()


async def test_the_limit_is_the_servers(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, max_payload=4096)
    server.start()
    async with connect("test", server.url) as bus:
        with pytest.raises(TooLarge, match="4097 bytes exceeds the bus limit of 4096"):
            await bus.publish("a", bytes(4097))
        await bus.put_file("files", "name", bytes(100_000))
        assert await bus.get_file("files", "name") == bytes(100_000)
    server.stop()


async def test_payload_and_headers_together_are_held_to_the_limit(real: NatsMesh) -> None:
    bus = await real.bus()
    bucket = await bus.bucket("b")
    with pytest.raises(TooLarge):
        await bucket.create("key", bytes(1 << 20))
    assert bus.connected
    await bucket.put("key", bytes(1 << 20))


def test_headers_are_counted_as_they_are_sent() -> None:
    wire = b"NATS/1.0\r\nA: bc\r\n\r\n"
    check_size(b"xyz", len(wire) + 3, {"A": "bc"})
    with pytest.raises(TooLarge):
        check_size(b"xyz", len(wire) + 2, {"A": "bc"})


def test_an_error_survives_its_headers() -> None:
    error = error_of(of_error(ServiceError(409, "taken")))
    assert error
    assert (error.code, error.message) == (409, "taken")
    assert error_of({"other": "1"}) is None


async def test_an_answer_that_is_too_large_is_an_error_answer(real: NatsMesh) -> None:
    bus = await real.bus()

    async def boast(_: bytes) -> bytes:
        return bytes(2 << 20)

    await bus.serve("big", "1.0.0", "", {"boast": boast})
    with pytest.raises(ServiceError, match="too large"):
        await bus.request("moesaic.v1.service.big.boast", b"")
