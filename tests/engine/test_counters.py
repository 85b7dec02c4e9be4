from __future__ import annotations

import numpy as np

from moesaic.engine.counters import Counters
from moesaic.shared.messages import PhaseLoad

PARTS = [(3, 20, 0.002), (1, 5, 0.001)]
"""Active experts, tokens, seconds of each layer."""


def step(counters: Counters) -> None:
    counters.begin("decode", np.ones(5, dtype=bool))
    for layer, (experts, tokens, seconds) in enumerate(PARTS):
        counters.routed(layer, np.zeros((5, 1), dtype=np.int64))
        counters.executed(layer, np.array([tokens, 0]), 0, experts)
        counters.timed(experts, tokens, seconds)


def decode(counters: Counters) -> PhaseLoad:
    return counters.snapshot().phases["decode"]


def test_what_experts_took_is_summed_as_products_and_outlives_a_placement() -> None:
    counters = Counters(2, 4)
    for _ in range(2):
        step(counters)
        counters.end()
    counters.placed(1, 2, 1)
    rows = np.array([(1, experts, tokens, seconds * 1e3) for experts, tokens, seconds in PARTS] * 2)
    np.testing.assert_allclose(decode(counters).timing, (rows.T @ rows)[np.triu_indices(4)])


def test_the_time_of_steps_counts_from_the_placement_on() -> None:
    counters = Counters(2, 4)
    step(counters)
    counters.end()
    assert decode(counters).executed_us > 0
    counters.placed(1, 2, 1)
    assert (decode(counters).executed_us, decode(counters).executed_steps) == (0, 0)


def test_a_step_that_does_not_finish_is_not_timed() -> None:
    counters = Counters(2, 4)
    step(counters)
    counters.begin("decode", np.ones(5, dtype=bool))
    counters.end()
    assert decode(counters).timing == ()
    assert decode(counters).executed_steps == 1
