from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.gateway.streams import Arrivals
from moesaic.shared.messages import Frame, WireError


def frame(index: int, *tokens: int, finish: str | None = None) -> Frame:
    return Frame(request="r", from_index=index, tokens=tokens, finish=finish)  # type: ignore[arg-type]  # a test


def test_overlapping_tokens_are_taken_once() -> None:
    arrivals = Arrivals()
    for each in (frame(0, 1, 2), frame(1, 2, 3), frame(0, 1)):
        assert arrivals.take(each)
    piece = arrivals.give()
    assert piece is not None
    assert piece.tokens == (1, 2, 3)
    assert arrivals.give() is None


def test_a_frame_beyond_a_gap_is_not_taken() -> None:
    arrivals = Arrivals()
    assert not arrivals.take(frame(1, 2, finish="stop"))
    assert arrivals.next_index == 0
    assert arrivals.finish is None


def test_the_end_is_given_once_with_the_last_tokens() -> None:
    arrivals = Arrivals()
    arrivals.take(frame(0, 1))
    arrivals.take(frame(1, 2, finish="length"))
    arrivals.take(frame(0, 1, 2, finish="length"))
    piece = arrivals.give()
    assert piece is not None
    assert (piece.tokens, piece.finish) == ((1, 2), "length")


def test_another_engine_goes_on_after_an_error() -> None:
    arrivals = Arrivals()
    arrivals.take(frame(0, 1))
    arrivals.take(Frame(request="r", from_index=1, error=WireError(code="lost_group", message="gone")))
    assert arrivals.error is not None
    arrivals.begin_again()
    assert arrivals.take(frame(1, 2))
    assert arrivals.tokens == [1, 2]
    assert arrivals.error is None


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=6))
@settings(deadline=None)
def test_whatever_the_order_a_replay_completes_it(order: list[int], again: list[int]) -> None:
    frames = [frame(i, i, finish="stop" if i == 5 else None) for i in range(6)]
    arrivals = Arrivals()
    for place in [*order, *again]:
        if not arrivals.take(frames[place]):
            arrivals.take(frame(arrivals.next_index, *range(arrivals.next_index, place + 1)))
    arrivals.take(frame(0, *range(6), finish="stop"))
    assert arrivals.tokens == list(range(6))
    assert arrivals.finish == "stop"
