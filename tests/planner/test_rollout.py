from __future__ import annotations

from moesaic.planner.rollout import BACK_OFF_S, OnTheWay, Rollout


def rolling(*, instalments: int = 2, going_back: bool = False) -> Rollout:
    rollout = Rollout(timeout_s=30.0)
    rollout.stored(OnTheWay(7, 3, instalments, domain=0, since=100.0, going_back=going_back))
    return rollout


def test_nothing_else_is_proposed_while_one_is_on_its_way() -> None:
    assert "7" in rolling().busy(0, 101.0)


def test_a_changed_domain_overtakes_what_is_on_its_way() -> None:
    assert rolling().busy(1, 101.0) == ""


def test_it_is_done_with_its_last_instalment() -> None:
    rollout = rolling()
    assert rollout.committed(7, 1, 2, 101.0) == "progress"
    assert rollout.committed(7, 2, 2, 102.0) == "done"
    assert rollout.busy(0, 102.0) == ""


def test_a_commit_of_another_epoch_is_not_its_business() -> None:
    assert rolling().committed(6, 2, 2, 101.0) == "not mine"


def test_a_refusal_backs_off_longer_each_time() -> None:
    rollout = rolling()
    assert rollout.refused(7, "why", 100.0) is not None
    assert rollout.busy(0, 100.0 + BACK_OFF_S / 2)
    rollout.stored(OnTheWay(9, 3, 1, domain=0, since=200.0))
    rollout.refused(9, "why", 200.0)
    assert rollout.busy(0, 200.0 + BACK_OFF_S * 1.5)
    assert rollout.busy(0, 200.0 + BACK_OFF_S * 2) == ""


def test_a_refusal_of_another_epoch_changes_nothing() -> None:
    rollout = rolling()
    assert rollout.refused(6, "why", 101.0) is None
    assert rollout.on_the_way is not None


def test_progress_moves_the_deadline_and_silence_ends_it() -> None:
    rollout = rolling()
    rollout.staged(7, 120.0)
    assert rollout.expired(149.0) is None
    failed, why = rollout.expired(150.0) or (None, "")
    assert "no progress" in why
    assert failed is not None
    assert failed.before == 3


def test_going_back_does_not_end_the_back_off() -> None:
    rollout = rolling(going_back=True, instalments=1)
    rollout.hold(160.0)
    assert rollout.committed(7, 1, 1, 101.0) == "done"
    assert rollout.busy(0, 159.0)


def test_a_new_generation_starts_over() -> None:
    rollout = rolling()
    rollout.refused(7, "why", 100.0)
    rollout.start_over()
    assert rollout.busy(0, 100.0) == ""


def test_a_refusal_that_comes_before_the_news_of_its_epoch_counts_at_once() -> None:
    rollout = Rollout(timeout_s=30.0)
    assert rollout.refused(7, "homeless", 99.0) is None
    rollout.stored(OnTheWay(7, 5, 1, 0, since=100.0))
    assert rollout.deadline == 100.0
    assert rollout.expired(100.0) == (OnTheWay(7, 5, 1, 0, since=100.0), "was refused: homeless")
    assert rollout.on_the_way is None
