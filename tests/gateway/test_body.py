from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from moesaic.gateway.body import BOTH, CHAT, chat_request, completion_request
from moesaic.gateway.errors import ApiError
from moesaic.gateway.schema import ChatRequest

CHATTING = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat_request(json.dumps(CHATTING | fields).encode())
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xef\xbb\xbf{}",
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"model": "m", "top_p": NaN}',
        b'{"model": "m", "top_p": 1e999}',
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        chat_request(data)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_an_unknown_parameter_is_named() -> None:
    error = refused(temprature=1)
    assert (error.param, error.code) == ("temprature", "unknown_parameter")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", []),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "auto"),
        ("response_format", {"type": "json_object"}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("logit_bias", {"5": 1}),
        ("reasoning_effort", "low"),
        ("echo", True),
    ],
)
def test_what_does_not_work_yet_is_named(name: str, value: object) -> None:
    error = refused(**{name: value})
    assert error.param == name
    assert "not supported yet" in error.message


def test_neutral_values_and_nulls_pass() -> None:
    neutral = {name: values[0] for name, values in CHAT.items() if values}
    chat_request(json.dumps(CHATTING | neutral).encode())
    optional = [f.name for f in msgspec.structs.fields(ChatRequest) if not f.required]
    chat_request(json.dumps(CHATTING | dict.fromkeys([*optional, *BOTH, *CHAT])).encode())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_completion_tokens", 0),
        ("temperature", 2.5),
        ("temperature", "1"),
        ("top_p", 0),
        ("n", 0),
        ("n", 129),
        ("seed", 2**64),
        ("stop", ["x"] * 17),
        ("stop", [""]),
        ("stop", [1]),
        ("stop_token_ids", [-1]),
        ("stream_options", {"include_usage": True}),
        ("top_logprobs", 3),
        ("messages", []),
        ("model", ""),
    ],
)
def test_a_bad_value_is_a_400_that_names_it(name: str, value: object) -> None:
    assert str(refused(**{name: value}).param).startswith(name)


def test_a_missing_parameter_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        chat_request(b'{"model": "m"}')
    assert caught.value.param == "messages"


def test_the_newer_limit_wins() -> None:
    request = chat_request(json.dumps(CHATTING | {"max_tokens": 5, "max_completion_tokens": 7}).encode())
    assert request.max_tokens_given == 7


def test_errors_do_not_echo_at_length() -> None:
    error = refused(**{"x" * 100_000: 1})
    assert len(error.body) < 1000


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_a_completion_takes_every_kind_of_prompt(prompt: object, prompts: list[object]) -> None:
    assert completion_request(json.dumps({"model": "m", "prompt": prompt}).encode()).prompts() == prompts


@pytest.mark.parametrize("prompt", [None, [], [[]], [True], [1, "a"], {"a": 1}, [1.5], ["x"] * 129])
def test_other_prompts_are_a_400(prompt: object) -> None:
    with pytest.raises(ApiError) as caught:
        completion_request(json.dumps({"model": "m", "prompt": prompt}).encode())
    assert caught.value.param == "prompt"
