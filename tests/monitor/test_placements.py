from __future__ import annotations

import pytest

from moesaic.monitor.placements import Measured, Placements
from moesaic.shared.messages import Forecast, PlacementEvent, PlacementEventName, Source


def event(name: PlacementEventName, seq: int, *, epoch: int = 7, instalment: int = 1) -> PlacementEvent:
    return PlacementEvent(
        event=name,
        source=Source(producer="a", boot="b", seq=seq),
        at=float(seq),
        group="g",
        generation=1,
        epoch=epoch,
        instalment=instalment,
        instalments=2,
        moves=3,
        bytes=30,
        stall_ms=0.5 * instalment,
        reason="skew" if name == "proposed" else "no room",
        forecast=Forecast(balance_now=0.5, balance_next=0.9, moves=6, bytes=60) if name == "proposed" else None,
    )


def window(balance: float, weight: int, *, epoch: int = 0, instalment: int = 0) -> Measured:
    return Measured((1, epoch, instalment), {"decode": (balance, weight)})


def test_the_last_placement_adds_up_its_instalments() -> None:
    placements = Placements()
    for e in (event("proposed", 1), event("committed", 2), event("committed", 3, instalment=2)):
        placements.take(e)
    last = placements.last()
    assert last is not None
    assert (last["moves"], last["bytes"], last["stall_ms"], last["reason"]) == (6, 60, 1.0, "skew")
    assert last["forecast"]["balance_next"] == 0.9


def test_what_it_gained_is_weighed_with_tokens_before_and_after() -> None:
    placements = Placements()
    placements.window(window(0.5, 1))
    placements.window(window(0.8, 3))
    placements.window(window(0.1, 99, epoch=7, instalment=1))
    placements.take(event("committed", 1, instalment=2))
    placements.window(window(0.9, 5, epoch=7, instalment=2))
    last = placements.last()
    assert last is not None
    assert (last["balance_before"], last["balance_after"]) == (pytest.approx(0.725), 0.9)


def test_a_window_that_comes_before_its_event_counts_as_after() -> None:
    placements = Placements()
    placements.window(window(0.9, 5, epoch=7, instalment=2))
    placements.take(event("committed", 1, instalment=2))
    last = placements.last()
    assert last is not None
    assert (last["balance_before"], last["balance_after"]) == (None, 0.9)


def test_a_repeated_event_counts_once() -> None:
    placements = Placements()
    for _ in range(2):
        placements.take(event("committed", 1))
    assert placements.moves == 3


def test_a_refusal_is_kept_with_its_reason() -> None:
    placements = Placements()
    placements.take(event("refused", 1))
    assert placements.last_refused() == {"epoch": 7, "at": 1.0, "reason": "no room"}
    assert placements.last() is None
