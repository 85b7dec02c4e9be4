from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.mesh import HELLO
from gateway.tiny import tiny
from moesaic.gateway import plan
from moesaic.gateway.body import chat_request, completion_request
from moesaic.gateway.errors import ApiError


def chat(prompt: int = 3, **fields: Any) -> plan.Plan:
    request = chat_request(json.dumps(HELLO | {"model": "m"} | fields).encode())
    return plan.make(request, tiny(), [[5] * prompt], name="r", seed=99, deadline=1.0)


def test_the_defaults_are_those_of_the_api() -> None:
    sampling = chat().jobs[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (1.0, 1.0, 0, 99)
    assert sampling.max_tokens == 2048 - 3


def test_a_completion_has_a_default_length() -> None:
    request = completion_request(b'{"model": "m", "prompt": "x"}')
    made = plan.make(request, tiny(), [[5]], name="r", seed=0, deadline=1.0)
    assert made.jobs[0].sampling.max_tokens == 16


def test_every_choice_has_its_own_seed_and_name() -> None:
    jobs = chat(n=3, seed=7).jobs
    assert [job.sampling.seed for job in jobs] == [7, 8, 9]
    assert len({job.name for job in jobs}) == 3


def test_top_k_minus_one_means_all() -> None:
    assert chat(top_k=-1).jobs[0].sampling.top_k == 0


@pytest.mark.parametrize("fields", [{"prompt": 2048}, {"prompt": 2040, "max_tokens": 9}, {"max_tokens": 1 << 40}])
def test_what_does_not_fit_the_context_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


def test_what_just_fits_is_taken() -> None:
    assert chat(prompt=2040, max_tokens=8).jobs[0].sampling.max_tokens == 8


def test_more_min_tokens_than_tokens_are_refused() -> None:
    with pytest.raises(ApiError) as caught:
        chat(max_tokens=3, min_tokens=4)
    assert caught.value.param == "min_tokens"


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    request = completion_request(b'{"model": "m", "prompt": [6144]}')
    with pytest.raises(ApiError) as caught:
        plan.make(request, tiny(), [[6144]], name="r", seed=0, deadline=1.0)
    assert caught.value.param == "prompt"
