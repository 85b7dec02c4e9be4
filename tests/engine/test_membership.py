"""How engines change their group's record."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moesaic.engine import membership
from moesaic.shared.messages import Group, Member


def _mine(engine: str, boot: str = "1", size: int = 2, digest: str = "d") -> Group:
    me = Member(engine=engine, boot=boot, node="n", device="cpu", host="h", bell=1, slots=9, spare=1)
    return Group(
        group="g", generation=1, size=size, model="m", model_digest=digest, layers=1, experts=4, top_k=1, slot_bytes=1,
        members=(me,),
    )  # fmt: skip


def _claim(record: Group | None, mine: Group, silent: tuple[str, ...] = ()) -> Group | None:
    return membership.claim(record, mine, lambda member: member.engine in silent)


def _two() -> Group:
    record = _claim(_claim(None, _mine("a")), _mine("b"))
    assert record is not None
    return record


def test_the_first_begins_the_record_and_the_next_joins_it() -> None:
    record = _two()
    assert [m.engine for m in record.members] == ["a", "b"]
    assert record.generation == 2


def test_a_restarted_engine_takes_its_old_rank_in_a_new_generation() -> None:
    record = membership.opened(membership.ready(membership.ready(_two(), 0), 1), "h:1")
    assert record.formed
    after = _claim(record, _mine("a", boot="2"))
    assert after is not None
    assert (after.rank_of("a", "2"), after.rank_of("b", "1"), after.generation) == (0, 1, 3)
    assert not after.formed
    assert not membership.all_ready(after)


def test_a_full_group_takes_nobody_unless_a_member_is_silent() -> None:
    assert _claim(_two(), _mine("c")) is None
    after = _claim(_two(), _mine("c"), silent=("b",))
    assert after is not None
    assert [m.engine for m in after.members] == ["a", "c"]


def test_a_record_of_another_size_or_model_begins_anew_with_a_later_generation() -> None:
    for mine in (_mine("a", size=3), _mine("a", digest="other")):
        after = _claim(_two(), mine)
        assert after is not None
        assert (len(after.members), after.generation) == (1, 3)


def test_a_lost_generation_is_followed_by_one_in_which_nobody_is_ready_yet() -> None:
    record = membership.opened(membership.ready(membership.ready(_two(), 0), 1), "h:1")
    after = membership.renew(record)
    assert (after.generation, after.store, after.formed) == (3, "", False)
    assert replace(after, generation=2) == _two()


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("12"), st.booleans()), max_size=30))
def test_generations_only_grow_and_nobody_has_two_ranks(events: list[tuple[str, str, bool]]) -> None:
    record, generation = None, 0
    for engine, boot, silent in events:
        after = _claim(record, _mine(engine, boot, size=3), silent=("a", "b") if silent else ())
        if after is None:
            continue
        record = after
        assert record.generation > generation
        generation = record.generation
        names = [m.engine for m in record.members]
        assert len(names) == len(set(names)) <= 3
        assert record.rank_of(engine, boot) is not None
