"""Messages of a conversation in one form, whatever form the client used. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from moesaic.gateway.errors import invalid

ROLES = ("assistant", "developer", "function", "system", "tool", "user")
Message = dict[str, Any]


def conversation(messages: list[Message], *, developer: bool) -> list[Message]:
    """Messages as chat templates expect them: content is text, nulls are gone. Raises ApiError.

    `developer`: the template knows this role; if not, it becomes `system`.
    """
    return [_message(message, f"messages[{index}]", developer=developer) for index, message in enumerate(messages)]


def _message(given: Message, where: str, *, developer: bool) -> Message:
    role = given.get("role")
    if role not in ROLES:
        raise invalid(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
    message = {name: value for name, value in given.items() if value is not None}
    if role == "developer" and not developer:
        message["role"] = "system"
    calls = message.get("tool_calls")
    if calls is not None:
        message["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    if "content" not in message and not (role == "assistant" and (calls or "content" in given)):
        raise invalid(f"{where}.content is required", f"{where}.content")
    message["content"] = _text(message.get("content", ""), f"{where}.content")
    return message


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{where} must be a string or a list of parts", where)
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise invalid(f"{where} must be an object", where)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in {"text", "refusal"}:
        raise invalid(f"{where}.type must be text: other content is not supported yet", f"{where}.type")
    text = part.get(kind)
    if not isinstance(text, str):
        raise invalid(f"{where}.{kind} must be a string", f"{where}.{kind}")
    return text


def _calls(calls: object, where: str) -> list[Any]:
    """Tool calls with their arguments as objects: that is what templates print."""
    if not isinstance(calls, list):
        raise invalid(f"{where} must be a list", where)
    return [_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _call(call: object, where: str) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise invalid(f"{where}.function must be an object", f"{where}.function")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError as error:
        raise invalid(f"{where}.function.arguments is not valid JSON", f"{where}.function.arguments") from error
    return call | {"function": function | {"arguments": parsed}}
