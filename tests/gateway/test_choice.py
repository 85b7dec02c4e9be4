from __future__ import annotations

from typing import Any

from gateway.tiny import STOP, ids, tiny
from moesaic.gateway.choice import Choice, Delta
from moesaic.gateway.stops import Stops
from moesaic.gateway.streams import Piece


def choice(*strings: str, **changes: Any) -> Choice:
    fields: dict[str, Any] = {"stop_ids": (), "eos": (STOP,)} | changes
    return Choice(tiny().vocabulary.decode, Stops(strings), **fields)


def piece(tokens: list[int], finish: str | None = None, index: int = 0) -> Piece:
    return Piece(index, tuple(tokens), (), finish, 0)


def test_tokens_after_a_stop_string_are_neither_text_nor_counted() -> None:
    tokens = ids("one two three four")
    delta = choice("two").push(piece(tokens, "length"))
    assert (delta.text, delta.finish, delta.stop_reason) == ("one ", "stop", "two")
    assert tiny().vocabulary.decode(delta.tokens).endswith("two")
    assert len(delta.tokens) < len(tokens)


def test_text_that_only_looked_like_a_stop_string_comes_at_the_end() -> None:
    one = choice("two three")
    first = one.push(piece(ids("one two")))
    last = one.push(piece([STOP], "stop", len(ids("one two"))))
    assert first.text == "one "
    assert (last.text, last.finish, last.stop_reason) == ("two", "stop", None)


def test_the_token_that_ends_it_is_counted_but_no_text() -> None:
    token = ids("!")[0]
    delta = choice(stop_ids=(token,)).push(piece([*ids("hi"), token], "stop"))
    assert (delta.text, delta.stop_reason, len(delta.tokens)) == ("hi", token, len(ids("hi")) + 1)


def test_the_same_token_in_the_middle_is_text() -> None:
    token = ids("!")[0]
    delta: Delta = choice(stop_ids=(token,)).push(piece([token, *ids("hi")], "length"))
    assert delta.text == "!hi"


def test_stop_strings_wait_for_min_tokens() -> None:
    tokens = ids("a.b.c.d")
    assert choice(".", min_tokens=3).push(piece(tokens, "length")).text.count(".") > 0
    assert choice(".", min_tokens=len(tokens)).push(piece(tokens, "length")).text == "a.b.c.d"


def test_a_split_character_at_the_end_is_flushed() -> None:
    assert choice().push(piece(ids("a🜚")[:-1], "length")).text == "a\ufffd"
