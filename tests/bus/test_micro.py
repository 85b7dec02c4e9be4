from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from buses import Mesh, soon
from moesaic.shared import subjects
from moesaic.shared.bus import Bus, NoResponders, ServiceError

PAUSE = subjects.service("moesaic-planner", "pause")


async def echo(data: bytes) -> bytes:
    return data


async def refuse(data: bytes) -> bytes:
    raise ServiceError(409, f"already {data.decode()}")


async def broken(_: bytes) -> bytes:
    raise RuntimeError("a path: /etc/secret")


async def described(bus: Bus, verb: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await bus.request(f"$SRV.{verb}.moesaic-planner", b""))
    return answer


async def test_an_endpoint_answers_at_its_subject(mesh: Mesh) -> None:
    one, two = await mesh.bus(), await mesh.bus()
    await one.serve("moesaic-planner", "1.0.0", "plans", {"pause": echo})
    assert await two.request(PAUSE, b"now") == b"now"


async def test_an_error_answer_reaches_the_caller_with_its_code(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.serve("moesaic-planner", "1.0.0", "plans", {"pause": refuse})
    with pytest.raises(ServiceError, match="already paused") as refusal:
        await bus.request(PAUSE, b"paused")
    assert refusal.value.code == 409


async def test_an_unexpected_error_is_answered_without_its_details(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.serve("moesaic-planner", "1.0.0", "plans", {"pause": broken})
    with pytest.raises(ServiceError) as failure:
        await bus.request(PAUSE, b"")
    assert (failure.value.code, failure.value.message) == (500, "internal error")


async def test_a_slow_request_does_not_hold_up_the_next(mesh: Mesh) -> None:
    bus = await mesh.bus()
    second = asyncio.Event()

    async def wait_for_second(data: bytes) -> bytes:
        if data == b"second":
            second.set()
        await second.wait()
        return data

    await bus.serve("moesaic-planner", "1.0.0", "plans", {"pause": wait_for_second})
    first = asyncio.create_task(bus.request(PAUSE, b"first", timeout=20))
    await asyncio.sleep(0)
    assert await bus.request(PAUSE, b"second", timeout=20) == b"second"
    assert await soon(first) == b"first"


async def test_a_service_tells_its_name_and_its_endpoints(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.serve("moesaic-planner", "1.2.3", "plans", {"pause": echo, "resume": echo})
    ping, info = await described(bus, "PING"), await described(bus, "INFO")
    assert (ping["type"], ping["version"]) == ("io.nats.micro.v1.ping_response", "1.2.3")
    assert (info["description"], info["id"]) == ("plans", ping["id"])
    assert [e["name"] for e in info["endpoints"]] == ["pause", "resume"]
    assert info["endpoints"][0]["subject"] == PAUSE
    assert json.loads(await bus.request("$SRV.PING", b""))["name"] == "moesaic-planner"


async def test_stats_count_requests_and_errors_per_endpoint(mesh: Mesh) -> None:
    bus = await mesh.bus()
    await bus.serve("moesaic-planner", "1.0.0", "plans", {"pause": refuse, "resume": echo})
    await bus.request(subjects.service("moesaic-planner", "resume"), b"")
    with pytest.raises(ServiceError):
        await bus.request(PAUSE, b"x")
    pause, resume = (await described(bus, "STATS"))["endpoints"]
    assert (pause["num_requests"], pause["num_errors"], pause["last_error"]) == (1, 1, "409:already x")
    assert (resume["num_requests"], resume["num_errors"]) == (1, 0)


async def test_one_of_two_instances_answers_a_request(mesh: Mesh) -> None:
    one, two = await mesh.bus(), await mesh.bus()
    answered = 0

    async def count(data: bytes) -> bytes:
        nonlocal answered
        answered += 1
        return data

    for bus in (one, two):
        await bus.serve("moesaic-planner", "1.0.0", "plans", {"pause": count})
    for _ in range(10):
        await one.request(PAUSE, b"")
    assert answered == 10


async def test_a_closed_service_is_gone(mesh: Mesh) -> None:
    bus = await mesh.bus()
    service = await bus.serve("moesaic-planner", "1.0.0", "plans", {"pause": echo})
    await service.close()
    for subject in (PAUSE, "$SRV.PING.moesaic-planner"):
        with pytest.raises(NoResponders):
            await bus.request(subject, b"")


async def test_a_service_answers_again_after_an_outage(mesh: Mesh) -> None:
    bus, caller = await mesh.bus(), await mesh.bus()
    await bus.serve("moesaic-planner", "1.0.0", "plans", {"pause": echo})
    before = await described(caller, "PING")
    await mesh.down()
    await mesh.up()
    assert await caller.request(PAUSE, b"still") == b"still"
    assert await described(caller, "PING") == before


async def test_a_service_name_that_nats_does_not_take_is_refused(mesh: Mesh) -> None:
    bus = await mesh.bus()
    with pytest.raises(ValueError, match="service name"):
        await bus.serve("moesaic.planner", "1.0.0", "plans", {})
