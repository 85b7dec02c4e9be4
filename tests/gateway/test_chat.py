from __future__ import annotations

from typing import Any

import pytest

from moesaic.gateway.chat import conversation
from moesaic.gateway.errors import ApiError


def one(*, developer: bool = False, **message: Any) -> dict[str, Any]:
    return conversation([message], developer=developer)[0]


def test_parts_become_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert one(role="user", content=parts)["content"] == "a\nb"


def test_a_developer_is_a_system_where_the_template_knows_no_better() -> None:
    assert one(role="developer", content="x")["role"] == "system"
    assert one(role="developer", content="x", developer=True)["role"] == "developer"


@pytest.mark.parametrize("content", ["", None])
def test_an_assistant_with_tool_calls_needs_no_content(content: str | None) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    message = one(role="assistant", content=content, tool_calls=calls)
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"]["arguments"] == {"x": 1}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "wizard", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": ["text"]}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [1]}, "messages[0].tool_calls[0].function"),
    ],
)
def test_a_bad_message_is_a_400_that_says_where(message: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        conversation([message], developer=False)
    assert (caught.value.status, caught.value.param) == (400, param)
