"""The official client against a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk, ChatCompletionUserMessageParam

from gateway.mesh import Mesh, meshed
from gateway.scripted import Script, say
from gateway.tiny import NAME, STOP, ids

HELLO: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client(*scripts: Script) -> AsyncIterator[tuple[Mesh, AsyncOpenAI]]:
    async with (
        meshed(*scripts) as mesh,
        AsyncOpenAI(base_url=f"{mesh.gateway.url}/v1", api_key="x", max_retries=0) as c,
    ):
        yield mesh, c


async def test_a_chat_is_answered() -> None:
    async with client(say("Hello 你好 🜚")) as (mesh, api):
        answer = await api.chat.completions.create(model=NAME, messages=HELLO)
    assert answer.choices[0].message.content == "Hello 你好 🜚"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids("hello"))
    assert answer.usage.completion_tokens == len(ids("Hello 你好 🜚")) + 1
    assert mesh.engine.asked[0].tokens == tuple(ids("hello"))


async def test_a_chat_streams() -> None:
    async with client(say("Hello 你好 🜚")) as (_, api):
        stream = await api.chat.completions.create(
            model=NAME, messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks: list[ChatCompletionChunk] = [chunk async for chunk in stream]
    assert [c.choices[0].delta.role for c in chunks[:-1]] == ["assistant"] + [None] * (len(chunks) - 2)
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Hello 你好 🜚"
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(ids("Hello 你好 🜚")) + 1


async def test_choices_stream_in_order_and_the_client_joins_them() -> None:
    async with (
        client(say("some words here")) as (_, api),
        api.chat.completions.stream(model=NAME, messages=HELLO, n=3) as stream,
    ):
        answer = await stream.get_final_completion()
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert [c.message.content for c in answer.choices] == ["some words here"] * 3
    assert answer.choices[2].message.role == "assistant"


async def test_a_completion_takes_several_prompts_and_choices() -> None:
    async with client(say("yes", "length")) as (mesh, api):
        answer = await api.completions.create(model=NAME, prompt=["a", "bc"], n=2, max_tokens=len(ids("yes")))
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert {c.text for c in answer.choices} == {"yes"}
    assert {c.finish_reason for c in answer.choices} == {"length"}
    assert sorted(r.tokens for r in mesh.engine.asked) == sorted([tuple(ids(p)) for p in ("a", "a", "bc", "bc")])


async def test_a_completion_streams_from_token_ids() -> None:
    async with client(say("one two")) as (mesh, api):
        stream = await api.completions.create(model=NAME, prompt=[5, 6], stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert text == "one two"
    assert mesh.engine.asked[0].tokens == (5, 6)


async def test_a_stop_string_ends_it_and_frees_the_engine() -> None:
    async with client(say("one two three four five")) as (mesh, api):
        answer = await api.chat.completions.create(model=NAME, messages=HELLO, stop=[" three"])
        cancelled = await mesh.engine.cancelled.get()
    assert answer.choices[0].message.content == "one two"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ids("one two three"))
    assert cancelled == mesh.engine.asked[0].request


async def test_log_probabilities_have_the_apis_shape() -> None:
    async with client(say("é")) as (mesh, api):
        chat = await api.chat.completions.create(model=NAME, messages=HELLO, logprobs=True, top_logprobs=2)
        plain = await api.completions.create(model=NAME, prompt="x", logprobs=2)
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content
    assert content is not None
    assert bytes(byte for entry in content[:-1] for byte in entry.bytes or []) == "é".encode()
    assert content[0].top_logprobs[1].logprob == -9999.0
    assert plain.choices[0].logprobs is not None
    assert plain.choices[0].logprobs.token_logprobs == [-0.5] * (len(ids("é")) + 1)
    assert {r.sampling.logprobs for r in mesh.engine.asked} == {2}


async def test_token_ids_come_on_request() -> None:
    async with client(say("hi")) as (_, api):
        answer = await api.chat.completions.create(model=NAME, messages=HELLO, extra_body={"return_token_ids": True})
    assert answer.choices[0].to_dict()["token_ids"] == [*ids("hi"), STOP]


async def test_models_are_listed_and_found_whatever_their_name() -> None:
    async with client(say("")) as (_, api):
        assert [m.id async for m in api.models.list()] == [NAME]
        assert (await api.models.retrieve(NAME)).id == NAME
        with pytest.raises(openai.NotFoundError) as caught:
            await api.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"


async def test_errors_arrive_as_the_clients_own() -> None:
    async with client(say("")) as (_, api):
        with pytest.raises(openai.NotFoundError) as missing:
            await api.chat.completions.create(model="none", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as bad:
            await api.chat.completions.create(model=NAME, messages=HELLO, presence_penalty=1)
    assert missing.value.code == "model_not_found"
    assert bad.value.param == "presence_penalty"


async def test_the_request_id_comes_back() -> None:
    async with client(say("hi")) as (_, api):
        headers = {"x-request-id": "mine"}
        answer = await api.chat.completions.create(model=NAME, messages=HELLO, extra_headers=headers)
        assert answer._request_id == "mine"
