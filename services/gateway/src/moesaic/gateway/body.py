"""From the bytes of a request to its type: JSON, names, ranges. Everything wrong is a 400 that names the parameter."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
import orjson

from moesaic.gateway.errors import ApiError, invalid, unsupported
from moesaic.gateway.schema import MAX_CHOICES, MAX_STOPS, ChatRequest, CompletionRequest, GenerationRequest

R = TypeVar("R", bound=GenerationRequest)

Neutral = dict[str, tuple[object, ...]]
"""Known parameters that do not work yet, with the values (besides null) under which they would change nothing."""

BOTH: Neutral = {
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "cache_salt": (),
    "detokenize": (True,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "presence_penalty": (0,),
    "priority": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "request_id": (),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
CHAT: Neutral = BOTH | {
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": (),
    "function_call": ("none",),
    "functions": (),
    "include_reasoning": (True, False),
    "metadata": ({},),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "store": (False,),
    "tool_choice": ("none",),
    "tools": (),
    "verbosity": (),
    "web_search_options": (),
}
COMPLETION: Neutral = BOTH | {"prompt_embeds": (), "suffix": ("",)}

_PATH = re.compile(r" - at `\$\.?([^`]*)`$")


def chat_request(data: bytes) -> ChatRequest:
    """The body of a chat completion. Raises ApiError."""
    request = _read(data, ChatRequest, CHAT)
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    return request


def completion_request(data: bytes) -> CompletionRequest:
    """The body of a completion. Raises ApiError."""
    request = _read(data, CompletionRequest, COMPLETION)
    try:
        prompts = request.prompts()
    except ValueError as error:
        raise invalid(f"prompt {error}", "prompt") from error
    if len(prompts) * request.choices > MAX_CHOICES:
        raise invalid(f"prompts times n must not exceed {MAX_CHOICES}", "prompt")
    return request


def _read(data: bytes, kind: type[R], neutral: Neutral) -> R:
    fields = _object(data)
    known = {field.name for field in msgspec.structs.fields(kind)}
    for name, value in fields.items():
        if name in known:
            continue
        if name not in neutral:
            raise invalid(f"unknown parameter {name[:64]!r}", name, "unknown_parameter")
        if value is not None and value not in neutral[name]:
            raise unsupported(name)
    request = _convert({name: value for name, value in fields.items() if name in known}, kind)
    _check(request)
    return request


def _object(data: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise invalid("the body must be a JSON object", code="invalid_json")
    return fields


def _convert(fields: dict[str, Any], kind: type[R]) -> R:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from error


def _explain(text: str) -> ApiError:
    missing = re.match(r"Object missing required field `(\w+)`", text)
    if missing:
        return invalid(f"{missing[1]} is required", missing[1])
    found = _PATH.search(text)
    param = found[1] if found else None
    return invalid(f"{param or 'body'}: {_PATH.sub('', text)}", param)


def _check(request: GenerationRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options is only allowed with stream", "stream_options")
    if len(request.stops) > MAX_STOPS:
        raise invalid(f"at most {MAX_STOPS} stop strings are allowed", "stop")
    if "" in request.stops:
        raise invalid("a stop string must not be empty", "stop")
    if any(token < 0 for token in request.stop_token_ids or ()):
        raise invalid("token ids are not negative", "stop_token_ids")
