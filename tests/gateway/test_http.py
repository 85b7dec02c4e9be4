"""Errors of every kind in the API's shape, and the endpoints beside generation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import ClientResponse

from gateway.mesh import HELLO, meshed
from gateway.scripted import mute, say
from gateway.tiny import NAME

CHAT = "/v1/chat/completions"


async def shaped(response: ClientResponse) -> dict[str, Any]:
    content = await response.json()
    assert set(content) == {"error"}
    assert set(content["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    error: dict[str, Any] = content["error"]
    return error


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", CHAT, 405), ("POST", "/v1/models", 405), ("POST", CHAT, 400)],
)
async def test_every_error_has_the_apis_shape(method: str, path: str, status: int) -> None:
    async with meshed(mute) as mesh, mesh.http.request(method, path) as response:
        assert response.status == status
        await shaped(response)
        assert ("Allow" in response.headers) == (status == 405)


async def test_a_body_over_the_limit_is_a_413() -> None:
    async with meshed(mute, settings={"body_limit_kb": 4}) as mesh, mesh.http.post(CHAT, data=b"x" * 5000) as response:
        assert response.status == 413
        await shaped(response)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-16", "text/plain; charset=nonsense"])
async def test_another_charset_is_a_400(kind: str) -> None:
    async with meshed(mute) as mesh, mesh.http.post(CHAT, data=b"{}", headers={"Content-Type": kind}) as response:
        assert response.status == 400
        assert (await shaped(response))["code"] == "invalid_charset"


async def test_json_needs_no_content_type() -> None:
    async with meshed(say("hi")) as mesh:
        body = b'{"model": "org/tiny.1", "messages": [{"role": "user", "content": "x"}]}'
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        async with mesh.http.post(CHAT, data=body, headers=headers) as response:
            assert response.status == 200


@pytest.mark.parametrize("given", ["x" * 5000, "a\tb\u00ff"])
async def test_the_echoed_request_id_is_short_and_printable(given: str) -> None:
    async with meshed(mute) as mesh, mesh.http.get("/live", headers={"x-request-id": given}) as response:
        echoed = response.headers["x-request-id"]
    assert len(echoed) <= 128
    assert echoed.isascii()


async def test_the_same_request_id_may_be_in_flight_twice() -> None:
    async with meshed(say("hi")) as mesh:

        async def ask() -> int:
            headers = {"x-request-id": "same"}
            async with mesh.http.post(CHAT, json=HELLO | {"model": NAME}, headers=headers) as response:
                return response.status

        assert list(await asyncio.gather(ask(), ask())) == [200, 200]
    assert len({request.request for request in mesh.engine.asked}) == 2


async def test_a_prompt_too_long_is_refused_before_anything_is_sent() -> None:
    async with meshed(mute) as mesh:
        status, answer = await mesh.post({"prompt": "word " * 3000}, "/v1/completions")
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert not mesh.engine.asked


async def test_more_requests_than_allowed_are_a_429() -> None:
    async with meshed(mute, settings={"max_open": 1}) as mesh:
        waiting = asyncio.create_task(mesh.post(HELLO))
        await mesh.engine.requested.get()
        assert (await mesh.post(HELLO))[0] == 429
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.parametrize("path", ["/v1/models/org/tiny.1", "/v1/models/org%2Ftiny.1"])
async def test_a_model_is_found_with_its_slash_or_without(path: str) -> None:
    async with meshed(mute) as mesh:
        status, model = await mesh.get(path)
    assert (status, model["id"], model["max_model_len"]) == (200, NAME, 2048)


async def test_health_and_version_answer() -> None:
    async with meshed(mute) as mesh:
        answers = [await mesh.get(path) for path in ("/health", "/ready", "/live", "/version")]
    assert [status for status, _ in answers] == [200] * 4
    assert answers[1][1]["models"] == [NAME]
    assert "version" in answers[3][1]


async def test_it_is_not_ready_without_engine_or_bus_but_alive() -> None:
    async with meshed(wait=False) as mesh:
        assert [(await mesh.get(path))[0] for path in ("/ready", "/live", "/health")] == [503, 200, 200]
        mesh.broker.down()
        assert (await mesh.get("/ready"))[1]["error"]["code"] == "bus_down"


async def test_metrics_have_the_names_that_dashboards_expect() -> None:
    async with meshed(say("a b c")) as mesh:
        await mesh.post(HELLO)
        async with mesh.http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
    label = f'{{model_name="{NAME}"}}'
    assert f"vllm:time_to_first_token_seconds_count{label} 1.0" in lines
    assert f"vllm:generation_tokens_total{label} 4.0" in lines
    assert f'vllm:request_success_total{{finished_reason="stop",model_name="{NAME}"}} 1.0' in lines
    assert f"vllm:kv_cache_usage_perc{label} 0.25" in lines
    assert "moesaic_gateway_bus_connected 1.0" in lines
    assert f'moesaic_gateway_engines{{model_name="{NAME}",state="serving"}} 1.0' in lines
    assert f'moesaic_gateway_http_requests_total{{route="{CHAT}",status="200"}} 1.0' in lines
