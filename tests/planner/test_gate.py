from __future__ import annotations

import math

import numpy as np

from moesaic.planner.gate import Terms, Verdict, judge
from moesaic.planner.predict import Outlook

TERMS = Terms(min_gain=0.1, settle_s=20.0, horizon_s=60.0, bytes_per_s=1e6)


def verdict(then: int, *, size: int = 0, settled_for: float = math.inf, now: int = 100) -> Verdict:
    total = np.array([100])
    return judge(Outlook(total, np.array([now]), 2), Outlook(total, np.array([then]), 2), size, TERMS, settled_for)


def test_a_gain_below_the_least_is_not_worth_a_move() -> None:
    assert not verdict(91).go
    assert verdict(89).go


def test_a_gain_that_costs_more_to_move_than_it_saves_is_not_worth_it() -> None:
    assert verdict(50, size=29_000_000).go
    assert not verdict(50, size=31_000_000).go


def test_right_after_a_placement_a_further_one_needs_thrice_the_gain() -> None:
    assert not verdict(75, settled_for=0.0).go
    assert verdict(70, settled_for=0.0).go
    assert verdict(75, settled_for=15.0).go


def test_without_load_nothing_is_worth_a_move() -> None:
    assert not verdict(0, now=0).go
