"""The gateway's beginning and end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from gateway.mesh import HELLO, Mesh, eventually, meshed, until_ready
from gateway.scripted import ScriptedEngine, begin, mute, say
from gateway.tiny import NAME, publish_model
from moesaic.gateway.config import GatewayConfig
from moesaic.gateway.service import open_service
from moesaic.shared.memory_bus import MemoryBroker, MemoryBus
from moesaic.shared.messages import Generate
from moesaic.shared.service import Fatal


async def test_the_bound_port_is_written_where_it_was_asked_for(tmp_path: Path) -> None:
    port = tmp_path / "port"
    async with meshed(settings={"port_file": str(port)}, wait=False) as mesh:
        assert port.read_text() == str(mesh.gateway.port)
        assert (await mesh.get("/live"))[0] == 200


async def test_a_taken_port_is_one_clear_error() -> None:
    async with meshed(wait=False) as mesh:
        config = GatewayConfig(port=mesh.gateway.port)
        with pytest.raises(Fatal, match=f"cannot listen on 127.0.0.1:{mesh.gateway.port}"):
            async with open_service(config, MemoryBus(MemoryBroker())):
                pass


async def test_it_starts_before_the_bus_and_finds_models_later() -> None:
    broker = MemoryBroker()
    broker.down()
    bus = MemoryBus(broker)
    async with open_service(GatewayConfig(port=0), bus) as gateway, aiohttp.ClientSession(gateway.url) as http:
        broker.up()
        await publish_model(bus)

        async def known() -> bool:
            body = HELLO | {"model": NAME, "max_tokens": 1 << 20}
            return (await http.post("/v1/chat/completions", json=body)).status == 400

        await eventually(known)
    await bus.close()


async def test_a_model_announced_later_is_served() -> None:
    async with meshed(say("hi"), models=False, wait=False) as mesh:
        assert (await mesh.post(HELLO))[0] == 404
        await publish_model(mesh.engine.bus)
        await until_ready(mesh)
        assert (await mesh.post(HELLO))[0] == 200


async def test_a_model_with_a_broken_template_answers_why() -> None:
    async with meshed(say("hi")) as mesh:
        await publish_model(mesh.engine.bus, **{"chat_template.jinja": b"{% if %}"})

        async def refused() -> bool:
            return (await mesh.post(HELLO))[0] != 200

        await eventually(refused)
        status, answer = await mesh.post(HELLO)
        assert status == 500
        assert "chat template cannot be compiled" in answer["error"]["message"]
        assert (await mesh.post({"prompt": "x"}, "/v1/completions"))[0] == 200


async def test_stopping_lets_what_runs_finish() -> None:
    go = asyncio.Event()

    async def script(engine: ScriptedEngine, request: Generate) -> None:
        await go.wait()
        await say("hi")(engine, request)

    async with meshed(script, settings={"drain_s": 10}) as mesh:
        running = asyncio.create_task(asked(mesh))
        await mesh.engine.requested.get()
        asyncio.get_running_loop().call_later(0.1, go.set)
        await mesh.stop()
        assert await running == 200


async def test_while_stopping_it_is_unhealthy_but_alive_and_takes_nothing_new() -> None:
    async with meshed(mute, settings={"drain_s": 10}) as mesh:
        running = asyncio.create_task(asked(mesh))
        await mesh.engine.requested.get()
        probing = asyncio.create_task(probe(mesh, running))
        await mesh.stop()
        assert await probing == [503, 503, 200, 503]


async def test_what_does_not_finish_in_time_ends_with_an_error_event() -> None:
    async with meshed(begin, settings={"drain_s": 0.1}) as mesh:
        response = await mesh.http.post("/v1/chat/completions", json=HELLO | {"model": NAME, "stream": True})
        await mesh.stop()
        text = await response.text()
    assert '"code":"draining"' in text
    assert text.endswith("data: [DONE]\n\n")


async def test_stopping_tells_engines_to_forget_what_ran() -> None:
    async with meshed(begin, settings={"drain_s": 0.05}) as mesh:
        await mesh.http.post("/v1/chat/completions", json=HELLO | {"model": NAME, "stream": True})
        await mesh.stop()
        async with asyncio.timeout(10):
            assert await mesh.engine.cancelled.get() == mesh.engine.asked[0].request


async def asked(mesh: Mesh) -> int:
    status, _ = await mesh.post(HELLO)
    return status


async def probe(mesh: Mesh, running: asyncio.Task[int]) -> list[int]:
    """What a stopping gateway answers; then the request that holds it up goes away."""

    async def stopping() -> bool:
        return (await mesh.get("/health"))[0] != 200

    await eventually(stopping)
    answers = [(await mesh.get(path))[0] for path in ("/health", "/ready", "/live")]
    answers.append(await asked(mesh))
    running.cancel()
    return answers
