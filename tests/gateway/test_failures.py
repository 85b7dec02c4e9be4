"""Messages lost, engines lost, the bus lost: the client sees its tokens, each once, or an error, never a silent end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.mesh import HELLO, Mesh, meshed, until_ready
from gateway.scripted import Script, ScriptedEngine, begin, mute
from gateway.tiny import NAME, STOP, ids
from moesaic.shared import subjects
from moesaic.shared.messages import Generate, RefusalCode, WireError

TEXT = "one two three four five six"
TOKENS = [*ids(TEXT), STOP]


def content(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def finish(engine: ScriptedEngine, request: Generate) -> None:
    """The rest of TEXT in one frame."""
    start = request.output_offset
    await engine.emit(request, engine.frame(request, start, TOKENS[start:], "stop"))


def then(first: Script, *rest: Script) -> Script:
    """Another script at each request."""
    turns = [first, *rest]

    async def script(engine: ScriptedEngine, request: Generate) -> None:
        await (turns.pop(0) if len(turns) > 1 else turns[0])(engine, request)

    return script


async def started(mesh: Mesh) -> asyncio.Task[tuple[int, Any]]:
    """A request of which the first engine has sent the first tokens."""
    task = asyncio.create_task(mesh.post(HELLO))
    async with asyncio.timeout(10):
        await mesh.engine.spoke.wait()
    return task


# --- messages ---------------------------------------------------------------------------------------------------------


async def test_a_lost_message_is_asked_for_again() -> None:
    async def script(engine: ScriptedEngine, request: Generate) -> None:
        for index, token in enumerate(TOKENS):
            ends = "stop" if index == len(TOKENS) - 1 else None
            await engine.emit(request, engine.frame(request, index, [token], ends), lost=index == 2)

    async with meshed(script) as mesh:
        status, answer = await mesh.post(HELLO)
        assert status == 200
        assert content(answer) == TEXT
        assert mesh.engine.replays
        assert answer["usage"]["completion_tokens"] == len(TOKENS)


async def test_a_lost_end_shows_at_the_next_heartbeat() -> None:
    async def script(engine: ScriptedEngine, request: Generate) -> None:
        await begin(engine, request)
        await engine.emit(request, engine.frame(request, 2, TOKENS[2:], "stop"), lost=True)
        await engine.emit(request)

    async with meshed(script) as mesh:
        assert content((await mesh.post(HELLO))[1]) == TEXT
        assert [replay.from_index for replay in mesh.engine.replays] == [2]


async def test_a_lost_message_is_repaired_for_every_stream_of_its_engine() -> None:
    arrived: list[Generate] = []

    async def script(engine: ScriptedEngine, request: Generate) -> None:
        arrived.append(request)
        if len(arrived) < 2:
            return
        frames = [engine.frame(each, 0, TOKENS, "stop") for each in arrived]
        await engine.emit(request, *frames, lost=True)
        await engine.emit(request)

    async with meshed(script) as mesh:
        answers = await asyncio.gather(mesh.post(HELLO), mesh.post(HELLO))
    assert [content(answer) for _, answer in answers] == [TEXT, TEXT]


async def test_repeated_and_reordered_messages_change_nothing() -> None:
    async def script(engine: ScriptedEngine, request: Generate) -> None:
        frames = [engine.frame(request, i, [t], "stop" if t == STOP else None) for i, t in enumerate(TOKENS)]
        for place in (1, 0, 2, 1, 4, 3, 0, *range(5, len(frames))):
            await engine.emit(request, frames[place], times=2)

    async with meshed(script) as mesh:
        status, answer = await mesh.post(HELLO)
    assert (status, content(answer)) == (200, TEXT)


async def test_frames_of_a_request_nobody_waits_for_are_cancelled() -> None:
    async with meshed(finish) as mesh:
        await mesh.post(HELLO)
        request = mesh.engine.asked[0]
        await mesh.engine.cancelled.get()
        await mesh.engine.emit(request, mesh.engine.frame(request, 0, TOKENS))
        async with asyncio.timeout(10):
            assert await mesh.engine.cancelled.get() == request.request


async def test_a_malformed_message_harms_nothing() -> None:
    async with meshed(finish) as mesh:
        for subject in (subjects.status("x"), subjects.frames("x")):
            await mesh.engine.bus.publish(subject, b'{"type": "nonsense"}')
        assert content((await mesh.post(HELLO))[1]) == TEXT


# --- before the first token -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["full", "not_ready", "draining", "wrong_model"])
async def test_another_engine_is_tried_when_one_refuses(code: RefusalCode) -> None:
    async with meshed(finish, finish) as mesh:
        await mesh.tell(1, running=5)
        mesh.engine.refusals = [code]
        status, answer = await mesh.post(HELLO)
    assert (status, content(answer)) == (200, TEXT)
    assert len(mesh.engines[0].asked) == 1
    assert len(mesh.engines[1].asked) == 1


async def test_an_engine_that_does_not_answer_is_told_to_forget_it_and_another_is_tried() -> None:
    async with meshed(finish, finish) as mesh:
        mesh.engine.deaf = True
        await mesh.tell(1, running=5)
        status, _ = await mesh.post(HELLO)
        assert status == 200
        assert await mesh.engine.cancelled.get() == mesh.engine.asked[0].request


async def test_when_all_engines_are_full_the_answer_is_429() -> None:
    async with meshed(mute, mute) as mesh:
        for engine in mesh.engines:
            engine.refusals = ["full"]
        async with mesh.http.post("/v1/chat/completions", json=HELLO | {"model": NAME}) as response:
            assert response.status == 429
            assert response.headers["Retry-After"] == "1"


async def test_without_an_engine_the_answer_is_503_after_the_wait() -> None:
    async with meshed(mute, settings={"route_timeout_s": 0.2}) as mesh:
        await mesh.tell(0, state="joining")
        async with mesh.http.post("/v1/chat/completions", json=HELLO | {"model": NAME}) as response:
            assert response.status == 503
            assert "Retry-After" in response.headers
        assert not mesh.engine.asked


async def test_a_request_waits_for_an_engine_that_is_about_to_serve() -> None:
    async with meshed(finish, settings={"route_timeout_s": 10}) as mesh:
        await mesh.tell(0, state="joining")
        waiting = asyncio.create_task(mesh.post(HELLO))
        await mesh.get("/live")
        assert not mesh.engine.asked
        await mesh.tell(0, state="serving")
        assert (await waiting)[0] == 200


async def test_what_the_engine_finds_invalid_is_a_400_and_not_tried_again() -> None:
    async with meshed(mute) as mesh:
        mesh.engine.refusals = ["invalid"]
        status, answer = await mesh.post(HELLO)
    assert (status, answer["error"]["message"]) == (400, "as told")
    assert len(mesh.engine.asked) == 1


# --- after the first token --------------------------------------------------------------------------------------------


async def test_a_restarted_engine_goes_on_from_the_delivered_tokens() -> None:
    async with meshed(then(begin, finish)) as mesh:
        answer = await started(mesh)
        mesh.engine.restart()
        status, whole = await answer
    assert (status, content(whole)) == (200, TEXT)
    first, second = mesh.engine.asked
    assert second.tokens == first.tokens + tuple(TOKENS[:2])
    assert (second.output_offset, second.sampling) == (2, first.sampling)
    assert second.request != first.request
    assert whole["usage"]["completion_tokens"] == len(TOKENS)


async def test_a_dead_engine_is_replaced_by_another() -> None:
    async with meshed(begin, finish) as mesh:
        await mesh.tell(1, running=5)
        answer = await started(mesh)
        await mesh.engine.disconnect()
        status, whole = await answer
    assert (status, content(whole)) == (200, TEXT)
    assert mesh.engines[1].asked[0].output_offset == 2


async def test_a_forgotten_stream_goes_on_anew() -> None:
    async with meshed(then(begin, finish)) as mesh:
        answer = await started(mesh)
        request = mesh.engine.asked[0]
        mesh.engine.kept.clear()
        mesh.engine.frame_numbers.next()
        await mesh.engine.emit(request)
        assert content((await answer)[1]) == TEXT


async def test_a_lost_group_is_no_end() -> None:
    async def broken(engine: ScriptedEngine, request: Generate) -> None:
        await begin(engine, request)
        await engine.fail(request, WireError(code="lost_group", message="gone"))

    async with meshed(then(broken, finish)) as mesh:
        status, answer = await mesh.post(HELLO)
    assert (status, content(answer)) == (200, TEXT)


async def test_a_resumed_stream_repeats_no_role_and_no_text() -> None:
    async with meshed(then(begin, finish)) as mesh:
        body = HELLO | {"model": NAME, "stream": True}
        async with mesh.http.post("/v1/chat/completions", json=body) as response:
            first = await response.content.readline()
            mesh.engine.restart()
            rest = await response.text()
    chunks = [json.loads(line[6:]) for line in [first.decode(), *rest.splitlines()] if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == TEXT
    assert [("role" in delta) for delta in deltas] == [True] + [False] * (len(deltas) - 1)


async def test_a_stream_that_nobody_can_resume_ends_with_an_error_event() -> None:
    async with meshed(begin, settings={"resume_timeout_s": 0.3}) as mesh:
        body = HELLO | {"model": NAME, "stream": True}
        async with mesh.http.post("/v1/chat/completions", json=body) as response:
            await response.content.readline()
            await mesh.engine.disconnect()
            rest = await response.text()
    assert '"error"' in rest
    assert rest.endswith("data: [DONE]\n\n")


async def test_a_request_that_kills_engines_does_not_kill_them_all() -> None:
    async def poison(engine: ScriptedEngine, request: Generate) -> None:
        await engine.fail(request, WireError(code="lost_group", message="gone"))

    async with meshed(poison) as mesh:
        status, answer = await mesh.post(HELLO)
    assert (status, answer["error"]["code"]) == (503, "engine_lost")
    assert len(mesh.engine.asked) <= 5


# --- the bus ----------------------------------------------------------------------------------------------------------


async def test_a_stream_outlives_an_outage_of_the_bus() -> None:
    async with meshed(begin) as mesh:
        answer = await started(mesh)
        mesh.broker.down()
        await asyncio.sleep(0.5)
        request = mesh.engine.asked[0]
        mesh.engine.frame(request, 2, TOKENS[2:], "stop")
        assert not answer.done()
        mesh.broker.up()
        status, whole = await answer
    assert (status, content(whole)) == (200, TEXT)
    assert len(mesh.engine.asked) == 1


async def test_a_repaired_stream_asks_no_more() -> None:
    async with meshed(begin, settings={"silent_s": 5.0}) as mesh:
        answer = await started(mesh)
        mesh.broker.down()
        await asyncio.sleep(0.2)
        mesh.broker.up()
        await asyncio.sleep(0.2)
        asked = len(mesh.engine.replays)
        assert asked
        await asyncio.sleep(0.3)
        assert len(mesh.engine.replays) == asked
        answer.cancel()
        await asyncio.wait([answer])


async def test_an_engine_that_comes_back_later_than_the_bus_is_waited_for() -> None:
    async with meshed(begin, settings={"silent_s": 1.0}) as mesh:
        answer = await started(mesh)
        await mesh.engine.disconnect()
        mesh.broker.down()
        await asyncio.sleep(1.2)
        mesh.broker.up()
        await mesh.get("/live")  # a round trip: it has been asked for in vain
        mesh.engine.frame(mesh.engine.asked[0], 2, TOKENS[2:], "stop")
        await mesh.engine.connect()
        status, whole = await answer
    assert (status, content(whole)) == (200, TEXT)
    assert len(mesh.engine.asked) == 1


async def test_an_outage_that_lasts_ends_the_stream_with_an_error() -> None:
    async with meshed(begin, settings={"resume_timeout_s": 0.2}) as mesh:
        answer = await started(mesh)
        mesh.broker.down()
        status, whole = await answer
        mesh.broker.up()
        assert (status, whole["error"]["code"]) == (503, "engine_lost")
        await until_ready(mesh)
