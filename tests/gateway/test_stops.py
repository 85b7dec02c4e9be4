from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.gateway.stops import Stops

TEXT = st.text("ab.", max_size=24)
STRINGS = st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3)


def run(strings: list[str], pieces: list[str]) -> tuple[str, str | None]:
    stops = Stops(strings)
    out = "".join(map(stops.push, pieces))
    return out + ("" if stops.matched else stops.flush()), stops.matched


@given(STRINGS, TEXT, st.lists(st.integers(0, 24), max_size=6))
@settings(max_examples=400, deadline=None)
def test_it_does_not_matter_how_the_text_is_cut(strings: list[str], text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert run(strings, pieces) == run(strings, [text])


@given(STRINGS, TEXT)
@settings(max_examples=400, deadline=None)
def test_what_is_released_holds_no_stop_string_and_is_the_text_before_one(strings: list[str], text: str) -> None:
    out, matched = run(strings, list(text))
    if matched is None:
        assert out == text
        assert not any(s in text for s in strings)
    else:
        assert text.startswith(out + matched)
        assert not any(s in out for s in strings)


@given(STRINGS, TEXT)
@settings(max_examples=200, deadline=None)
def test_only_a_possible_beginning_is_held_back(strings: list[str], text: str) -> None:
    stops = Stops(strings)
    out = "".join(map(stops.push, text))
    held = stops.flush()
    if stops.matched is None:
        assert out + held == text
        assert not held or any(s.startswith(held) for s in strings)


@pytest.mark.parametrize(("include", "out"), [(False, "one "), (True, "one END")])
def test_the_stop_string_itself_comes_only_on_request(include: bool, out: str) -> None:
    stops = Stops(["END"], include=include)
    assert stops.push("one E") + stops.push("ND two") == out
    assert stops.matched == "END"
    assert not stops.push("more")
