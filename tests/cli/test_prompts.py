"""The prompts that `moesaic load` sends."""

from __future__ import annotations

import pytest

from moesaic.cli.prompts import domains, prompts

DOMAINS = ["c", "code", "doc", "en", "math", "zh"]


def test_there_are_six_domains() -> None:
    assert domains() == DOMAINS


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_has_a_dozen_different_prompts_of_a_sentence_or_two(domain: str) -> None:
    texts = prompts(domain)
    assert len(set(texts)) == len(texts) >= 12
    assert all(40 <= len(text) <= 300 for text in texts)
    assert all(text == text.strip() and "%%" not in text for text in texts)


def test_the_sums_of_the_arithmetic_prompts_are_right() -> None:
    lines = [line for text in prompts("math") for line in text.splitlines() if not line.endswith("=")]
    for line in lines:
        left, sign, right, _, result = line.split()
        expected = int(left) + int(right) if sign == "+" else int(left) * int(right)
        assert int(result) == expected, line


def test_an_unknown_domain_is_an_error() -> None:
    with pytest.raises(KeyError):
        prompts("poetry")
