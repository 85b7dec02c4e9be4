from __future__ import annotations

from moesaic.gateway.lives import Lives
from moesaic.shared.messages import Source


def source(boot: str, seq: int) -> Source:
    return Source(producer="e", boot=boot, seq=seq)


def test_missing_numbers_are_counted_from_the_first() -> None:
    lives = Lives()
    assert [lives.missed(source("a", seq)) for seq in (2, 3, 7, 5, 8)] == [1, 0, 3, 0, 0]


def test_a_former_life_is_not_believed_again() -> None:
    lives = Lives()
    assert lives.see(source("a", 1))
    assert lives.see(source("b", 1))
    assert not lives.see(source("a", 2))
    assert lives.boot("e") == "b"


def test_a_new_life_counts_anew() -> None:
    lives = Lives()
    for said in (source("a", 1), source("b", 1), source("b", 2)):
        lives.see(said)
        assert lives.missed(said) == 0
