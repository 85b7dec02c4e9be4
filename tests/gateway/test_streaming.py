"""What goes over the wire of a stream, byte by byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gateway.mesh import HELLO, Mesh, meshed
from gateway.scripted import ScriptedEngine, begin, mute, say
from gateway.tiny import NAME, ids
from moesaic.shared.messages import Generate, WireError


async def events(mesh: Mesh, **fields: Any) -> list[str]:
    async with mesh.http.post(
        "/v1/chat/completions", json=HELLO | {"model": NAME, "stream": True} | fields
    ) as response:
        assert response.status == 200
        text = await response.text()
    return [event for event in text.split("\n\n") if event]


async def test_a_stream_ends_with_done_and_says_how_to_be_passed_on() -> None:
    body = HELLO | {"model": NAME, "stream": True}
    async with meshed(say("a b")) as mesh, mesh.http.post("/v1/chat/completions", json=body) as response:
        text = await response.text()
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"
    assert text.endswith("data: [DONE]\n\n")


async def test_usage_comes_only_when_asked_for_and_finish_is_null_before() -> None:
    async with meshed(say("a b")) as mesh:
        plain = [json.loads(e.removeprefix("data: ")) for e in (await events(mesh))[:-1]]
    assert not any("usage" in chunk for chunk in plain)
    assert [chunk["choices"][0]["finish_reason"] for chunk in plain[:-1]] == [None] * (len(plain) - 1)
    assert "content" in plain[0]["choices"][0]["delta"]


async def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    async with meshed(say("one two three four")) as mesh:
        chunks = await events(mesh, stop=["two three five"])
    contents = [json.loads(e[6:])["choices"][0]["delta"].get("content", "") for e in chunks[:-1]]
    assert "".join(contents) == "one two three four"
    assert "two three four" in contents


async def test_an_error_after_the_first_token_is_an_event_before_done() -> None:
    async def script(engine: ScriptedEngine, request: Generate) -> None:
        await begin(engine, request)
        await engine.fail(request, WireError(code="internal", message="broken pipe"))

    async with meshed(script) as mesh:
        chunks = await events(mesh)
    error = json.loads(chunks[-2].removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] == "broken pipe"
    assert chunks[-1] == "data: [DONE]"


async def test_an_error_before_the_first_token_is_no_200() -> None:
    async def script(engine: ScriptedEngine, request: Generate) -> None:
        await engine.fail(request, WireError(code="deadline", message="waited too long"))

    async with meshed(script) as mesh:
        status, answer = await mesh.post(HELLO | {"stream": True})
    assert status == 504
    assert answer["error"]["code"] == "deadline_exceeded"


async def test_an_idle_stream_is_kept_alive_by_comments() -> None:
    async with meshed(begin, settings={"keepalive_s": 0.05}) as mesh:
        body = HELLO | {"model": NAME, "stream": True}
        async with mesh.http.post("/v1/chat/completions", json=body) as response, asyncio.timeout(10):
            while await response.content.readline() != b": keep-alive\n":
                pass


async def test_a_client_that_leaves_while_reading_frees_the_engine() -> None:
    async with meshed(begin) as mesh:
        body = HELLO | {"model": NAME, "stream": True}
        async with mesh.http.post("/v1/chat/completions", json=body) as response:
            await response.content.readline()
            response.close()
        async with asyncio.timeout(10):
            assert await mesh.engine.cancelled.get() == mesh.engine.asked[0].request


async def test_a_client_that_leaves_before_the_first_token_frees_the_engine() -> None:
    async with meshed(mute) as mesh, asyncio.timeout(10):
        waiting = asyncio.create_task(mesh.post(HELLO))
        await mesh.engine.requested.get()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await mesh.engine.cancelled.get() == mesh.engine.asked[0].request


async def test_a_client_that_leaves_while_no_engine_answers_leaves_nothing_behind() -> None:
    async with meshed(mute) as mesh, asyncio.timeout(10):
        mesh.engine.deaf = True
        waiting = asyncio.create_task(mesh.post(HELLO))
        await mesh.engine.requested.get()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await mesh.engine.cancelled.get() == mesh.engine.asked[0].request


async def test_several_tokens_in_a_frame_are_one_event() -> None:
    async def script(engine: ScriptedEngine, request: Generate) -> None:
        await engine.emit(request, engine.frame(request, 0, ids("a b c d"), "length"))

    async with meshed(script) as mesh:
        chunks = await events(mesh)
    assert len(chunks) == 2
    choice = json.loads(chunks[0].removeprefix("data: "))["choices"][0]
    assert choice["delta"] == {"role": "assistant", "content": "a b c d"}
    assert choice["finish_reason"] == "length"
