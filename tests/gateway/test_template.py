from __future__ import annotations

import msgspec
import pytest

from gateway.tiny import card, tiny
from moesaic.gateway.errors import ApiError
from moesaic.gateway.models import BadModel, build
from moesaic.gateway.template import BadTemplate, ChatTemplate

MESSAGES = [{"role": "user", "content": "<a> 'b' é"}]


def render(source: str, **extra: object) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES, extra)


def test_the_helpers_of_model_hubs_are_there() -> None:
    assert render("{{ bos_token }}{{ messages[0] | tojson }}") == '<s>{"role": "user", "content": "<a> \'b\' é"}'
    assert len(render("{{ strftime_now('%Y') }}")) == 4
    assert render("{% generation %}x{% endgeneration %}{% for i in [1, 2] %}{% break %}{% endfor %}") == "x"
    assert render("{% if add_generation_prompt %}yes{% endif %}{{ enable_thinking }}", enable_thinking=False) == (
        "yesFalse"
    )


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("{{ raise_exception('only users may speak') }}", 400),
        ("{{ nothing.at.all }}", 500),
        ("{{ 1 / 0 }}", 500),
        ("{{ messages[0].content.__class__.__mro__ }}", 500),
        ("{{ 'a' + 1 }}", 500),
    ],
)
def test_a_template_that_fails_is_an_answer_not_a_crash(source: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        render(source)
    assert caught.value.status == status
    assert "chat template" in caught.value.message


def test_template_arguments_cannot_replace_the_messages() -> None:
    with pytest.raises(ApiError) as caught:
        render("x", messages=[])
    assert caught.value.param == "chat_template_kwargs"


def test_a_template_that_cannot_be_compiled_says_so() -> None:
    with pytest.raises(BadTemplate, match="cannot be compiled"):
        ChatTemplate("{% if %}", {})


def test_a_model_with_a_broken_template_can_still_complete() -> None:
    files = {"tokenizer.json": tiny_tokenizer(), "chat_template.jinja": b"{% if %}"}
    model = build(card({}), files)
    with pytest.raises(ApiError, match="cannot be compiled"):
        _ = model.chat_template


def test_the_default_of_several_templates_is_taken() -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    config = msgspec.json.encode({"chat_template": named, "eos_token": {"content": "</s>"}})
    model = build(card({}), {"tokenizer.json": tiny_tokenizer(), "tokenizer_config.json": config})
    assert model.chat_template.render(MESSAGES) == "d"


@pytest.mark.parametrize("files", [{}, {"tokenizer.json": b"{}"}, {"tokenizer.json": b"\xff"}])
def test_a_model_without_a_usable_tokenizer_is_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(BadModel, match=r"tokenizer\.json"):
        build(card({}), files)


def tiny_tokenizer() -> bytes:
    return tiny().vocabulary._tokenizer.to_str().encode()
