"""A model's chat template: Jinja in a sandbox, with the helpers that templates on model hubs rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from moesaic.gateway.errors import internal, invalid

RESERVED = frozenset({"self", "messages", "add_generation_prompt", "tools", "documents"})


class BadTemplate(ValueError):
    """A chat template that cannot be compiled."""


class _Refused(Exception):
    """The template itself refuses the conversation."""


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what an assistant wrote; here it only prints it."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own declaration of this attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The marked nodes, unmarked."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """From a conversation to the prompt's text."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self.knows_developer = "developer" in source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BadTemplate(f"the model's chat template cannot be compiled: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], extra: Mapping[str, Any] | None = None) -> str:
        """The prompt, with the beginning of the assistant's turn. Raises ApiError."""
        clash = RESERVED & set(extra or ())
        if clash:
            raise invalid(f"chat_template_kwargs must not set {min(clash)}", "chat_template_kwargs")
        values = {**self._special_tokens, "tools": None, "documents": None, **(extra or {})}
        try:
            return self._template.render(**values, messages=messages, add_generation_prompt=True)
        except _Refused as error:
            raise invalid(f"the model's chat template refuses this conversation: {error}", "messages") from error
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise internal(f"the model's chat template failed: {error}", "chat_template_error") from error
        except RecursionError as error:
            raise invalid("messages are nested too deeply", "messages") from error


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without HTML escapes, unlike Jinja's own."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
