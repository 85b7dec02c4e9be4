"""Sampling: noise by hash, the same anywhere; the distribution is the model's."""

from __future__ import annotations

import pytest
import torch

from moesaic.engine.native.sampler import FLOOR, Draw, logprobs, sample
from moesaic.shared.messages import Sampling


def _one(logits: torch.Tensor, index: int = 0, **sampling: object) -> int:
    (token,) = sample(logits[None], [Draw(Sampling(max_tokens=9, **sampling), index)], eos=(0,))  # type: ignore[arg-type]
    return token


LOGITS = torch.tensor([0.0, 3.0, 2.0, 1.0, -1.0, 2.5])


def test_greedy_takes_the_most_likely() -> None:
    assert _one(LOGITS) == 1


def test_a_seed_gives_the_same_tokens_alone_and_in_any_batch() -> None:
    draws = [Draw(Sampling(max_tokens=9, temperature=0.9, seed=s), i) for s in range(4) for i in range(4)]
    together = sample(LOGITS.repeat(16, 1), draws, eos=())
    backwards = sample(LOGITS.repeat(16, 1), draws[::-1], eos=())[::-1]
    alone = [_one(LOGITS, d.index, temperature=0.9, seed=d.sampling.seed) for d in draws]
    assert together == backwards == alone
    assert len(set(together)) > 2


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 2}, {1, 5}),
        ({"top_p": 0.4}, {1}),
        ({"top_p": 0.7}, {1, 5}),
        ({"min_p": 0.5}, {1, 5}),
        ({"top_k": 1, "temperature": 5.0}, {1}),
    ],
)
def test_cuts_leave_exactly_the_tokens_they_should(settings: dict[str, object], allowed: set[int]) -> None:
    seen = {_one(LOGITS, i, **({"temperature": 1.0} | settings)) for i in range(300)}
    assert seen == allowed


def test_frequencies_follow_the_temperature_scaled_softmax() -> None:
    n = 6000
    draws = [Draw(Sampling(max_tokens=9, temperature=1.5, seed=7), i) for i in range(n)]
    counts = torch.bincount(torch.tensor(sample(LOGITS.repeat(n, 1), draws, eos=())), minlength=6)
    expected = torch.softmax(LOGITS / 1.5, 0) * n
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.5  # chi-square, 5 degrees, 0.1 %


def test_before_min_tokens_nothing_that_ends_the_output_is_drawn() -> None:
    assert _one(LOGITS, index=1, min_tokens=2, stop_token_ids=(1,)) == 5
    assert _one(LOGITS, index=2, min_tokens=2, stop_token_ids=(1,)) == 1


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    got = logprobs(LOGITS, token=2, top=2)
    want = torch.log_softmax(LOGITS.double(), 0)
    assert got.logprob == pytest.approx(float(want[2]))
    assert [t for t, _ in got.top] == [1, 5]


def test_an_impossible_token_has_a_logprob_that_json_can_say() -> None:
    assert logprobs(torch.tensor([0.0, -torch.inf]), token=1, top=2).logprob == FLOOR
