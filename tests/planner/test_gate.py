from __future__ import annotations

import math

import numpy as np

from moesaic.planner.gate import Terms, Verdict, judge
from moesaic.planner.predict import Outlook

TERMS = Terms(min_gain=0.1, settle_s=20.0, horizon_s=60.0, drag=0.5, stall_s=0.1)


def verdict(
    then: int, *, moving_s: float = 0.0, instalments: int = 1, settled_for: float = math.inf, now: int = 100
) -> Verdict:
    mean = np.array([50.0])
    outlooks = [Outlook(mean, np.array([float(most)])) for most in (now, then)]
    return judge(outlooks[0], outlooks[1], moving_s, instalments, TERMS, settled_for)


def test_a_gain_below_the_least_is_not_worth_a_move() -> None:
    assert not verdict(91).go
    assert verdict(89).go


def test_a_gain_that_costs_more_to_move_than_it_saves_is_not_worth_it() -> None:
    assert verdict(50, moving_s=59.0).go  # 30 s saved, half of 59 s and a tenth lost
    assert not verdict(50, moving_s=61.0).go
    assert not verdict(50, moving_s=59.0, instalments=10).go


def test_right_after_a_placement_a_further_one_needs_thrice_the_gain() -> None:
    assert not verdict(75, settled_for=0.0).go
    assert verdict(70, settled_for=0.0).go
    assert verdict(75, settled_for=15.0).go


def test_without_load_nothing_is_worth_a_move() -> None:
    assert not verdict(0, now=0).go
