from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.shared import names, subjects

FOREIGN = st.text(min_size=1).filter(lambda text: text != subjects.ANY and text.isprintable())


@given(FOREIGN)
def test_any_foreign_name_survives_its_token(name: str) -> None:
    assert subjects.untoken(subjects.token(name)) == name


@given(FOREIGN)
def test_any_foreign_name_is_one_subject_token_and_a_valid_key(name: str) -> None:
    token = subjects.token(name)
    names.check_key(token)
    names.check_subject(f"moesaic.{token}")
    assert re.fullmatch(r"[A-Za-z0-9=_-]+", token)


@given(FOREIGN, FOREIGN)
def test_different_names_have_different_tokens(one: str, other: str) -> None:
    assert (subjects.token(one) == subjects.token(other)) == (one == other)


def test_a_model_name_is_readable_in_its_token() -> None:
    assert subjects.generate("a/b.c") == "moesaic.v1.engine.a=2Fb=2Ec.generate"


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        subjects.token("")


@pytest.mark.parametrize(
    ("pattern", "concrete"),
    [
        (subjects.load(), subjects.load("group", "engine")),
        (subjects.load("group"), subjects.load("group", "engine")),
        (subjects.status(), subjects.status("engine.1")),
        (subjects.imbalance(), subjects.imbalance("a b")),
        (subjects.placement(), subjects.placement("group", "committed")),
        (subjects.placement(event="refused"), subjects.placement("group", "refused")),
    ],
)
def test_a_subject_without_a_name_stands_for_all_of_its_kind(pattern: str, concrete: str) -> None:
    assert names.matches(pattern, concrete)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b.c", False),
        ("*.b", "a.b", True),
        ("a.>", "a", False),
        (">", "a.b.c", True),
        ("a.*.>", "a.b.c.d", True),
        ("a.b.c", "a.b", False),
    ],
)
def test_patterns_match_as_in_nats(pattern: str, subject: str, expected: bool) -> None:
    assert names.matches(pattern, subject) is expected


@pytest.mark.parametrize("subject", ["a.*.b", "a.>", "*"])
def test_wildcards_are_allowed_only_where_asked_for(subject: str) -> None:
    names.check_subject(subject, wild=True)
    with pytest.raises(ValueError, match="wildcard"):
        names.check_subject(subject)


@pytest.mark.parametrize("subject", ["a.>.b", "a*.b", "a.b>"])
def test_a_misplaced_wildcard_is_refused_even_in_a_pattern(subject: str) -> None:
    with pytest.raises(ValueError, match="wildcard"):
        names.check_subject(subject, wild=True)
