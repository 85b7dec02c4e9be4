"""A served model as the gateway sees it: its card, its tokenizer, its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from moesaic.gateway.errors import internal
from moesaic.gateway.template import BadTemplate, ChatTemplate
from moesaic.gateway.vocabulary import BadTokenizer, Vocabulary
from moesaic.shared.messages import ModelCard

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
"""What is read of a card's files."""
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class BadModel(ValueError):
    """A model whose files cannot be used."""


@dataclass(frozen=True)
class Model:
    """A model that can be served. `template` may be the reason why there is none: completions work without."""

    card: ModelCard
    vocabulary: Vocabulary
    template: ChatTemplate | str

    @property
    def chat_template(self) -> ChatTemplate:
        """The template. Raises ApiError if it cannot be used."""
        if isinstance(self.template, str):
            raise internal(self.template, "chat_template_error")
        return self.template


def build(card: ModelCard, files: Mapping[str, bytes]) -> Model:
    """A model from its files (takes a second for a large vocabulary). Raises BadModel."""
    if "tokenizer.json" not in files:
        raise BadModel("the model has no tokenizer.json")
    try:
        config = orjson.loads(files.get("tokenizer_config.json", b"{}"))
        vocabulary = Vocabulary(files["tokenizer.json"])
    except (orjson.JSONDecodeError, BadTokenizer) as error:
        raise BadModel(str(error)) from error
    if not isinstance(config, dict):
        raise BadModel("tokenizer_config.json is not an object")
    return Model(card, vocabulary, _template(config, files.get("chat_template.jinja")))


def _template(config: Mapping[str, Any], own_file: bytes | None) -> ChatTemplate | str:
    source = own_file.decode(errors="replace") if own_file is not None else _source(config.get("chat_template"))
    if source is None:
        return "the model has no chat template: use /v1/completions"
    tokens = {name: text for name in SPECIAL if (text := _content(config.get(name))) is not None}
    try:
        return ChatTemplate(source, tokens)
    except BadTemplate as error:
        return str(error)


def _source(given: object) -> str | None:
    """A template, or the one called `default` of several."""
    if isinstance(given, list):
        named = {item.get("name"): item.get("template") for item in given if isinstance(item, dict)}
        given = named.get("default")
    return given if isinstance(given, str) else None


def _content(token: object) -> str | None:
    """A special token's text: given as such, or as an object with its properties."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
