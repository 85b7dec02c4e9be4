from __future__ import annotations

import numpy as np

from moesaic.planner.load import Load, Memory
from planner.samples import EXPERTS, LAYERS, skewed

MEMORY = Memory(fast_s=2.0, slow_s=50.0, same_domain=0.8, min_tokens=16.0)


def loaded(*windows: np.ndarray) -> Load:
    load = Load(MEMORY, LAYERS, EXPERTS)
    for tokens in windows:
        load.add(tokens, 1.0)
    return load


def test_counts_fade_with_their_half_life() -> None:
    load = loaded(skewed())
    load.add(skewed() * 0, 2.0)
    assert np.allclose(load.fast, skewed() / 2)
    assert (load.slow > 0.9 * skewed()).all()


def test_few_tokens_are_not_enough() -> None:
    assert not loaded(skewed(scale=1)).enough
    assert loaded(skewed(scale=50)).enough


def test_another_domain_is_noticed_and_replaces_the_old_counts() -> None:
    load = loaded(*[skewed(0)] * 20)
    assert load.domain == 0
    for _ in range(6):
        load.add(skewed(4), 1.0)
    assert load.domain >= 1
    assert load.counts()[0].argmax() == 4


def test_the_same_domain_with_counting_noise_stays_the_same() -> None:
    noise = np.random.default_rng(1)
    assert loaded(*[noise.poisson(skewed(scale=4)) for _ in range(30)]).domain == 0


def test_an_even_load_says_nothing_of_domains() -> None:
    noise = np.random.default_rng(2)
    load = loaded(*[noise.poisson(np.full((LAYERS, EXPERTS), 10)) for _ in range(30)])
    assert (load.similarity(), load.domain) == (None, 0)


def test_a_layer_without_tokens_does_no_harm() -> None:
    tokens = skewed()
    tokens[1] = 0
    assert loaded(tokens, tokens).similarity() is not None
