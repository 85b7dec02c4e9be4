"""The background's allowance and its errors."""

from __future__ import annotations

import threading

import pytest

from moesaic.engine.native.staging import Allowance, Background, Cancelled


def _spend(allowance: Allowance, pieces: int, size: int) -> tuple[threading.Thread, list[int]]:
    """Spend in a thread; the list grows with each piece."""
    spent: list[int] = []

    def work() -> None:
        for _ in range(pieces):
            allowance.spend(size, lambda: False)
            spent.append(size)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, spent


def test_without_steps_there_is_no_limit() -> None:
    thread, spent = _spend(Allowance(10), pieces=100, size=50)
    thread.join(5)
    assert len(spent) == 100


def test_bytes_over_many_steps_stay_within_their_allowance_also_in_large_pieces() -> None:
    allowance, most = Allowance(100), 0
    allowance.step()
    thread, spent = _spend(allowance, pieces=40, size=70)
    for steps in range(2, 60):
        thread.join(0.01)  # give it time to take more than it may
        most = max(most, sum(spent) - 100 * (steps - 1))
        allowance.step()
        if not thread.is_alive():
            break
    assert len(spent) == 40
    assert most <= 70  # never further ahead than one piece


def test_what_is_spent_while_idle_is_not_owed_later() -> None:
    allowance = Allowance(100)
    thread, _ = _spend(allowance, pieces=100, size=100)
    thread.join(5)
    allowance.step()
    thread, spent = _spend(allowance, pieces=1, size=50)
    thread.join(5)
    assert spent == [50]


def test_a_waiting_spender_can_be_called_off() -> None:
    allowance, cancelled, seen = Allowance(10), threading.Event(), threading.Event()
    allowance.step()
    allowance.spend(10, lambda: False)

    def work() -> None:
        with pytest.raises(Cancelled):
            allowance.spend(10, cancelled.is_set)
        seen.set()

    threading.Thread(target=work, daemon=True).start()
    cancelled.set()
    allowance.wake()
    assert seen.wait(5)


def _fail() -> None:
    raise ValueError("no such slot")


def test_an_error_in_a_job_is_told_and_the_next_job_runs() -> None:
    told: list[str] = []
    done = threading.Event()
    background = Background("test", told.append)
    background.submit(_fail)
    background.submit(done.set)
    assert done.wait(5)
    background.close()
    assert told == ["staging: ValueError: no such slot"]
