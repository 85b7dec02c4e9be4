from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tiny import ids, tiny
from moesaic.gateway.detokenize import BROKEN, LONGEST, Detokenizer

TOKENS = st.lists(st.integers(0, 6143), max_size=40)


def deltas(tokens: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(tiny().vocabulary.decode)
    return [*map(detokenizer.push, tokens), detokenizer.flush()]


@given(TOKENS)
@settings(max_examples=200, deadline=None)
def test_the_deltas_of_any_tokens_are_their_text(tokens: list[int]) -> None:
    assert "".join(deltas(tokens)) == tiny().vocabulary.decode(tokens)


@given(st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_a_split_character_never_shows_as_broken(text: str) -> None:
    if BROKEN not in text:
        assert not any(BROKEN in delta for delta in deltas(ids(text)))
        assert "".join(deltas(ids(text))) == tiny().vocabulary.decode(ids(text))


def test_a_character_over_several_tokens_comes_whole() -> None:
    tokens = ids("🜚")
    assert len(tokens) > 1
    assert deltas(tokens) == [""] * (len(tokens) - 1) + ["🜚", ""]


def test_a_broken_end_is_flushed() -> None:
    tokens = ids("a🜚")[:-1]
    assert "".join(deltas(tokens)) == "a" + BROKEN


def test_a_text_that_is_broken_throughout_does_not_pile_up() -> None:
    lead = ids("🜚")[0]
    decoded: list[int] = []

    def decode(tokens: Sequence[int]) -> str:
        decoded.append(len(tokens))
        return tiny().vocabulary.decode(tokens)

    detokenizer = Detokenizer(decode)
    for _ in range(3 * LONGEST):
        detokenizer.push(lead)
    assert max(decoded) == LONGEST


def test_special_tokens_show_only_on_request() -> None:
    vocabulary = tiny().vocabulary
    assert not vocabulary.decode([0])
    assert vocabulary.decode([0], skip_special=False) == "<|endoftext|>"
