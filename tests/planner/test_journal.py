from __future__ import annotations

from moesaic.planner.journal import KEPT, Decision, Journal, Kind
from moesaic.shared import log


def kinds(*said: Kind) -> list[tuple[str, int]]:
    journal = Journal(log.get("test"))
    for at, kind in enumerate(said):
        journal.add(Decision(kind, "because", float(at)))
    return [(shown["kind"], shown["times"]) for shown in journal.shown()]


def test_decisions_not_to_move_are_told_once_with_how_often_they_were_taken() -> None:
    assert kinds("too_soon", "best_already", "too_soon", "best_already") == [("best_already", 2), ("too_soon", 2)]


def test_what_was_done_stands_between_them() -> None:
    assert kinds("too_soon", "proposed", "too_soon") == [("too_soon", 1), ("proposed", 1), ("too_soon", 1)]


def test_what_was_done_is_never_merged_and_only_the_newest_are_kept() -> None:
    said: list[Kind] = ["proposed"] * (KEPT + 5)
    assert kinds(*said) == [("proposed", 1)] * KEPT
