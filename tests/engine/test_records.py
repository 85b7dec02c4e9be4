"""What follows from the ranks' records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moesaic.engine.native.records import WIDTH, GenerationMixed, Record, decide

READY = Record(generation=3, prefill=0, decode=2, epoch=5, instalment=1, digest=77, staged=1)


def test_a_record_survives_being_packed() -> None:
    assert len(READY.pack()) == WIDTH
    assert Record(*READY.pack()) == READY


def test_all_equal_and_staged_is_a_commit() -> None:
    assert decide([READY, replace(READY, decode=0, prefill=9)]).commit


@pytest.mark.parametrize("other", [{"staged": 0}, {"staged": -1}, {"epoch": 6}, {"instalment": 2}, {"digest": 78}])
def test_any_difference_leaves_everybody_where_they_are(other: dict[str, int]) -> None:
    assert not decide([READY, replace(READY, **other)]).commit
    assert not decide([replace(READY, **other), READY]).commit


def test_no_target_is_no_commit() -> None:
    assert not decide([Record(1, 0, 0), Record(1, 0, 0)]).commit


def test_sizes_and_phase_come_from_all_records() -> None:
    decision = decide([Record(1, 0, 4), Record(1, 7, 1)])
    assert (decision.sizes, decision.phase, decision.tokens) == ((4, 8), "prefill", 12)
    assert decide([Record(1, 0, 4), Record(1, 0, 0)]).phase == "decode"


def test_a_leaving_rank_is_seen_by_all() -> None:
    assert decide([Record(1, 0, 0), Record(1, 0, 0, leaving=1)]).leaving == (1,)


def test_generations_do_not_mix() -> None:
    with pytest.raises(GenerationMixed):
        decide([Record(1, 0, 0), Record(2, 0, 0)])
