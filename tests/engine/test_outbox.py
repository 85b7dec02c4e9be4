"""Frames are numbered, kept, and asked for again."""

from __future__ import annotations

from moesaic.engine.backend import Output
from moesaic.engine.outbox import HEARTBEAT_S, KEEP_S, Outbox


def _outbox() -> Outbox:
    outbox = Outbox("e", "boot")
    outbox.open("r", "g1", 0)
    outbox.open("s", "g1", 3)
    outbox.open("t", "g2", 0)
    return outbox


def test_a_step_is_one_message_per_gateway_numbered_for_it() -> None:
    messages = _outbox().add([Output("r", 0, (7,)), Output("s", 3, (8,)), Output("t", 0, (9,))], now=0.0)
    assert [(gateway, len(m.frames), m.source.seq) for gateway, m in messages] == [("g1", 2, 1), ("g2", 1, 1)]


def test_tokens_can_be_asked_for_again_from_any_index() -> None:
    outbox = _outbox()
    outbox.add([Output("s", 3, (8,)), Output("s", 4, (9,), finish="stop")], now=0.0)
    frame = outbox.replay("s", 4)
    assert frame is not None
    assert (frame.from_index, frame.tokens, frame.finish) == (4, (9,), "stop")
    whole = outbox.replay("s", 0)
    assert whole is not None
    assert (whole.from_index, whole.tokens) == (3, (8, 9))
    assert outbox.replay("unknown", 0) is None


def test_a_silent_gateway_with_streams_gets_heartbeats() -> None:
    outbox = _outbox()
    outbox.add([Output("t", 0, (9,))], now=100.0)
    assert [g for g, _ in outbox.tick(now=100.0 + HEARTBEAT_S / 2)] == ["g1"]
    assert [g for g, _ in outbox.tick(now=100.0 + 2 * HEARTBEAT_S)] == ["g1", "g2"]


def test_a_finished_stream_is_kept_until_acknowledged_or_too_old() -> None:
    outbox = _outbox()
    outbox.add([Output("r", 0, (7,), finish="stop"), Output("t", 0, (9,), finish="stop")], now=0.0)
    outbox.close("t")
    assert "t" not in outbox
    outbox.tick(now=KEEP_S)
    assert "r" in outbox
    outbox.tick(now=KEEP_S + 1)
    assert "r" not in outbox
    assert outbox.live() == 1


def test_tokens_of_a_cancelled_stream_are_dropped() -> None:
    outbox = _outbox()
    outbox.close("r")
    assert outbox.add([Output("r", 0, (7,))], now=0.0) == []
